//! Alive: the process's loop still turns. Ready: the store answered the last time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A loop that did not turn for so long is stuck.
pub const STUCK_AFTER: Duration = Duration::from_mins(1);

/// What a process says of its own health. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    started: Instant,
    last_turn_ms: AtomicU64,
    ready: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            last_turn_ms: AtomicU64::new(0),
            ready: AtomicBool::new(false),
        }))
    }
}

impl Health {
    /// The loop turned, and the store answered or did not.
    pub fn turned(&self, store_answered: bool) {
        self.0.last_turn_ms.store(self.now_ms(), Ordering::Relaxed);
        self.0.ready.store(store_answered, Ordering::Relaxed);
    }

    /// Whether the loop turned lately. A store that is away does not make a process less alive.
    pub fn is_alive(&self) -> bool {
        self.since_last_turn() < STUCK_AFTER
    }

    /// How long ago the loop turned.
    pub fn since_last_turn(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.0.last_turn_ms.load(Ordering::Relaxed)))
    }

    /// Whether the store answered the last time.
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Relaxed)
    }

    fn now_ms(&self) -> u64 {
        self.0.started.elapsed().as_millis() as u64
    }
}
