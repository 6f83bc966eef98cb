//! A `code` job from its tree to its outcome.
//!
//! # Layout
//! - `unfinished`: what is kept of a run that failed in the middle of its work

mod unfinished;

use std::fmt::Write as _;
use std::time::Duration;

use indexmap::IndexMap;
use refile_config::bounds::DiffPolicy;
use refile_config::{Agent, Gate, Provider};
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;
use refile_core::growth::changed_lines;
use refile_core::task::{Change, Usage};
use refile_core::{Outcome, Task};
use refile_store::artifacts::{ArtifactError, Shelf};

use crate::agent::{self, Ended};
use crate::gates::policy::{self, Aside, diff_policy};
use crate::gates::{self, Bases, Gates, programs};
use crate::git::{Expected, GitError, Mirror, Push, Tree, names};
use crate::llm::Client;
use crate::process::Secrets;
use crate::workspace::Site;

/// All that an attempt needs.
#[derive(Debug, Clone, Copy)]
pub struct CodeJob<'a> {
    /// Where it is done and what it is about.
    pub site: Site<'a>,
    /// What the agent is given.
    pub prompt: &'a str,
    /// The earlier change that the attempt goes on from; nothing where it starts from the base.
    pub continue_from: Option<&'a Change>,
    /// What an earlier run of this attempt left: where it was a gate that could not run, no agent is asked again; where the
    /// agent had not ended, the next one goes on from it.
    pub kept: Option<&'a Change>,
    /// How long a run lasts that must have done work.
    pub long_run: Duration,
    /// Who makes the attempt, by name.
    pub name: &'a str,
    /// And as configured.
    pub agent: &'a Agent,
    /// The providers of models.
    pub providers: &'a IndexMap<String, Provider>,
    /// The client for models.
    pub client: &'a Client,
    /// The configured gates.
    pub gates: &'a [Gate],
    /// Run every gate even when one has failed.
    pub keep_going: bool,
    /// What the change may hold.
    pub diff_policy: &'a DiffPolicy,
}

/// What is known of the agent's run so far, whatever comes of it.
#[derive(Default)]
struct Run {
    prompt_digest: Option<String>,
    transcript: Option<String>,
    usage: Usage,
    /// What it left, where that is to be taken up by the job's next run.
    kept: Option<Change>,
}

/// What an agent left, before anybody has looked at it.
struct Left {
    tree: Tree,
    base: String,
    head: String,
    branch: String,
    /// Files that had conflict markers at the start.
    conflicts: Vec<String>,
    summary: String,
}

/// What an attempt starts with.
struct Start {
    /// A commit or a tree.
    tree: String,
    /// Files with conflict markers.
    conflicts: Vec<String>,
    /// It goes on from what a run of the same attempt left that did not end well.
    is_unfinished: bool,
}

/// What the agent is told then, below its prompt.
const GO_ON: &str = "An earlier run of this attempt was stopped in the middle of its work. What it left is in the files: look at it with \
                     `git diff HEAD`, and go on from there.";

/// Makes an attempt.
pub async fn code(job: &CodeJob<'_>) -> Outcome {
    let mut run = Run::default();
    match attempt(job, &mut run).await {
        Ok(outcome) => outcome,
        Err(failure) => Outcome::AgentFailed {
            failure,
            prompt_digest: run.prompt_digest,
            transcript: run.transcript,
            usage: run.usage,
            change: run.kept,
        },
    }
}

async fn attempt(job: &CodeJob<'_>, run: &mut Run) -> Result<Outcome, Failure> {
    let mirror = job.site.mirror().await.map_err(git)?;
    let left = match taken_up(job, &mirror).await? {
        Some(left) => {
            run.prompt_digest = Some(agent::digest(job.prompt));
            left
        }
        None => match worked(job, &mirror, run).await? {
            Ok(left) => left,
            Err(words) => {
                let Run { prompt_digest, transcript, usage, .. } = std::mem::take(run);
                let prompt_digest = prompt_digest.unwrap_or_default();
                return Ok(Outcome::NeedsInput { words, prompt_digest, transcript, usage });
            }
        },
    };
    let (change, gates) = judged(job, &mirror, left, run).await?;
    let Run { prompt_digest, transcript, usage, .. } = std::mem::take(run);
    Ok(Outcome::Coded { change, gates, prompt_digest: prompt_digest.unwrap_or_default(), transcript, usage })
}

/// What an earlier run of the attempt left; nothing where none did, or where it is gone.
async fn taken_up(job: &CodeJob<'_>, mirror: &Mirror) -> Result<Option<Left>, Failure> {
    let Some(change) = job.kept.filter(|kept| !kept.unfinished) else { return Ok(None) };
    if !is_there(mirror, change).await.map_err(git)? {
        tracing::warn!(task = %job.site.task.id, branch = change.branch, "what the agent left is gone; it is asked again");
        return Ok(None);
    }
    let Change { base_commit: base, head, branch, summary, .. } = change.clone();
    let conflicts = start(job, mirror, &base).await.map_err(git)?.conflicts;
    let (claim, of) = (job.site.claim(), &job.site.task.base);
    let tree = job.site.workspace.tree(mirror, claim, of, &base, &head).await.map_err(git)?;
    Ok(Some(Left { tree, base, head, branch, conflicts, summary }))
}

/// Whether the mirror has a change, or could be given it.
async fn is_there(mirror: &Mirror, change: &Change) -> Result<bool, GitError> {
    match mirror.fetch(&change.branch).await {
        Ok(_) | Err(GitError::NoBranch { .. }) => mirror.has(&change.head).await,
        Err(error) => Err(error),
    }
}

/// Lets the agent work; its words where it will not.
async fn worked(job: &CodeJob<'_>, mirror: &Mirror, run: &mut Run) -> Result<Result<Left, String>, Failure> {
    let claim = job.site.claim();
    let base = mirror.fetch(&job.site.task.base).await.map_err(git)?;
    let start = start(job, mirror, &base).await.map_err(git)?;
    let tree = job.site.workspace.tree(mirror, claim, &job.site.task.base, &base, &start.tree).await.map_err(git)?;
    let started_with = tree.write().await.map_err(git)?;
    programs::require(job.gates, &tree, claim, &base).await?;

    let prompt = if start.is_unfinished { &format!("{}\n\n{GO_ON}\n", job.prompt.trim_end()) } else { job.prompt };
    job.site.shelf.put("prompt.md", prompt.to_owned()).await.map_err(artifact)?;
    let CodeJob { name, agent, providers, client, .. } = *job;
    let (config_dir, shelf) = (job.site.config_dir, job.site.shelf);
    let secrets = &secrets(job);
    let work = agent::Job { name, agent, providers, client, secrets, config_dir, prompt, tree: &tree, shelf, claim };
    let ran = agent::run(&work).await;
    run.prompt_digest = Some(agent::digest(prompt));
    run.usage = ran.usage;
    run.transcript = Some(shelf.put(agent::TRANSCRIPT, ran.transcript).await.map_err(artifact)?);
    let summary = ran.summary;
    let ended = match ran.ended {
        Ok(ended) => ended,
        Err(failure) => {
            let found = unfinished::Found { tree: &tree, base: &base, started_with: &started_with, summary };
            return Err(unfinished::keep(job, mirror, found, failure, run).await);
        }
    };

    let written = tree.write().await.map_err(git)?;
    let words = match ended {
        Ended::Asks(words) => Some(words),
        Ended::Says(words) if written == started_with && tree.refused().is_empty() => Some(words),
        Ended::Says(_) | Ended::Done => None,
    };
    if let Some(words) = words {
        return Ok(Err(secrets.hide(&words)));
    }
    let head = mirror.commit(&written, &base, &message(job.site.task)).await.map_err(git)?;
    let branch = claim.branch().map_err(git)?;
    Ok(Ok(Left { tree, base, head, branch, conflicts: start.conflicts, summary }))
}

/// Makes a change of what the agent left, runs the gates on it and publishes what the diff policy lets pass.
async fn judged(
    job: &CodeJob<'_>,
    mirror: &Mirror,
    left: Left,
    run: &mut Run,
) -> Result<(Change, Vec<GateReport>), Failure> {
    let Left { tree, base, head, branch, conflicts, summary } = left;
    let policy = policy(job, mirror, &tree, &base, &head).await.map_err(git)?;
    let Some(patch_id) = policy.patch_id else {
        // Neither pushed nor made a diff of: what the next attempt starts with is no longer than this worker's copy of it.
        let change = Change { summary, files: policy.files, ..bare_change(&branch, &base, &head) };
        return Ok((change, vec![policy.report]));
    };
    let mut change = described(mirror, job.site.shelf, &branch, (&base, &head), patch_id).await?;
    change.summary = summary;

    let mut reports = Vec::new();
    match checked(job, mirror, &tree, (&change, &conflicts), policy.report, &mut reports).await {
        Ok(()) => Ok((change, reports)),
        // The agent was paid, and nothing is wrong with what it left. What was refused of it is known here alone.
        Err(failure) if reports.iter().all(|report| report.passed) => {
            Err(keep(mirror, change, failure, run, "it is only the gates that run again").await)
        }
        Err(failure) => Err(failure),
    }
}

/// Runs the gates on a change and publishes it where it may be. The reports are those of the gates so far, also where it fails.
async fn checked(
    job: &CodeJob<'_>,
    mirror: &Mirror,
    tree: &Tree,
    (change, conflicts): (&Change, &[String]),
    policy: GateReport,
    reports: &mut Vec<GateReport>,
) -> Result<(), Failure> {
    let (base, head) = (&change.base_commit, &change.head);
    let is_allowed = policy.passed;
    let files = mirror.files(base, head).await.map_err(git)?;
    let empty = gates::empty_diff(&files);
    // What was left out of the diff by the policy may be all that there is.
    let is_empty = !empty.passed && is_allowed;
    if empty.passed || is_allowed {
        reports.push(empty);
    }
    if !is_empty {
        reports.push(policy);
    }
    if !is_empty && (is_allowed || job.keep_going) {
        let base_now = mirror.fetch(&job.site.task.base).await.map_err(git)?;
        let conflict = gates::merge_conflict(mirror, head, base, &base_now, conflicts).await.map_err(git)?;
        let go_on = conflict.passed || job.keep_going;
        reports.push(conflict);
        if go_on {
            reports.extend(configured(job, mirror, tree, base, &files).await?);
        }
    }
    if is_allowed {
        return publish(mirror, change).await;
    }
    // A forge's CI may run on what is pushed. The worker's copy of the repository has it for the next attempt.
    Ok(())
}

/// What the configured gates say.
async fn configured(
    job: &CodeJob<'_>,
    mirror: &Mirror,
    tree: &Tree,
    base: &str,
    files: &[String],
) -> Result<Vec<GateReport>, Failure> {
    let Site { workspace, shelf, task, .. } = job.site;
    let bases = Bases { workspace, mirror, branch: &task.base };
    let (claim, secrets) = (job.site.claim(), &secrets(job).keys());
    let gates = Gates { gates: job.gates, keep_going: job.keep_going, shelf, claim, bases, secrets };
    gates::run(&gates, tree, base, files).await
}

/// Keeps a change for the job's next run, since a gate could not run on it, or the repository or the agent was away.
async fn keep(mirror: &Mirror, change: Change, mut failure: Failure, run: &mut Run, next: &str) -> Failure {
    if let Err(error) = publish(mirror, &change).await {
        tracing::warn!(branch = change.branch, %error, "what the agent left is kept on this machine alone");
    }
    let _ = write!(failure.detail, "\n  what the agent left is kept: {next}");
    run.kept = Some(change);
    failure
}

/// The secrets that an attempt must not bring anywhere.
fn secrets(job: &CodeJob<'_>) -> Secrets {
    let keys = job.providers.values().filter_map(|provider| provider.api_key_env.clone());
    job.site.workspace.secrets().and(&job.agent.env.iter().cloned().chain(keys).collect::<Vec<_>>())
}

/// What the diff policy says of an attempt.
struct Judged {
    report: GateReport,
    files: u32,
    /// Nothing where the diff is too large to be made, or holds a secret.
    patch_id: Option<String>,
}

async fn policy(job: &CodeJob<'_>, mirror: &Mirror, tree: &Tree, base: &str, head: &str) -> Result<Judged, GitError> {
    let too_large = |limit| Ok(Judged { report: policy::diff_too_large(limit), files: 0, patch_id: None });
    let entries = match mirror.entries(base, head).await {
        Err(GitError::TooLarge { limit, .. }) => return too_large(limit),
        entries => entries?,
    };
    let paths: Vec<String> = entries.iter().map(|entry| entry.path.clone()).collect();
    let (refused, lfs) = (tree.refused(), tree.kept_with_lfs(&paths).await?);
    let secrets = secrets(job).keys();
    let leaks = match mirror.leaks(base, head, &secrets.pairs()).await {
        Err(GitError::TooLarge { limit, .. }) => return too_large(limit),
        leaks => leaks?,
    };
    let mut report = diff_policy(job.diff_policy, &entries, Aside { refused: &refused, lfs: &lfs, leaks: &leaks });
    // A path may hold what a file must not.
    report.output = secrets.hide(&report.output);
    report.required_change = report.required_change.map(|change| secrets.hide(&change));
    let mut patch_id = None;
    if leaks.is_empty() && policy::bytes(&entries) <= job.diff_policy.max_bytes {
        // What it takes away counts too: of the two diffs that are made this one is larger.
        match mirror.patch_id(base, head).await {
            Err(GitError::TooLarge { limit, .. }) => report = policy::diff_too_large(limit),
            other => patch_id = Some(other?),
        }
    }
    Ok(Judged { report, files: entries.len() as u32, patch_id })
}

/// A change of which nothing but its commits is told.
fn bare_change(branch: &str, base: &str, head: &str) -> Change {
    Change {
        branch: branch.to_owned(),
        base_commit: base.to_owned(),
        head: head.to_owned(),
        patch_id: String::new(),
        files: 0,
        lines: 0,
        diff: None,
        summary: String::new(),
        unfinished: false,
    }
}

/// What the attempt starts with: the base as it is now, or the earlier change brought onto it. What its own last run did
/// goes before what the attempt before left.
async fn start(job: &CodeJob<'_>, mirror: &Mirror, base: &str) -> Result<Start, GitError> {
    let from_base = Start { tree: base.to_owned(), conflicts: Vec::new(), is_unfinished: false };
    let unfinished = job.kept.filter(|kept| kept.unfinished);
    for previous in unfinished.into_iter().chain(job.continue_from) {
        if is_there(mirror, previous).await? {
            let merge = mirror.bring(base, &previous.base_commit, &previous.head).await?;
            let is_unfinished = previous.unfinished;
            return Ok(Start { tree: merge.tree, conflicts: merge.conflicts, is_unfinished });
        }
        // Better a fresh start than none: the prompt says all that the attempt must know.
        tracing::warn!(task = %job.site.task.id, branch = previous.branch, "what an earlier run left is gone; starting without it");
    }
    Ok(from_base)
}

/// The message of an attempt's commit: the task's title as one line.
pub(crate) fn message(task: &Task) -> String {
    let title = task.title.split_whitespace().collect::<Vec<_>>().join(" ");
    if title.is_empty() { format!("Task {}", task.id) } else { title }
}

/// The change between two commits, with its diff put away.
pub(crate) async fn describe(
    mirror: &Mirror,
    shelf: &Shelf,
    branch: &str,
    base: &str,
    head: &str,
) -> Result<Change, Failure> {
    let patch_id = mirror.patch_id(base, head).await.map_err(git)?;
    described(mirror, shelf, branch, (base, head), patch_id).await
}

async fn described(
    mirror: &Mirror,
    shelf: &Shelf,
    branch: &str,
    (base, head): (&str, &str),
    patch_id: String,
) -> Result<Change, Failure> {
    names::branch(branch).map_err(git)?;
    let diff = mirror.diff(base, head).await.map_err(git)?;
    Ok(Change {
        patch_id,
        files: mirror.files(base, head).await.map_err(git)?.len() as u32,
        lines: changed_lines(&diff),
        diff: Some(shelf.put("change.diff", diff).await.map_err(artifact)?),
        ..bare_change(branch, base, head)
    })
}

/// Pushes a change to its attempt branch.
pub(crate) async fn publish(mirror: &Mirror, change: &Change) -> Result<(), Failure> {
    match mirror.push(&change.head, &change.branch, Expected::Absent).await.map_err(git)? {
        Push::Done => Ok(()),
        Push::Moved => Err(Failure::new(
            FailureKind::Repository,
            format!("{} already has another branch `{}`; remove it there", mirror.shown(), change.branch),
        )),
    }
}

// By value, so that it can be named in `map_err`.
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn git(error: GitError) -> Failure {
    error.failure()
}

#[allow(clippy::needless_pass_by_value)]
pub(crate) fn artifact(error: ArtifactError) -> Failure {
    Failure::new(FailureKind::Configuration, error.to_string())
}
