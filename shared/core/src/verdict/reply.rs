//! What a model is asked to reply: one type for each format. The words of the prompt, the schema for a provider's
//! structured output and the reading of the reply all come from it.

use std::fmt::Write as _;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Format, VerdictKind};

/// The verdicts that a model may always give. `retry` is for reviews that failed, and is not offered.
const OFFERED: [VerdictKind; 4] =
    [VerdictKind::Approved, VerdictKind::NeedsChanges, VerdictKind::Escalate, VerdictKind::Reject];

/// A reply in the format `json`. Its doc comments are what the model is told.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Statement {
    /// `approved`: the change can be merged as it is. `needs_changes`: another attempt can put it right. `escalate`: a
    /// person must decide. `reject`: the work should not be done at all.
    #[serde(default, deserialize_with = "text")]
    pub(super) verdict: String,
    /// One imperative sentence: the single most important thing that the next attempt must do. Empty when approved.
    #[serde(default, deserialize_with = "text")]
    pub(super) required_change: String,
    /// What is wrong and where, in your words.
    #[serde(default, deserialize_with = "text")]
    pub(super) critique: String,
    /// Your confidence in the verdict, from 0.0 to 1.0.
    #[serde(default, deserialize_with = "confidence")]
    #[schemars(with = "f64")]
    pub(super) conf: Option<f64>,
    /// The number of files that stands at the top of the packet.
    #[serde(default, deserialize_with = "count")]
    #[schemars(with = "u64")]
    pub(super) files: Option<u64>,
    /// The diff's hash that stands at the top of the packet.
    #[serde(default, deserialize_with = "hash")]
    #[schemars(with = "String")]
    pub(super) diff_hash: Option<String>,
    /// With `retry_predecessor`, which says that the fault lies in what an earlier phase did: the name of that phase.
    #[serde(default, deserialize_with = "text")]
    pub(super) phase: String,
}

/// A reply in the format `judge`. Its doc comments are what the model is told.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Judgement {
    /// `pass`: the change can be merged as it is. `fail`: it cannot, and `required_fixes` says why.
    #[serde(default, deserialize_with = "text")]
    pub(super) verdict: String,
    /// Your judgement in a few sentences.
    #[serde(default, deserialize_with = "text")]
    pub(super) summary: String,
    /// What you found, one sentence each.
    #[serde(default, deserialize_with = "findings")]
    #[schemars(with = "Vec<String>")]
    pub(super) findings: Vec<Value>,
    /// What must be done before the change can pass: imperative sentences, the most important first; at least one with
    /// `fail`.
    #[serde(default, deserialize_with = "texts")]
    pub(super) required_fixes: Vec<String>,
    /// The number of files that stands at the top of the packet.
    #[serde(default, deserialize_with = "count")]
    #[schemars(with = "u64")]
    pub(super) files: Option<u64>,
    /// The diff's hash that stands at the top of the packet.
    #[serde(default, deserialize_with = "hash")]
    #[schemars(with = "String")]
    pub(super) diff_hash: Option<String>,
    #[serde(default, deserialize_with = "confidence")]
    #[schemars(skip)]
    pub(super) conf: Option<f64>,
}

/// What a judge repeats of its packet, to show that it read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The number of files that it saw.
    pub files: u64,
    /// The short hash of the diff, in small letters.
    pub diff_hash: String,
}

impl Receipt {
    pub(super) fn new(files: Option<u64>, diff_hash: Option<String>) -> Option<Self> {
        Some(Self { files: files?, diff_hash: diff_hash? })
    }
}

/// The JSON schema of a reply, in the subset that every provider's structured output knows: each property required,
/// nothing else allowed, no references, no limits on numbers. The format `text` has none.
///
/// `predecessors` are the phases that the reply may send back.
pub fn schema(format: Format, predecessors: &[String]) -> Option<Value> {
    let strict = RecursiveTransform(|schema: &mut schemars::Schema| {
        for unknown in ["format", "minimum", "default"] {
            schema.remove(unknown);
        }
        let names = schema.get("properties").and_then(Value::as_object).map(|p| p.keys().cloned().collect::<Vec<_>>());
        if let Some(names) = names {
            schema.insert("required".to_owned(), json!(names));
            schema.insert("additionalProperties".to_owned(), json!(false));
        }
        // A doc comment's line breaks mean nothing.
        if let Some(Value::String(words)) = schema.get_mut("description") {
            *words = crate::text::fold(words);
        }
    });
    let mut settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true).with_transform(strict);
    settings.meta_schema = None;
    let generator = settings.into_generator();
    let mut schema = match format {
        Format::Json => generator.into_root_schema_for::<Statement>(),
        Format::Judge => generator.into_root_schema_for::<Judgement>(),
        Format::Text => return None,
    };
    schema.remove("title");
    schema.remove("description");
    let mut schema = Value::from(schema);
    let mut verdicts = match format {
        Format::Judge => vec!["pass", "fail"],
        _ => OFFERED.map(VerdictKind::as_str).to_vec(),
    };
    if format == Format::Json {
        if predecessors.is_empty() {
            schema["properties"].as_object_mut()?.shift_remove("phase");
            schema["required"].as_array_mut()?.retain(|name| name != "phase");
        } else {
            verdicts.push(VerdictKind::RetryPredecessor.as_str());
            let names: Vec<&str> = predecessors.iter().map(String::as_str).chain([""]).collect();
            schema["properties"]["phase"]["enum"] = json!(names);
        }
    }
    schema["properties"]["verdict"]["enum"] = json!(verdicts);
    Some(schema)
}

/// What a model is told of the form of its reply. The format `text` is for commands and people.
pub fn instructions(format: Format, predecessors: &[String]) -> Option<String> {
    let schema = schema(format, predecessors)?;
    let properties = schema["properties"].as_object()?;
    let (mut example, mut words) = (Vec::new(), String::new());
    for (name, property) in properties {
        let choices = property["enum"].as_array().map(|all| all.iter().filter_map(Value::as_str).collect::<Vec<_>>());
        let value = match (choices, property["type"].as_str()) {
            (Some(choices), _) => json!(choices.join(" | ")),
            (None, Some("number")) => json!(0.0),
            (None, Some("integer")) => json!(0),
            (None, Some("array")) => json!([]),
            _ => json!("<text>"),
        };
        example.push(format!("  \"{name}\": {value}"));
        let _ = write!(words, "\n- `{name}`: {}", property["description"].as_str().unwrap_or_default());
    }
    let example = example.join(",\n");
    Some(format!("Reply with one JSON object and nothing else:\n{{\n{example}\n}}\n{words}"))
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        _ => Err(D::Error::custom("must be a text")),
    }
}

fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Vec::new()),
        value => Vec::deserialize(value).map_err(|_| D::Error::custom("must be a list of texts")),
    }
}

/// Whatever was found; a judge that lists objects has said enough.
fn findings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Value>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Array(findings) => Ok(findings),
        _ => Ok(Vec::new()),
    }
}

/// A finite number in 0..=1, that as a string, or a percentage as a string.
fn confidence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let number = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(None),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.trim().strip_suffix('%') {
            Some(percent) => percent.trim_end().parse::<f64>().ok().map(|p| p / 100.0),
            None => text.trim().parse().ok(),
        },
        _ => None,
    };
    let number = number.filter(|n| (0.0..=1.0).contains(n));
    number.map(Some).ok_or_else(|| D::Error::custom("must be a number from 0.0 to 1.0"))
}

/// A receipt that cannot be read is none; the verdict stands on its own.
fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value.as_u64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok())))
}

fn hash<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value.as_str().map(|text| text.trim().to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::read;

    #[test]
    fn the_schema_keeps_to_what_every_provider_knows() {
        let plan = ["plan".to_owned()];
        let of_json = ["verdict", "required_change", "critique", "conf", "files", "diff_hash"];
        let of_judge = ["verdict", "summary", "findings", "required_fixes", "files", "diff_hash"];
        for (format, before, names) in [
            (Format::Json, &plan[..0], of_json.to_vec()),
            (Format::Json, &plan[..], [&of_json[..], &["phase"]].concat()),
            (Format::Judge, &plan[..], of_judge.to_vec()),
        ] {
            let schema = schema(format, before).unwrap();
            let properties = schema["properties"].as_object().unwrap();
            // In this order: a model that writes it thinks before it says how sure it is.
            assert_eq!(properties.keys().collect::<Vec<_>>(), names);
            assert_eq!(schema["required"], json!(names));
            assert_eq!((&schema["type"], &schema["additionalProperties"]), (&json!("object"), &json!(false)));
            assert_eq!(schema.as_object().unwrap().len(), 4, "{schema:#}");
            for property in properties.values() {
                let known = |key: &String| ["type", "enum", "description", "items"].contains(&key.as_str());
                assert!(property.as_object().unwrap().keys().all(known), "{property}");
                assert!(property["type"].is_string() && property["description"].is_string(), "{property}");
            }
        }
        assert_eq!(schema(Format::Text, &[]), None);
        let enums = schema(Format::Json, &plan).unwrap();
        assert_eq!(enums["properties"]["phase"]["enum"], json!(["plan", ""]));
        assert!(enums["properties"]["verdict"]["enum"].as_array().unwrap().contains(&json!("retry_predecessor")));
    }

    #[test]
    fn the_instructions_say_what_the_schema_says_and_their_echo_is_no_answer() {
        let said = instructions(Format::Json, &[]).unwrap();
        assert!(said.contains("\"verdict\": \"approved | needs_changes | escalate | reject\",\n"), "{said}");
        assert!(said.contains("\"conf\": 0.0,\n  \"files\": 0,\n  \"diff_hash\": \"<text>\"\n}"), "{said}");
        assert!(said.contains("- `conf`: Your confidence in the verdict, from 0.0 to 1.0."), "{said}");
        for (format, before) in
            [(Format::Json, vec![]), (Format::Json, vec!["plan".to_owned()]), (Format::Judge, vec![])]
        {
            let said = instructions(format, &before).unwrap();
            assert!(read(format, &said).failure.is_some(), "{said}");
            for name in schema(format, &before).unwrap()["properties"].as_object().unwrap().keys() {
                assert!(said.contains(&format!("- `{name}`: ")), "{said}");
            }
        }
    }

    #[test]
    fn what_follows_the_schema_is_read() {
        for kind in
            schema(Format::Json, &["plan".to_owned()]).unwrap()["properties"]["verdict"]["enum"].as_array().unwrap()
        {
            let reply = json!({"verdict": kind, "required_change": "Do it.", "critique": "", "conf": 0.5, "files": 2,
                "diff_hash": "AB", "phase": "plan"});
            let reading = read(Format::Json, &reply.to_string());
            assert_eq!((reading.verdict.verdict.as_str(), reading.failure), (kind.as_str().unwrap(), None));
            assert_eq!(reading.receipt, Some(Receipt { files: 2, diff_hash: "ab".to_owned() }));
            assert_eq!(reading.verdict.phase.as_deref(), Some("plan"));
        }
    }
}
