//! Gates: deterministic checks that need no model, and the imperative that each failure turns into.

use serde::{Deserialize, Serialize};

/// The built-in gate that fails where an attempt changed nothing.
pub const EMPTY_DIFF: &str = "empty_diff";
/// The built-in gate that fails where the change does not merge into the base branch.
pub const MERGE_CONFLICT: &str = "merge_conflict";
/// The built-in gate that fails where the diff holds a path or a size that is not allowed.
pub const DIFF_POLICY: &str = "diff_policy";

/// How many characters of a gate's output a rejection carries.
pub const TAIL_CHARS: usize = 2_000;

/// What one gate said about one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateReport {
    /// The gate's name.
    pub name: String,
    /// Whether the change passed.
    pub passed: bool,
    /// The imperative that the gate itself gives (from the configuration, or of `diff_policy`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_change: Option<String>,
    /// The end of the gate's output, see [`output_tail`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Where the whole output lies in the artifact store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// How long the gate ran, in milliseconds.
    #[serde(default)]
    pub duration_ms: u64,
}

/// The imperative for a failed gate. `base` is the base branch's name, `configured` the gate's own words if it has any.
///
/// No model is asked: the sentences are those of the table in the design.
pub fn required_change(gate: &str, base: &str, configured: Option<&str>) -> String {
    if let Some(words) = configured.map(crate::text::fold).filter(|w| !w.is_empty()) {
        return words;
    }
    match gate {
        MERGE_CONFLICT => format!("Rebase onto {base} and resolve conflicts before reopening"),
        EMPTY_DIFF => "Push actual file changes — the PR diff is empty".to_owned(),
        "lint" => "Fix lint errors listed in the gate output".to_owned(),
        "build" => "Fix build errors listed in the CI log".to_owned(),
        "test" => "Fix the failing tests listed in the gate output".to_owned(),
        other => format!("Fix what the gate `{other}` reports in its output"),
    }
}

/// The last [`TAIL_CHARS`] characters of a gate's output, from the start of a line, without terminal colours.
pub fn output_tail(output: &str) -> String {
    crate::text::tail(&without_escapes(output), TAIL_CHARS)
}

/// The text without ANSI escape sequences and without control characters other than newline and tab.
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                // A control sequence ends with a byte of 0x40..=0x7e, an operating system command with BEL or ESC \.
                Some('[') => while chars.next().is_some_and(|c| !('\u{40}'..='\u{7e}').contains(&c)) {},
                Some(']') => {
                    while let Some(c) = chars.next() {
                        if c == '\u{7}' || (c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()) {
                            break;
                        }
                    }
                }
                _ => {}
            },
            '\n' | '\t' => plain.push(c),
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gate_has_its_exact_imperative() {
        let said = |gate| required_change(gate, "main", None);
        assert_eq!(said("merge_conflict"), "Rebase onto main and resolve conflicts before reopening");
        assert_eq!(said("empty_diff"), "Push actual file changes — the PR diff is empty");
        assert_eq!(said("lint"), "Fix lint errors listed in the gate output");
        assert_eq!(said("build"), "Fix build errors listed in the CI log");
        assert_eq!(said("test"), "Fix the failing tests listed in the gate output");
        assert_eq!(
            required_change("merge_conflict", "trunk", None),
            "Rebase onto trunk and resolve conflicts before reopening"
        );
        assert_eq!(required_change("licence", "main", Some("Add the\nlicence header")), "Add the licence header");
    }

    #[test]
    fn a_tail_is_plain_text() {
        assert_eq!(output_tail("\u{1b}[31merror\u{1b}[0m: x\r\n\u{1b}]0;title\u{7}done\n"), "error: x\ndone");
        let long = format!("{}\nlast line", "x".repeat(5_000));
        assert_eq!(output_tail(&long), "last line");
    }
}
