//! The limits that a fleet sets. Each budget is counted apart and each is bounded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::task::Phase;

/// What happens when the last attempt's change is rejected by a reviewer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    /// A person decides.
    #[default]
    Escalate,
    /// The last change is taken as it is. Never past a failed gate.
    Accept,
    /// The task is rejected.
    Reject,
}

/// Where the next attempt starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContinueFrom {
    /// From what the previous attempt left, brought onto the newest base.
    #[default]
    Previous,
    /// From the base branch, as the first attempt did.
    Base,
}

/// What a task may use up before a person is asked. `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Tokens in and out, over all attempts and reviews.
    pub tokens: Option<u64>,
    /// Cost in millionths of a US dollar.
    pub cost_micros: Option<u64>,
    /// Working time of agents and reviewers, in milliseconds.
    pub wall_ms: Option<u64>,
}

/// A reviewer, as far as decisions go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reviewer {
    /// Its name in the configuration.
    pub name: String,
    /// Its own threshold, in place of [`Policy::confidence`].
    pub confidence: Option<f64>,
    /// Models whose changes it does not judge, since it is one of them.
    pub not_for: Vec<String>,
    /// It is a person: a review is an escalation.
    pub is_person: bool,
    /// Where it fails, in whatever way, the next reviewer is asked.
    pub continue_on_error: bool,
}

impl From<&str> for Reviewer {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }
}

impl Reviewer {
    /// Whether it may judge what this model made.
    fn may_judge(&self, model: Option<&str>) -> bool {
        model.is_none_or(|model| !self.not_for.iter().any(|other| is_same_model(other, model)))
    }
}

/// Whether two names are of one model: gateways put a path before the provider's own name.
fn is_same_model(one: &str, other: &str) -> bool {
    let own = |name: &str| name.rsplit('/').next().unwrap_or_default().trim().to_lowercase();
    own(one) == own(other)
}

/// The rules by which [`crate::decide()`] decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Attempts that a phase has (the cap); at least 1.
    pub max_attempts: u32,
    /// A confidence must be strictly greater than this to count.
    pub confidence: f64,
    /// What follows when the last attempt is rejected by a reviewer.
    pub on_exhausted: OnExhausted,
    /// Opinions of low confidence on one attempt, after which a person decides.
    pub max_reviews: u32,
    /// Failed reviews of one attempt, after which a person is asked.
    pub max_review_failures: u32,
    /// Failed runs of one attempt's agent, after which a person is asked.
    pub max_infra_failures: u32,
    /// Failed landings of one attempt, after which a person is asked.
    pub max_land_failures: u32,
    /// Deliveries of one job, after which it is taken for a poison job.
    pub max_deliveries: u32,
    /// How often a phase may send each of its predecessors back.
    pub max_predecessor_retries: u32,
    /// The first wait before a job that failed is tried again, in milliseconds; it doubles each time.
    pub backoff_ms: u64,
    /// The longest wait before a job that failed is tried again, in milliseconds.
    pub max_backoff_ms: u64,
    /// Where the next attempt starts.
    pub continue_from: ContinueFrom,
    /// The last attempt that a phase has starts from the base, whatever `continue_from` says.
    pub fresh_last: bool,
    /// What a task may use up.
    pub budget: Budget,
    /// Agents by attempt: the first makes the first attempt, each rejection goes one further.
    pub ladder: Vec<String>,
    /// The models of those agents that tell theirs, by the agent's name.
    pub models: BTreeMap<String, String>,
    /// Reviewers in the order in which they are asked; one that is only a member of a panel is not among them.
    pub reviewers: Vec<Reviewer>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            confidence: 0.6,
            on_exhausted: OnExhausted::Escalate,
            max_reviews: 3,
            max_review_failures: 5,
            max_infra_failures: 5,
            max_land_failures: 5,
            max_deliveries: 5,
            max_predecessor_retries: 2,
            backoff_ms: 2_000,
            max_backoff_ms: 300_000,
            continue_from: ContinueFrom::Previous,
            fresh_last: false,
            budget: Budget::default(),
            ladder: vec!["default".to_owned()],
            models: BTreeMap::new(),
            reviewers: vec!["default".into()],
        }
    }
}

impl Policy {
    /// The wait before try number `tries + 1`, in milliseconds, after `tries` failures (from 1).
    ///
    /// It doubles up to `max_backoff_ms`; `asked` (what the other side asked for) is never undercut, but never followed
    /// beyond a day.
    pub fn backoff(&self, tries: u32, asked: Option<u64>) -> u64 {
        const DAY_MS: u64 = 86_400_000;
        let doubled = self.backoff_ms.saturating_mul(1 << tries.saturating_sub(1).min(20));
        doubled.min(self.max_backoff_ms).max(asked.unwrap_or(0).min(DAY_MS))
    }

    /// The attempts that a phase has by the rules, those apart that a person granted.
    pub fn attempts(&self, phase: &Phase) -> u32 {
        phase.limits.max_attempts.unwrap_or(self.max_attempts).max(1)
    }

    /// Where the attempt starts that a phase is at. One that a person granted goes on from what that person saw.
    pub fn start(&self, phase: &Phase) -> ContinueFrom {
        let is_last = phase.attempt_number() == self.attempts(phase);
        if self.fresh_last && is_last { ContinueFrom::Base } else { self.continue_from }
    }

    /// The agent for the attempt after those of a round that these agents made, in order: that of the next rung, each attempt
    /// being one; the last rung has no end.
    pub fn next_agent<'p>(&'p self, made_by: &[&str]) -> &'p str {
        let next = self.rung(made_by).map_or(0, |rung| rung + 1).min(self.ladder.len().saturating_sub(1));
        self.ladder.get(next).map_or("default", String::as_str)
    }

    /// The next agent that is not the one that made the last attempt, where the ladder has one.
    pub fn next_other_agent<'p>(&'p self, made_by: &[&str]) -> Option<&'p str> {
        let last = made_by.last()?;
        let above = self.ladder.iter().skip(self.rung(made_by)? + 1);
        above.map(String::as_str).find(|agent| agent != last)
    }

    /// The rung of the ladder (from 0) that the last of these agents stood on; nothing before the first attempt.
    ///
    /// Each attempt is one rung above the one before, or where a rejection repeated itself on the next rung with another
    /// agent: so the agents tell the rungs. Of an agent that the ladder does not have (any more) there, it is the next rung.
    fn rung(&self, made_by: &[&str]) -> Option<usize> {
        let top = self.ladder.len().saturating_sub(1);
        made_by.iter().enumerate().fold(None, |rung, (nth, agent)| {
            let next = rung.map_or(0, |rung: usize| rung + 1);
            let found = self.ladder.iter().skip(next).position(|name| name == agent).map(|above| next + above);
            // The first attempt is made by the first agent, whatever it was called then.
            Some(found.filter(|_| nth > 0).unwrap_or(next).min(top))
        })
    }

    /// The reviewer to ask about what this agent made, after these have been asked, and whether it may judge it.
    ///
    /// It is the one that was asked least often, the first of those, and never the one that was asked last where there is
    /// another. Those that must not judge what the agent's model made are passed over while one is left that may.
    pub fn next_reviewer(&self, agent: &str, asked: &[&str]) -> (&str, bool) {
        let model = self.models.get(agent).map(String::as_str);
        let may_judge = self.reviewers.iter().any(|r| r.may_judge(model));
        let fitting = self.reviewers.iter().filter(|r| !may_judge || r.may_judge(model));
        let order = |r: &&Reviewer| {
            let times = asked.iter().filter(|name| **name == r.name).count();
            (asked.last() == Some(&r.name.as_str()), times)
        };
        (fitting.min_by_key(order).map_or("default", |r| &r.name), may_judge || self.reviewers.is_empty())
    }

    /// A reviewer's confidence must be strictly greater than this to count.
    pub fn threshold(&self, reviewer: &str) -> f64 {
        self.reviewer(reviewer).and_then(|r| r.confidence).unwrap_or(self.confidence)
    }

    /// Whether a reviewer is a person.
    pub fn is_person(&self, reviewer: &str) -> bool {
        self.reviewer(reviewer).is_some_and(|r| r.is_person)
    }

    /// Whether the next reviewer is asked where this one fails, in whatever way.
    pub fn continues_without(&self, reviewer: &str) -> bool {
        self.reviewer(reviewer).is_some_and(|r| r.continue_on_error)
    }

    fn reviewer(&self, name: &str) -> Option<&Reviewer> {
        self.reviewers.iter().find(|r| r.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Timestamp;
    use crate::task::{Attempt, PhaseLimits};

    #[test]
    fn backoff_doubles_is_bounded_and_heeds_what_was_asked() {
        let policy = Policy::default();
        let waits: Vec<_> = (1..=9).map(|n| policy.backoff(n, None)).collect();
        assert_eq!(waits, [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000]);
        assert_eq!(policy.backoff(1, Some(60_000)), 60_000);
        assert_eq!(policy.backoff(1, Some(u64::MAX)), 86_400_000);
        assert_eq!(policy.backoff(u32::MAX, None), 300_000);
    }

    #[test]
    fn the_next_reviewer_is_another_one_where_there_is_another() {
        let policy = Policy { reviewers: ["a", "b", "c"].map(Reviewer::from).into(), ..Policy::default() };
        for (asked, next) in [
            (&[][..], "a"),
            (&["a"], "b"),
            (&["a", "b"], "c"),
            (&["a", "b", "c"], "a"),
            (&["b"], "a"),
            (&["c", "b", "a"], "b"),
            (&["b", "c", "c", "a"], "b"),
            (&["gone"], "a"),
        ] {
            assert_eq!(policy.next_reviewer("fixer", asked), (next, true), "{asked:?}");
        }
        assert_eq!(Policy::default().next_reviewer("fixer", &["default"]), ("default", true));
        assert_eq!(Policy { reviewers: Vec::new(), ..policy }.next_reviewer("fixer", &[]), ("default", true));
    }

    #[test]
    fn nobody_judges_a_change_of_their_own_model_while_another_is_left() {
        let but_not = |name: &str, model: &str| Reviewer { not_for: vec![model.to_owned()], ..name.into() };
        let models = [("fixer", "lab/Large-2"), ("small", "small-1")];
        let policy = Policy {
            models: models.map(|(agent, model)| (agent.to_owned(), model.to_owned())).into(),
            reviewers: vec![but_not("large", "large-2"), but_not("mini", "small-1"), "any".into()],
            ..Policy::default()
        };
        assert_eq!(policy.next_reviewer("fixer", &[]), ("mini", true));
        assert_eq!(policy.next_reviewer("fixer", &["mini", "any"]), ("mini", true));
        assert_eq!(policy.next_reviewer("small", &["large"]), ("any", true));
        assert_eq!(policy.next_reviewer("unknown", &[]), ("large", true));
        let alone = Policy { reviewers: vec![but_not("large", "large-2")], ..policy };
        assert_eq!(alone.next_reviewer("fixer", &[]), ("large", false));
    }

    #[test]
    fn a_threshold_of_its_own_goes_before_the_policys() {
        let sure = Reviewer { confidence: Some(0.8), ..Reviewer::from("sure") };
        let policy = Policy { reviewers: vec![sure, "kind".into()], ..Policy::default() };
        let of = |name| policy.threshold(name);
        assert_eq!((of("sure"), of("kind"), of("gone")), (0.8, 0.6, 0.6));
    }

    #[test]
    fn the_last_attempt_starts_anew_where_it_is_told_to() {
        use ContinueFrom::{Base, Previous};
        let phase = |limit: Option<u32>, granted, number| {
            let limits = PhaseLimits { max_attempts: limit, ..PhaseLimits::default() };
            let mut phase = Phase { granted, ..Phase::new("build", Vec::new(), limits) };
            phase.attempts = (1..=number).map(|n| Attempt::new(n, "fixer", Timestamp(1))).collect();
            phase
        };
        let usual = Policy::default();
        let fresh = Policy { fresh_last: true, ..Policy::default() };
        let base = Policy { continue_from: Base, ..Policy::default() };
        for (policy, limit, granted, number, start) in [
            (&usual, None, 0, 3, Previous),
            (&base, None, 0, 2, Base),
            (&fresh, None, 0, 1, Previous),
            (&fresh, None, 0, 2, Previous),
            (&fresh, None, 0, 3, Base),
            (&fresh, Some(2), 0, 2, Base),
            (&fresh, None, 1, 3, Base),
            (&fresh, None, 1, 4, Previous),
        ] {
            assert_eq!(policy.start(&phase(limit, granted, number)), start, "{limit:?} {granted} {number}");
        }
    }

    #[test]
    fn the_ladder_ends_with_its_last_agent() {
        let policy = Policy { ladder: vec!["cheap".into(), "strong".into()], ..Policy::default() };
        let made_by = ["cheap", "strong", "strong"];
        assert_eq!([0, 1, 2, 3].map(|n| policy.next_agent(&made_by[..n])), ["cheap", "strong", "strong", "strong"]);
        assert_eq!(policy.next_other_agent(&made_by[..1]), Some("strong"));
        assert_eq!([0, 2, 3].map(|n| policy.next_other_agent(&made_by[..n])), [None; 3]);
        assert_eq!(Policy { ladder: Vec::new(), ..policy }.next_agent(&["gone"]), "default");
    }

    #[test]
    fn the_rung_is_told_by_who_made_the_attempts() {
        let ladder = |names: &str| names.split(' ').map(str::to_owned).collect();
        for (names, made_by, next, other) in [
            ("a a a b", "a a", "a", Some("b")),
            ("a a a b", "a a b", "b", None),
            ("a a a b", "a a b b", "b", None),
            // Of two rungs with one agent the lower one comes first, also where others were left out.
            ("a a a b b c", "a b", "b", Some("c")),
            ("a a a b b c", "a b b", "c", Some("c")),
            ("a a a b b c", "a a a b", "b", Some("c")),
            ("a b a", "a b", "a", Some("a")),
            // The ladder was another one when the attempts were made.
            ("x y z", "a", "y", Some("y")),
            ("x y z", "a b", "z", Some("z")),
            ("x y z", "a b c d", "z", None),
        ] {
            let policy = Policy { ladder: ladder(names), ..Policy::default() };
            let made_by: Vec<&str> = made_by.split(' ').collect();
            assert_eq!(
                (policy.next_agent(&made_by), policy.next_other_agent(&made_by)),
                (next, other),
                "{names} {made_by:?}"
            );
        }
    }
}
