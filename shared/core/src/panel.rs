//! Several opinions made into one, and several failures.

use serde::{Deserialize, Serialize};

use crate::failure::{Behaviour, Failure, Scope};
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
/// 2. Where enough members approve, the panel approves.
/// 3. Where enough members spoke against it that the rule can no longer be met, the panel does, in the words of the surest
///    of them, with the others' demands in the critique. It rejects the task only where that many members do and are as
///    sure of it as of speaking against the change at all: what ends a task needs the panel's number, too.
/// 4. Otherwise too few members gave an opinion: `retry`.
///
/// Members that failed (`retry`) count neither way. An empty panel gives `retry`.
///
/// The confidence is the k-th highest of those who say what the panel says, where k is how many of them it takes: for an
/// approval what the rule needs, against it as many as leave too few others. So the panel passes a threshold exactly where
/// k members pass it on their own. One more opinion on the same side, however unsure, makes no sure panel unsure; and no
/// single sure member makes a panel sure whose rule needs several.
pub fn combine(rule: Rule, members: &[Verdict]) -> Verdict {
    if let Some(asks) = members.iter().find(|m| m.verdict == VerdictKind::Escalate) {
        return asks.clone();
    }
    let needed = match rule {
        Rule::Any => 1,
        Rule::Majority => members.len() / 2 + 1,
        Rule::Unanimous => members.len().max(1),
    };
    let surest_first = |is_one: fn(VerdictKind) -> bool| {
        let mut those: Vec<&Verdict> = members.iter().filter(|m| is_one(m.verdict)).collect();
        those.sort_by(|a, b| b.conf.total_cmp(&a.conf));
        those
    };
    let approving = surest_first(|kind| kind == VerdictKind::Approved);
    if let Some(decisive) = approving.get(needed - 1) {
        return (*decisive).clone();
    }
    // So many speak against it that the others are too few. More are needed than there are members where there are none.
    let blocking = (members.len() + 1).saturating_sub(needed).max(1);
    let speaking = surest_first(|kind| !matches!(kind, VerdictKind::Approved | VerdictKind::Retry));
    let Some(conf) = speaking.get(blocking - 1).map(|decisive| decisive.conf) else {
        return Verdict::retry("too few members of the panel gave an opinion");
    };
    let rejecting = surest_first(|kind| kind == VerdictKind::Reject);
    let rejects = rejecting.get(blocking - 1).is_some_and(|decisive| decisive.conf >= conf);
    let surest = speaking.iter().find(|v| (v.verdict == VerdictKind::Reject) == rejects);
    let Some(surest) = surest else { return Verdict::retry("the panel is empty") };
    let mut verdict = Verdict { conf, ..(*surest).clone() };
    for other in speaking.iter().filter(|v| !std::ptr::eq(**v, *surest) && !v.required_change.is_empty()) {
        let critique = format!("{}\n\nAlso: {}", verdict.critique, other.required_change);
        critique.trim().clone_into(&mut verdict.critique);
    }
    verdict
}

/// Of the failures of a panel's members, the one that speaks for the panel: the one of which most follows for others.
///
/// 1. What stops the pool, where it holds for more than the call: every further job would meet it.
/// 2. What pauses a provider, where it holds for more than the call: every further job would be turned away.
/// 3. What brings its own wait: asking again before it is over is asking for nothing.
/// 4. What only a person can settle, for this call alone.
/// 5. What the next try may settle.
/// 6. What the same member would say again: only where nothing else failed is it another reviewer's turn.
///
/// Of several of one rank it is the one with the longest wait, and the first of those.
pub fn telling<'f>(failures: impl IntoIterator<Item = &'f Failure>) -> Option<&'f Failure> {
    let rank = |failure: &Failure| match (failure.kind.behaviour(), failure.scope) {
        (Behaviour::StopPool, Scope::Model | Scope::Key) => 0,
        (Behaviour::PauseProvider, Scope::Model | Scope::Key) => 1,
        (Behaviour::PauseProvider, Scope::Call) => 2,
        (Behaviour::StopPool, Scope::Call) => 3,
        (Behaviour::Retry | Behaviour::ReaskOnce, _) => 4,
        (Behaviour::OtherReviewer, _) => 5,
    };
    failures.into_iter().min_by_key(|f| (rank(f), std::cmp::Reverse(f.retry_after_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;

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
        check(Rule::Any, &split, VerdictKind::Approved, 0.9);
        check(Rule::Majority, &split, VerdictKind::Approved, 0.7);
        check(Rule::Unanimous, &split, VerdictKind::NeedsChanges, 0.8);
        check(Rule::Majority, &[no(0.7, "A."), no(0.9, "B."), yes(1.0)], VerdictKind::NeedsChanges, 0.7);
        check(Rule::Any, &[no(0.7, "A."), no(0.9, "B.")], VerdictKind::NeedsChanges, 0.7);
    }

    #[test]
    fn a_panel_is_as_sure_as_the_last_one_that_its_rule_needs() {
        let approving = [yes(0.3), yes(0.9), yes(0.8)];
        check(Rule::Any, &approving, VerdictKind::Approved, 0.9);
        check(Rule::Majority, &approving, VerdictKind::Approved, 0.8);
        check(Rule::Unanimous, &approving, VerdictKind::Approved, 0.3);
        let against = [no(0.3, "A."), no(0.9, "B."), no(0.8, "C.")];
        // One vote against ends unanimity, two of three a majority, and only all of them speak for `any`.
        check(Rule::Unanimous, &against, VerdictKind::NeedsChanges, 0.9);
        check(Rule::Majority, &against, VerdictKind::NeedsChanges, 0.8);
        check(Rule::Any, &against, VerdictKind::NeedsChanges, 0.3);
        // Of four, two against are enough to end a majority.
        check(Rule::Majority, &[no(0.9, "A."), yes(1.0), no(0.7, "B."), yes(1.0)], VerdictKind::NeedsChanges, 0.7);
    }

    /// For every panel of up to four members it passes a threshold exactly where enough members pass it on their own.
    #[test]
    fn a_panel_passes_where_enough_of_its_members_do() {
        const CONFS: [f64; 2] = [0.5, 0.9];
        let choices: Vec<Verdict> =
            CONFS.iter().map(|c| yes(*c)).chain(CONFS.iter().map(|c| no(*c, "A."))).chain([failed()]).collect();
        for size in 1..=4_u32 {
            for mut code in 0..5_usize.pow(size) {
                let members: Vec<Verdict> = (0..size)
                    .map(|_| {
                        let one = choices[code % 5].clone();
                        code /= 5;
                        one
                    })
                    .collect();
                let sure = |kind| members.iter().filter(|m| m.verdict == kind && m.conf > 0.6).count();
                let of = |kind| members.iter().filter(|m| m.verdict == kind).count();
                for (rule, needed) in
                    [(Rule::Any, 1), (Rule::Majority, members.len() / 2 + 1), (Rule::Unanimous, members.len())]
                {
                    let combined = combine(rule, &members);
                    let passes = combined.conf > 0.6;
                    let blocking = members.len() - needed + 1;
                    let expected = if of(VerdictKind::Approved) >= needed {
                        (VerdictKind::Approved, sure(VerdictKind::Approved) >= needed)
                    } else if of(VerdictKind::NeedsChanges) >= blocking {
                        (VerdictKind::NeedsChanges, sure(VerdictKind::NeedsChanges) >= blocking)
                    } else {
                        (VerdictKind::Retry, false)
                    };
                    assert_eq!((combined.verdict, passes), expected, "{rule:?} of {members:?}");
                }
            }
        }
    }

    #[test]
    fn one_member_alone_ends_a_task_only_where_its_word_is_enough() {
        let reject = |conf| Verdict { verdict: VerdictKind::Reject, conf, ..Verdict::retry("wrong task") };
        check(Rule::Majority, &[reject(0.9), no(0.8, "A."), yes(0.9)], VerdictKind::NeedsChanges, 0.8);
        check(Rule::Majority, &[reject(0.9), no(0.8, "A."), reject(0.8)], VerdictKind::Reject, 0.8);
        // They are surer that it must change than that it must go.
        check(Rule::Majority, &[reject(0.9), no(0.8, "A."), reject(0.3)], VerdictKind::NeedsChanges, 0.8);
        check(Rule::Unanimous, &[reject(0.9), yes(0.8)], VerdictKind::Reject, 0.9);
        check(Rule::Any, &[reject(0.9), reject(0.7)], VerdictKind::Reject, 0.7);
    }

    #[test]
    fn the_failure_that_tells_most_speaks() {
        let of = |kind, scope, wait: Option<u64>| Failure { scope, retry_after_ms: wait, ..Failure::new(kind, "x") };
        let ranked = [
            of(FailureKind::Auth, Scope::Key, None),
            of(FailureKind::RateLimit, Scope::Model, Some(7_000)),
            of(FailureKind::Quota, Scope::Key, None),
            of(FailureKind::RateLimit, Scope::Call, Some(60_000)),
            of(FailureKind::Overloaded, Scope::Call, None),
            of(FailureKind::Configuration, Scope::Call, None),
            of(FailureKind::Timeout, Scope::Call, Some(1)),
            of(FailureKind::Malformed, Scope::Call, None),
            of(FailureKind::Refused, Scope::Call, None),
        ];
        for (at, speaks) in ranked.iter().enumerate() {
            // Whatever their order.
            for failures in [ranked[at..].to_vec(), ranked[at..].iter().rev().cloned().collect()] {
                assert_eq!(telling(&failures), Some(speaks), "{failures:?}");
            }
        }
        let (first, second) = (of(FailureKind::Network, Scope::Call, None), of(FailureKind::Crash, Scope::Call, None));
        assert_eq!(telling([&first, &second]), Some(&first));
        assert_eq!(telling([]), None);
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
