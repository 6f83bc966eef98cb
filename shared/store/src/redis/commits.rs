//! Transitions as the scripts take them: what many of a call have in common is told once.

use std::collections::HashSet;

use redis::Value;
use refile_core::Task;
use serde::Serialize;

use super::replies::{self, Record};
use super::scripts::Script;
use super::{RedisStore, place_of, scripts};
use crate::error::Cause;
use crate::model::{Commit, JobChange};
use crate::{Result, StoreError};

/// What several new tasks of a call have in common, in the order in which `submit.lua` reads it.
#[derive(Serialize, PartialEq)]
struct NewKind<'a>(
    Vec<u32>,            // their places in the call, from 1
    &'a str,             // state
    String,              // tail of the head
    Vec<Job<'a>>,        // jobs
    &'a [(String, i64)], // deltas
);

/// What several commits of a call have in common, in the order in which `commit.lua` reads it.
#[derive(Serialize, PartialEq)]
struct Kind<'a>(
    Vec<u32>,            // their places in the call, from 1
    u64,                 // version
    &'a str,             // state
    bool,                // is final
    String,              // tail of the head
    &'a str,             // guard phase
    u64,                 // guard fence
    Vec<&'a str>,        // phases to look at, the guard's first
    Vec<Job<'a>>,        // jobs
    &'a [(String, i64)], // deltas
);

/// What happens to a phase's job: phase, put, delay ms, rest of the stored job, queue, priority, lane.
#[derive(Serialize, PartialEq)]
struct Job<'a>(&'a str, bool, u64, String, &'static str, &'static str, &'a str);

/// What says of itself which of a call's commits have it in common.
trait Places {
    fn places(&mut self) -> &mut Vec<u32>;
}

impl Places for NewKind<'_> {
    fn places(&mut self) -> &mut Vec<u32> {
        &mut self.0
    }
}

impl Places for Kind<'_> {
    fn places(&mut self) -> &mut Vec<u32> {
        &mut self.0
    }
}

/// The kinds of a call's commits. `kind` leaves the places empty.
fn kinds<'a, K: Places + PartialEq>(commits: &[&'a Commit], kind: impl Fn(&'a Commit) -> K) -> Vec<K> {
    let mut kinds: Vec<(K, Vec<u32>)> = Vec::new();
    for (place, commit) in (1..).zip(commits) {
        let kind = kind(commit);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, places)) => places.push(place),
            None => kinds.push((kind, vec![place])),
        }
    }
    let with_places = |(mut kind, places): (K, Vec<u32>)| {
        *kind.places() = places;
        kind
    };
    kinds.into_iter().map(with_places).collect()
}

fn engine(cause: impl Into<Cause>) -> StoreError {
    StoreError::Engine { operation: "commit", source: cause.into() }
}

impl RedisStore {
    /// Adds tasks to a partition; says of each whether it was added. `None` where the caller's view of the partitions was
    /// an old one.
    pub(super) async fn submit_in(&self, partition: u32, commits: &[&Commit]) -> Result<Option<Vec<bool>>> {
        let mut all = Vec::with_capacity(commits.len());
        for commits in distinct(commits) {
            let kinds = kinds(commits, |commit| {
                NewKind(Vec::new(), commit.task.state.as_str(), phases(&commit.task), jobs(commit), &commit.deltas)
            });
            let mut items = Vec::with_capacity(commits.len() * 3);
            for commit in commits {
                let description = commit.task.description.as_bytes();
                items.extend([
                    commit.task.id.as_str().into(),
                    Record::write(&commit.task, 1).map_err(engine)?,
                    description.into(),
                ]);
            }
            let generations = self.topology().generations().to_string();
            let first = Some(generations.as_bytes());
            match self.run_commits(partition, &scripts::SUBMIT, first, &kinds, commits, &items).await? {
                Some(answers) => all.extend(answers.into_iter().map(|answer| answer == "a" || answer == "r")),
                None => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    /// Commits what lies in one partition; nothing for a task that does not.
    pub(super) async fn commit_in(&self, partition: u32, commits: &[&Commit]) -> Result<Vec<Option<String>>> {
        let mut all = Vec::with_capacity(commits.len());
        for commits in distinct(commits) {
            let kinds = kinds(commits, kind);
            let mut items = Vec::with_capacity(commits.len() * 3);
            for commit in commits {
                let receipt = commit.guard.as_ref().map_or("", |g| place_of(&g.receipt).1);
                items.extend([
                    commit.task.id.as_str().into(),
                    Record::write(&commit.task, commit.version + 1).map_err(engine)?,
                    receipt.into(),
                ]);
            }
            let answers = self.run_commits(partition, &scripts::COMMIT, None, &kinds, commits, &items).await?;
            all.extend(answers.unwrap_or_default().into_iter().map(|answer| Some(answer).filter(|a| a != "m")));
        }
        Ok(all)
    }

    /// Runs one of the two scripts.
    async fn run_commits<K: Serialize>(
        &self,
        partition: u32,
        script: &Script,
        first: Option<&[u8]>,
        kinds: &[K],
        commits: &[&Commit],
        items: &[Vec<u8>],
    ) -> Result<Option<Vec<String>>> {
        let token = format!("{:x}", uuid::Uuid::new_v4().as_u128() as u64);
        let kinds = rmp_serde::to_vec(kinds).map_err(engine)?;
        let lines = commits.iter().map(|c| c.notices.len()).sum::<usize>().to_string();
        let told: Vec<_> = commits.iter().map(|c| (&c.task.id, c.task.updated_at, &c.notices)).collect();
        let told = serde_json::to_vec(&told).map_err(engine)?;
        let mut arguments: Vec<&[u8]> = first.into_iter().collect();
        arguments.extend([token.as_bytes(), lines.as_bytes(), &told, &kinds]);
        arguments.extend(items.iter().map(Vec::as_slice));
        let reply = self.run(partition, script, &arguments).await?;
        if matches!(&reply, Value::BulkString(word) if word == b"generation") {
            return Ok(None);
        }
        replies::read(script.name, reply).map(Some)
    }

    /// Says to the waiting what these commits gave them to do.
    pub(super) async fn wake_for(&self, commits: &[&Commit]) {
        if !self.link.is_cluster() {
            return;
        }
        let mut names: Vec<&str> = commits
            .iter()
            .flat_map(|c| &c.jobs)
            .filter_map(|job| match job {
                JobChange::Put { queue, delay_ms: 0, .. } => Some(queue.as_str()),
                _ => None,
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        self.wake_in_cluster(&names).await;
    }
}

/// Commits in runs in which no task stands twice: the scripts read everything before they change anything.
fn distinct<'c, 'a>(commits: &'c [&'a Commit]) -> Vec<&'c [&'a Commit]> {
    let mut runs = Vec::new();
    let (mut from, mut seen) = (0, HashSet::new());
    for (n, commit) in commits.iter().enumerate() {
        if !seen.insert(&commit.task.id) {
            runs.push(&commits[from..n]);
            from = n;
            seen.clear();
            seen.insert(&commit.task.id);
        }
    }
    runs.push(&commits[from..]);
    runs
}

/// What a head ends with.
fn phases(task: &Task) -> String {
    task.phases.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join("\u{1f}")
}

/// What happens to the jobs. Of a phase that is named twice the last word counts.
fn jobs(commit: &Commit) -> Vec<Job<'_>> {
    let mut jobs: Vec<Job<'_>> = Vec::with_capacity(commit.jobs.len());
    for change in &commit.jobs {
        let job = match change {
            JobChange::Put { phase, queue, attempt, delay_ms, lane } => {
                let (queue, priority, lane) = (queue.as_str(), commit.task.priority.as_str(), lane.as_str());
                Job(phase, true, *delay_ms, format!("{attempt} {queue} {priority} {lane}"), queue, priority, lane)
            }
            JobChange::Drop { phase } => Job(phase, false, 0, String::new(), "", "", ""),
        };
        match jobs.iter_mut().find(|known| known.0 == job.0) {
            Some(known) => *known = job,
            None => jobs.push(job),
        }
    }
    jobs
}

fn kind(commit: &Commit) -> Kind<'_> {
    let (task, jobs) = (&commit.task, jobs(commit));
    let (guard, fence) = commit.guard.as_ref().map_or(("", 0), |g| (g.phase.as_str(), g.fence));
    let mut looked: Vec<&str> = Vec::new();
    // A task in a final state keeps no jobs at all.
    let all = task.phases.iter().map(|p| p.name.as_str()).filter(|_| task.state.is_final());
    for phase in [guard].into_iter().chain(jobs.iter().map(|job| job.0)).chain(all).filter(|phase| !phase.is_empty()) {
        if !looked.contains(&phase) {
            looked.push(phase);
        }
    }
    let (state, tail) = (task.state, phases(task));
    Kind(Vec::new(), commit.version, state.as_str(), state.is_final(), tail, guard, fence, looked, jobs, &commit.deltas)
}
