//! The store's operations, each as scripts on the partitions that it is about.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use refile_core::{Queue, TaskId, Timestamp};

use super::partition::Attempt;
use super::replies;
use super::{Place, RedisStore, pauses, place_of, scripts, watching};
use crate::model::{
    Admission, Claim, ClaimRequest, Commit, Committed, Cursor, Entry, Filter, JobView, Lease, LeaseState, LoggedEvent,
    Page, Pause, PauseLength, PauseTarget, Paused, Presence, Promoted, ProviderPart, Quarantined, Receipt, Reclaimed,
    Report, Reported, Stats, Submitted, TakeRequest, Taken, Versioned,
};
use crate::{Result, Store, StoreError};

/// Whoever waits looks again after so long, woken or not: the end of a pause wakes nobody, and a token may get lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[async_trait]
impl Store for RedisStore {
    async fn submit(&self, submissions: &[Commit]) -> Result<Vec<Submitted>> {
        if submissions.is_empty() {
            return Ok(Vec::new());
        }
        let added = loop {
            // One that lies where older partitions put it is not added again elsewhere.
            let ids: Vec<TaskId> = submissions.iter().map(|s| s.task.id.clone()).collect();
            let is_there = match self.topology().generations() {
                1 => vec![false; ids.len()],
                _ => self.tasks_raw(&ids).await?.into_iter().map(|found| found.is_some()).collect(),
            };
            let new: Vec<&Commit> =
                submissions.iter().zip(&is_there).filter(|(_, there)| !**there).map(|(s, _)| s).collect();
            let topology = self.topology();
            let answers = self
                .routed(
                    &new,
                    |commit| Place::At(topology.homes(&commit.task.id)[0]),
                    |partition, commits| async move {
                        let commits: Vec<&Commit> = commits.into_iter().copied().collect();
                        let count = commits.len();
                        let answers = self.submit_in(partition, &commits).await?;
                        Ok(answers.map_or_else(|| vec![None; count], |a| a.into_iter().map(Some).collect()))
                    },
                )
                .await?;
            if answers.iter().any(Option::is_none) {
                // What was added meanwhile is found when it is asked again.
                self.wait_for_new_topology().await?;
                continue;
            }
            let mut answers = answers.into_iter().flatten();
            break is_there.into_iter().map(|there| !there && answers.next() == Some(true)).collect::<Vec<_>>();
        };
        self.wake_for(&submissions.iter().collect::<Vec<_>>()).await;
        Ok(submissions.iter().zip(added).map(|(s, added)| Submitted { id: s.task.id.clone(), added }).collect())
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>> {
        let lease = request.lease.as_millis().to_string();
        let wakes: Vec<String> = request.queues.iter().map(|q| self.wake_key(q.as_str())).collect();
        let deadline = Instant::now() + request.wait;
        loop {
            let Attempt { claims, refused, is_broken } = self.claim_once(request, &lease).await?;
            if !refused.is_empty()
                && let Err(error) = self.release(&refused).await
            {
                tracing::warn!(%error, "could not give back what is over a limit; it is redelivered when its leases run out");
            }
            if is_broken && claims.is_empty() {
                continue;
            }
            if !claims.is_empty() || Instant::now() >= deadline {
                return Ok(claims);
            }
            self.link.wait_for(&wakes, deadline.min(Instant::now() + LOOK_AGAIN)).await?;
        }
    }

    async fn extend(&self, leases: &[Lease], lease: Duration) -> Result<Vec<LeaseState>> {
        let length = lease.as_millis().to_string().into_bytes();
        let states = self.on_leases(&scripts::EXTEND, Some(length), leases).await?;
        let states: Vec<LeaseState> = states
            .into_iter()
            .map(|state| match state {
                Some(1) => LeaseState::Held,
                Some(2) => LeaseState::Cancelled,
                _ => LeaseState::Lost,
            })
            .collect();
        let (held, over): (Vec<_>, Vec<_>) =
            leases.iter().zip(&states).partition(|(_, state)| **state == LeaseState::Held);
        self.keep_permits(&held.into_iter().map(|(l, _)| l).collect::<Vec<_>>(), lease).await?;
        self.free_permits(&over.into_iter().map(|(l, _)| l).collect::<Vec<_>>()).await?;
        Ok(states)
    }

    async fn report(&self, reports: &[Report]) -> Result<Vec<Reported>> {
        let accepted = self
            .routed(reports, |r| Place::Home(&r.lease.task), |partition, reports| self.report_in(partition, reports))
            .await?;
        if accepted.contains(&Some(true)) {
            self.wake_in_cluster(&["outcomes"]).await;
        }
        self.free_permits(&reports.iter().map(|r| &r.lease).collect::<Vec<_>>()).await?;
        Ok(accepted.into_iter().map(|a| if a == Some(true) { Reported::Accepted } else { Reported::Stale }).collect())
    }

    async fn release(&self, leases: &[Lease]) -> Result<()> {
        let released = self.on_leases(&scripts::RELEASE, None, leases).await?;
        if released.contains(&Some(1)) {
            self.wake_in_cluster(&Queue::ALL.iter().map(|q| q.as_str()).collect::<Vec<_>>()).await;
        }
        self.free_permits(&leases.iter().collect::<Vec<_>>()).await
    }

    async fn take_outcomes(&self, request: &TakeRequest) -> Result<Vec<Taken>> {
        let wakes = [self.wake_key("outcomes")];
        let deadline = Instant::now() + request.wait;
        loop {
            let idle = self.idle_to_take_over(request.takeover);
            let (mut taken, mut is_broken, mut failed) = (Vec::new(), false, None);
            for partition in self.partitions_in_turn() {
                let most = request.max - taken.len();
                if most == 0 {
                    break;
                }
                match self.take_from(partition, &request.consumer, most, idle).await {
                    Ok((some, broken)) => {
                        taken.extend(some);
                        is_broken |= !broken.is_empty();
                        failed = failed.or(self.set_aside(partition, &broken).await.err());
                    }
                    // What was taken elsewhere would lie there until it is taken over.
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            only_if_nothing_else(failed, taken.is_empty())?;
            if taken.len() >= request.max {
                self.wake(&["outcomes"]).await;
            }
            if !taken.is_empty() || (!is_broken && Instant::now() >= deadline) {
                return Ok(taken);
            }
            if !is_broken {
                // Another's outcome is taken over only by looking again.
                let again = LOOK_AGAIN.min((request.takeover / 4).max(Duration::from_millis(50)));
                self.link.wait_for(&wakes, deadline.min(Instant::now() + again)).await?;
            }
        }
    }

    async fn commit(&self, commits: &[Commit]) -> Result<Vec<Committed>> {
        let place = |commit: &Commit| commit.guard.as_ref().map(|guard| place_of(&guard.receipt).0);
        let answers = self
            .routed(
                commits,
                |commit| place(commit).map_or(Place::Home(&commit.task.id), Place::At),
                |partition, commits| async move { self.commit_in(partition, &commits).await },
            )
            .await?;
        self.wake_for(&commits.iter().collect::<Vec<_>>()).await;
        answers.into_iter().map(|a| replies::committed(a.as_deref().unwrap_or("m"))).collect()
    }

    async fn discard(&self, receipts: &[Receipt]) -> Result<()> {
        let dropped = self.routed(
            receipts,
            |receipt| Place::At(place_of(receipt).0),
            |partition, receipts| async move {
                let arguments: Vec<&[u8]> = receipts.iter().map(|r| place_of(r).1.as_bytes()).collect();
                self.run(partition, &scripts::DISCARD, &arguments).await?;
                Ok(vec![Some(()); receipts.len()])
            },
        );
        dropped.await.map(drop)
    }

    async fn promote(&self, max: usize) -> Result<Promoted> {
        let mut promoted = Promoted::default();
        for reply in self.run_everywhere(&scripts::PROMOTE, &[max.to_string().as_bytes()]).await? {
            let (moved, next, queues): (usize, i64, Vec<String>) = replies::read(scripts::PROMOTE.name, reply)?;
            promoted.moved += moved;
            promoted.next_in_ms = sooner(promoted.next_in_ms, u64::try_from(next).ok());
            self.wake_in_cluster(&queues.iter().map(String::as_str).collect::<Vec<_>>()).await;
        }
        Ok(promoted)
    }

    async fn reclaim(&self, max_deliveries: u32, max: usize) -> Result<Reclaimed> {
        let arguments = [max_deliveries.to_string(), max.to_string()];
        let arguments = [arguments[0].as_bytes(), arguments[1].as_bytes()];
        let mut reclaimed = Reclaimed::default();
        for reply in self.run_everywhere(&scripts::RECLAIM, &arguments).await? {
            let (redelivered, poisoned, next, queues): (usize, usize, i64, Vec<String>) =
                replies::read(scripts::RECLAIM.name, reply)?;
            reclaimed.redelivered += redelivered;
            reclaimed.poisoned += poisoned;
            reclaimed.next_in_ms = sooner(reclaimed.next_in_ms, u64::try_from(next).ok());
            let outcomes = (poisoned > 0).then_some("outcomes");
            self.wake_in_cluster(&queues.iter().map(String::as_str).chain(outcomes).collect::<Vec<_>>()).await;
        }
        Ok(reclaimed)
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<Versioned>>> {
        let mut found = self.tasks_raw(ids).await?;
        // What is not there may lie in a partition that was added a moment ago.
        if found.iter().any(Option::is_none) && self.reload_topology().await? {
            found = self.tasks_raw(ids).await?;
        }
        let decoded = ids.iter().zip(found).map(|(id, found)| {
            let Some(record) = found else { return Ok(None) };
            let version = record.version;
            let task = record.decode().map_err(|source| StoreError::Undecodable { task: id.clone(), source })?;
            Ok(Some(Versioned { task, version }))
        });
        decoded.collect()
    }

    async fn list(&self, filter: &Filter, cursor: Option<Cursor>, limit: usize) -> Result<Page> {
        self.page(filter, cursor, limit).await
    }

    async fn jobs(&self, task: &TaskId) -> Result<Vec<JobView>> {
        watching::jobs(self, task).await
    }

    async fn stats(&self) -> Result<Stats> {
        let mut all = Stats::default();
        for reply in self.run_everywhere(&scripts::STATS, &[]).await? {
            replies::add_stats(&mut all, replies::stats(reply)?);
        }
        Ok(all)
    }

    async fn events(&self, after: &str, max: usize) -> Result<Vec<LoggedEvent>> {
        watching::events(self, after, max).await
    }

    async fn now(&self) -> Result<Timestamp> {
        pauses::now(self).await
    }

    async fn set_pause(&self, target: &PauseTarget, pause: Option<&Pause>) -> Result<()> {
        pauses::set(self, target, pause).await
    }

    async fn hold(&self, target: &PauseTarget, length: PauseLength, reason: &str) -> Result<Option<Pause>> {
        pauses::hold(self, target, length, reason).await
    }

    async fn pauses(&self) -> Result<Vec<Paused>> {
        pauses::all(self).await
    }

    async fn admit(&self, entry: &Entry) -> Result<Admission> {
        pauses::admit(self, entry).await
    }

    async fn answered(&self, call: &ProviderPart, at: Timestamp) -> Result<Vec<PauseTarget>> {
        pauses::answered(self, call, at).await
    }

    async fn presence(&self, presence: &Presence, gone: bool) -> Result<()> {
        watching::presence(self, presence, gone).await
    }

    async fn quarantined(&self) -> Result<Vec<Quarantined>> {
        watching::quarantined(self).await
    }

    async fn replay(&self, id: &str) -> Result<bool> {
        let (partition, id) = match id.split_once(':') {
            Some((number, rest)) if number.parse::<u32>().is_ok() => (number.parse().unwrap_or(0), rest),
            _ => (0, id),
        };
        if partition >= self.topology().partitions() {
            return Ok(false);
        }
        let reply = self.run(partition, &scripts::REPLAY, &[id.as_bytes()]).await?;
        let (replayed, woken): (u8, String) = replies::read(scripts::REPLAY.name, reply)?;
        if replayed == 1 {
            self.wake_in_cluster(&[&woken]).await;
        }
        Ok(replayed == 1)
    }

    async fn partitions(&self, grow_to: Option<u32>) -> Result<u32> {
        self.reload_topology().await?;
        if let Some(partitions) = grow_to {
            self.grow(partitions).await?;
        }
        Ok(self.topology().partitions())
    }

    async fn check(&self) -> Result<()> {
        watching::check(self).await
    }
}

/// Tells of a partition that did not answer: as an error where the others gave nothing either, else in the log.
pub(super) fn only_if_nothing_else(failed: Option<StoreError>, is_nothing: bool) -> Result<()> {
    match failed {
        Some(error) if is_nothing => Err(error),
        Some(error) => {
            tracing::warn!(%error, "a partition does not answer; going on with what others gave");
            Ok(())
        }
        None => Ok(()),
    }
}

/// The smaller of two, where there is one.
fn sooner(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    [a, b].into_iter().flatten().min()
}
