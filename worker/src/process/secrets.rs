//! Keeps the values of variables that may be keys out of what is kept and shown.
//!
//! What comes in pieces, and may be cut later, goes through a [`Veil`] first: half a secret is one too.

use super::ALLOWED;

/// Shorter values are words such as `1` or `true`.
const SHORTEST: usize = 6;

/// What must not show, and what stands in its place.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    /// The longest first: one may be a part of another.
    values: Vec<(String, String)>,
}

impl Secrets {
    /// The values of the variables of these names, where they are set.
    pub fn of(names: &[String]) -> Self {
        let known = names.iter().filter(|name| !ALLOWED.contains(&name.as_str()));
        let values = known.filter_map(|name| Some((std::env::var(name).ok()?, format!("[{name}]"))));
        let mut values: Vec<_> = values.filter(|(value, _)| value.len() >= SHORTEST).collect();
        values.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        Self { values }
    }

    /// A text without them.
    pub fn hide(&self, text: &str) -> String {
        self.values.iter().fold(text.to_owned(), |text, (value, name)| text.replace(value, name))
    }

    /// A veil for one stream.
    pub(crate) fn veil(&self) -> Veil {
        let mut begins = [false; 256];
        for first in self.values.iter().filter_map(|(value, _)| value.bytes().next()) {
            begins[usize::from(first)] = true;
        }
        Veil { secrets: self.clone(), begins, held: Vec::new() }
    }

    /// The secret that this begins with, and what stands in its place.
    fn at(&self, rest: &[u8]) -> Option<&(String, String)> {
        self.values.iter().find(|(value, _)| rest.starts_with(value.as_bytes()))
    }

    /// The name of the secret that this is the beginning of, and no more than that.
    fn begun_by(&self, rest: &[u8]) -> Option<&str> {
        let found =
            self.values.iter().find(|(value, _)| value.len() > rest.len() && value.as_bytes().starts_with(rest));
        found.map(|(_, name)| name.as_str())
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
        if self.secrets.values.is_empty() {
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
            } else if let Some((value, name)) = self.secrets.at(rest) {
                shown.extend_from_slice(name.as_bytes());
                at += value.len();
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
        let value = |value: &str, name: &str| (value.to_owned(), name.to_owned());
        Secrets { values: vec![value("aab-geheim", "[LONG]"), value("aab-ge", "[SHORT]")] }
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
