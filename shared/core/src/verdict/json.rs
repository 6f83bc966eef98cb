//! The formats `json` and `judge`: one object, found anywhere in the reply.

use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::reply::{Judgement, Receipt, Statement};
use super::scan::{Found, objects};
use super::{Answer, Unreadable, Verdict, VerdictKind, paragraphs};
use crate::failure::FailureKind;
use crate::text::imperative;

/// Reads the format `json`.
pub(super) fn verdict(reply: &str) -> Result<Answer, Unreadable> {
    the_one_answer(reply, validate)
}

/// Reads the format `judge`.
pub(super) fn judgement(reply: &str) -> Result<Answer, Unreadable> {
    the_one_answer(reply, validate_judgement)
}

/// The verdict of the only answer in the reply, or of several that agree.
///
/// An echo of the schema is passed over. An answer that is broken makes the reply unreadable even where another is
/// whole: to pick one would be a guess. What stands between braces of prose is no answer, and one there that is not the
/// same makes the reply unreadable, too: which of the two was meant is not known.
fn the_one_answer<T: DeserializeOwned>(
    reply: &str,
    validate: fn(T) -> Result<Answer, Unreadable>,
) -> Result<Answer, Unreadable> {
    let Found::Objects { outermost, within } = objects(reply) else {
        let why = "the reply ends in the middle of an object".to_owned();
        return Err(Unreadable { kind: FailureKind::Truncated, why });
    };
    let mut answer: Option<Answer> = None;
    for text in outermost {
        let object = match serde_json::from_str::<Object>(text) {
            Ok(object) => object,
            // Not JSON and not about a verdict: a piece of code or of a log.
            Err(_) if !text.contains("\"verdict\"") => continue,
            Err(error) => return Err(Unreadable::malformed(format!("the object is not valid JSON: {error}"))),
        };
        if object.first("verdict").is_none() || object.is_schema_echo() {
            continue;
        }
        let found = validate(object.fit()?)?;
        answer = match answer {
            Some(first) if !agree(&first, &found) => {
                return Err(Unreadable::malformed("the reply holds two verdicts that disagree"));
            }
            Some(first) if first.receipt.is_some() => Some(first),
            _ => Some(found),
        };
    }
    let answer = answer.ok_or_else(|| Unreadable::malformed("the reply holds no JSON object with a `verdict`"))?;
    for object in within.into_iter().filter_map(|text| serde_json::from_str::<Object>(text).ok()) {
        let is_answer = object.first("verdict").is_some() && !object.is_schema_echo();
        if is_answer && !object.fit().and_then(validate).is_ok_and(|found| agree(&answer, &found)) {
            return Err(Unreadable::malformed("the reply holds another verdict between braces, which is not the same"));
        }
    }
    Ok(answer)
}

fn agree(one: &Answer, other: &Answer) -> bool {
    let (a, b) = (&one.verdict, &other.verdict);
    a.verdict == b.verdict
        && a.required_change == b.required_change
        && a.phase == b.phase
        && (a.conf - b.conf).abs() < f64::EPSILON
        && (one.receipt.is_none() || other.receipt.is_none() || one.receipt == other.receipt)
}

fn validate(said: Statement) -> Result<Answer, Unreadable> {
    let name = said.verdict.trim().to_lowercase().replace(['-', ' '], "_");
    let kind = match name.as_str() {
        "approve" => VerdictKind::Approved,
        "request_changes" | "changes_requested" => VerdictKind::NeedsChanges,
        other => VerdictKind::parse(other)
            .ok_or_else(|| Unreadable::malformed(format!("`verdict` is {other:?}, which is none of the verdicts")))?,
    };
    let conf = said.conf.ok_or_else(|| Unreadable::malformed("`conf` must be a number from 0.0 to 1.0"))?;
    let (required_change, left_over) = imperative(&said.required_change);
    let phase = Some(said.phase.trim().to_owned()).filter(|p| !p.is_empty());
    let demands = matches!(kind, VerdictKind::NeedsChanges | VerdictKind::RetryPredecessor);
    if demands && required_change.is_empty() {
        return Err(Unreadable::malformed(format!("`{kind}` needs a `required_change`: one imperative sentence")));
    }
    if kind == VerdictKind::RetryPredecessor && phase.is_none() {
        return Err(Unreadable::malformed("`retry_predecessor` needs the name of the `phase`"));
    }
    let critique = paragraphs([left_over.as_str(), &said.critique]);
    let verdict = Verdict { verdict: kind, required_change, critique, conf, phase };
    Ok(Answer { verdict, receipt: Receipt::new(said.files, said.diff_hash) })
}

fn validate_judgement(said: Judgement) -> Result<Answer, Unreadable> {
    let conf = said.conf.unwrap_or(1.0);
    let fixes = &said.required_fixes;
    let (kind, required_change, left_over) = match said.verdict.trim().to_lowercase().as_str() {
        "pass" => (VerdictKind::Approved, String::new(), String::new()),
        "fail" => {
            let (first, left_over) = fixes.first().map(|fix| imperative(fix)).unwrap_or_default();
            if first.is_empty() {
                return Err(Unreadable::malformed("`fail` needs at least one entry in `required_fixes`"));
            }
            (VerdictKind::NeedsChanges, first, left_over)
        }
        other => return Err(Unreadable::malformed(format!("`verdict` is {other:?}, neither `pass` nor `fail`"))),
    };
    let findings: Vec<String> = said.findings.iter().map(one_line).collect();
    let listed = |items: &[String]| items.iter().map(|i| format!("- {i}")).collect::<Vec<_>>().join("\n");
    let others = listed(fixes.get(1..).unwrap_or_default());
    let critique = paragraphs([left_over.as_str(), &said.summary, &listed(&findings), &others]);
    let verdict = Verdict { verdict: kind, required_change, critique, conf, phase: None };
    Ok(Answer { verdict, receipt: Receipt::new(said.files, said.diff_hash) })
}

fn one_line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// An object as it was written, with keys that were given twice.
struct Object(Vec<(String, Value)>);

impl Object {
    /// The object as the type that the model was asked for.
    fn fit<T: DeserializeOwned>(self) -> Result<T, Unreadable> {
        let mut object = Map::new();
        for (key, value) in self.0 {
            if object.get(&key).is_some_and(|before| *before != value) {
                return Err(Unreadable::malformed(format!("`{key}` is given twice with different values")));
            }
            object.insert(key, value);
        }
        let object = Value::Object(object);
        T::deserialize(&object).map_err(|error| Unreadable::malformed(which_key::<T>(&object, &error)))
    }

    fn first(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// Whether this is the schema with its placeholders, as it stands in the instructions.
    fn is_schema_echo(&self) -> bool {
        // `<imperative sentence>` is one, and `<T> must be <U>` is not.
        let is_placeholder = |text: &str| {
            let inner = text.strip_prefix('<').and_then(|t| t.strip_suffix('>'));
            inner.is_some_and(|words| words.chars().all(|c| c.is_lowercase() || matches!(c, ' ' | '-' | '_' | ',')))
        };
        self.0.iter().any(|(key, value)| match (key.as_str(), value.as_str()) {
            ("verdict", Some(text)) => text.contains('|') || is_placeholder(text.trim()),
            ("required_change" | "critique", Some(text)) => is_placeholder(text.trim()),
            _ => false,
        })
    }
}

/// The error with the key that it is about, which serde does not name.
fn which_key<T: DeserializeOwned>(object: &Value, error: &serde_json::Error) -> String {
    for (key, value) in object.as_object().into_iter().flatten() {
        if T::deserialize(&Value::Object(Map::from_iter([(key.clone(), value.clone())]))).is_err() {
            return format!("`{key}` {error}");
        }
    }
    error.to_string()
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Object;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Object(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
