//! The engine on Redis or Valkey, Streams, for fleets on many machines.
//!
//! Every transition is one Lua script; `lua/prelude.lua` tells the layout of the keys, and each script its arguments and
//! result. Time is the server's.
//!
//! # Layout
//! - `connection`: connecting, reconnecting, and what counts as "away"
//! - `scripts`: the scripts by name
//! - `setup`: what a server must be like before it is used
//! - `replies`: from the scripts' replies to the model
//! - [`mod@bench`]: what a benchmark needs of a server

pub mod bench;
mod connection;
mod replies;
mod scripts;
mod setup;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::{Cmd, Value};
use refile_core::count::Count;
use refile_core::{Outcome, TaskId};
use serde::Serialize;
use tokio::sync::Mutex;

use crate::envelope::{decode, encode};
use crate::model::{
    Claim, ClaimRequest, Commit, Committed, Cursor, Filter, JobChange, JobView, Lease, LeaseState, LoggedEvent, Page,
    Pause, PauseTarget, Presence, Promoted, Quarantined, Receipt, Reclaimed, Report, Reported, Stats, Submitted,
    TakeRequest, Taken, Versioned,
};
use crate::{OpenOptions, Result, Store, StoreError};
use connection::Link;
use scripts::Script;

/// Processes that said nothing for so long are forgotten.
const SILENCE: Duration = Duration::from_mins(1);

/// Whoever waits looks again after so long, woken or not: the end of a pause wakes nobody, and a token may get lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The engine on Redis or Valkey. All keys of the one partition start with `<namespace>:{0}:`.
#[derive(Debug)]
pub struct RedisStore {
    link: Link,
    prefix: String,
    /// When this process last looked for outcomes that others left, in milliseconds since `started`.
    looked_for_left: AtomicU64,
    started: Instant,
    /// The epoch and the beat that the server had last; a server that has others lost data.
    known: Mutex<(String, u64)>,
}

/// The header of a commit, in the order in which `commit.lua` unpacks it.
#[derive(Serialize)]
struct Header<'a>(
    &'a str,                                      // task
    bool,                                         // create
    &'a str,                                      // key
    u64,                                          // version
    &'a str,                                      // guard phase
    u64,                                          // guard fence
    &'a str,                                      // receipt
    &'a str,                                      // state
    bool,                                         // is final
    &'a str,                                      // priority
    Vec<(&'a str, bool, &'static str, u32, u64)>, // jobs
    Vec<(u64, String)>,                           // notices
    &'a [(String, i64)],                          // deltas
    u64,                                          // token
);

impl RedisStore {
    /// Connects, holds that the server may be used, and makes the namespace where it is missing.
    pub async fn open(url: &str, options: OpenOptions) -> Result<Self> {
        let link = Link::new(url, options.observer)?;
        setup::require_usable(&link, options.allow_volatile).await?;
        let namespace = options.namespace.as_deref().unwrap_or("refile");
        let store = Self {
            link,
            prefix: format!("{namespace}:{{0}}:"),
            looked_for_left: AtomicU64::new(0),
            started: Instant::now(),
            known: Mutex::new((String::new(), 0)),
        };
        let (epoch, beat) = store.beat().await?;
        *store.known.lock().await = (epoch, beat);
        Ok(store)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    async fn run(&self, script: &Script, arguments: &[&[u8]]) -> Result<Value> {
        match self.link.run(script, &self.prefix, arguments).await {
            Err(StoreError::Engine { source, .. }) if source.to_string().contains("NOGROUP") => {
                // The queues are gone: the server was flushed or lost its file.
                self.check().await?;
                self.link.run(script, &self.prefix, arguments).await
            }
            result => result,
        }
    }

    async fn beat(&self) -> Result<(String, u64)> {
        let epoch = uuid::Uuid::now_v7().to_string();
        let reply = self.link.run(&scripts::CHECK, &self.prefix, &[epoch.as_bytes()]).await?;
        replies::read(scripts::CHECK.name, reply)
    }

    async fn commit_all(&self, commits: &[Commit], create: bool) -> Result<Vec<(String, String)>> {
        let engine = |source: crate::error::Cause| StoreError::Engine { operation: "commit", source };
        let mut arguments: Vec<Vec<u8>> = Vec::with_capacity(commits.len() * 2);
        for commit in commits {
            let header = header(commit, create).map_err(|e| engine(Box::new(e)))?;
            arguments.push(rmp_serde::to_vec(&header).map_err(|e| engine(Box::new(e)))?);
            arguments.push(encode(&commit.task).map_err(|e| engine(Box::new(e)))?);
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        replies::read(scripts::COMMIT.name, self.run(&scripts::COMMIT, &arguments).await?)
    }

    async fn set_aside(&self, broken: &[replies::Broken]) -> Result<()> {
        if broken.is_empty() {
            return Ok(());
        }
        let mut arguments: Vec<&[u8]> = Vec::new();
        for b in broken {
            tracing::error!(task = %b.task, phase = b.phase, what = b.kind, reason = b.reason, "cannot be decoded: quarantined");
            arguments.extend([
                b.kind.as_bytes(),
                b.id.as_bytes(),
                b.task.as_bytes(),
                b.phase.as_bytes(),
                b.reason.as_bytes(),
            ]);
        }
        self.run(&scripts::QUARANTINE, &arguments).await.map(drop)
    }

    /// How long an outcome must have been left before this call takes it over; 0 for not to look this time.
    ///
    /// Looking costs a walk over everything that coordinators have in their hands, so it is done a few times per
    /// `takeover`, not at each call.
    fn idle_to_take_over(&self, takeover: Duration) -> u64 {
        let takeover = (takeover.as_millis() as u64).max(1);
        let now = self.started.elapsed().as_millis() as u64 + takeover;
        let last = self.looked_for_left.load(Ordering::Relaxed);
        if now.saturating_sub(last) < takeover / 4 {
            return 0;
        }
        self.looked_for_left.store(now, Ordering::Relaxed);
        takeover
    }
}

fn header(commit: &Commit, create: bool) -> std::result::Result<Header<'_>, serde_json::Error> {
    let task = &commit.task;
    let jobs = commit
        .jobs
        .iter()
        .map(|change| match change {
            JobChange::Put { phase, queue, attempt, delay_ms } => {
                (phase.as_str(), true, queue.as_str(), *attempt, *delay_ms)
            }
            JobChange::Drop { phase } => (phase.as_str(), false, "", 0, 0),
        })
        .collect();
    let notices = commit
        .notices
        .iter()
        .map(|notice| Ok((task.updated_at.0, serde_json::to_string(notice)?)))
        .collect::<std::result::Result<_, serde_json::Error>>()?;
    let (guard_phase, guard_fence, receipt) =
        commit.guard.as_ref().map_or(("", 0, ""), |g| (g.phase.as_str(), g.fence, g.receipt.id.as_str()));
    Ok(Header(
        task.id.as_str(),
        create,
        task.key.as_deref().unwrap_or_default(),
        if create { 0 } else { commit.version },
        guard_phase,
        guard_fence,
        receipt,
        task.state.as_str(),
        task.state.is_final(),
        task.priority.as_str(),
        jobs,
        notices,
        &commit.deltas,
        // 53 bits: what Lua's numbers hold exactly.
        uuid::Uuid::new_v4().as_u128() as u64 >> 11,
    ))
}

/// A lease as the scripts take it.
fn lease_arguments(lease: &Lease) -> [Vec<u8>; 4] {
    [
        lease.task.as_str().into(),
        lease.phase.as_str().into(),
        lease.fence.to_string().into(),
        lease.owner.as_str().into(),
    ]
}

fn slices(arguments: &[Vec<u8>]) -> Vec<&[u8]> {
    arguments.iter().map(Vec::as_slice).collect()
}

#[async_trait]
impl Store for RedisStore {
    async fn submit(&self, submissions: &[Commit]) -> Result<Vec<Submitted>> {
        self.commit_all(submissions, true).await?.into_iter().map(|(what, id)| replies::submitted(&what, id)).collect()
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>> {
        let most = request.max.to_string();
        let lease = request.lease.as_millis().to_string();
        let mut arguments = vec![request.owner.as_bytes(), most.as_bytes(), lease.as_bytes()];
        arguments.extend(request.queues.iter().map(|q| q.as_str().as_bytes()));
        let wakes: Vec<String> = request.queues.iter().map(|q| self.key(&format!("wake:{q}"))).collect();
        let deadline = Instant::now() + request.wait;
        loop {
            let reply = self.run(&scripts::CLAIM, &arguments).await?;
            let (claims, broken) = replies::claims(reply, &request.owner)?;
            self.set_aside(&broken).await?;
            if !claims.is_empty() || (broken.is_empty() && Instant::now() >= deadline) {
                return Ok(claims);
            }
            if broken.is_empty() {
                self.link.wait_for(&wakes, deadline.min(Instant::now() + LOOK_AGAIN)).await?;
            }
        }
    }

    async fn extend(&self, leases: &[Lease], lease: Duration) -> Result<Vec<LeaseState>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let mut arguments = vec![lease.as_millis().to_string().into_bytes()];
        arguments.extend(leases.iter().flat_map(lease_arguments));
        let states: Vec<u8> =
            replies::read(scripts::EXTEND.name, self.run(&scripts::EXTEND, &slices(&arguments)).await?)?;
        let state = |code| match code {
            1 => LeaseState::Held,
            2 => LeaseState::Cancelled,
            _ => LeaseState::Lost,
        };
        Ok(states.into_iter().map(state).collect())
    }

    async fn report(&self, reports: &[Report]) -> Result<Vec<Reported>> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let mut arguments = Vec::with_capacity(reports.len() * 5);
        for report in reports {
            arguments.extend(lease_arguments(&report.lease));
            let payload = encode(&report.outcome);
            arguments.push(payload.map_err(|e| StoreError::Engine { operation: "report", source: Box::new(e) })?);
        }
        let accepted: Vec<u8> =
            replies::read(scripts::REPORT.name, self.run(&scripts::REPORT, &slices(&arguments)).await?)?;
        Ok(accepted.into_iter().map(|a| if a == 1 { Reported::Accepted } else { Reported::Stale }).collect())
    }

    async fn release(&self, leases: &[Lease]) -> Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        let arguments: Vec<Vec<u8>> = leases.iter().flat_map(lease_arguments).collect();
        self.run(&scripts::RELEASE, &slices(&arguments)).await.map(drop)
    }

    async fn take_outcomes(&self, request: &TakeRequest) -> Result<Vec<Taken>> {
        let most = request.max.to_string();
        let wakes = [self.key("wake:outcomes")];
        let deadline = Instant::now() + request.wait;
        loop {
            let idle = self.idle_to_take_over(request.takeover).to_string();
            let arguments = [request.consumer.as_bytes(), most.as_bytes(), idle.as_bytes()];
            let reply = self.run(&scripts::TAKE, &arguments).await?;
            let replies::Outcomes { taken, broken } = replies::outcomes(reply, decode::<Outcome>)?;
            self.set_aside(&broken).await?;
            if !taken.is_empty() || (broken.is_empty() && Instant::now() >= deadline) {
                return Ok(taken);
            }
            if broken.is_empty() {
                // Another's outcome is taken over only by looking again.
                let again = LOOK_AGAIN.min((request.takeover / 4).max(Duration::from_millis(50)));
                self.link.wait_for(&wakes, deadline.min(Instant::now() + again)).await?;
            }
        }
    }

    async fn commit(&self, commits: &[Commit]) -> Result<Vec<Committed>> {
        if commits.is_empty() {
            return Ok(Vec::new());
        }
        self.commit_all(commits, false).await?.into_iter().map(|(what, _)| replies::committed(&what)).collect()
    }

    async fn discard(&self, receipts: &[Receipt]) -> Result<()> {
        if receipts.is_empty() {
            return Ok(());
        }
        let arguments: Vec<&[u8]> = receipts.iter().map(|r| r.id.as_bytes()).collect();
        self.run(&scripts::DISCARD, &arguments).await.map(drop)
    }

    async fn promote(&self, max: usize) -> Result<Promoted> {
        let reply = self.run(&scripts::PROMOTE, &[max.to_string().as_bytes()]).await?;
        let (moved, next): (usize, i64) = replies::read(scripts::PROMOTE.name, reply)?;
        Ok(Promoted { moved, next_in_ms: u64::try_from(next).ok() })
    }

    async fn reclaim(&self, max_deliveries: u32, max: usize) -> Result<Reclaimed> {
        let arguments = [max_deliveries.to_string(), max.to_string()];
        let reply = self.run(&scripts::RECLAIM, &[arguments[0].as_bytes(), arguments[1].as_bytes()]).await?;
        let (redelivered, poisoned, next): (usize, usize, i64) = replies::read(scripts::RECLAIM.name, reply)?;
        Ok(Reclaimed { redelivered, poisoned, next_in_ms: u64::try_from(next).ok() })
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<Versioned>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.cmd("HMGET").arg(self.key(&format!("t:{id}"))).arg("r").arg("v");
        }
        let found: Vec<(Option<Vec<u8>>, Option<u64>)> = self.link.query_pipe("tasks", &pipe).await?;
        ids.iter()
            .zip(found)
            .map(|(id, (record, version))| {
                let Some(record) = record else { return Ok(None) };
                let task = decode(&record).map_err(|source| StoreError::Undecodable { task: id.clone(), source })?;
                Ok(Some(Versioned { task, version: version.unwrap_or(0) }))
            })
            .collect()
    }

    async fn list(&self, filter: &Filter, cursor: Option<Cursor>, limit: usize) -> Result<Page> {
        // One state has an index of its own; anything else walks all tasks and filters.
        let index = match filter.states.as_slice() {
            [state] => format!("idx:{state}"),
            _ => "idx".to_owned(),
        };
        let mut page = Page::default();
        let mut before = cursor;
        let batch = limit.clamp(1, 500);
        loop {
            let from = before.map_or_else(|| "+inf".to_owned(), |c| c.0.to_string());
            let most = batch.to_string();
            let arguments = [index.as_bytes(), from.as_bytes(), most.as_bytes()];
            let rows: Vec<(String, u64, Vec<u8>)> =
                replies::read(scripts::LIST.name, self.run(&scripts::LIST, &arguments).await?)?;
            let is_last = rows.len() < batch;
            for (id, sequence, record) in rows {
                before = Some(Cursor(sequence));
                match decode::<refile_core::Task>(&record) {
                    Ok(task) if filter.matches(&task) => page.tasks.push(task),
                    Ok(_) => {}
                    Err(_) => page.undecodable.extend(TaskId::parse(&id)),
                }
                if page.tasks.len() == limit {
                    page.next = before;
                    return Ok(page);
                }
            }
            if is_last {
                return Ok(page);
            }
        }
    }

    async fn jobs(&self, task: &TaskId) -> Result<Vec<JobView>> {
        let mut command = Cmd::new();
        command.arg("HGETALL").arg(self.key(&format!("t:{task}")));
        let fields: Vec<(String, Vec<u8>)> = self.link.query("jobs", &command).await?;
        let mut jobs = Vec::new();
        for (field, packed) in fields {
            if let Some(phase) = field.strip_prefix("j:") {
                jobs.extend(replies::job(phase, &packed)?);
            }
        }
        jobs.sort_by(|a, b| a.phase.cmp(&b.phase));
        Ok(jobs)
    }

    async fn stats(&self) -> Result<Stats> {
        replies::stats(self.run(&scripts::STATS, &[]).await?)
    }

    async fn events(&self, after: &str, max: usize) -> Result<Vec<LoggedEvent>> {
        let from = if after.is_empty() { "-".to_owned() } else { format!("({after}") };
        let mut command = Cmd::new();
        command.arg("XRANGE").arg(self.key("events")).arg(from).arg("+").arg("COUNT").arg(max);
        Ok(replies::events(self.link.query("events", &command).await?))
    }

    async fn set_pause(&self, target: &PauseTarget, pause: Option<&Pause>) -> Result<()> {
        let mut command = Cmd::new();
        match pause {
            Some(pause) => {
                let json = serde_json::to_string(pause)
                    .map_err(|e| StoreError::Engine { operation: "set_pause", source: Box::new(e) })?;
                command.arg("HSET").arg(self.key("pauses")).arg(target.key()).arg(json);
            }
            None => {
                command.arg("HDEL").arg(self.key("pauses")).arg(target.key());
            }
        }
        self.link.query::<()>("set_pause", &command).await?;
        if let (PauseTarget::Queue(queue), None) = (target, pause) {
            let mut command = Cmd::new();
            command.arg("LPUSH").arg(self.key(&format!("wake:{queue}"))).arg("1");
            self.link.query::<()>("set_pause", &command).await?;
        }
        Ok(())
    }

    async fn pauses(&self) -> Result<Vec<(PauseTarget, Pause)>> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(self.key("pauses")).cmd("TIME");
        let (kept, time): (Vec<(String, String)>, (u64, u64)) = self.link.query_pipe("pauses", &pipe).await?;
        let now = time.0 * 1_000 + time.1 / 1_000;
        let mut pauses: Vec<(PauseTarget, Pause)> = kept
            .iter()
            .filter_map(|(key, json)| Some((PauseTarget::parse(key)?, serde_json::from_str::<Pause>(json).ok()?)))
            .filter(|(_, pause)| pause.until.is_none_or(|until| until.0 > now))
            .collect();
        pauses.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(pauses)
    }

    async fn presence(&self, presence: &Presence, gone: bool) -> Result<()> {
        let payload = if gone { String::new() } else { serde_json::to_string(presence).unwrap_or_default() };
        let silence = SILENCE.as_millis().to_string();
        let arguments = [presence.id.as_bytes(), payload.as_bytes(), silence.as_bytes()];
        self.run(&scripts::PRESENCE, &arguments).await.map(drop)
    }

    async fn quarantined(&self) -> Result<Vec<Quarantined>> {
        let mut command = Cmd::new();
        command.arg("HGETALL").arg(self.key("quarantine"));
        let mut kept = replies::quarantined(self.link.query("quarantined", &command).await?);
        kept.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(kept)
    }

    async fn replay(&self, id: &str) -> Result<bool> {
        let replayed: u8 = replies::read(scripts::REPLAY.name, self.run(&scripts::REPLAY, &[id.as_bytes()]).await?)?;
        Ok(replayed == 1)
    }

    async fn check(&self) -> Result<()> {
        // Held over the beat, so that two checks at once see the beats in order.
        let mut known = self.known.lock().await;
        let (epoch, beat) = self.beat().await?;
        let what = if epoch != known.0 {
            Some("its epoch is a new one, so it was flushed or started empty")
        } else if beat <= known.1 {
            Some("its count of beats went back, so it was rolled back to an older state")
        } else {
            None
        };
        *known = (epoch, beat);
        match what {
            None => Ok(()),
            Some(what) => Err(StoreError::LostData { store: self.link.name().to_owned(), what: what.to_owned() }),
        }
    }
}

/// Whether a stored number is of a metric that this program knows; older and newer programs may share a store.
fn is_known_count(key: &str) -> bool {
    Count::parse(key).is_some()
}
