//! The cases of `replies.jsonl`, and a second opinion on what a text really says.

// Each test binary uses its own part of this.
#![allow(dead_code)]

use refile_core::verdict::{Format, Reading, VerdictKind};
use serde::Deserialize;
use serde_json::Value;

/// One line of `replies.jsonl`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) format: Format,
    pub(crate) reply: String,
    pub(crate) expect: Expect,
}

/// What must come of it; `verdict` may be `a|b`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    pub(crate) verdict: String,
    pub(crate) conf: Option<f64>,
    pub(crate) required_change: Option<String>,
    pub(crate) phase: Option<String>,
}

pub(crate) fn cases() -> Vec<Case> {
    let lines = include_str!("replies.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"))).collect()
}

pub(crate) fn expecting(kind: &str) -> Vec<Case> {
    cases().into_iter().filter(|c| c.expect.verdict == kind).collect()
}

pub(crate) fn is_judgement(reading: &Reading) -> bool {
    matches!(reading.verdict.verdict, VerdictKind::Approved | VerdictKind::NeedsChanges)
}

/// Whether the text really says so somewhere: a whole JSON object with that verdict, a confidence, and where it is
/// needed a demand. Looks at every brace with a parser of its own and picks none, so it accepts more than the reader.
pub(crate) fn really_says(format: Format, text: &str, kind: VerdictKind) -> bool {
    let names: &[&str] = match (format, kind) {
        (Format::Judge, VerdictKind::Approved) => &["pass"],
        (Format::Judge, _) => &["fail"],
        (_, VerdictKind::Approved) => &["approved", "approve"],
        _ => &["needs_changes", "request_changes", "changes_requested"],
    };
    if format == Format::Text {
        let said = text.trim_start_matches('\u{feff}').trim().to_ascii_uppercase();
        return match kind {
            VerdictKind::Approved => said == "APPROVE" || said == "PASS",
            _ => ["RETRY", "FAIL"].iter().any(|w| said.strip_prefix(w).is_some_and(|rest| !rest.trim().is_empty())),
        };
    }
    text.match_indices('{').any(|(at, _)| {
        let Some(Ok(Value::Object(object))) = serde_json::Deserializer::from_str(&text[at..]).into_iter().next() else {
            return false;
        };
        let verdict = object.get("verdict").and_then(Value::as_str).unwrap_or_default();
        let verdict = verdict.trim().to_lowercase().replace(['-', ' '], "_");
        let demand = match format {
            Format::Judge => object.get("required_fixes").and_then(|f| f.get(0)),
            _ => object.get("required_change"),
        };
        names.contains(&verdict.as_str())
            && (format == Format::Judge || object.contains_key("conf"))
            && (kind == VerdictKind::Approved || demand.and_then(Value::as_str).is_some_and(|d| !d.trim().is_empty()))
    })
}
