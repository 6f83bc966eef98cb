//! What the whole fleet knows of its providers: pauses, one probe after each, and how many calls and tokens there are a
//! minute.
//!
//! A call that was turned away pauses what its failure is about ([`Scope`]), in the store, for every worker. Jobs whose
//! reviewer would call it stay in their queue, unclaimed. When the pause's time is over it is kept: of the jobs that need
//! it one may be claimed in the whole fleet, and of all calls, whoever makes them, the store lets one through: the probe. A
//! call that was answered ends the pause; then workers start again one after the other.
//!
//! A program that calls models by itself, an agent of type `command` or `acp`, is a provider of its own, `agent:NAME`, and
//! each of its runs a call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use refile_config::schema::AgentType;
use refile_config::{Agent, Config, Provider, Reviewer};
use refile_core::failure::{Failure, FailureKind, Scope};
use refile_store::{
    Admission, Draw, Entry, Limits, Pass, Pause, PauseLength, PauseTarget, Paused, ProviderPart, Store,
};

use crate::agent::digest;
use crate::llm::{Call, Left, Turnstile, key};

/// The longest time for which a call that tries whether a pause is over has the provider to itself: nobody knows whether a
/// process still lives that does not tell what came of it.
const PROBE: Duration = Duration::from_mins(1);
/// How often a call that waits for another to try looks again.
const LOOK: Duration = Duration::from_millis(250);
/// Within this time after the end of a pause each worker starts again, at a random moment.
const SPREAD: Duration = Duration::from_secs(2);
/// How long a call waits for calls and tokens of the minute before its job is put back.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a call to the store waits for a job where nothing is paused.
const WAIT: Duration = Duration::from_secs(2);
/// And where something is.
const WAIT_FOR_END: Duration = Duration::from_millis(500);

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

/// A call as pauses know it. A key is told by a digest of it; what a program calls by itself, only the program knows.
fn part(name: &str, provider: Option<&Provider>, model: &str) -> ProviderPart {
    let Some(provider) = provider else { return ProviderPart { provider: name.to_owned(), ..ProviderPart::default() } };
    let key = key(provider).ok().flatten().map_or_else(|| "none".to_owned(), |key| digest(key)[..8].to_owned());
    ProviderPart { provider: name.to_owned(), model: Some(model.to_owned()), key: Some(key) }
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
            models.map(|model| part(name, Some(provider), model)).collect()
        };
        // A reviewer waits until every model that it may ask can be asked, and a panel until all of its members can.
        let parts = |(name, reviewer): (&String, &Reviewer)| {
            let asked = std::iter::once(name).chain(&reviewer.members);
            (format!("reviewer:{name}"), asked.flat_map(called).collect::<Vec<_>>())
        };
        let of_agent = |(name, agent): (&String, &Agent)| {
            let agent_name = format!("agent:{name}");
            let called = if agent.kind == AgentType::Llm {
                let provider = agent.provider.as_ref()?;
                part(provider, Some(config.providers.get(provider)?), agent.model.as_ref()?)
            } else {
                part(&agent_name, None, "")
            };
            Some((agent_name, vec![called]))
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
                        let counts_against = limits.providers.entry(reviewer.clone()).or_default();
                        if !counts_against.contains(&probe) {
                            counts_against.push(probe);
                        }
                    }
                }
                look_again = look_again.min(match gate {
                    Gate::OpenFrom(at) => at.saturating_duration_since(Instant::now()).max(Duration::from_millis(20)),
                    _ => WAIT_FOR_END,
                });
            }
        }
        Room { limits: Arc::new(limits), look_again }
    }

    /// Pauses a part of a provider, and says so where that is new.
    async fn hold(&self, part: &ProviderPart, length: PauseLength, reason: &str) {
        let target = PauseTarget::Provider(part.clone());
        let (provider, model) = (&part.provider, &part.model);
        match self.store.hold(&target, length, reason).await {
            Ok(None) => {}
            Ok(Some(Pause { until, tries, .. })) => {
                let until = until.map(|until| until.0);
                tracing::warn!(provider, model, until, tries, reason, "the provider is paused for the whole fleet");
            }
            Err(error) => {
                tracing::warn!(%error, provider, "cannot tell the fleet of the provider; each worker finds out");
            }
        }
    }

    /// Ends the pauses that a call has shown to be over.
    async fn answered(&self, call: &ProviderPart, pass: &Pass) {
        match self.store.answered(call, pass.at).await {
            Ok(ended) if ended.is_empty() => {}
            Ok(_) => tracing::info!(provider = call.provider, model = call.model, "the provider answers again"),
            Err(error) => {
                tracing::warn!(%error, provider = call.provider, "cannot tell the fleet that the provider answers again");
            }
        }
    }

    /// A call as pauses know it.
    fn part(&self, call: &Call<'_>) -> ProviderPart {
        part(call.provider, self.config.providers.get(call.provider), call.model)
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

/// How long a failure that pauses asks the fleet to wait.
fn length(failure: &Failure) -> PauseLength {
    match failure.retry_after_ms {
        Some(asked) => PauseLength::For(Duration::from_millis(asked)),
        None if failure.kind == FailureKind::Quota => PauseLength::UntilResumed,
        None => PauseLength::Growing,
    }
}

/// A call that is not let through.
fn turned_away(why: impl AsRef<str>) -> Failure {
    Failure { scope: Scope::Key, ..Failure::new(FailureKind::RateLimit, why) }
}

#[async_trait]
impl Turnstile for Backpressure {
    async fn enter(&self, call: &Call<'_>) -> std::result::Result<Option<Pass>, Failure> {
        let part = self.part(call);
        let entry = Entry { call: part.clone(), probe: call.timeout.min(PROBE), draws: self.draws(call) };
        let (for_probe, for_draws) =
            (Instant::now() + call.timeout / 2, Instant::now() + PATIENCE.min(call.timeout / 2));
        loop {
            let wait = match self.store.admit(&entry).await {
                Ok(Admission::Granted(pass)) => return Ok(Some(pass)),
                Ok(Admission::Paused { reason, .. }) => {
                    return Err(turned_away(format!("the provider is paused: {reason}")));
                }
                Ok(Admission::Probing { .. }) if Instant::now() > for_probe => {
                    return Err(turned_away("another call tries whether the provider answers again, and is not done"));
                }
                Ok(Admission::Probing { wait }) => wait.min(LOOK),
                Ok(Admission::Spent { wait }) if Instant::now() + wait > for_draws => {
                    let reason = "the fleet's own limit for a minute is used up";
                    self.hold(&ProviderPart { model: None, ..part }, PauseLength::For(wait), reason).await;
                    return Err(turned_away(reason));
                }
                Ok(Admission::Spent { wait }) => wait,
                Err(error) => {
                    tracing::debug!(%error, "whether the provider may be called is not known; it will tell");
                    return Ok(None);
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn left(&self, call: &Call<'_>, pass: Option<Pass>, Left { failure, used_up }: Left<'_>) {
        let part = self.part(call);
        let mut probes = pass.iter().flat_map(|pass| &pass.probes).filter_map(|target| match target {
            PauseTarget::Provider(part) => Some(part.clone()),
            PauseTarget::Queue(_) => None,
        });
        match failure {
            Some(failure) if failure.pauses() => {
                let model = part.model.clone().filter(|_| failure.scope == Scope::Model);
                let about = ProviderPart { model, ..part };
                let all: BTreeSet<ProviderPart> = probes.chain([about]).collect();
                for part in &all {
                    self.hold(part, length(failure), &failure.to_string()).await;
                }
            }
            Some(failure) if !failure.kind.is_answer() => {
                // Nobody knows more than before: the next one tries later.
                for part in &mut probes {
                    self.hold(&part, PauseLength::Growing, &failure.to_string()).await;
                }
            }
            _ => {
                if let Some(pass) = &pass {
                    self.answered(&part, pass).await;
                }
                if let Some(wait) = used_up {
                    self.hold(&part, PauseLength::For(wait), "the provider says that nothing is left of a limit").await;
                }
            }
        }
    }
}
