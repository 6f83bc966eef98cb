//! Where tasks and phases stand, how attempts end, and why a person is asked.

use crate::names::names;

names! {
    /// Which jobs are claimed first.
    Priority {
        /// Before all others.
        High = "high",
        /// The default.
        Normal = "normal",
        /// After all others.
        Low = "low",
    }
}

names! {
    /// The three queues; each holds jobs of its own kind.
    Queue {
        /// A coder makes an attempt.
        Code = "code",
        /// A reviewer judges an attempt.
        Review = "review",
        /// A coder brings an approved change to the base branch.
        Land = "land",
    }
}

names! {
    /// Where a task stands. The last four are its outcome and final.
    TaskState {
        /// The fleet works on it.
        Open = "open",
        /// It waits for a person.
        Escalated = "escalated",
        /// Its change is on the base branch.
        Merged = "merged",
        /// Finished, with nothing to land.
        Accepted = "accepted",
        /// A reviewer or a person turned it down.
        Rejected = "rejected",
        /// A person called it off.
        Cancelled = "cancelled",
    }
}

impl TaskState {
    /// Whether nothing can happen to the task any more.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Open | Self::Escalated)
    }
}

names! {
    /// Where a phase stands.
    PhaseState {
        /// For the phases before it.
        Waiting = "waiting",
        /// A coder has it.
        Coding = "coding",
        /// A reviewer has it.
        Reviewing = "reviewing",
        /// It goes to the base branch.
        Landing = "landing",
        /// Done.
        Accepted = "accepted",
        /// Turned down.
        Rejected = "rejected",
        /// Not done, since a phase before it was turned down or the task was called off.
        Skipped = "skipped",
    }
}

impl PhaseState {
    /// Whether the phase is over, unless a later phase sends it back.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Accepted | Self::Rejected | Self::Skipped)
    }
}

names! {
    /// Why a task waits for a person; the label `reason` of the metrics.
    EscalationReason {
        /// The last attempt was rejected.
        AttemptsExhausted = "attempts_exhausted",
        /// Every opinion was given with low confidence.
        LowConfidence = "low_confidence",
        /// No review could be had.
        ReviewerUnavailable = "reviewer_unavailable",
        /// The reviewer asked for a person.
        ReviewerAsked = "reviewer_asked",
        /// The reviewer is a person.
        HumanReview = "human_review",
        /// The coder's agent could not be run.
        CoderUnavailable = "coder_unavailable",
        /// The coder declined, or asked a question.
        NeedsInput = "needs_input",
        /// The same demand, or the same diff, came back after a refile.
        RepeatedRejection = "repeated_rejection",
        /// The job was delivered again and again without an outcome.
        PoisonJob = "poison_job",
        /// The change was approved and could not be landed.
        LandingFailed = "landing_failed",
        /// Tokens, cost or working time are used up.
        BudgetExhausted = "budget_exhausted",
    }
}

names! {
    /// Who or what rejected an attempt; the label `cause` of `refiles_total`.
    Cause {
        /// A gate failed.
        Gate = "gate",
        /// A reviewer asked for changes.
        Review = "review",
        /// The approved change did not land.
        Landing = "landing",
        /// A person asked for another attempt.
        Person = "person",
        /// A later phase sent the work back.
        Successor = "successor",
    }
}

names! {
    /// How an attempt ended.
    AttemptOutcome {
        /// Its change is on the base branch, or was taken as it is.
        Accepted = "accepted",
        /// A gate failed.
        GateFailed = "gate_failed",
        /// A reviewer asked for changes.
        NeedsChanges = "needs_changes",
        /// It was approved, and then did not land.
        LandingRejected = "landing_rejected",
        /// It was turned down for good.
        Rejected = "rejected",
        /// A person asked for another attempt.
        Refiled = "refiled",
        /// The coder declined, or asked a question.
        Declined = "declined",
        /// The phase before it is done again first.
        SentBack = "sent_back",
        /// The task was called off.
        Cancelled = "cancelled",
    }
}
