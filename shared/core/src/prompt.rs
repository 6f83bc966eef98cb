//! The text that an attempt starts with. From the second attempt on, the rejection leads it.

use crate::task::{Attempt, Phase, Rejection, Task, leading_rejection};
use crate::text::{IMPERATIVE_BYTES, cut, cut_bytes, fold, normalised};

/// Which parts of earlier attempts are carried into the next, and how much of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carry {
    /// Characters of the critique.
    pub critique_chars: usize,
    /// How many demands of still earlier attempts are repeated; 0 for none.
    pub still_required: usize,
}

impl Default for Carry {
    fn default() -> Self {
        Self { critique_chars: 2_000, still_required: 3 }
    }
}

impl Carry {
    /// What may stand before the description, in bytes, whatever the attempt's number is: 4 KiB by default.
    fn max_bytes(self) -> usize {
        2_096 + self.critique_chars
    }
}

/// The longest repeated demand, in bytes.
const STILL_REQUIRED_BYTES: usize = 280;

/// The prompt of the attempt that is going on in this phase.
///
/// The first attempt gets the description as it was submitted; each later one the refile text.
pub fn prompt(task: &Task, phase: &Phase, carry: Carry) -> String {
    nth_prompt(task, phase.round(), carry)
}

/// The prompts of all attempts of a phase, in order.
pub fn prompts(task: &Task, phase: &Phase, carry: Carry) -> Vec<String> {
    let mut start = 0;
    let mut prompts = Vec::with_capacity(phase.attempts.len());
    for (i, attempt) in phase.attempts.iter().enumerate() {
        if attempt.number == 1 {
            start = i;
        }
        prompts.push(nth_prompt(task, &phase.attempts[start..=i], carry));
    }
    prompts
}

/// The prompt of the last of these attempts of one round.
fn nth_prompt(task: &Task, round: &[Attempt], carry: Carry) -> String {
    let (Some(attempt), Some(rejection)) = (round.last(), leading_rejection(round)) else {
        return task.description.clone();
    };
    let before: Vec<&str> = (1..round.len())
        .rev()
        .filter_map(|earlier| leading_rejection(&round[..earlier]))
        .map(|r| r.required_change.as_str())
        .collect();
    refile_text(attempt.number, rejection, &before, &task.description, carry)
}

/// The refile text: the newest rejection, then the original description.
///
/// `number` is that of the attempt that is about to start, `earlier` the demands before the newest, newest first.
pub fn refile_text(number: u32, rejection: &Rejection, earlier: &[&str], description: &str, carry: Carry) -> String {
    let required = cut_bytes(&fold(&rejection.required_change), IMPERATIVE_BYTES);
    let head = format!("## ATTEMPT #{number} — previous attempt rejected\n\n**Required change**: {required}\n");
    let still = still_required(&rejection.required_change, earlier, carry.still_required);
    let label = "**Reviewer critique**: ";
    let foot = "\n---\n\n";
    let room = carry.max_bytes().saturating_sub(head.len() + still.len() + label.len() + 1 + foot.len());
    let critique = cut_bytes(&cut(rejection.critique.trim(), carry.critique_chars), room);
    format!("{head}{label}{critique}\n{still}{foot}{description}")
}

/// The distinct demands of earlier attempts, one line each.
fn still_required(newest: &str, earlier: &[&str], most: usize) -> String {
    let mut seen = vec![normalised(newest)];
    let mut block = String::new();
    for demand in earlier {
        let same = normalised(demand);
        if seen.len() > most || seen.contains(&same) {
            continue;
        }
        seen.push(same);
        block.push_str("- ");
        block.push_str(&cut_bytes(&fold(demand), STILL_REQUIRED_BYTES));
        block.push('\n');
    }
    if block.is_empty() { block } else { format!("**Still required**:\n{block}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Cause;

    fn rejection(required_change: &str, critique: &str) -> Rejection {
        Rejection {
            cause: Cause::Review,
            by: "strict".into(),
            required_change: required_change.into(),
            critique: critique.into(),
        }
    }

    #[test]
    fn the_text_is_exact() {
        let text = refile_text(
            2,
            &rejection("Add error handling for 429 responses.", "The client panics on 429.\nSee fetch()."),
            &[],
            "Write an HTTP client.\n",
            Carry::default(),
        );
        assert_eq!(
            text,
            "## ATTEMPT #2 — previous attempt rejected\n\n\
             **Required change**: Add error handling for 429 responses.\n\
             **Reviewer critique**: The client panics on 429.\nSee fetch().\n\n---\n\nWrite an HTTP client.\n"
        );
    }

    #[test]
    fn a_long_critique_is_cut_on_a_character() {
        let said = "ä".repeat(2_001);
        let text =
            refile_text(2, &rejection("Do it.", &said), &[], "x", Carry { critique_chars: 500, ..Carry::default() });
        assert!(text.contains(&format!("**Reviewer critique**: {} […]\n\n---\n", "ä".repeat(500))));
        let ascii = refile_text(2, &rejection("Do it.", &"y".repeat(3_000)), &[], "x", Carry::default());
        assert!(ascii.contains(&format!(": {} […]\n\n---\n", "y".repeat(2_000))));
        let whole = refile_text(2, &rejection("Do it.", &"y".repeat(2_000)), &[], "x", Carry::default());
        assert!(whole.contains(&format!(": {}\n\n---\n", "y".repeat(2_000))));
    }

    #[test]
    fn earlier_demands_are_repeated_once_newest_first() {
        let text = refile_text(5, &rejection("D.", "c"), &["C.", "d", "B.", "c!", "A.", "Z."], "x", Carry::default());
        assert!(text.contains("**Reviewer critique**: c\n**Still required**:\n- C.\n- B.\n- A.\n\n---\n\nx"), "{text}");
    }

    #[test]
    fn whatever_is_carried_it_is_at_most_4_kib() {
        for filler in ["x", "é", "日", "🦀"] {
            let long = filler.repeat(20_000);
            let text = refile_text(
                u32::MAX,
                &rejection(&long, &long),
                &[&format!("b{long}"), &long, &format!("a{long}")],
                "",
                Carry::default(),
            );
            assert!(text.len() <= 4_096, "{filler}: {}", text.len());
            let lead = text.find("**Required change**").unwrap_or(usize::MAX);
            assert!(lead < 200);
        }
    }
}
