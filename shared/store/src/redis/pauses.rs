//! Pauses, and calls that are let through beside them. Those of queues are kept in every partition, where claims read them;
//! those of providers in the first alone, so that one script sees them together with what there is a minute.

use std::time::Duration;

use redis::Cmd;
use refile_core::Timestamp;

use super::{RedisStore, replies, scripts};
use crate::model::{Admission, Draw, Entry, Pass, Pause, PauseLength, PauseTarget, Paused, ProviderPart};
use crate::{Result, StoreError};

/// How often a pause is decided anew because somebody else changed it meanwhile.
const TRIES: usize = 20;

/// The server's time.
pub(super) async fn now(store: &RedisStore) -> Result<Timestamp> {
    replies::read(scripts::NOW.name, store.run(0, &scripts::NOW, &[]).await?).map(Timestamp)
}

/// Pauses a target, or resumes it.
pub(super) async fn set(store: &RedisStore, target: &PauseTarget, pause: Option<&Pause>) -> Result<()> {
    // It must reach partitions, too, that were added a moment ago.
    store.reload_topology().await?;
    let partitions = match target {
        PauseTarget::Queue(_) => store.topology().partitions(),
        PauseTarget::Provider(_) => 1,
    };
    for partition in 0..partitions {
        let mut command = Cmd::new();
        match pause {
            Some(pause) => command.arg("HSET").arg(store.key(partition, "pauses")).arg(target.key()).arg(json(pause)?),
            None => command.arg("HDEL").arg(store.key(partition, "pauses")).arg(target.key()),
        };
        store.link.query::<()>("set_pause", &command).await?;
    }
    match (target, pause) {
        (PauseTarget::Queue(queue), None) => store.wake(&[queue.as_str()]).await,
        (PauseTarget::Queue(_), Some(_)) => {}
        (PauseTarget::Provider(_), _) => {
            let mut command = Cmd::new();
            command.arg("HDEL").arg(store.key(0, "probes")).arg(target.key());
            store.link.query::<()>("set_pause", &command).await?;
        }
    }
    Ok(())
}

/// Pauses a provider, unless it is paused for as long already.
pub(super) async fn hold(
    store: &RedisStore,
    target: &PauseTarget,
    length: PauseLength,
    reason: &str,
) -> Result<Option<Pause>> {
    let (mut read, mut new) = (String::new(), None);
    for _ in 0..TRIES {
        let wanted = new.as_ref().map(json).transpose()?.unwrap_or_default();
        let arguments = [target.key(), read, wanted];
        let reply = store.run_texts(0, &scripts::HOLD, &arguments).await?;
        let (now, changed, there): (u64, u8, String) = replies::read(scripts::HOLD.name, reply)?;
        if changed == 1 {
            return Ok(new);
        }
        // One that cannot be read is replaced.
        new = Pause::extended(serde_json::from_str(&there).ok().as_ref(), length, reason, now);
        if new.is_none() {
            return Ok(None);
        }
        read = there;
    }
    // Others pause it all the time, so it is paused.
    Ok(None)
}

/// What is paused.
pub(super) async fn all(store: &RedisStore) -> Result<Vec<Paused>> {
    let mut kept = Cmd::new();
    kept.arg("HGETALL").arg(store.key(0, "pauses"));
    let kept: Vec<(String, String)> = store.link.query("pauses", &kept).await?;
    if kept.is_empty() {
        return Ok(Vec::new());
    }
    let now = now(store).await?.0;
    let pause = |(key, json): &(String, String)| {
        Paused::new(PauseTarget::parse(key)?, serde_json::from_str::<Pause>(json).ok()?, now)
    };
    let mut pauses: Vec<Paused> = kept.iter().filter_map(pause).collect();
    pauses.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(pauses)
}

/// Lets a call through, or says why not.
pub(super) async fn admit(store: &RedisStore, entry: &Entry) -> Result<Admission> {
    let mut arguments: Vec<String> = entry.call.targets().iter().map(PauseTarget::key).collect();
    arguments.push(entry.probe.as_millis().to_string());
    arguments.extend(entry.draws.iter().flat_map(|draw: &Draw| [draw.name.clone(), draw.cost_us().to_string()]));
    let reply = store.run_texts(0, &scripts::ADMIT, &arguments).await?;
    let said: Vec<String> = replies::read(scripts::ADMIT.name, reply)?;
    read_admission(&said)
        .ok_or_else(|| StoreError::Engine { operation: "admit", source: format!("unknown reply {said:?}").into() })
}

fn read_admission(said: &[String]) -> Option<Admission> {
    let (kind, rest) = said.split_first()?;
    let number = |at: usize| rest.get(at)?.parse::<u64>().ok();
    Some(match kind.as_str() {
        "granted" => Admission::Granted(Pass {
            at: Timestamp(number(0)?),
            probes: rest[1..].iter().filter_map(|key| PauseTarget::parse(key)).collect(),
        }),
        "paused" => Admission::Paused { reason: rest.first()?.clone(), until: number(1).map(Timestamp) },
        "probing" => Admission::Probing { wait: Duration::from_millis(number(0)?) },
        "spent" => Admission::Spent { wait: Duration::from_micros(number(0)?) },
        _ => return None,
    })
}

/// Ends the pauses that a call has shown to be over.
pub(super) async fn answered(store: &RedisStore, call: &ProviderPart, at: Timestamp) -> Result<Vec<PauseTarget>> {
    let mut arguments = vec![at.0.to_string()];
    arguments.extend(call.targets()[2..].iter().map(PauseTarget::key));
    let reply = store.run_texts(0, &scripts::ANSWERED, &arguments).await?;
    let ended: Vec<String> = replies::read(scripts::ANSWERED.name, reply)?;
    Ok(ended.iter().filter_map(|key| PauseTarget::parse(key)).collect())
}

fn json(pause: &Pause) -> Result<String> {
    serde_json::to_string(pause).map_err(|e| StoreError::Engine { operation: "set_pause", source: Box::new(e) })
}
