//! What the whole fleet knows of its providers: pauses, one probe after each, and how many calls and tokens there are a
//! minute.
//!
//! A call that was turned away pauses what its failure is about ([`Scope`]), in the store, for every worker. Jobs whose
//! reviewer would call it stay in their queue, unclaimed. When the pause's time is over it is kept: of the jobs that need
//! it one may run in the whole fleet, under a permit, and its call is the probe. The first call that goes well ends the
//! pause; then workers start again one after the other.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use refile_config::{Agent, Config, Provider, Reviewer};
use refile_core::Timestamp;
use refile_core::failure::{Behaviour, Failure, FailureKind, Scope};
use refile_store::{Draw, Limits, Pause, PauseTarget, Paused, ProviderPart, Result, Store};

use crate::agent::digest;
use crate::llm::{Call, Turnstile, key};

/// The first pause where the provider does not say how long; each probe that fails doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(15);
/// The longest of those.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// The shortest pause, whatever the provider says: so far apart probes are at least.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Within this time after the end of a pause each worker starts again, at a random moment.
const SPREAD: Duration = Duration::from_secs(2);
/// How long a call waits for calls and tokens of the minute before its job is put back.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a call to the store waits for a job where nothing is paused.
const WAIT: Duration = Duration::from_secs(2);

/// What may be claimed now.
#[derive(Debug, Clone)]
pub struct Room {
    /// How many jobs may run at once in the whole fleet.
    pub limits: Arc<Limits>,
    /// After how long this is to be asked again.
    pub look_again: Duration,
}

impl Room {
    /// Under limits that do not change.
    pub fn fixed(limits: Arc<Limits>) -> Self {
        Self { limits, look_again: WAIT }
    }
}

/// Whether a provider may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// Open again; this worker starts at this moment.
    OpenFrom(Instant),
    /// One job in the whole fleet may try.
    Probing,
    Paused,
}

/// The fleet's view of its providers.
#[derive(Debug)]
pub struct Backpressure {
    store: Arc<dyn Store>,
    config: Arc<Config>,
    base: Arc<Limits>,
    /// What each reviewer and each agent calls, by `reviewer:NAME` and `agent:NAME`.
    calls: BTreeMap<String, Vec<ProviderPart>>,
    /// What was seen at the last look.
    gates: Mutex<HashMap<ProviderPart, Gate>>,
}

/// A call as pauses know it. A key is told by a digest of it.
fn part(name: &str, provider: &Provider, model: &str) -> ProviderPart {
    let key = key(provider).ok().flatten().map_or_else(|| "none".to_owned(), |key| digest(key)[..8].to_owned());
    ProviderPart { provider: name.to_owned(), model: Some(model.to_owned()), key: Some(key) }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// A random time up to this one.
fn up_to(most: Duration) -> Duration {
    most.mul_f64(f64::from(uuid::Uuid::new_v4().as_u128() as u32) / f64::from(u32::MAX))
}

impl Backpressure {
    /// The view through a store. `base` is what is limited whatever providers do.
    pub fn new(store: Arc<dyn Store>, config: Arc<Config>, base: Arc<Limits>) -> Self {
        let called = |name: &String| -> Vec<ProviderPart> {
            let Some(reviewer) = config.reviewers.get(name) else { return Vec::new() };
            let Some(name) = &reviewer.provider else { return Vec::new() };
            let Some(provider) = config.providers.get(name) else { return Vec::new() };
            let models = reviewer.model.iter().chain(&reviewer.fallback_model);
            models.map(|model| part(name, provider, model)).collect()
        };
        // A reviewer waits until every model that it may ask can be asked, and a panel until all of its members can.
        let parts = |(name, reviewer): (&String, &Reviewer)| {
            let asked = std::iter::once(name).chain(&reviewer.members);
            (format!("reviewer:{name}"), asked.flat_map(called).collect::<Vec<_>>())
        };
        let of_agent = |(name, agent): (&String, &Agent)| {
            let provider = agent.provider.as_ref()?;
            Some((
                format!("agent:{name}"),
                vec![part(provider, config.providers.get(provider)?, agent.model.as_ref()?)],
            ))
        };
        let calls = config.reviewers.iter().map(parts).filter(|(_, parts)| !parts.is_empty());
        let calls = calls.chain(config.agents.iter().filter_map(of_agent)).collect();
        Self { store, config, base, calls, gates: Mutex::default() }
    }

    /// What may be claimed now. Where the store does not tell what is paused, the claim itself will fail, too.
    pub async fn room(&self) -> Room {
        if self.calls.is_empty() {
            return Room::fixed(self.base.clone());
        }
        match self.store.pauses().await {
            Ok(pauses) => self.room_beside(&pauses),
            Err(error) => {
                tracing::debug!(%error, "cannot tell what is paused");
                Room::fixed(self.base.clone())
            }
        }
    }

    fn room_beside(&self, pauses: &[Paused]) -> Room {
        let mut limits = Limits::clone(&self.base);
        let mut look_again = WAIT;
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        for (reviewer, parts) in &self.calls {
            for call in parts {
                let of_call: Vec<&Paused> = pauses.iter().filter(|p| covers(p, call)).collect();
                let gate = match of_call.first() {
                    _ if of_call.iter().any(|p| p.holds) => Gate::Paused,
                    Some(_) => Gate::Probing,
                    None => match gates.get(call) {
                        Some(Gate::Paused | Gate::Probing) => Gate::OpenFrom(Instant::now() + up_to(SPREAD)),
                        Some(Gate::OpenFrom(at)) if *at > Instant::now() => Gate::OpenFrom(*at),
                        _ => Gate::Open,
                    },
                };
                gates.insert(call.clone(), gate);
                match gate {
                    Gate::Open => continue,
                    Gate::Paused | Gate::OpenFrom(_) => {
                        limits.named.insert(reviewer.clone(), 0);
                    }
                    Gate::Probing => {
                        let probe = format!("probe:{}", of_call[0].target.key());
                        limits.named.insert(probe.clone(), 1);
                        limits.providers.insert(reviewer.clone(), probe);
                    }
                }
                look_again = look_again.min(wait_for(&of_call, gate));
            }
        }
        Room { limits: Arc::new(limits), look_again }
    }

    /// Pauses what a failure is about, unless it is paused for longer already.
    async fn pause(&self, call: &ProviderPart, failure: &Failure) -> Result<()> {
        let model = call.model.clone().filter(|_| failure.scope == Scope::Model);
        let target = PauseTarget::Provider(ProviderPart { model, ..call.clone() });
        let before = self.store.pauses().await?.into_iter().find(|p| p.target == target);
        let tries = before.as_ref().map_or(0, |p| p.pause.tries + u32::from(!p.holds));
        let until = until(failure, tries, now_ms());
        let is_longer = |before: &Paused| match (before.pause.until, until) {
            (Some(before), Some(until)) => until > before,
            (before, _) => before.is_some(),
        };
        if before.as_ref().is_some_and(|before| before.holds && !is_longer(before)) {
            return Ok(());
        }
        let (provider, model) = (&call.provider, call.model.as_deref().unwrap_or_default());
        let seconds = until.map(|until| until.0.saturating_sub(now_ms()) / 1_000);
        tracing::warn!(provider, model, seconds, %failure, "the provider is paused for the whole fleet");
        let reason = failure.to_string();
        self.store.set_pause(&target, Some(&Pause { until, reason, tries })).await
    }

    /// Ends the pauses that a call has shown to be over: it began after their time, and went well. A person's pause names no
    /// key and ends with its time.
    async fn resume(&self, call: &ProviderPart, began: u64) -> Result<()> {
        for paused in self.store.pauses().await? {
            let PauseTarget::Provider(part) = &paused.target else { continue };
            let is_shown = paused.pause.until.is_some_and(|until| until.0 <= began);
            if !paused.holds && is_shown && part.key.is_some() && part.covers(call) {
                tracing::info!(provider = part.provider, model = part.model, "the provider answers again");
                self.store.set_pause(&paused.target, None).await?;
            }
        }
        Ok(())
    }

    /// What a call takes of the minute.
    fn draws(&self, call: &Call<'_>) -> Vec<Draw> {
        let Some(provider) = self.config.providers.get(call.provider) else { return Vec::new() };
        let of = |what: &str, amount, per_minute: Option<u32>| {
            let name = format!("{}\u{1f}{what}", call.provider);
            per_minute.map(|n| Draw { name, amount, per_minute: u64::from(n) })
        };
        let draws =
            [of("requests", 1, provider.requests_per_minute), of("tokens", call.tokens, provider.tokens_per_minute)];
        draws.into_iter().flatten().collect()
    }
}

fn covers(paused: &Paused, call: &ProviderPart) -> bool {
    matches!(&paused.target, PauseTarget::Provider(part) if part.covers(call))
}

/// After how long it is worth to look at a gate again.
fn wait_for(paused: &[&Paused], gate: Gate) -> Duration {
    let wait = if let Gate::OpenFrom(at) = gate {
        at.saturating_duration_since(Instant::now())
    } else {
        let ends = paused.iter().filter(|p| p.holds).filter_map(|p| p.pause.until).map(|until| until.0).max();
        ends.map_or(WAIT, |ends| Duration::from_millis(ends.saturating_sub(now_ms())))
    };
    wait.clamp(Duration::from_millis(20), SHORTEST_PAUSE)
}

/// When a pause ends, by this machine's clock; nothing for when a person resumes.
fn until(failure: &Failure, tries: u32, now: u64) -> Option<Timestamp> {
    let asked = failure.retry_after_ms.map(Duration::from_millis);
    if asked.is_none() && failure.kind == FailureKind::Quota {
        return None;
    }
    let growing = || FIRST_PAUSE.saturating_mul(1 << tries.min(10)).min(LONGEST_PAUSE);
    let pause = asked.unwrap_or_else(growing).max(SHORTEST_PAUSE);
    Some(Timestamp(now.saturating_add(pause.as_millis() as u64)))
}

#[async_trait]
impl Turnstile for Backpressure {
    async fn enter(&self, call: &Call<'_>) -> std::result::Result<(), Failure> {
        let Some(provider) = self.config.providers.get(call.provider) else { return Ok(()) };
        let part = part(call.provider, provider, call.model);
        let turned_away = |why: String, wait: Option<Duration>| Failure {
            scope: Scope::Key,
            retry_after_ms: wait.map(|wait| wait.as_millis() as u64),
            ..Failure::new(FailureKind::RateLimit, why)
        };
        let paused = match self.store.pauses().await {
            Ok(pauses) => pauses.into_iter().find(|p| p.holds && covers(p, &part)),
            // Whether it may be called is not known; the provider will tell.
            Err(_) => None,
        };
        if let Some(paused) = paused {
            return Err(turned_away(format!("the provider is paused: {}", paused.pause.reason), None));
        }
        let (draws, deadline) = (self.draws(call), Instant::now() + PATIENCE);
        loop {
            let Ok(Some(wait)) = self.store.draw(&draws).await else { return Ok(()) };
            if Instant::now() + wait > deadline {
                let failure = turned_away("the fleet's own limit for a minute is used up".to_owned(), Some(wait));
                if let Err(error) = self.pause(&part, &failure).await {
                    tracing::debug!(%error, "cannot pause the provider");
                }
                return Err(failure);
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn left(&self, call: &Call<'_>, began: u64, failure: Option<&Failure>) {
        let Some(provider) = self.config.providers.get(call.provider) else { return };
        let part = part(call.provider, provider, call.model);
        let noted = match failure {
            None => self.resume(&part, began).await,
            Some(failure) if is_pausing(failure) => self.pause(&part, failure).await,
            Some(_) => Ok(()),
        };
        if let Err(error) = noted {
            tracing::warn!(%error, provider = call.provider, "cannot tell the fleet of the provider; each worker finds out");
        }
    }
}

/// Whether a failure holds more back than the call that it befell: then its job goes back, and nothing is counted.
pub fn is_pausing(failure: &Failure) -> bool {
    failure.kind.behaviour() == Behaviour::PauseProvider && failure.scope != Scope::Call
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_long_as_the_provider_says_or_grows() {
        let failed = |kind, retry_after_ms| Failure { retry_after_ms, ..Failure::new(kind, "x") };
        let length = |kind, asked, tries| until(&failed(kind, asked), tries, 1_000).map(|at| at.0 - 1_000);
        assert_eq!(length(FailureKind::RateLimit, Some(42_000), 3), Some(42_000));
        assert_eq!(length(FailureKind::RateLimit, Some(3), 0), Some(1_000));
        assert_eq!(length(FailureKind::Overloaded, None, 0), Some(15_000));
        assert_eq!(length(FailureKind::Overloaded, None, 2), Some(60_000));
        assert_eq!(length(FailureKind::Overloaded, None, u32::MAX), Some(600_000));
        assert_eq!(length(FailureKind::Quota, Some(9_000), 0), Some(9_000));
        assert_eq!(length(FailureKind::Quota, None, 0), None);
    }
}
