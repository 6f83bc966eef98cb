//! GitHub, Gitea (Forgejo too) and GitLab through one small trait: pull requests, comments, statuses, issues, webhooks.
//!
//! This crate says what a forge knows and does what it is told; what follows from it is the core's part.
//!
//! # Layout
//! - [`error`]: why a call came to nothing, as a kind of failure
//! - [`place`]: which forge a repository lies on
//! - `http`: requests, pages, errors, and the forge's own limits
//! - `hub`: what GitHub and Gitea have in common, and the few calls in which they differ
//! - `github`, `gitea`, `gitlab`: the three wire formats
//! - [`forges`]: the forges of a configuration, each with one client for the whole process
//! - [`login`]: how git gets in over HTTP
//! - [`text`]: what people read there, with what is not ours kept from meaning anything
//! - [`webhook`]: whose word a webhook is

pub mod error;
pub mod place;
mod http;
mod hub;
mod github;
mod gitea;
mod gitlab;
pub mod forges;
pub mod login;
pub mod text;
pub mod webhook;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use refile_core::event::HumanReview;
use refile_core::failure::FailureKind;
use refile_core::{Phase, Task};

pub use error::ForgeError;
pub use forges::Forges;
pub use login::Login;
pub use place::Place;

/// How often it is looked whether a pull request shows what was pushed.
const LOOKS: u32 = 20;
/// The pause between two such looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// How often a status is tried.
const STATUS_TRIES: u32 = 3;
/// The pause between two such tries.
const BETWEEN_STATUS_TRIES: Duration = Duration::from_secs(1);
/// How many comments are added at a time.
const MAX_COMMENTS: usize = 30;

/// What comes of a call.
pub type Result<T> = std::result::Result<T, ForgeError>;

/// A change as it is proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The branch that holds it.
    pub branch: String,
    /// The commit that was pushed to it.
    pub head: String,
    /// The branch that it is for.
    pub base: String,
    /// One line.
    pub title: String,
    /// The text below it.
    pub body: String,
}

/// A pull request (a merge request on GitLab).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// Its number in the project.
    pub number: u64,
    /// Where people find it.
    pub url: String,
    /// The commit that it brings in.
    pub head: String,
    /// Where it stands.
    pub state: State,
}

/// Where a pull request stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// People have not decided yet.
    Open {
        /// Whether the forge is sure that it conflicts with its base.
        conflicts: bool,
        /// What the forge calls that for which it would not let anybody merge it now, where it tells.
        blocked: Option<String>,
    },
    /// It is on the base branch.
    Merged {
        /// The commit there.
        commit: String,
        /// Whose hand it was, where the forge tells.
        by: Option<String>,
    },
    /// It was closed without a merge.
    Closed {
        /// The person who did it, where the forge tells; nobody where it was a program.
        by: Option<String>,
    },
}

/// What a comment is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thread {
    /// A pull request.
    PullRequest(u64),
    /// An issue.
    Issue(u64),
}

/// What is said of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The fleet has still to do something on it.
    Pending,
    /// The fleet's gates and reviewers let it through.
    Success,
    /// The fleet takes its word back.
    Failure,
}

/// What came of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merge {
    /// It is on the base branch.
    Done {
        /// The commit there.
        commit: String,
    },
    /// The forge does not let it through as things stand: checks that run, rules that are not met.
    NotYet {
        /// What it said.
        why: String,
    },
    /// The head is another commit than the one that was to be merged.
    Moved,
}

/// The message of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its first line.
    pub title: String,
    /// What stands below.
    pub body: String,
}

/// An open issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// Its number in the project.
    pub number: u64,
    /// Its title.
    pub title: String,
    /// Its text.
    pub body: String,
    /// Its labels.
    pub labels: Vec<String>,
}

/// One project on a forge. Every call may be made again after an error.
#[async_trait]
pub trait Forge: Debug + Send + Sync {
    /// The pull request of a branch of the project itself: the open one, else the newest.
    async fn find(&self, branch: &str) -> Result<Option<PullRequest>>;

    /// Opens a pull request.
    async fn create(&self, proposal: &Proposal) -> Result<PullRequest>;

    /// Gives a pull request another title and text.
    async fn update(&self, number: u64, proposal: &Proposal) -> Result<()>;

    /// A pull request as it is now.
    async fn pull_request(&self, number: u64) -> Result<PullRequest>;

    /// The commit that a branch is at.
    async fn head_of(&self, branch: &str) -> Result<String>;

    /// The reviews by the project's own people that ask for changes and were not taken back, oldest first; those of `known` ids are left out.
    async fn changes_requested(&self, number: u64, known: &[String]) -> Result<Vec<HumanReview>>;

    /// The texts of the comments on something, oldest first.
    async fn comments(&self, on: Thread) -> Result<Vec<String>>;

    /// Adds a comment. [`comment_once`] adds it only once.
    async fn comment(&self, on: Thread, text: &str) -> Result<()>;

    /// Says something of a commit, once; [`set_status`] tries again.
    async fn status(&self, commit: &str, verdict: Verdict, words: &str) -> Result<()>;

    /// Merges a pull request as one commit, if its head is this one.
    async fn merge(&self, number: u64, head: &str, message: &Message) -> Result<Merge>;

    /// The open issues with a label, oldest first.
    async fn issues(&self, label: &str) -> Result<Vec<Issue>>;

    /// Closes a pull request without a merge, or an issue.
    async fn close(&self, on: Thread) -> Result<()>;

    /// Removes a branch; one that is not there is removed already.
    async fn delete_branch(&self, branch: &str) -> Result<()>;
}

/// Opens the pull request of a branch, or brings the one that is open up to date.
pub async fn propose(forge: &dyn Forge, proposal: &Proposal) -> Result<PullRequest> {
    let found = match open(forge, &proposal.branch).await? {
        Some(found) => found,
        None => match forge.create(proposal).await {
            Ok(created) => return shown(forge, created, &proposal.head).await,
            // Somebody was quicker, or an answer was lost.
            Err(error) if error.is(&[409, 422]) => open(forge, &proposal.branch).await?.ok_or(error)?,
            Err(error) => return Err(error),
        },
    };
    let found = shown(forge, found, &proposal.head).await?;
    forge.update(found.number, proposal).await?;
    Ok(found)
}

async fn open(forge: &dyn Forge, branch: &str) -> Result<Option<PullRequest>> {
    Ok(forge.find(branch).await?.filter(|found| matches!(found.state, State::Open { .. })))
}

/// The pull request when it shows what was pushed: a forge takes a moment to see that.
async fn shown(forge: &dyn Forge, mut found: PullRequest, head: &str) -> Result<PullRequest> {
    for _ in 0..LOOKS {
        if found.head == head {
            return Ok(found);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
        found = forge.pull_request(found.number).await?;
    }
    if found.head == head {
        return Ok(found);
    }
    let what = format!("{} shows {}, and what was pushed is {head}", found.url, found.head);
    Err(ForgeError::new(FailureKind::Repository, what))
}

/// Says something of a commit, and says it again where the forge was not there for a moment: a status that is missed is not
/// told again, and a rule of the project may ask for it. A caller for whom it is in vain goes on all the same.
pub async fn set_status(forge: &dyn Forge, commit: &str, verdict: Verdict, words: &str) -> Result<()> {
    let mut told = forge.status(commit, verdict, words).await;
    for _ in 1..STATUS_TRIES {
        let passes =
            |e: &ForgeError| matches!(e.kind, FailureKind::Network | FailureKind::Timeout | FailureKind::Overloaded);
        if !told.as_ref().is_err_and(passes) {
            break;
        }
        tokio::time::sleep(BETWEEN_STATUS_TRIES).await;
        told = forge.status(commit, verdict, words).await;
    }
    told
}

/// Tells each verdict of a phase below its pull request, once. What people said on the forge is there already.
pub async fn tell_verdicts(forge: &dyn Forge, number: u64, task: &Task, phase: &Phase) -> Result<()> {
    let on = Thread::PullRequest(number);
    let mut wanted = Vec::new();
    for (nth, attempt) in phase.attempts.iter().enumerate() {
        for (review, said) in attempt.reviews.iter().enumerate() {
            if said.failure.is_none() && !said.is_by_human() {
                let marker = text::review_marker(task, &phase.name, nth as u32 + 1, review);
                wanted.push((marker, text::review_comment(attempt.number, said)));
            }
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let there = forge.comments(on).await?;
    wanted.retain(|(marker, _)| !there.iter().any(|comment| comment.contains(marker)));
    // The newest where there are too many.
    let skipped = wanted.len().saturating_sub(MAX_COMMENTS);
    for (marker, said) in wanted.into_iter().skip(skipped) {
        forge.comment(on, &format!("{marker}\n{said}")).await?;
    }
    Ok(())
}

/// Whether a comment with this marker is there.
pub async fn is_told(forge: &dyn Forge, on: Thread, marker: &str) -> Result<bool> {
    Ok(forge.comments(on).await?.iter().any(|comment| comment.contains(marker)))
}

/// Adds a comment unless one with this marker is there; tells whether it did.
pub async fn comment_once(forge: &dyn Forge, on: Thread, marker: &str, text: &str) -> Result<bool> {
    if is_told(forge, on, marker).await? {
        return Ok(false);
    }
    forge.comment(on, &format!("{marker}\n{text}")).await?;
    Ok(true)
}
