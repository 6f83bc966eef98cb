//! Pauses of queues and providers, and who may call a provider now.

use std::time::Duration;

use refile_core::{Queue, Timestamp};
use serde::{Deserialize, Serialize};

use super::lanes::UNIT;

/// The first pause where nobody knows how long it must be; each call that finds it must go on doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(15);
/// The longest of those.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// The shortest pause, whatever is asked for: so far apart probes are at least.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// What can be paused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseTarget {
    /// Nobody claims from this queue.
    Queue(Queue),
    /// Nobody calls this provider.
    Provider(ProviderPart),
}

/// What of a provider is paused; what is absent means all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProviderPart {
    /// Its name in the configuration.
    pub provider: String,
    /// One of its models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// One of the keys that it is called with, by a digest that tells nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl ProviderPart {
    /// Whether a pause of this part holds for calls to another, which is whole: it has a model and a key.
    pub fn covers(&self, call: &Self) -> bool {
        let same = |mine: &Option<String>, other: &Option<String>| mine.is_none() || mine == other;
        self.provider == call.provider && same(&self.model, &call.model) && same(&self.key, &call.key)
    }
}

impl ProviderPart {
    /// The targets whose pauses hold for this call, which is whole. The last two name its key.
    pub(crate) fn targets(&self) -> [PauseTarget; 4] {
        let part = |model: bool, key: bool| {
            PauseTarget::Provider(Self {
                provider: self.provider.clone(),
                model: self.model.clone().filter(|_| model),
                key: self.key.clone().filter(|_| key),
            })
        };
        [part(false, false), part(true, false), part(false, true), part(true, true)]
    }
}

impl PauseTarget {
    /// The text under which an engine keeps it: `queue:NAME`; `provider:NAME`, with the model and the key joined by US.
    pub fn key(&self) -> String {
        match self {
            Self::Queue(queue) => format!("queue:{queue}"),
            Self::Provider(ProviderPart { provider, model, key }) => {
                let part = |text: &Option<String>| text.as_deref().unwrap_or_default().replace(UNIT, " ");
                format!("provider:{}{UNIT}{}{UNIT}{}", provider.replace(UNIT, " "), part(model), part(key))
            }
        }
    }

    /// Reads [`PauseTarget::key`].
    pub fn parse(key: &str) -> Option<Self> {
        match key.split_once(':')? {
            ("queue", name) => Queue::parse(name).map(Self::Queue),
            ("provider", names) => {
                let mut parts = names.splitn(3, UNIT).map(str::to_owned);
                let provider = parts.next()?;
                let mut part = || parts.next().filter(|text| !text.is_empty());
                Some(Self::Provider(ProviderPart { provider, model: part(), key: part() }))
            }
            _ => None,
        }
    }
}

/// A pause: since when makes no difference, until when does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// When it ends by itself; `None` for when somebody resumes.
    pub until: Option<Timestamp>,
    /// Why, and who said so.
    pub reason: String,
    /// How often in a row it was found that it cannot end yet.
    #[serde(default)]
    pub tries: u32,
}

/// A pause that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Paused {
    /// What is paused.
    pub target: PauseTarget,
    /// The pause.
    #[serde(flatten)]
    pub pause: Pause,
    /// Whether its time is still to come, by the store's clock. One that a call led to, which names its key, is kept until
    /// another call has shown that the provider answers again; all others are gone with their time.
    pub holds: bool,
}

impl Paused {
    /// What is kept of a pause at this time, in milliseconds since 1970.
    pub(crate) fn new(target: PauseTarget, pause: Pause, now: u64) -> Option<Self> {
        let holds = pause.holds(now);
        let is_kept = holds || matches!(&target, PauseTarget::Provider(part) if part.key.is_some());
        is_kept.then_some(Self { target, pause, holds })
    }
}

/// Something of which there is so much a minute, shared by the whole fleet. It refills steadily, up to a minute's worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draw {
    /// Of what.
    pub name: String,
    /// How much is taken. More than a minute's worth is given when the whole minute's worth is there.
    pub amount: u64,
    /// How much there is a minute; at least 1.
    pub per_minute: u64,
}

/// How long a pause must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseLength {
    /// So long, and at least a second.
    For(Duration),
    /// Nobody knows: 15 seconds, and twice as long each time a call finds that it must go on, up to 10 minutes.
    Growing,
    /// Until a person resumes.
    UntilResumed,
}

impl Pause {
    /// What becomes of a pause when a call was turned away at this time, in milliseconds since 1970; nothing where what is
    /// there already holds as long.
    pub(crate) fn extended(before: Option<&Self>, length: PauseLength, reason: &str, now: u64) -> Option<Self> {
        let holds = before.is_some_and(|pause| pause.holds(now));
        let tries = before.map_or(0, |pause| pause.tries.saturating_add(u32::from(!holds)));
        let ends_in = match length {
            PauseLength::For(asked) => Some(asked.max(SHORTEST_PAUSE)),
            PauseLength::Growing => Some(FIRST_PAUSE.saturating_mul(1 << tries.min(10)).min(LONGEST_PAUSE)),
            PauseLength::UntilResumed => None,
        };
        let until = ends_in.map(|ends_in| Timestamp(now.saturating_add(ends_in.as_millis() as u64)));
        let holds_as_long = |pause: &Self| match (pause.until, until) {
            (Some(before), Some(until)) => before >= until,
            (before, _) => before.is_none(),
        };
        let is_kept = holds && before.is_some_and(holds_as_long);
        (!is_kept).then(|| Self { until, reason: reason.to_owned(), tries })
    }

    /// Whether its time is still to come.
    fn holds(&self, now: u64) -> bool {
        self.until.is_none_or(|until| until.0 > now)
    }
}

/// What a call to a provider needs before it may be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The call: its provider, model and key.
    pub call: ProviderPart,
    /// For how long it has the provider to itself where it is the first to try after a pause: longer than it takes.
    pub probe: Duration,
    /// What it takes of the minute.
    pub draws: Vec<Draw>,
}

/// Whether a call may be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Now.
    Granted(Pass),
    /// A pause holds.
    Paused {
        /// Why.
        reason: String,
        /// When it ends; nothing where that is up to a person.
        until: Option<Timestamp>,
    },
    /// A pause is over, and another call tries first.
    Probing {
        /// How long that call has the provider to itself.
        wait: Duration,
    },
    /// The minute's worth is used up.
    Spent {
        /// After how long it is worth to ask again.
        wait: Duration,
    },
}

/// A call that was let through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// When, by the store's clock.
    pub at: Timestamp,
    /// The pauses whose end the call tries.
    pub probes: Vec<PauseTarget>,
}

/// A minute, in microseconds.
const MINUTE_US: u64 = 60_000_000;

impl Draw {
    /// What it costs of a minute's worth, in microseconds.
    pub(crate) fn cost_us(&self) -> u64 {
        let cost = u128::from(self.amount) * u128::from(MINUTE_US) / u128::from(self.per_minute.max(1));
        u64::try_from(cost).unwrap_or(MINUTE_US).min(MINUTE_US)
    }

    /// When a minute's worth will be there again after the draw, and how long to wait before it is possible; in
    /// microseconds.
    pub(crate) fn after(&self, full_at: u64, now: u64) -> (u64, u64) {
        let after = full_at.max(now) + self.cost_us();
        (after, (after - now).saturating_sub(MINUTE_US))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_long_as_was_asked_for_or_grows() {
        let over = |tries| Pause { until: Some(Timestamp(1)), reason: String::new(), tries };
        let length = |before: Option<&Pause>, length| {
            let after = Pause::extended(before, length, "429", 1_000).unwrap();
            (after.until.map(|at| at.0 - 1_000), after.tries)
        };
        let asked = |ms| PauseLength::For(Duration::from_millis(ms));
        assert_eq!(length(Some(&over(3)), asked(42_000)), (Some(42_000), 4));
        assert_eq!(length(None, asked(3)), (Some(1_000), 0));
        assert_eq!(length(None, PauseLength::Growing), (Some(15_000), 0));
        assert_eq!(length(Some(&over(1)), PauseLength::Growing), (Some(60_000), 2));
        assert_eq!(length(Some(&over(u32::MAX)), PauseLength::Growing), (Some(600_000), u32::MAX));
        assert_eq!(length(Some(&over(0)), PauseLength::UntilResumed), (None, 1));
    }

    #[test]
    fn a_pause_that_holds_is_only_made_longer() {
        let until = |ms| Pause { until: Some(Timestamp(ms)), reason: String::new(), tries: 2 };
        let asked = |ms| PauseLength::For(Duration::from_millis(ms));
        assert_eq!(Pause::extended(Some(&until(9_000)), asked(8_000), "x", 1_000), None);
        let longer = Pause::extended(Some(&until(9_000)), asked(9_000), "x", 1_000).unwrap();
        assert_eq!((longer.until, longer.tries), (Some(Timestamp(10_000)), 2));
        let by_a_person = Pause { until: None, reason: String::new(), tries: 0 };
        assert_eq!(Pause::extended(Some(&by_a_person), PauseLength::UntilResumed, "x", 1_000), None);
        assert_eq!(Pause::extended(Some(&by_a_person), PauseLength::Growing, "x", 1_000), None);
        assert!(Pause::extended(Some(&until(9_000)), PauseLength::UntilResumed, "x", 1_000).is_some());
    }
}
