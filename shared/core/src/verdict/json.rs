//! The formats `json` and `judge`: one object, found anywhere in the reply.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::scan::{Found, objects};
use super::{Unreadable, Verdict, VerdictKind, paragraphs};
use crate::failure::FailureKind;
use crate::text::imperative;

/// Reads the format `json`.
pub(super) fn verdict(reply: &str) -> Result<Verdict, Unreadable> {
    the_one_answer(reply, validate)
}

/// Reads the format `judge`.
pub(super) fn judgement(reply: &str) -> Result<Verdict, Unreadable> {
    the_one_answer(reply, validate_judgement)
}

/// The verdict of the only answer in the reply, or of several that agree.
///
/// An echo of the schema is passed over. An answer that is broken makes the reply unreadable even where another is
/// whole: to pick one would be a guess.
fn the_one_answer(reply: &str, validate: fn(&Object) -> Result<Verdict, Unreadable>) -> Result<Verdict, Unreadable> {
    let Found::Objects(texts) = objects(reply) else {
        let why = "the reply ends in the middle of an object".to_owned();
        return Err(Unreadable { kind: FailureKind::Truncated, why });
    };
    let mut answer: Option<Verdict> = None;
    for text in texts {
        let object = match serde_json::from_str::<Object>(text) {
            Ok(object) => object,
            // Not JSON and not about a verdict: a piece of code or of a log.
            Err(_) if !text.contains("\"verdict\"") => continue,
            Err(error) => return Err(Unreadable::malformed(format!("the object is not valid JSON: {error}"))),
        };
        if object.first("verdict").is_none() || object.is_schema_echo() {
            continue;
        }
        object.require_one_value_per_key()?;
        let verdict = validate(&object)?;
        match &answer {
            None => answer = Some(verdict),
            Some(first) if agree(first, &verdict) => {}
            Some(_) => return Err(Unreadable::malformed("the reply holds two verdicts that disagree")),
        }
    }
    answer.ok_or_else(|| Unreadable::malformed("the reply holds no JSON object with a `verdict`"))
}

fn agree(a: &Verdict, b: &Verdict) -> bool {
    a.verdict == b.verdict
        && a.required_change == b.required_change
        && a.phase == b.phase
        && (a.conf - b.conf).abs() < f64::EPSILON
}

fn validate(object: &Object) -> Result<Verdict, Unreadable> {
    let name = object.string("verdict")?.unwrap_or_default();
    let name = name.trim().to_lowercase().replace(['-', ' '], "_");
    let kind = match name.as_str() {
        "approve" => VerdictKind::Approved,
        "request_changes" | "changes_requested" => VerdictKind::NeedsChanges,
        other => VerdictKind::parse(other)
            .ok_or_else(|| Unreadable::malformed(format!("`verdict` is {other:?}, which is none of the verdicts")))?,
    };
    let conf = confidence(object.only("conf"))?;
    let demand = object.string("required_change")?.unwrap_or_default();
    let critique = object.string("critique")?.unwrap_or_default();
    let (required_change, left_over) = imperative(&demand);
    let phase = object.string("phase")?.map(|p| p.trim().to_owned()).filter(|p| !p.is_empty());
    let demands = matches!(kind, VerdictKind::NeedsChanges | VerdictKind::RetryPredecessor);
    if demands && required_change.is_empty() {
        return Err(Unreadable::malformed(format!("`{kind}` needs a `required_change`: one imperative sentence")));
    }
    if kind == VerdictKind::RetryPredecessor && phase.is_none() {
        return Err(Unreadable::malformed("`retry_predecessor` needs the name of the `phase`"));
    }
    let critique = paragraphs([left_over.as_str(), critique.as_str()]);
    Ok(Verdict { verdict: kind, required_change, critique, conf, phase })
}

fn validate_judgement(object: &Object) -> Result<Verdict, Unreadable> {
    let conf = match object.only("conf") {
        None => 1.0,
        given => confidence(given)?,
    };
    let name = object.string("verdict")?.unwrap_or_default();
    let summary = object.string("summary")?.unwrap_or_default();
    let fixes = object.texts("required_fixes")?;
    let (kind, required_change, left_over) = match name.trim().to_lowercase().as_str() {
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
    let findings = match object.only("findings") {
        Some(Value::Array(findings)) => findings.iter().map(one_line).collect(),
        _ => Vec::new(),
    };
    let listed = |items: &[String]| items.iter().map(|i| format!("- {i}")).collect::<Vec<_>>().join("\n");
    let others = listed(fixes.get(1..).unwrap_or_default());
    let critique = paragraphs([left_over.as_str(), &summary, &listed(&findings), &others]);
    Ok(Verdict { verdict: kind, required_change, critique, conf, phase: None })
}

fn one_line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A finite number in 0..=1, that as a string, or a percentage as a string.
fn confidence(value: Option<&Value>) -> Result<f64, Unreadable> {
    let number = match value {
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => match text.trim().strip_suffix('%') {
            Some(percent) => percent.trim_end().parse::<f64>().ok().map(|p| p / 100.0),
            None => text.trim().parse().ok(),
        },
        _ => None,
    };
    number
        .filter(|n| (0.0..=1.0).contains(n))
        .ok_or_else(|| Unreadable::malformed("`conf` must be a number from 0.0 to 1.0"))
}

/// An object as it was written, with keys that were given twice.
struct Object(Vec<(String, Value)>);

impl Object {
    fn require_one_value_per_key(&self) -> Result<(), Unreadable> {
        let mut seen: BTreeMap<&str, &Value> = BTreeMap::new();
        for (key, value) in &self.0 {
            if seen.insert(key, value).is_some_and(|before| before != value) {
                return Err(Unreadable::malformed(format!("`{key}` is given twice with different values")));
            }
        }
        Ok(())
    }

    fn first(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// The value of a key; `null` counts as absent.
    fn only(&self, key: &str) -> Option<&Value> {
        self.first(key).filter(|v| !v.is_null())
    }

    fn string(&self, key: &str) -> Result<Option<String>, Unreadable> {
        match self.only(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(Unreadable::malformed(format!("`{key}` must be a text"))),
        }
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, Unreadable> {
        let not_texts = || Unreadable::malformed(format!("`{key}` must be a list of texts"));
        match self.only(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                items.iter().map(|i| i.as_str().map(str::to_owned).ok_or_else(not_texts)).collect()
            }
            Some(_) => Err(not_texts()),
        }
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
