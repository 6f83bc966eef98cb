//! The format `text`: the whole reply is one statement.

use super::{Unreadable, Verdict, VerdictKind, paragraphs};
use crate::text::imperative;

/// Reads a trimmed, non-empty reply.
pub(super) fn verdict(reply: &str) -> Result<Verdict, Unreadable> {
    let word_end = reply.find(|c: char| !(c.is_ascii_alphabetic() || c == '_')).unwrap_or(reply.len());
    let (word, rest) = reply.split_at(word_end);
    let after_colon = rest.trim_start().strip_prefix(':').map(str::trim);
    match (word.to_ascii_uppercase().as_str(), after_colon) {
        ("APPROVE" | "PASS", _) if rest.is_empty() => {
            Ok(statement(VerdictKind::Approved, String::new(), String::new()))
        }
        ("RETRY", Some(feedback)) => needs_changes(feedback, feedback),
        ("FAIL", after_colon) if rest.starts_with(|c: char| c.is_whitespace() || c == ':') => {
            let said = after_colon.unwrap_or(rest.trim());
            needs_changes(&one_sentence_of_list(said), said)
        }
        ("REJECT", Some(reason)) if !reason.is_empty() => {
            Ok(statement(VerdictKind::Reject, String::new(), reason.to_owned()))
        }
        ("RETRY_PREDECESSOR", None) if rest.starts_with(char::is_whitespace) => retry_predecessor(rest),
        _ => Err(Unreadable::malformed(
            "the reply is none of APPROVE, RETRY: feedback, RETRY_PREDECESSOR phase: feedback, REJECT: reason, PASS, FAIL \
             with what is wrong",
        )),
    }
}

fn statement(verdict: VerdictKind, required_change: String, critique: String) -> Verdict {
    Verdict { verdict, required_change, critique, conf: 1.0, phase: None }
}

fn needs_changes(feedback: &str, critique: &str) -> Result<Verdict, Unreadable> {
    let (required_change, _) = imperative(feedback);
    if required_change.is_empty() {
        return Err(Unreadable::malformed("the reply asks for changes and does not say which"));
    }
    Ok(statement(VerdictKind::NeedsChanges, required_change, paragraphs([critique])))
}

fn retry_predecessor(rest: &str) -> Result<Verdict, Unreadable> {
    let missing = || Unreadable::malformed("RETRY_PREDECESSOR needs `phase: feedback`");
    let (phase, feedback) = rest.split_once(':').ok_or_else(missing)?;
    let phase = phase.trim();
    if phase.is_empty() || phase.contains(char::is_whitespace) {
        return Err(missing());
    }
    let mut verdict = needs_changes(feedback.trim(), feedback).map_err(|_| missing())?;
    verdict.verdict = VerdictKind::RetryPredecessor;
    verdict.phase = Some(phase.to_owned());
    Ok(verdict)
}

/// A list made one sentence: markers at the start of lines go, and its points are joined by semicolons.
fn one_sentence_of_list(text: &str) -> String {
    let mut sentence = String::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let item = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let (item, is_item) = match item.strip_prefix(['.', ')']).filter(|_| item.len() < line.len()) {
            Some(item) => (item, true),
            None => match line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")) {
                Some(item) => (item, true),
                None => (line, false),
            },
        };
        if !sentence.is_empty() {
            sentence.push_str(if is_item && !sentence.ends_with([':', '.', ';']) { "; " } else { " " });
        }
        sentence.push_str(item.trim());
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_list_becomes_one_sentence() {
        let said = "FAIL\n\nThe pagination has issues:\n1. The cursor is ignored\n2. No test for page_size > 100";
        let verdict = verdict(said).unwrap();
        assert_eq!(
            verdict.required_change,
            "The pagination has issues: The cursor is ignored; No test for page_size > 100"
        );
        assert!(verdict.critique.contains("2. No test"));
    }

    #[test]
    fn what_is_nearly_a_statement_is_none() {
        for reply in [
            "APPROVED",
            "APPROVE it",
            "APPROVE: yes",
            "PASS with notes",
            "FAIL",
            "FAILURE: x",
            "RETRY",
            "RETRY please: x",
            "REJECT",
            "REJECT:",
            "RETRY_PREDECESSOR: x",
            "RETRY_PREDECESSOR a b: x",
            "RETRY_PREDECESSOR a:",
            "OK",
        ] {
            assert!(verdict(reply).is_err(), "{reply}");
        }
    }
}
