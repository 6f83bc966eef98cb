//! What those who watch a fleet ask of a store, and what processes say of themselves: jobs, events, presence, what is set
//! aside, and whether anything was lost.

use std::time::Duration;

use redis::Cmd;
use refile_core::TaskId;

use super::{RedisStore, event_log, replies, scripts};
use crate::model::{JobView, LoggedEvent, Place, Presence, Quarantined};
use crate::{Result, StoreError};

/// Processes that said nothing for so long are forgotten.
const SILENCE: Duration = Duration::from_mins(1);

/// Where the jobs of a task are.
pub(super) async fn jobs(store: &RedisStore, task: &TaskId) -> Result<Vec<JobView>> {
    let mut jobs = Vec::new();
    for partition in store.topology().homes(task) {
        let head: Option<String> =
            store.link.query("jobs", &Cmd::hget(store.key(partition, "heads"), task.as_str())).await?;
        let Some(head) = head else { continue };
        let phases: Vec<&str> = head.splitn(5, ' ').nth(4).unwrap_or_default().split('\u{1f}').collect();
        let mut command = Cmd::new();
        command.arg("HMGET").arg(store.key(partition, "jobs"));
        for phase in &phases {
            command.arg(format!("{task}/{phase}"));
        }
        let stored: Vec<Option<Vec<u8>>> = store.link.query("jobs", &command).await?;
        for (phase, stored) in phases.into_iter().zip(stored) {
            let Some(stored) = stored else { continue };
            let Some(mut job) = replies::job(phase, &String::from_utf8_lossy(&stored))? else { continue };
            if job.place == Place::Leased && !store.is_leased(partition, task, &job).await? {
                job.place = Place::Reported;
            }
            jobs.push(job);
        }
    }
    jobs.sort_by(|a, b| a.phase.cmp(&b.phase));
    Ok(jobs)
}

/// The event log after a cursor, over all partitions.
pub(super) async fn events(store: &RedisStore, after: &str, max: usize) -> Result<Vec<LoggedEvent>> {
    // A cursor of one that knows more partitions.
    if after.split(',').count() > store.topology().partitions() as usize {
        store.reload_topology().await?;
    }
    let partitions = store.topology().partitions();
    let places = event_log::parse(after, partitions as usize);
    let mut logs = Vec::new();
    for (partition, place) in (0..partitions).zip(&places) {
        let mut command = Cmd::new();
        // One more than is wanted: of the first all notices may have been read.
        command.arg("XRANGE").arg(store.key(partition, "events")).arg(place.from()).arg("+").arg("COUNT").arg(max + 1);
        logs.push(store.link.query::<Vec<event_log::Entry>>("events", &command).await?);
    }
    Ok(event_log::merge(places, logs, max))
}

/// Notes that a process lives, or that it has gone; forgets those that have been silent for long.
pub(super) async fn presence(store: &RedisStore, presence: &Presence, gone: bool) -> Result<()> {
    let payload = if gone { String::new() } else { serde_json::to_string(presence).unwrap_or_default() };
    let silence = SILENCE.as_millis().to_string();
    let arguments = [presence.id.as_bytes(), payload.as_bytes(), silence.as_bytes()];
    let silent: Vec<String> =
        replies::read(scripts::PRESENCE.name, store.run(0, &scripts::PRESENCE, &arguments).await?)?;
    if !silent.is_empty() {
        let names: Vec<&[u8]> = silent.iter().map(String::as_bytes).collect();
        let mut staying = Vec::new();
        for reply in store.run_everywhere(&scripts::FORGET, &names).await? {
            staying.extend(replies::read::<Vec<String>>(scripts::FORGET.name, reply)?);
        }
        let forgotten: Vec<&String> = silent.iter().filter(|name| !staying.contains(name)).collect();
        if !forgotten.is_empty() {
            let mut command = Cmd::new();
            command.arg("ZREM").arg(store.key(0, "workers:seen")).arg(forgotten);
            store.link.query::<()>("presence", &command).await?;
        }
    }
    // Every process says that it lives, so every process learns of new partitions.
    store.reload_topology().await.map(drop)
}

/// What could not be decoded.
pub(super) async fn quarantined(store: &RedisStore) -> Result<Vec<Quarantined>> {
    let mut kept = Vec::new();
    for partition in 0..store.topology().partitions() {
        let mut command = Cmd::new();
        command.arg("HGETALL").arg(store.key(partition, "quarantine"));
        let mut here = replies::quarantined(store.link.query("quarantined", &command).await?);
        for one in here.iter_mut().filter(|_| partition > 0) {
            one.id = format!("{partition}:{}", one.id);
        }
        kept.append(&mut here);
    }
    kept.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(kept)
}

/// Holds that no partition has lost anything since it was looked at last.
pub(super) async fn check(store: &RedisStore) -> Result<()> {
    store.reload_topology().await?;
    // Held over the beats, so that two checks at once see the beats in order.
    let mut known = store.known.lock().await;
    let mut lost = None;
    for partition in 0..store.topology().partitions() {
        let (epoch, beat) = store.beat(partition).await?;
        match known.get_mut(partition as usize) {
            None => known.push((epoch, beat)),
            Some(before) => {
                if epoch != before.0 {
                    lost = Some("its epoch is a new one, so it was flushed or started empty");
                } else if beat <= before.1 {
                    lost = Some("its count of beats went back, so it was rolled back to an older state");
                }
                *before = (epoch, beat);
            }
        }
    }
    match lost {
        None => Ok(()),
        Some(what) => Err(StoreError::LostData { store: store.link.name().to_owned(), what: what.to_owned() }),
    }
}
