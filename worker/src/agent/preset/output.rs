//! Reads usage, cost, the final message and errors out of what an agent printed: JSON objects anywhere in it, or lines.

use std::collections::BTreeMap;

use refile_core::task::Usage;

use super::{Deserialize, Value};

/// Where things stand in an output.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// In its JSON objects, whether there is one, or one a line.
    #[serde(default)]
    pub json: Vec<Place>,
    /// In its lines.
    #[serde(default)]
    pub lines: Vec<Line>,
    /// What says that the run failed, whatever its exit code is.
    #[serde(default)]
    pub failed: Vec<Condition>,
    /// Lines of standard output that begin so say that the run failed, and why.
    #[serde(default)]
    pub failed_lines: Vec<String>,
    /// Lines that begin so say that what failed before them went well when it was tried again.
    #[serde(default)]
    pub recovered_lines: Vec<String>,
    /// What says that the agent's own limit of turns or money was reached: what lies in the tree is its work so far.
    #[serde(default)]
    pub used_up: Vec<Condition>,
    /// Exit codes that say so.
    #[serde(default)]
    pub used_up_exit: Vec<i32>,
}

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// Tokens read, those from a cache included; every one found counts.
    InputTokens,
    /// Those of the tokens read that came from a cache; every one found counts.
    CachedInputTokens,
    /// Tokens written; every one found counts.
    OutputTokens,
    /// US dollars; every one found counts.
    CostUsd,
    /// The last words to the user.
    Message,
    /// What went wrong; the last one counts.
    Error,
    /// The HTTP status of what went wrong.
    Status,
}

/// A place in JSON objects.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// What stands there.
    pub field: Field,
    /// The way to it, as in RFC 6901; `*` stands for every element or key.
    pub at: String,
    /// Only in objects in which these places hold these values.
    #[serde(default)]
    pub when: BTreeMap<String, Value>,
}

/// A place in a line.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// What stands there.
    pub field: Field,
    /// What the line begins with.
    pub begins: String,
    /// What stands before it, from there on.
    pub after: String,
    /// What stands behind it; where there are commas between the two, it is the last item.
    pub before: String,
}

/// A value in an object.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The way to it.
    pub at: String,
    /// The value; any that is not null where nothing is named.
    #[serde(default)]
    pub is: Option<Value>,
}

/// What an output told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Told {
    /// Tokens and cost.
    pub usage: Usage,
    /// The tokens read that came from a cache.
    pub cached_input_tokens: u64,
    /// The last words to the user.
    pub message: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// The HTTP status of what went wrong.
    pub status: Option<u16>,
    /// Error or status stand in a field for them. A line may be a model's words, whatever it begins with.
    pub is_certain: bool,
    /// It says that it failed.
    pub failed: bool,
    /// It says that a limit of its own was reached.
    pub used_up: bool,
}

impl Output {
    /// Reads both streams.
    pub fn read(&self, stdout: &str, stderr: &str) -> Told {
        let mut told = Told { usage: Usage { cost_unknown: true, ..Usage::default() }, ..Told::default() };
        if !self.json.is_empty() {
            for object in objects(stdout).chain(objects(stderr)) {
                self.read_object(&object, &mut told);
            }
        }
        for line in stdout.lines() {
            self.read_line(line, &mut told);
        }
        told
    }

    fn read_object(&self, object: &Value, told: &mut Told) {
        let holds = |(at, wanted): (&String, &Value)| find(object, at).contains(&wanted);
        for place in self.json.iter().filter(|place| place.when.iter().all(holds)) {
            for value in find(object, &place.at) {
                told.is_certain |= matches!(place.field, Field::Error | Field::Status) && !value.is_null();
                match value {
                    Value::String(text) => told.take_text(place.field, text),
                    Value::Number(number) => told.take_number(place.field, number.as_f64().unwrap_or_default()),
                    _ => {}
                }
            }
        }
        let is_met = |condition: &Condition| {
            find(object, &condition.at).into_iter().any(|found| match &condition.is {
                Some(wanted) => found == wanted,
                None => !found.is_null(),
            })
        };
        told.failed |= self.failed.iter().any(is_met);
        told.used_up |= self.used_up.iter().any(is_met);
    }

    fn read_line(&self, line: &str, told: &mut Told) {
        if self.failed_lines.iter().any(|begin| line.starts_with(begin)) {
            told.failed = true;
            told.take_text(Field::Error, line);
        }
        if self.recovered_lines.iter().any(|begin| line.starts_with(begin)) {
            (told.failed, told.error) = (false, None);
        }
        for place in self.lines.iter().filter(|place| line.starts_with(&place.begins)) {
            let Some((_, rest)) = line.split_once(&place.after) else { continue };
            let Some((text, _)) = rest.split_once(&place.before) else { continue };
            let text = text.rsplit(", ").next().unwrap_or(text);
            match number(text) {
                Some(number) => told.take_number(place.field, number),
                None => told.take_text(place.field, text),
            }
        }
    }
}

impl Told {
    fn take_text(&mut self, field: Field, text: &str) {
        match field {
            Field::Message => self.message = Some(text.to_owned()),
            Field::Error => self.error = Some(text.to_owned()),
            _ => {}
        }
    }

    fn take_number(&mut self, field: Field, number: f64) {
        // What is below nothing or no number becomes 0.
        let more = number as u64;
        let usage = &mut self.usage;
        match field {
            Field::InputTokens => usage.input_tokens = usage.input_tokens.saturating_add(more),
            Field::OutputTokens => usage.output_tokens = usage.output_tokens.saturating_add(more),
            Field::CachedInputTokens => self.cached_input_tokens = self.cached_input_tokens.saturating_add(more),
            Field::CostUsd => {
                usage.cost_unknown = false;
                usage.cost_micros = usage.cost_micros.saturating_add((number * 1e6).round() as u64);
            }
            Field::Status => self.status = u16::try_from(more).ok(),
            Field::Message | Field::Error => {}
        }
    }
}

/// The JSON objects that begin at the beginning of a line, one after the other.
fn objects(text: &str) -> impl Iterator<Item = Value> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            if rest.starts_with('{') {
                let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
                if let Some(Ok(value)) = values.next() {
                    rest = &rest[values.byte_offset()..];
                    return Some(value);
                }
            }
            rest = rest.split_once('\n').map_or("", |(_, behind)| behind);
        }
        None
    })
}

/// All values at a place.
fn find<'v>(value: &'v Value, at: &str) -> Vec<&'v Value> {
    let step = |value: &'v Value, part: &str| -> Vec<&'v Value> {
        match (value, part) {
            (Value::Array(items), "*") => items.iter().collect(),
            (Value::Object(members), "*") => members.values().collect(),
            (Value::Array(items), index) => index.parse().ok().and_then(|i: usize| items.get(i)).into_iter().collect(),
            (Value::Object(members), key) => members.get(key).into_iter().collect(),
            _ => Vec::new(),
        }
    };
    at.split('/').skip(1).fold(vec![value], |found, part| found.into_iter().flat_map(|v| step(v, part)).collect())
}

/// A number as people write it: `1.2k`, `3M`, `0.01`, `1,234`.
fn number(text: &str) -> Option<f64> {
    let text = text.trim().replace(',', "");
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1e3),
        None => text.strip_suffix('M').map_or((text.as_str(), 1.0), |digits| (digits, 1e6)),
    };
    digits.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0).map(|n| n * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_among_other_lines() {
        let text = "note\n{\"a\": 1}\n{ broken\n{\n  \"b\": [\n{\"c\": 2}\n]\n}{\"d\":3} tail\nx {\"no\":1}\n{\"e\":4}";
        let found: Vec<String> = objects(text).map(|v| v.to_string()).collect();
        assert_eq!(found, [r#"{"a":1}"#, r#"{"b":[{"c":2}]}"#, r#"{"d":3}"#, r#"{"e":4}"#]);
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        for (text, read) in [
            ("150", Some(150.0)),
            (" 2.1k", Some(2_100.0)),
            ("1,234", Some(1_234.0)),
            ("3M", Some(3e6)),
            ("0.01", Some(0.01)),
            ("-1", None),
            ("inf", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(number(text), read, "{text}");
        }
    }
}
