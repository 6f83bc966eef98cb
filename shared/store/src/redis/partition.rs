//! The work on one partition: claims, reports, outcomes that are taken, and the records that they are about.

use redis::Cmd;
use refile_core::TaskId;

use super::operations::only_if_nothing_else;
use super::replies::{self, Broken, Leased, Record};
use super::scripts::{self, Script};
use super::{Place, RedisStore, owner, slices};
use crate::envelope::{apart, encode};
use crate::model::{Claim, ClaimRequest, JobView, Lease, Place as JobPlace, Report, Taken};
use crate::{Result, StoreError};

/// What scripts that take leases answer for a task that is not in their partition.
const NOT_HERE: u8 = 3;

/// A field of many hashes' lines; nothing where there is no such line.
type Column<T> = Vec<Option<T>>;

/// What one look at the queues gave.
#[derive(Default)]
pub(super) struct Attempt {
    /// What may run.
    pub(super) claims: Vec<Claim>,
    /// What was claimed though its limit had been reached meanwhile.
    pub(super) refused: Vec<Lease>,
    /// Whether something could not be read and was set aside.
    pub(super) is_broken: bool,
}

impl RedisStore {
    /// Claims from the partitions in turn, each claim starting at another. One that does not answer is passed over: what
    /// was claimed elsewhere would lie there until its leases run out.
    pub(super) async fn claim_once(&self, request: &ClaimRequest, lease: &str) -> Result<Attempt> {
        let (mut attempt, mut more, mut failed) = (Attempt::default(), Vec::new(), None);
        for partition in self.partitions_in_turn() {
            if attempt.claims.len() == request.max {
                break;
            }
            match self.claim_from(partition, request, lease, &mut attempt).await {
                Ok(here) => more.extend(here),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.wake_in_cluster(&more.iter().map(String::as_str).collect::<Vec<_>>()).await;
        only_if_nothing_else(failed, attempt.claims.is_empty() && attempt.refused.is_empty())?;
        Ok(attempt)
    }

    /// Claims from a partition. Gives the queues that have more.
    pub(super) async fn claim_from(
        &self,
        partition: u32,
        request: &ClaimRequest,
        lease: &str,
        attempt: &mut Attempt,
    ) -> Result<Vec<String>> {
        let most = (request.max - attempt.claims.len()).to_string();
        let limits = self.limits_argument(&request.limits).await?;
        let owner = owner(&request.owner);
        let mut arguments = vec![owner.as_bytes(), most.as_bytes(), lease.as_bytes(), limits.as_slice()];
        arguments.extend(request.queues.iter().map(|q| q.as_str().as_bytes()));
        let reply = self.run(partition, &scripts::CLAIM, &arguments).await?;
        let replies::Leases { jobs, more, records } = replies::leases(reply)?;
        let leases: Vec<Lease> = jobs.iter().flatten().map(|job| job.lease(&request.owner)).collect();
        match self.hand_out(partition, request, jobs, records).await {
            Ok((granted, over, is_broken)) => {
                attempt.claims.extend(granted);
                attempt.refused.extend(over);
                attempt.is_broken |= is_broken;
                Ok(more)
            }
            // Nobody would work on it until its leases run out: what was claimed is given back.
            Err(error) => {
                attempt.refused.extend(leases);
                Err(error)
            }
        }
    }

    /// Makes claims of leased jobs. Gives those that may run, the leases of those that may not since a limit was reached
    /// meanwhile, and whether something could not be read and was set aside.
    async fn hand_out(
        &self,
        partition: u32,
        request: &ClaimRequest,
        jobs: Vec<std::result::Result<Leased, Broken>>,
        records: Option<Vec<Option<Record>>>,
    ) -> Result<(Vec<Claim>, Vec<Lease>, bool)> {
        let records = if let Some(records) = records {
            records
        } else {
            let found = self.records_in(partition, jobs.iter().flatten().map(|j| &j.task)).await?;
            let mut found = found.into_iter();
            // One for each job, those included that cannot be read: they stand in the jobs' order.
            jobs.iter().map(|job| job.as_ref().ok().and_then(|_| found.next().flatten())).collect()
        };
        let claims = jobs.into_iter().zip(records);
        let (claims, broken) = apart(claims.map(|(job, record)| job.and_then(|job| job.with(record, &request.owner))));
        self.set_aside(partition, &broken).await?;
        let (granted, over) = self.take_permits(claims, &request.limits, request.lease).await?;
        Ok((granted, over, !broken.is_empty()))
    }

    /// Runs a script that takes leases, where their tasks lie: `first`, then the leases. Its answers stand in the leases'
    /// order; nothing for a task that is nowhere.
    pub(super) async fn on_leases(
        &self,
        script: &Script,
        first: Option<Vec<u8>>,
        leases: &[Lease],
    ) -> Result<Vec<Option<u8>>> {
        let run = |partition, leases: Vec<&Lease>| {
            let leases = leases.into_iter().flat_map(lease_arguments);
            let arguments: Vec<Vec<u8>> = first.clone().into_iter().chain(leases).collect();
            async move {
                let reply = self.run(partition, script, &slices(&arguments)).await?;
                let answers: Vec<u8> = replies::read(script.name, reply)?;
                Ok(answers.into_iter().map(|answer| Some(answer).filter(|a| *a != NOT_HERE)).collect())
            }
        };
        self.routed(leases, |lease| Place::Home(&lease.task), run).await
    }

    /// Whether a lease is still there: it goes with the report.
    pub(super) async fn is_leased(&self, partition: u32, task: &TaskId, job: &JobView) -> Result<bool> {
        let mut command = Cmd::new();
        command.arg("ZSCORE").arg(self.key(partition, "leases"));
        command.arg(format!("{task}/{}/{}", job.phase, job.fence));
        Ok(self.link.query::<Option<f64>>("jobs", &command).await?.is_some())
    }

    /// Hands in the outcomes of one partition; nothing for one whose task is not there.
    ///
    /// First it is looked whose the jobs are, and then leases end and outcomes begin. A lease has its fence in its name, so
    /// nobody can end another's in between.
    pub(super) async fn report_in(&self, partition: u32, reports: Vec<&Report>) -> Result<Vec<Option<bool>>> {
        let names: Vec<String> = reports.iter().map(|r| format!("{}/{}", r.lease.task, r.lease.phase)).collect();
        let leases: Vec<String> = names.iter().zip(&reports).map(|(n, r)| format!("{n}/{}", r.lease.fence)).collect();
        let mut look = redis::pipe();
        look.cmd("HMGET").arg(self.key(partition, "jobs")).arg(&names);
        look.cmd("ZMSCORE").arg(self.key(partition, "leases")).arg(&leases);
        let (stored, until): (Vec<Option<String>>, Vec<Option<f64>>) = self.link.query_pipe("report", &look).await?;
        let (mut results, mut held) = (Vec::with_capacity(reports.len()), Vec::new());
        for (n, (report, (stored, until))) in reports.iter().zip(stored.into_iter().zip(until)).enumerate() {
            let job = match stored.map(|s| replies::job(&report.lease.phase, &s)) {
                Some(Ok(Some(job))) => job,
                Some(_) => {
                    results.push(Some(false));
                    continue;
                }
                None => {
                    let there = Cmd::hexists(self.key(partition, "heads"), report.lease.task.as_str());
                    results.push(self.link.query::<bool>("report", &there).await?.then_some(false));
                    continue;
                }
            };
            let is_owner = job.owner.as_deref() == Some(&owner(&report.lease.owner));
            let is_held = job.place == JobPlace::Leased && job.fence == report.lease.fence && is_owner;
            results.push(Some(is_held));
            // What is held by its own word and is no lease any more was reported by this very call, whose answer was lost.
            if is_held && until.is_some() {
                held.push((n, job));
            }
        }
        if held.is_empty() {
            return Ok(results);
        }
        let mut arguments: Vec<Vec<u8>> = Vec::with_capacity(held.len() * 4);
        for (n, job) in &held {
            let payload = encode(&reports[*n].outcome);
            let payload = payload.map_err(|e| StoreError::Engine { operation: "report", source: Box::new(e) })?;
            let texts = [leases[*n].clone(), job.queue.to_string(), job.attempt.to_string()];
            arguments.extend(texts.map(String::into_bytes));
            arguments.push(payload);
        }
        let ended: Vec<bool> =
            replies::read(scripts::REPORT.name, self.run(partition, &scripts::REPORT, &slices(&arguments)).await?)?;
        for ((n, job), ended) in held.into_iter().zip(ended) {
            // It stands in this call twice, it ran out in between, or the answer to the first try of this call was lost: then
            // the job still is the reporter's by its own word.
            let first = leases.iter().position(|lease| *lease == leases[n]);
            let is_repeated = first != Some(n) && results[first.unwrap_or(n)] == Some(true);
            results[n] = Some(ended || is_repeated || self.is_kept(partition, reports[n], &job).await?);
        }
        Ok(results)
    }

    /// Whether a job is still as it was looked at.
    async fn is_kept(&self, partition: u32, report: &Report, job: &JobView) -> Result<bool> {
        let Lease { task, phase, .. } = &report.lease;
        let look = Cmd::hget(self.key(partition, "jobs"), format!("{task}/{phase}"));
        let stored: Option<String> = self.link.query("report", &look).await?;
        Ok(matches!(stored.map(|s| replies::job(phase, &s)), Some(Ok(Some(now))) if now == *job))
    }

    /// Takes outcomes of a partition for one coordinator: those that others left, where `idle` says so, and new ones.
    pub(super) async fn take_from(
        &self,
        partition: u32,
        consumer: &str,
        most: usize,
        idle: Option<u64>,
    ) -> Result<(Vec<Taken>, Vec<replies::Broken>)> {
        let key = self.key(partition, "outcomes");
        let mut entries: Vec<replies::Entry> = Vec::new();
        let mut cursor = "0-0".to_owned();
        while let Some(idle) = idle.filter(|_| entries.len() < most) {
            // XAUTOCLAIM looks at no more than ten times COUNT, so its cursor is followed to the end.
            let mut command = Cmd::new();
            command.arg("XAUTOCLAIM").arg(&key).arg("c").arg(consumer).arg(idle).arg(&cursor);
            command.arg("COUNT").arg(most - entries.len());
            let (next, found, _gone): (String, Vec<replies::Entry>, Vec<String>) =
                replies::read("take", self.on_outcomes(partition, &command).await?)?;
            entries.extend(found);
            cursor = next;
            if cursor == "0-0" {
                break;
            }
        }
        if entries.len() < most {
            let mut command = Cmd::new();
            command.arg("XREADGROUP").arg("GROUP").arg("c").arg(consumer).arg("COUNT").arg(most - entries.len());
            command.arg("STREAMS").arg(&key).arg(">");
            entries.extend(replies::entries(self.on_outcomes(partition, &command).await?)?);
        }
        let (outgoing, mut broken) = apart(entries.into_iter().map(replies::outgoing));
        let records = self.records_in(partition, outgoing.iter().map(|o| &o.task)).await?;
        let taken = outgoing.into_iter().zip(records).map(|(outcome, record)| outcome.with(partition, record));
        let (taken, without_record) = apart(taken);
        broken.extend(without_record);
        Ok((taken, broken))
    }

    /// Runs a command on the stream of outcomes, which is made again where a flush took it.
    pub(super) async fn on_outcomes(&self, partition: u32, command: &Cmd) -> Result<redis::Value> {
        match self.link.query("take", command).await {
            Err(StoreError::Engine { source, .. }) if source.to_string().contains("NOGROUP") => {
                self.beat(partition).await?;
                self.link.query("take", command).await
            }
            result => result,
        }
    }

    /// Records and versions of tasks of one partition, not decoded. Beside the scripts: large values are slow in Lua.
    pub(super) async fn records_in<'i>(
        &self,
        partition: u32,
        ids: impl Iterator<Item = &'i TaskId>,
    ) -> Result<Vec<Option<Record>>> {
        let ids: Vec<&str> = ids.map(TaskId::as_str).collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for hash in ["records", "texts"] {
            pipe.cmd("HMGET").arg(self.key(partition, hash)).arg(&ids);
        }
        let (records, texts): (Column<Vec<u8>>, Column<Vec<u8>>) = self.link.query_pipe("records", &pipe).await?;
        let record =
            |(record, text): (Option<Vec<u8>>, Option<Vec<u8>>)| Record::read(record?, text.unwrap_or_default());
        Ok(records.into_iter().zip(texts).map(record).collect())
    }

    /// Records and versions, not decoded.
    pub(super) async fn tasks_raw(&self, ids: &[TaskId]) -> Result<Vec<Option<Record>>> {
        self.routed(ids, Place::Home, |partition, ids| async move { self.records_in(partition, ids.into_iter()).await })
            .await
    }
}

/// A lease as the scripts take it.
fn lease_arguments(lease: &Lease) -> [Vec<u8>; 4] {
    [
        lease.task.as_str().into(),
        lease.phase.as_str().into(),
        lease.fence.to_string().into(),
        owner(&lease.owner).into(),
    ]
}
