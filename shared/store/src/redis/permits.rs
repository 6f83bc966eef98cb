//! Permits: what keeps the number of jobs that run at once under the limits.
//!
//! They are kept in the first partition, whichever partition a job lies in, and each runs out with its lease. A claim
//! looks how much room there is, claims no more than that, and takes the permits; where another was quicker the job goes
//! back uncharged.
//!
//! Where nothing but landings is limited, most claims are for other jobs and should not pay for a look: such a claim goes
//! by what this process holds itself, until it was refused a landing; then it looks, until it sees room.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{RedisStore, replies, scripts};
use crate::Result;
use crate::model::{Claim, LANDING, Lane, Lease, Limits};

/// What leases of this process hold.
#[derive(Debug, Default)]
pub(super) struct Permits {
    held: Mutex<HashMap<Lease, Vec<String>>>,
    /// Whether other processes hold what landings here would need.
    crowded: AtomicBool,
}

/// How much room there is by name, and of what is not named.
fn room(limits: &Limits, held: &HashMap<String, u32>) -> HashMap<String, u32> {
    let left = |name: &String, most: u32| most.saturating_sub(held.get(name).copied().unwrap_or(0));
    let mut room: HashMap<String, u32> =
        limits.named.iter().map(|(name, most)| (name.clone(), left(name, *most))).collect();
    for (kind, each) in [("repository:", limits.each_repository), (LANDING, limits.each_landing)] {
        let Some(each) = each else { continue };
        for name in held.keys().filter(|name| name.starts_with(kind)) {
            room.entry(name.clone()).or_insert_with(|| left(name, each));
        }
    }
    room
}

/// What a limit says of names that are not there yet; -1 for none.
fn of_each(limit: Option<u32>) -> i64 {
    limit.map_or(-1, i64::from)
}

fn lease_name(lease: &Lease) -> String {
    format!("{}/{}/{}", lease.task, lease.phase, lease.fence)
}

impl Permits {
    /// How many this process holds, by name.
    fn own(&self) -> HashMap<String, u32> {
        let mut own = HashMap::new();
        for name in self.locked().values().flatten().filter_map(|member| member.split('\u{1e}').next()) {
            *own.entry(name.to_owned()).or_default() += 1;
        }
        own
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<Lease, Vec<String>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisStore {
    /// The limits as `claim.lua` takes them: empty for none.
    pub(super) async fn limits_argument(&self, limits: &Limits) -> Result<Vec<u8>> {
        if limits.is_empty() {
            return Ok(Vec::new());
        }
        let held = if limits.is_for_landings_alone() && !self.permits.crowded.load(Ordering::Relaxed) {
            self.permits.own()
        } else {
            replies::read(scripts::PERMITS.name, self.run(0, &scripts::PERMITS, &[b"room"]).await?)?
        };
        let room = room(limits, &held);
        let is_crowded = room.iter().any(|(name, left)| *left == 0 && name.starts_with(LANDING));
        self.permits.crowded.fetch_and(is_crowded, Ordering::Relaxed);
        let each = (of_each(limits.each_repository), of_each(limits.each_landing));
        rmp_serde::to_vec(&(room, each.0, &limits.providers, each.1))
            .map_err(|e| crate::StoreError::Engine { operation: "claim", source: Box::new(e) })
    }

    /// Takes the permits of claimed jobs. Gives the claims that may run and those that may not.
    pub(super) async fn take_permits(
        &self,
        claims: Vec<Claim>,
        limits: &Limits,
        lease: Duration,
    ) -> Result<(Vec<Claim>, Vec<Lease>)> {
        if limits.is_empty() || claims.is_empty() {
            return Ok((claims, Vec::new()));
        }
        let names: Vec<Vec<(String, u32)>> =
            claims.iter().map(|c| limits.of(&Lane::of(&c.task, &c.lease.phase))).collect();
        if names.iter().all(Vec::is_empty) {
            return Ok((claims, Vec::new()));
        }
        let mut arguments = vec!["take".to_owned(), lease.as_millis().to_string()];
        for (claim, names) in claims.iter().zip(&names) {
            arguments.extend([lease_name(&claim.lease), names.len().to_string()]);
            arguments.extend(names.iter().flat_map(|(name, most)| [name.clone(), most.to_string()]));
        }
        // Noted before they are taken: where no answer comes they are given back with the leases.
        let members = |claim: &Claim, names: &[(String, u32)]| {
            names.iter().map(|(name, _)| format!("{name}\u{1e}{}", lease_name(&claim.lease))).collect::<Vec<_>>()
        };
        for (claim, names) in claims.iter().zip(&names).filter(|(_, names)| !names.is_empty()) {
            self.permits.locked().insert(claim.lease.clone(), members(claim, names));
        }
        let taken: Vec<u8> =
            replies::read(scripts::PERMITS.name, self.run_texts(0, &scripts::PERMITS, &arguments).await?)?;
        let (mut granted, mut refused) = (Vec::new(), Vec::new());
        for (claim, taken) in claims.into_iter().zip(taken) {
            if taken == 1 {
                granted.push(claim);
            } else {
                self.permits.locked().remove(&claim.lease);
                self.permits.crowded.store(true, Ordering::Relaxed);
                refused.push(claim.lease);
            }
        }
        Ok((granted, refused))
    }

    /// Extends the permits of leases that hold.
    pub(super) async fn keep_permits(&self, leases: &[&Lease], lease: Duration) -> Result<()> {
        let mut arguments = vec!["keep".to_owned(), lease.as_millis().to_string()];
        {
            let held = self.permits.locked();
            arguments.extend(leases.iter().filter_map(|l| held.get(*l)).flatten().cloned());
        }
        if arguments.len() > 2 {
            self.run_texts(0, &scripts::PERMITS, &arguments).await?;
        }
        Ok(())
    }

    /// Gives the permits of leases back that are over.
    pub(super) async fn free_permits(&self, leases: &[&Lease]) -> Result<()> {
        let mut arguments = vec!["free".to_owned()];
        {
            let held = self.permits.locked();
            arguments.extend(leases.iter().filter_map(|l| held.get(*l)).flatten().cloned());
        }
        if arguments.len() > 1 {
            self.run_texts(0, &scripts::PERMITS, &arguments).await?;
            // Only now: where that failed, whoever ends the lease once more frees them.
            self.permits.locked().retain(|lease, _| !leases.contains(&lease));
            // Somebody may have waited for room.
            self.wake(&["code", "review", "land"]).await;
        }
        Ok(())
    }
}
