//! Two stores, what the fleet knows of them, and one random step after the other on both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use refile_core::decide::submission::NewTask;
use refile_core::event::PersonDecision;
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;
use refile_core::task::PhaseLimits;
use refile_core::verdict::VerdictKind;
use refile_core::{Event, Outcome, Policy, Priority, Queue, TaskId, TaskState, Timestamp, decide};
use refile_store::commit::commit;
use refile_store::{
    Claim, ClaimRequest, Commit, Committed, Pause, PauseTarget, Presence, ProviderPart, Report, Store, TakeRequest,
    Taken,
};

use super::Dice;
use super::view::{about, claimed, taken, view};
use crate::suite::kit::{self, Harness, LONG, crashed};

pub(crate) struct World<'a> {
    harnesses: [&'a dyn Harness; 2],
    stores: [Arc<dyn Store>; 2],
    dice: Dice,
    at: String,
    ids: Vec<TaskId>,
    /// Every claim there ever was: most of them are stale.
    claims: Vec<Claim>,
    /// Outcomes that were taken, each as both stores gave it.
    taken: Vec<[Taken; 2]>,
    /// Whether a lease may have run out.
    expired: bool,
    /// How often what was tried came to what.
    pub(crate) seen: BTreeMap<String, u32>,
}

/// Does the same on both stores, holds that the results are equal, and gives the first one.
macro_rules! both {
    ($world:expr, |$store:ident| $call:expr) => {{
        let mut answers = Vec::new();
        for $store in &$world.stores {
            answers.push($call.await.unwrap());
        }
        assert_eq!(answers[0], answers[1], "{}", $world.at);
        answers.remove(0)
    }};
}

impl<'a> World<'a> {
    pub(crate) async fn new(seed: u64, left: &'a dyn Harness, right: &'a dyn Harness) -> Self {
        Self {
            harnesses: [left, right],
            stores: [left.store().await, right.store().await],
            dice: Dice::new(seed),
            at: format!("seed {seed}"),
            ids: Vec::new(),
            claims: Vec::new(),
            taken: Vec::new(),
            expired: false,
            seen: BTreeMap::new(),
        }
    }

    pub(crate) async fn step(&mut self, step: u64) {
        let seed = self.at.split(',').next().unwrap_or_default().to_owned();
        self.at = format!("{seed}, step {step}");
        match self.dice.below(42) {
            0..=2 => self.submit(step).await,
            3..=10 => self.claim().await,
            11..=12 => self.extend().await,
            13..=20 => self.report(step).await,
            21 => self.release().await,
            22..=26 => self.take().await,
            27..=34 => self.commit(step).await,
            35 => self.discard().await,
            36 => self.reclaim().await,
            37..=38 => self.person(step).await,
            39 => self.pause().await,
            40 => self.damage().await,
            _ => self.rest().await,
        }
        if step.is_multiple_of(25) {
            self.compare().await;
        }
    }

    /// Holds that the stores are in the same state.
    pub(crate) async fn compare(&self) {
        let [left, right] = &self.stores;
        let (left, right) = (view(left, &self.ids).await, view(right, &self.ids).await);
        // One part at a time: a whole view is too long to read.
        macro_rules! same {
            ($($part:ident),+) => {$( assert_eq!(left.$part, right.$part, "{}: {}", self.at, stringify!($part)); )+};
        }
        same!(
            jobs,
            counts,
            depth,
            leases,
            numbers,
            listed,
            escalated,
            has_escalation,
            quarantined,
            pauses,
            events,
            workers
        );
        same!(tasks);
        assert_eq!(left, right, "{}", self.at);
    }

    fn saw(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_default() += 1;
    }

    async fn submit(&mut self, step: u64) {
        let count = 1 + self.dice.below(3);
        let mut batch = Vec::new();
        for n in 0..count {
            let phase = |name: &str, after: &[&str]| {
                let after = after.iter().map(|a| (*a).to_owned()).collect();
                (name.to_owned(), after, PhaseLimits::default())
            };
            let phases = match self.dice.below(3) {
                0 => vec![phase("change", &[])],
                1 => vec![phase("left", &[]), phase("right", &[])],
                _ => vec![phase("first", &[]), phase("second", &["first"])],
            };
            let lands = self.dice.once_in(2);
            let new = NewTask {
                priority: self.dice.pick(Priority::ALL),
                repository: format!("repo{}", self.dice.below(4)),
                workflow: refile_core::decide::submission::Workflow { name: "w".to_owned(), phases, lands },
                ..kit::new_task("title")
            };
            let id = if self.dice.once_in(8) && !self.ids.is_empty() {
                self.dice.pick(&self.ids)
            } else {
                kit::id(&format!("t{step}-{n}"))
            };
            batch.push(kit::submission(id.as_str(), new));
        }
        let submitted = both!(self, |store| store.submit(&batch));
        self.ids.extend(submitted.into_iter().filter(|s| s.added).map(|s| s.id));
    }

    /// At most one lease has run out at any time.
    async fn lease(&mut self) -> (usize, Duration) {
        if !self.dice.once_in(3) {
            return (1 + self.dice.below(4), LONG);
        }
        if self.expired {
            self.reclaim().await;
        }
        self.expired = true;
        (1, Duration::ZERO)
    }

    async fn claim(&mut self) {
        let (max, lease) = self.lease().await;
        let queues = match self.dice.below(3) {
            0 => vec![Queue::Code],
            1 => vec![Queue::Review, Queue::Land],
            _ => vec![Queue::Land, Queue::Review, Queue::Code],
        };
        let owner = format!("w{}", self.dice.below(3));
        let limits = Arc::default();
        self.claim_so(&ClaimRequest { queues, owner, max, lease, wait: Duration::ZERO, limits }).await;
    }

    async fn claim_so(&mut self, request: &ClaimRequest) {
        let left = self.stores[0].claim(request).await.unwrap();
        let right = self.stores[1].claim(request).await.unwrap();
        let known = |claims: &[Claim]| claims.iter().map(claimed).collect::<Vec<_>>();
        assert_eq!(known(&left), known(&right), "{}", self.at);
        if !left.is_empty() {
            self.saw("claimed");
        }
        self.claims.extend(left);
    }

    /// A claim; mostly one of the newest, whose lease may still hold.
    fn some_claim(&mut self) -> Option<Claim> {
        let count = self.claims.len();
        let newest = if self.dice.once_in(3) { count } else { count.min(6) };
        (newest > 0).then(|| self.claims[count - 1 - self.dice.below(newest)].clone())
    }

    async fn extend(&mut self) {
        let (_, lease) = self.lease().await;
        let Some(claim) = self.some_claim() else { return };
        for state in both!(self, |store| store.extend(std::slice::from_ref(&claim.lease), lease)) {
            self.saw(format!("extend {state:?}"));
        }
    }

    async fn report(&mut self, step: u64) {
        let mut reports = Vec::new();
        for _ in 0..=self.dice.below(3) {
            let Some(claim) = self.some_claim() else { return };
            let outcome = self.outcome(&claim, step);
            reports.push(Report { lease: claim.lease, outcome });
        }
        for reported in both!(self, |store| store.report(&reports)) {
            self.saw(format!("report {reported:?}"));
        }
    }

    fn outcome(&mut self, claim: &Claim, step: u64) -> Outcome {
        let attempt = claim.task.phase(&claim.lease.phase).and_then(|p| p.attempt());
        let head = attempt.and_then(|a| a.change.as_ref()).map_or_else(String::new, |c| c.head.clone());
        let gate = |passed| GateReport {
            name: "test".to_owned(),
            passed,
            required_change: None,
            output: "output".to_owned(),
            log: None,
            duration_ms: 1,
        };
        match (claim.queue, self.dice.below(8)) {
            (Queue::Code, 0) => crashed(),
            (Queue::Code, 1) => kit::asks(),
            (Queue::Code, n) => match kit::coded(&format!("h{step}")) {
                Outcome::Coded { change, prompt_digest, transcript, usage, .. } => {
                    Outcome::Coded { change, gates: vec![gate(n > 2)], prompt_digest, transcript, usage }
                }
                other => other,
            },
            (Queue::Review, 0) => kit::reviewed(VerdictKind::Reject, &head),
            (Queue::Review, 1) => kit::reviewed(VerdictKind::NeedsChanges, &head),
            (Queue::Review, 2) => kit::reviewed(VerdictKind::Retry, &head),
            (Queue::Review, _) => kit::reviewed(VerdictKind::Approved, &head),
            (Queue::Land, 0) => Outcome::LandingFailed { failure: Failure::new(FailureKind::Repository, "no answer") },
            (Queue::Land, 1) => Outcome::LandingRejected { gate: gate(false) },
            (Queue::Land, _) => Outcome::Landed { commit: format!("c{step}") },
        }
    }

    async fn release(&mut self) {
        let Some(claim) = self.some_claim() else { return };
        both!(self, |store| store.release(std::slice::from_ref(&claim.lease)));
    }

    async fn take(&mut self) {
        let all = self.dice.once_in(4);
        let (max, takeover) = if all { (10_000, Duration::ZERO) } else { (1 + self.dice.below(4), LONG) };
        let consumer = format!("c{}", self.dice.below(3));
        self.take_so(&TakeRequest { consumer, max, wait: Duration::ZERO, takeover }).await;
    }

    async fn take_so(&mut self, request: &TakeRequest) {
        let mut left = self.stores[0].take_outcomes(request).await.unwrap();
        let mut right = self.stores[1].take_outcomes(request).await.unwrap();
        if request.takeover.is_zero() {
            // Whether what is taken over comes before what is new is the engine's own affair.
            left.sort_by_key(about);
            right.sort_by_key(about);
        }
        let known = |all: &[Taken]| all.iter().map(taken).collect::<Vec<_>>();
        assert_eq!(known(&left), known(&right), "{}", self.at);
        for pair in left.into_iter().zip(right) {
            self.taken.retain(|before| about(&before[0]) != about(&pair.0));
            self.taken.push(pair.into());
        }
    }

    async fn commit(&mut self, step: u64) {
        let mut batches: [Vec<Commit>; 2] = Default::default();
        let mut chosen = Vec::new();
        for _ in 0..=self.dice.below(3) {
            if self.taken.is_empty() {
                break;
            }
            let mut pair = self.taken.remove(self.dice.below(self.taken.len()));
            if self.dice.once_in(2) {
                self.read_again(&mut pair).await;
            }
            let hours = if self.dice.once_in(2) { 0 } else { 3_600_000 };
            let policy = Policy { max_deliveries: 2, ..kit::backoff(hours) };
            let [one, two] = &pair;
            let decided = decide(&one.task.task, &kit::event_of(one), &policy, Timestamp(step));
            let Ok(transition) = decided else {
                self.drop_pair(&pair).await;
                continue;
            };
            for (batch, taken) in batches.iter_mut().zip([one, two]) {
                let before = Some((&taken.task.task, taken.task.version));
                batch.push(commit(transition.clone(), before, Some(taken.guard.clone())));
            }
            if transition.task.state == TaskState::Merged {
                self.saw("landed");
            }
            chosen.push(pair);
        }
        let left = self.stores[0].commit(&batches[0]).await.unwrap();
        let right = self.stores[1].commit(&batches[1]).await.unwrap();
        assert_eq!(left, right, "{}", self.at);
        for (committed, pair) in left.into_iter().zip(chosen) {
            self.saw(format!("commit {committed:?}"));
            if committed == Committed::Conflict {
                self.taken.push(pair);
            }
        }
    }

    async fn read_again(&self, pair: &mut [Taken; 2]) {
        let ids = [pair[0].task.task.id.clone()];
        let found = both!(self, |store| store.tasks(&ids)).remove(0).unwrap();
        for taken in pair {
            taken.task = found.clone();
        }
    }

    async fn discard(&mut self) {
        if self.dice.once_in(3) && !self.taken.is_empty() {
            let pair = self.taken.remove(self.dice.below(self.taken.len()));
            self.drop_pair(&pair).await;
        }
    }

    async fn drop_pair(&mut self, pair: &[Taken; 2]) {
        for (store, taken) in self.stores.iter().zip(pair) {
            store.discard(std::slice::from_ref(&taken.guard.receipt)).await.unwrap();
        }
        self.saw("discarded");
    }

    async fn reclaim(&mut self) {
        let left = self.stores[0].reclaim(2, 100).await.unwrap();
        let right = self.stores[1].reclaim(2, 100).await.unwrap();
        assert_eq!((left.redelivered, left.poisoned), (right.redelivered, right.poisoned), "{}", self.at);
        self.expired = false;
        for (what, happened) in [("redelivered", left.redelivered), ("poisoned", left.poisoned)] {
            if happened > 0 {
                self.saw(what);
            }
        }
    }

    /// Somebody decides an escalation, or calls a task off.
    async fn person(&mut self, step: u64) {
        if self.ids.is_empty() {
            return;
        }
        let id = [self.dice.pick(&self.ids)];
        let before = both!(self, |store| store.tasks(&id)).remove(0).unwrap();
        let open = before.task.open_escalations().next().map(|e| e.id.clone());
        let event = match (open, self.dice.below(4)) {
            (Some(escalation), n) => {
                let decision = match n {
                    0 => PersonDecision::Reject,
                    1 => PersonDecision::Approve,
                    2 => PersonDecision::Refile { required_change: "Do it again.".to_owned(), attempts: 1 },
                    _ => PersonDecision::Retry,
                };
                Event::Decided { escalation, decision, by: "ann".to_owned(), note: None }
            }
            (None, 0 | 1) => kit::cancelled(),
            (None, _) => return,
        };
        let Ok(transition) = decide(&before.task, &event, &Policy::default(), Timestamp(step)) else { return };
        let mut commits = vec![commit(transition, Some((&before.task, before.version)), None)];
        commits[0].version -= u64::from(self.dice.once_in(5));
        for committed in both!(self, |store| store.commit(&commits)) {
            self.saw(format!("person {committed:?}"));
        }
    }

    async fn pause(&mut self) {
        let target = if self.dice.once_in(3) {
            let model = self.dice.pick(&[None, Some("m")]).map(str::to_owned);
            PauseTarget::Provider(ProviderPart { provider: "p".to_owned(), model, key: None })
        } else {
            PauseTarget::Queue(self.dice.pick(Queue::ALL))
        };
        let until = self.dice.pick(&[None, Some(Timestamp(1)), Some(Timestamp(u64::MAX / 4))]);
        let pause = self.dice.once_in(3).then(|| Pause { until, reason: "ann".to_owned(), tries: 0 });
        both!(self, |store| store.set_pause(&target, pause.as_ref()));
    }

    /// A record is damaged, the fleet comes upon it, and an operator repairs it and replays what was set aside.
    async fn damage(&mut self) {
        if self.ids.is_empty() {
            return;
        }
        let id = self.dice.pick(&self.ids);
        let mut good = Vec::new();
        for harness in self.harnesses {
            good.push(harness.corrupt_record(&id).await);
        }
        let queues = Queue::ALL.to_vec();
        let (owner, wait) = ("w9".to_owned(), Duration::ZERO);
        let before = self.claims.len();
        let limits = Arc::default();
        self.claim_so(&ClaimRequest { queues, owner, max: 10_000, lease: LONG, wait, limits }).await;
        let leases: Vec<_> = self.claims.drain(before..).map(|c| c.lease).collect();
        both!(self, |store| store.release(&leases));
        self.take_so(&TakeRequest { consumer: "c9".to_owned(), max: 10_000, wait, takeover: LONG }).await;
        let mut found = Vec::new();
        for ((harness, store), bytes) in self.harnesses.into_iter().zip(&self.stores).zip(&good) {
            harness.swap_record(&id, bytes).await;
            let mut set_aside = store.quarantined().await.unwrap();
            set_aside.sort_by(|a, b| (&a.task, &a.phase).cmp(&(&b.task, &b.phase)));
            for one in &set_aside {
                assert!(store.replay(&one.id).await.unwrap(), "{}", self.at);
            }
            found.push(set_aside.into_iter().map(|q| (q.task, q.phase)).collect::<Vec<_>>());
        }
        assert_eq!(found[0], found[1], "{}", self.at);
        if !found[0].is_empty() {
            self.saw("set aside");
        }
    }

    async fn rest(&mut self) {
        for store in &self.stores {
            assert_eq!(store.promote(10).await.unwrap().moved, 0, "{}: nothing is ever due", self.at);
        }
        let name = format!("p{}", self.dice.below(3));
        let presence = Presence { id: name, role: "coder".to_owned(), host: "h".to_owned(), pid: 1, running: 0 };
        let gone = self.dice.once_in(2);
        both!(self, |store| store.presence(&presence, gone));
    }
}
