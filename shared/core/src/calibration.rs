//! How much a reviewer's confidence is worth: its verdicts against what people decided and what became of the change.
//!
//! A confidence is an ordering, not a probability. What is asked of a verdict is one thing: did it say of the change,
//! whether it was good as it was, what turned out to be so? Nobody knows that of most verdicts; those have no label.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::person::PersonDecision;
use crate::task::{Attempt, Escalation, EscalationReason, Job, Phase, Review, Task};
use crate::verdict::VerdictKind;

/// With fewer labels, or fewer recent confidences, than this nothing is concluded from them. A choice: the interval for
/// 20 right ones of 20 begins at 0.84.
pub const FEWEST: usize = 20;

/// The share of right verdicts that a suggested threshold promises.
pub const TARGET: f64 = 0.8;

/// What became of a landed change on the base branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nobody looked, or it is too early to tell.
    Unknown,
    /// It is there and has been for a while.
    Stood,
    /// It was taken back.
    Reverted,
}

/// One verdict of one reviewer, and whether it was right where that is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The reviewer, or the member of a panel.
    pub reviewer: String,
    /// What it said.
    pub verdict: VerdictKind,
    /// How sure it was.
    pub conf: f64,
    /// Whether it was right.
    pub right: Option<bool>,
    /// What became of the very change that it is about.
    pub fate: Fate,
}

/// Every verdict of a task, oldest first within a phase; those of a panel's members beside the panel's own.
///
/// What became of the landed change goes before what people decided: it is the later word.
pub fn samples(task: &Task, fate: Fate) -> Vec<Sample> {
    let mut samples = Vec::new();
    for phase in &task.phases {
        let landed = landed(phase).filter(|_| fate != Fate::Unknown);
        for attempt in &phase.attempts {
            for review in opinions(&attempt.reviews) {
                let is_of_landed = landed.is_some_and(|(a, head)| std::ptr::eq(a, attempt) && review.head == head);
                let decided = || decided(task, phase, attempt, review).map(|(_, good)| good);
                let was_good = if is_of_landed { Some(fate == Fate::Stood) } else { decided() };
                samples.push(Sample {
                    reviewer: review.reviewer.clone(),
                    verdict: review.verdict.verdict,
                    conf: review.verdict.conf,
                    right: was_good.map(|good| is_right(review, good)),
                    fate: if is_of_landed { fate } else { Fate::Unknown },
                });
            }
        }
    }
    samples
}

/// The verdicts that a person's decision on this escalation calls right or wrong, and no decision before it did.
pub(crate) fn labelled<'t>(task: &'t Task, escalation: &Escalation) -> Vec<(&'t Review, bool)> {
    let Some(phase) = task.phase(&escalation.phase) else { return Vec::new() };
    let of_phase = phase.attempts.iter().flat_map(|a| opinions(&a.reviews).map(move |review| (a, review)));
    of_phase
        .filter_map(|(attempt, review)| {
            let (decided, good) = decided(task, phase, attempt, review)?;
            (decided.id == escalation.id).then(|| (review, is_right(review, good)))
        })
        .collect()
}

/// Those of reviewers that say whether the change is good as it is: no failures, nobody who asks for a person, and no person
/// on a forge, whose word is not measured.
fn opinions(reviews: &[Review]) -> impl Iterator<Item = &Review> {
    let each = reviews.iter().flat_map(|review| review.members.iter().chain([review]));
    let says_nothing = |kind| matches!(kind, VerdictKind::Escalate | VerdictKind::Retry);
    each.filter(move |r| r.failure.is_none() && !r.is_by_human() && !says_nothing(r.verdict.verdict))
}

fn is_right(review: &Review, was_good: bool) -> bool {
    (review.verdict.verdict == VerdictKind::Approved) == was_good
}

/// The first decision of a person about the change that a review is about: where, and whether it is good.
fn decided<'t>(task: &'t Task, phase: &Phase, attempt: &Attempt, review: &Review) -> Option<(&'t Escalation, bool)> {
    let is_about_it = |e: &&Escalation| {
        e.phase == phase.name
            && judged(phase, e).is_some_and(|(a, head)| std::ptr::eq(a, attempt) && review.head == head)
    };
    task.escalations.iter().filter(is_about_it).find_map(|e| Some((e, says_good(e)?)))
}

/// Whether a person's decision says of the change that it is good as it is. Where something else than a verdict was in
/// doubt, such as a provider or a budget, it says nothing of verdicts.
fn says_good(escalation: &Escalation) -> Option<bool> {
    use EscalationReason::{AttemptsExhausted, HumanReview, LowConfidence, RepeatedRejection, ReviewerAsked};
    let is_about_the_change = matches!(
        escalation.reason,
        AttemptsExhausted | HumanReview | LowConfidence | RepeatedRejection | ReviewerAsked
    );
    match escalation.decision.as_ref().filter(|_| is_about_the_change)?.decision {
        PersonDecision::Approve => Some(true),
        PersonDecision::Refile { .. } | PersonDecision::Reject => Some(false),
        PersonDecision::Retry => None,
    }
}

/// The attempt whose reviews an escalation is about, and the commit that was judged last before it.
fn judged<'p>(phase: &'p Phase, escalation: &Escalation) -> Option<(&'p Attempt, &'p str)> {
    // Numbers start again after a predecessor was rerun, so time tells the rounds apart.
    let is_it = |a: &Attempt| a.number == escalation.attempt && a.started_at <= escalation.at;
    let at = phase.attempts.iter().rposition(is_it)?;
    let [before @ .., attempt] = phase.attempts.get(..=at)? else { return None };
    let follows_a_rejection =
        matches!(escalation.reason, EscalationReason::AttemptsExhausted | EscalationReason::RepeatedRejection);
    let head_of = |a: &'p Attempt| {
        let last = opinions(&a.reviews).filter(|r| r.at <= escalation.at).last();
        // What a reviewer approved was rejected by a gate on its way to the base: that is no word on the verdict.
        let by_a_gate = |r: &&Review| follows_a_rejection && r.verdict.verdict == VerdictKind::Approved;
        last.filter(|r| !by_a_gate(r)).map(|review| (a, review.head.as_str()))
    };
    // A change that passed every gate and was rejected all the same without a review: the same diff again. What was said
    // of it the first time is in doubt.
    let is_same_again = follows_a_rejection
        && matches!(escalation.job, Some(Job::Code { .. }))
        && attempt.gates.iter().all(|gate| gate.passed);
    if is_same_again { before.last().and_then(head_of) } else { head_of(attempt) }
}

/// The attempt and the commit that landed.
fn landed(phase: &Phase) -> Option<(&Attempt, &str)> {
    let approval = phase.approval.as_ref().filter(|a| a.landed.is_some())?;
    let attempt = phase.attempts.iter().rev().find(|a| a.number == approval.attempt)?;
    Some((attempt, &approval.head))
}

/// How often verdicts were right, wrong, or nobody knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Right.
    pub right: usize,
    /// Wrong.
    pub wrong: usize,
    /// Without a label.
    pub unlabelled: usize,
}

impl Tally {
    fn add(&mut self, right: Option<bool>) {
        *match right {
            Some(true) => &mut self.right,
            Some(false) => &mut self.wrong,
            None => &mut self.unlabelled,
        } += 1;
    }

    /// Those with a label.
    pub fn labelled(&self) -> usize {
        self.right + self.wrong
    }
}

/// The labelled verdicts whose confidences lie between two bounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bin {
    /// The least confidence.
    pub from: f64,
    /// The confidence below which it ends; the last one holds 1.0 too.
    pub to: f64,
    /// Right.
    pub right: usize,
    /// Wrong.
    pub wrong: usize,
    /// The share that was right.
    pub share: f64,
    /// Where the 95 % interval of that share begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
}

/// What is known of one reviewer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibration {
    /// The reviewer.
    pub reviewer: String,
    /// All its verdicts that count.
    #[serde(flatten)]
    pub all: Tally,
    /// Verdicts about changes that have stood on their base branch for a while.
    pub stood: usize,
    /// Verdicts about changes that were taken back.
    pub reverted: usize,
    /// The same by what it said.
    pub verdicts: BTreeMap<&'static str, Tally>,
    /// The same by confidence; bins without a labelled verdict are left out.
    pub bins: Vec<Bin>,
    /// There are fewer than [`FEWEST`] labels: nothing can be concluded.
    pub too_few_labels: bool,
    /// A threshold above which at least [`TARGET`] of the verdicts are right, as far as the labels tell.
    pub suggested: Option<f64>,
}

/// What the samples tell of each reviewer, by name.
pub fn calibrate(samples: &[Sample]) -> Vec<Calibration> {
    let mut reviewers: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        reviewers.entry(&sample.reviewer).or_default().push(sample);
    }
    reviewers.into_iter().map(|(name, samples)| of_one(name, &samples)).collect()
}

fn of_one(reviewer: &str, samples: &[&Sample]) -> Calibration {
    let mut all = Tally::default();
    let mut verdicts: BTreeMap<&'static str, Tally> = BTreeMap::new();
    let mut tallies = [Tally::default(); BINS];
    for sample in samples {
        all.add(sample.right);
        verdicts.entry(sample.verdict.as_str()).or_default().add(sample.right);
        tallies[bin(sample.conf)].add(sample.right);
    }
    let bins = tallies.iter().enumerate().filter(|(_, tally)| tally.labelled() > 0).map(|(at, tally)| {
        let (low, high) = wilson(tally.right, tally.labelled());
        Bin {
            from: at as f64 / BINS as f64,
            to: (at + 1) as f64 / BINS as f64,
            right: tally.right,
            wrong: tally.wrong,
            share: tally.right as f64 / tally.labelled() as f64,
            low,
            high,
        }
    });
    let of_fate = |fate| samples.iter().filter(|sample| sample.fate == fate).count();
    let (stood, reverted) = (of_fate(Fate::Stood), of_fate(Fate::Reverted));
    let too_few_labels = all.labelled() < FEWEST;
    let suggested = if too_few_labels { None } else { suggested(samples) };
    let (reviewer, bins) = (reviewer.to_owned(), bins.collect());
    Calibration { reviewer, all, stood, reverted, verdicts, bins, too_few_labels, suggested }
}

/// How many bins of confidence there are.
const BINS: usize = 10;

/// The bin of a confidence.
fn bin(conf: f64) -> usize {
    ((conf * BINS as f64) as usize).min(BINS - 1)
}

/// The confidence at which the bin of this confidence begins, as a label: `0.0` to `0.9`.
pub(crate) fn bin_label(conf: f64) -> String {
    format!("{:.1}", bin(conf) as f64 / BINS as f64)
}

/// The Wilson score interval of a share at 95 %: where it begins and ends. Unlike the usual one it holds for few
/// observations and for shares near 0 and 1.
///
/// E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of the American
/// Statistical Association 22 (1927), pages 209-212.
pub fn wilson(hits: usize, of: usize) -> (f64, f64) {
    /// The 97.5th percentile of the normal distribution.
    const Z: f64 = 1.959_963_984_540_054;
    if of == 0 {
        return (0.0, 1.0);
    }
    let n = of as f64;
    let share = hits as f64 / n;
    let (z2, spread) = (Z * Z, 1.0 + Z * Z / n);
    let middle = (share + z2 / (2.0 * n)) / spread;
    let half = Z / spread * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    ((middle - half).clamp(0.0, share), (middle + half).clamp(share, 1.0))
}

/// The lowest threshold above which the interval of the share of right verdicts begins at [`TARGET`] or higher.
///
/// A verdict passes where its confidence is strictly greater than the threshold. So that is put just below the lowest
/// confidence that may pass, but not below one that may not.
fn suggested(samples: &[&Sample]) -> Option<f64> {
    const STEP: f64 = 0.01;
    // A confidence of 0 passes nothing.
    let mut sorted: Vec<&&Sample> = samples.iter().filter(|s| s.conf > 0.0).collect();
    sorted.sort_by(|a, b| b.conf.total_cmp(&a.conf));
    let mut passing = Tally::default();
    let mut best = None;
    for (at, sample) in sorted.iter().enumerate() {
        passing.add(sample.right);
        let next_below = sorted.get(at + 1).map(|s| s.conf);
        // Equal confidences pass together or not at all.
        if next_below != Some(sample.conf) && wilson(passing.right, passing.labelled()).0 >= TARGET {
            let near = ((sample.conf - STEP) * 1e4).ceil() / 1e4;
            best = Some(near.max(next_below.unwrap_or(0.0)));
        }
    }
    best
}

/// The threshold at which `percent` of these confidences do not pass: as many as possible, never more.
///
/// Equal confidences pass together or not at all. Where even the lowest of them would be too many, all pass, and only
/// what is lower still does not. Nothing where there are fewer than [`FEWEST`].
pub fn quantile(confidences: &[f64], percent: u8) -> Option<f64> {
    if confidences.len() < FEWEST {
        return None;
    }
    let mut sorted = confidences.to_vec();
    sorted.sort_by(f64::total_cmp);
    let most = sorted.len() * usize::from(percent) / 100;
    // The first that must pass, and with it all that are equal to it.
    let passes = sorted[most.min(sorted.len() - 1)];
    let below = sorted.iter().rev().find(|conf| **conf < passes);
    Some(below.copied().unwrap_or_else(|| passes.next_down().max(0.0)))
}

#[cfg(test)]
mod tests;
