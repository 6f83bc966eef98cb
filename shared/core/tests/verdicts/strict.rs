//! A second reader of replies, written from the rules and not from the first one: short, slow, and strict. Where the first
//! one reads a verdict, this one must read the same.

use std::fmt;

use refile_core::verdict::{Format, Reading, VerdictKind};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// What a reply says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Said {
    verdict: VerdictKind,
    conf: f64,
    demand: String,
    phase: String,
}

impl Said {
    /// Whether a reading says the same. Of a demand the reader keeps one sentence without what cannot be seen and without
    /// the numbers of a list: every letter of it must stand in the demand, in this order.
    pub(crate) fn is_what(&self, reading: &Reading) -> bool {
        let read = &reading.verdict;
        let demands = matches!(read.verdict, VerdictKind::NeedsChanges | VerdictKind::RetryPredecessor);
        let mut left = self.demand.chars();
        let mut letters = read.required_change.chars().filter(|c| c.is_alphanumeric());
        let is_of_demand = letters.all(|wanted| left.any(|found| found == wanted));
        (self.verdict, &self.phase) == (read.verdict, read.phase.as_ref().unwrap_or(&String::new()))
            && (self.conf - read.conf).abs() < 1e-9
            && (!demands || (!read.required_change.is_empty() && is_of_demand))
    }
}

/// The only thing that a reply says; nothing where it says none, or two that differ.
pub(crate) fn read(format: Format, reply: &str) -> Option<Said> {
    let reply = reply.trim_start_matches('\u{feff}').trim();
    if format == Format::Text {
        return statement(reply);
    }
    let (mut at, mut said) = (0, Vec::new());
    while let Some(brace) = reply[at..].find('{').map(|found| at + found) {
        let mut stream = serde_json::Deserializer::from_str(&reply[brace..]).into_iter::<Pairs>();
        match stream.next() {
            Some(Ok(Pairs(pairs))) => {
                at = brace + stream.byte_offset();
                let is_answer = pairs.iter().any(|(key, _)| key == "verdict") && !is_echo(&pairs);
                if is_answer {
                    said.push(answer(format, &pairs)?);
                }
            }
            _ => at = brace + 1,
        }
    }
    let first = said.first()?.clone();
    let letters = |said: &Said| said.demand.chars().filter(|c| c.is_alphanumeric()).collect::<String>();
    let key = |said: &Said| (said.verdict, said.conf.to_bits(), letters(said), said.phase.clone());
    said.iter().all(|one| key(one) == key(&first)).then_some(first)
}

/// The keys and values of an object as they stand there, those that are there twice too.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// The schema with its placeholders, which is no answer.
fn is_echo(pairs: &[(String, Value)]) -> bool {
    pairs.iter().any(|(key, value)| {
        let text = value.as_str().unwrap_or_default().trim();
        let words = text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
        let is_placeholder = words.is_some_and(|w| w.chars().all(|c| c.is_lowercase() || " -_,".contains(c)));
        match key.as_str() {
            "verdict" => text.contains('|') || is_placeholder,
            "required_change" | "critique" => is_placeholder,
            _ => false,
        }
    })
}

fn answer(format: Format, pairs: &[(String, Value)]) -> Option<Said> {
    let of = |name: &str| -> Result<Option<&Value>, ()> {
        let mut values = pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| value);
        let first = values.next();
        if values.all(|other| Some(other) == first) { Ok(first) } else { Err(()) }
    };
    let text = |name: &str| of(name).ok().map(|value| value.and_then(Value::as_str).unwrap_or_default().to_owned());
    let name = text("verdict")?.trim().to_lowercase();
    let conf = match of("conf").ok()? {
        None | Some(Value::Null) if format == Format::Judge => 1.0,
        value => confidence(value?)?,
    };
    let (verdict, demand) = if format == Format::Judge {
        let fixes = of("required_fixes").ok()?;
        let first = fixes.and_then(|fixes| fixes.get(0).or(Some(fixes))).and_then(Value::as_str).unwrap_or_default();
        let verdict = match name.as_str() {
            "pass" => VerdictKind::Approved,
            "fail" => VerdictKind::NeedsChanges,
            _ => return None,
        };
        (verdict, first.to_owned())
    } else {
        let verdict = match name.replace(['-', ' '], "_").as_str() {
            "approved" | "approve" => VerdictKind::Approved,
            "needs_changes" | "request_changes" | "changes_requested" => VerdictKind::NeedsChanges,
            "retry" => VerdictKind::Retry,
            "escalate" => VerdictKind::Escalate,
            "reject" => VerdictKind::Reject,
            "retry_predecessor" => VerdictKind::RetryPredecessor,
            _ => return None,
        };
        (verdict, text("required_change")?)
    };
    let phase = if format == Format::Json { text("phase")?.trim().to_owned() } else { String::new() };
    Some(Said { verdict, conf, demand, phase })
}

/// A number from 0 to 1, that as a string, or a percentage as a string.
fn confidence(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => match text.trim().strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().ok()? / 100.0,
            None => text.trim().parse().ok()?,
        },
        _ => return None,
    };
    (0.0..=1.0).contains(&number).then_some(number)
}

fn statement(reply: &str) -> Option<Said> {
    let upper = reply.to_ascii_uppercase();
    let said = |verdict, demand: &str, phase: &str| {
        let (demand, phase) = (demand.trim().to_owned(), phase.to_owned());
        Some(Said { verdict, conf: 1.0, demand, phase })
    };
    if upper == "APPROVE" || upper == "PASS" {
        return said(VerdictKind::Approved, "", "");
    }
    let after = |word: &str| upper.starts_with(word).then(|| &reply[word.len()..]);
    if let Some(rest) = after("RETRY_PREDECESSOR") {
        let (phase, demand) = rest.split_once(':')?;
        return said(VerdictKind::RetryPredecessor, demand, phase.trim());
    }
    if let Some(rest) = after("RETRY") {
        return said(VerdictKind::NeedsChanges, rest.trim_start().strip_prefix(':')?, "");
    }
    if let Some(rest) = after("REJECT") {
        rest.trim_start().strip_prefix(':')?;
        return said(VerdictKind::Reject, "", "");
    }
    let rest = after("FAIL").filter(|rest| rest.starts_with(|c: char| c == ':' || c.is_whitespace()))?;
    said(VerdictKind::NeedsChanges, rest, "")
}
