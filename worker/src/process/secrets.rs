//! Keeps the values of variables that may be keys out of what is kept and shown.
//!
//! What comes in pieces, and may be cut later, goes through a [`Veil`] first: half a secret is one too.

use super::ALLOWED;

/// Shorter values are words such as `1` or `true`.
const SHORTEST: usize = 6;

/// Words in the names of variables that hold keys.
const KEYS: &[&str] = &["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "PRIVATE", "AUTH"];
/// The shortest value of such a variable that a change must not hold, in bytes.
const SHORTEST_KEY: usize = 8;

/// A variable and its value.
#[derive(Clone, PartialEq, Eq)]
struct Secret {
    value: String,
    name: String,
    /// What stands in its place.
    shown: String,
}

/// What must not show.
#[derive(Clone, Default)]
pub struct Secrets {
    /// The longest first: one may be a part of another.
    all: Vec<Secret>,
}

impl Secrets {
    /// The values of the variables of these names, where they are set.
    pub fn of(names: &[String]) -> Self {
        let known = names.iter().filter(|name| !ALLOWED.contains(&name.as_str()));
        let values = known.filter_map(|name| Some((name, std::env::var(name).ok()?)));
        Self::from(values.filter(|(_, value)| value.len() >= SHORTEST).map(|(name, value)| Secret {
            value,
            name: name.clone(),
            shown: format!("[{name}]"),
        }))
    }

    fn from(secrets: impl Iterator<Item = Secret>) -> Self {
        let mut all: Vec<Secret> = Vec::new();
        for secret in secrets {
            if !all.contains(&secret) {
                all.push(secret);
            }
        }
        all.sort_by_key(|secret| std::cmp::Reverse(secret.value.len()));
        Self { all }
    }

    /// These, and the values of more variables.
    #[must_use]
    pub fn and(&self, names: &[String]) -> Self {
        Self::from(self.all.iter().cloned().chain(Self::of(names).all))
    }

    /// The keys among them, which no change may hold. What else commands are given are settings, whose values, such as
    /// `production`, belong into files and into what gates and reviewers say.
    #[must_use]
    pub fn keys(&self) -> Self {
        let says_so = |name: &str| KEYS.iter().any(|word| name.to_ascii_uppercase().contains(word));
        let is_key = |secret: &&Secret| secret.value.len() >= SHORTEST_KEY && says_so(&secret.name);
        Self { all: self.all.iter().filter(is_key).cloned().collect() }
    }

    /// Names and values.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        self.all.iter().map(|secret| (secret.name.clone(), secret.value.clone())).collect()
    }

    /// A text without them.
    pub fn hide(&self, text: &str) -> String {
        self.all.iter().fold(text.to_owned(), |text, secret| text.replace(&secret.value, &secret.shown))
    }

    /// A veil for one stream.
    pub(crate) fn veil(&self) -> Veil {
        let mut begins = [false; 256];
        for first in self.all.iter().filter_map(|secret| secret.value.bytes().next()) {
            begins[usize::from(first)] = true;
        }
        Veil { secrets: self.clone(), begins, held: Vec::new() }
    }

    /// The secret that this begins with.
    fn at(&self, rest: &[u8]) -> Option<&Secret> {
        self.all.iter().find(|secret| rest.starts_with(secret.value.as_bytes()))
    }

    /// What stands in the place of the secret that this is the beginning of, and no more than that.
    fn begun_by(&self, rest: &[u8]) -> Option<&str> {
        let is_begun = |secret: &&Secret| secret.value.len() > rest.len() && secret.value.as_bytes().starts_with(rest);
        self.all.iter().find(is_begun).map(|secret| secret.shown.as_str())
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all.iter().map(|secret| &secret.name)).finish()
    }
}

/// Hides secrets in a stream that comes in pieces: what may be the beginning of one is held back until more has come.
#[derive(Debug, Clone)]
pub(crate) struct Veil {
    secrets: Secrets,
    /// The bytes that a secret begins with.
    begins: [bool; 256],
    held: Vec<u8>,
}

impl Veil {
    /// What can be shown now, with this piece.
    pub(crate) fn pass(&mut self, piece: &[u8]) -> Vec<u8> {
        if self.secrets.all.is_empty() {
            return piece.to_vec();
        }
        self.held.extend_from_slice(piece);
        let (mut shown, mut at) = (Vec::with_capacity(self.held.len()), 0);
        while at < self.held.len() {
            let rest = &self.held[at..];
            if !self.begins[usize::from(rest[0])] {
                let plain = rest.iter().position(|byte| self.begins[usize::from(*byte)]).unwrap_or(rest.len());
                shown.extend_from_slice(&rest[..plain]);
                at += plain;
            } else if self.secrets.begun_by(rest).is_some() {
                break;
            } else if let Some(secret) = self.secrets.at(rest) {
                shown.extend_from_slice(secret.shown.as_bytes());
                at += secret.value.len();
            } else {
                shown.push(rest[0]);
                at += 1;
            }
        }
        self.held.drain(..at);
        shown
    }

    /// What is still held back, now that nothing follows it. A beginning that is long enough to tell something is hidden.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        match self.secrets.begun_by(&held) {
            Some(name) if held.len() >= SHORTEST => name.as_bytes().to_vec(),
            _ => held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        let secret = |value: &str, name: &str| Secret {
            value: value.to_owned(),
            name: name.to_owned(),
            shown: format!("[{name}]"),
        };
        Secrets::from([secret("aab-ge", "SHORT"), secret("aab-geheim", "LONG")].into_iter())
    }

    #[test]
    fn a_secret_is_hidden_wherever_the_pieces_end() {
        let text = "aaab-geheim, aab-gel, aab-g aab aab-gehei";
        let expected = "a[LONG], [SHORT]l, aab-g aab [LONG]";
        for size in 1..=text.len() {
            let mut veil = secrets().veil();
            let mut shown: Vec<u8> = text.as_bytes().chunks(size).flat_map(|piece| veil.pass(piece)).collect();
            shown.extend(veil.end());
            assert_eq!(String::from_utf8(shown).unwrap(), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn short_values_and_what_everybody_gets_are_no_secrets() {
        let path = std::env::var("PATH").unwrap();
        let of = |name: &str| Secrets::of(&[name.to_owned()]).hide(&format!("x{path}"));
        assert_eq!(of("PATH"), format!("x{path}"));
        let dir = env!("CARGO_MANIFEST_DIR");
        assert_eq!(Secrets::of(&["CARGO_MANIFEST_DIR".to_owned()]).hide(&format!("<{dir}>")), "<[CARGO_MANIFEST_DIR]>");
    }
}
