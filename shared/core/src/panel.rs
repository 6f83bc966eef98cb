//! Several opinions made into one.

use serde::{Deserialize, Serialize};

use crate::verdict::{Verdict, VerdictKind};

/// How many members of a panel must approve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// One approval is enough.
    Any,
    /// More than half of the members.
    #[default]
    Majority,
    /// Every member.
    Unanimous,
}

/// Makes one verdict of the members' verdicts, by these rules in order:
///
/// 1. Any `escalate` escalates: one member saw what only a person can settle.
/// 2. Where enough members approve, the panel approves, as sure as the least sure of those who did.
/// 3. Where enough members spoke against it that the rule can no longer be met, the surest of them speaks for the panel,
///    with the others' demands in the critique.
/// 4. Otherwise too few members gave an opinion: `retry`.
///
/// Members that failed (`retry`) count neither way. An empty panel gives `retry`.
pub fn combine(rule: Rule, members: &[Verdict]) -> Verdict {
    if let Some(asks) = members.iter().find(|m| m.verdict == VerdictKind::Escalate) {
        return asks.clone();
    }
    let needed = match rule {
        Rule::Any => 1,
        Rule::Majority => members.len() / 2 + 1,
        Rule::Unanimous => members.len().max(1),
    };
    let (approving, speaking): (Vec<_>, Vec<_>) =
        members.iter().filter(|m| m.verdict != VerdictKind::Retry).partition(|m| m.verdict == VerdictKind::Approved);
    if approving.len() >= needed {
        let least_sure = approving.iter().min_by(|a, b| a.conf.total_cmp(&b.conf));
        return least_sure.map_or_else(|| Verdict::retry("the panel is empty"), |v| (*v).clone());
    }
    let surest = speaking.iter().max_by(|a, b| a.conf.total_cmp(&b.conf));
    match surest {
        Some(surest) if speaking.len() > members.len() - needed => {
            let mut verdict = (*surest).clone();
            for other in speaking.iter().filter(|v| !std::ptr::eq(**v, *surest) && !v.required_change.is_empty()) {
                let critique = format!(
                    "{}

Also: {}",
                    verdict.critique, other.required_change
                );
                critique.trim().clone_into(&mut verdict.critique);
            }
            verdict
        }
        _ => Verdict::retry("too few members of the panel gave an opinion"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yes(conf: f64) -> Verdict {
        Verdict { verdict: VerdictKind::Approved, conf, ..Verdict::retry("") }
    }

    fn no(conf: f64, demand: &str) -> Verdict {
        Verdict { verdict: VerdictKind::NeedsChanges, conf, required_change: demand.into(), ..Verdict::retry("") }
    }

    fn failed() -> Verdict {
        Verdict::retry("429")
    }

    #[track_caller]
    fn check(rule: Rule, members: &[Verdict], kind: VerdictKind, conf: f64) {
        let combined = combine(rule, members);
        assert_eq!((combined.verdict, combined.conf), (kind, conf));
    }

    #[test]
    fn each_rule_needs_its_share_of_approvals() {
        let split = [yes(0.9), no(0.8, "Add a test."), yes(0.7)];
        check(Rule::Any, &split, VerdictKind::Approved, 0.7);
        check(Rule::Majority, &split, VerdictKind::Approved, 0.7);
        check(Rule::Unanimous, &split, VerdictKind::NeedsChanges, 0.8);
        check(Rule::Majority, &[no(0.7, "A."), no(0.9, "B."), yes(1.0)], VerdictKind::NeedsChanges, 0.9);
        check(Rule::Any, &[no(0.7, "A."), no(0.9, "B.")], VerdictKind::NeedsChanges, 0.9);
    }

    #[test]
    fn a_member_that_failed_counts_neither_way() {
        check(Rule::Unanimous, &[yes(0.9), failed()], VerdictKind::Retry, 0.0);
        check(Rule::Majority, &[yes(0.9), yes(0.8), failed()], VerdictKind::Approved, 0.8);
        check(Rule::Majority, &[yes(0.9), failed(), failed()], VerdictKind::Retry, 0.0);
        check(Rule::Any, &[no(0.9, "A."), failed()], VerdictKind::Retry, 0.0);
        check(Rule::Any, &[], VerdictKind::Retry, 0.0);
        check(Rule::Unanimous, &[], VerdictKind::Retry, 0.0);
    }

    #[test]
    fn one_call_for_a_person_is_heard_and_other_demands_are_kept() {
        let asks = Verdict { verdict: VerdictKind::Escalate, conf: 0.1, ..Verdict::retry("") };
        check(Rule::Any, &[yes(1.0), asks], VerdictKind::Escalate, 0.1);
        let combined = combine(Rule::Majority, &[no(0.7, "Add a test."), no(0.9, "Fix it.")]);
        assert_eq!((combined.required_change.as_str(), combined.critique.as_str()), ("Fix it.", "Also: Add a test."));
    }
}
