//! The same random operations on two engines end in the same state. The seeds are fixed, so a failure repeats.
//!
//! Nothing depends on the clock: leases are an hour long or expired at once (one at a time, so that the order in which
//! they are reclaimed is known), delays are none or an hour, and `decide` is given the number of the step.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod suite {
    pub(crate) mod kit;
}
#[path = "suite/sqlite_file.rs"]
mod sqlite_file;
// #[path = "suite/redis_server.rs"]
// mod redis_server;
mod random;

use std::collections::BTreeMap;

use random::world::World;

const SEEDS: [u64; 12] = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233];
const STEPS: u64 = 300;

/// What the seeds must come to, or they prove too little.
const EXPECTED: [&str; 16] = [
    "claimed",
    "extend Held",
    "extend Lost",
    "extend Cancelled",
    "report Accepted",
    "report Stale",
    "commit Applied",
    "commit Stale",
    "commit Conflict",
    "person Applied",
    "person Conflict",
    "discarded",
    "redelivered",
    "poisoned",
    "set aside",
    "landed",
];

/// Runs every seed on fresh stores of both engines.
macro_rules! pair {
    ($name:ident: $left:path, $right:path) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let mut seen = BTreeMap::new();
            for seed in SEEDS {
                let (left, right) = (<$left>::start(), <$right>::start());
                let mut world = World::new(seed, &left, &right).await;
                for step in 1..=STEPS {
                    world.step(step).await;
                }
                world.compare().await;
                for (what, times) in world.seen {
                    *seen.entry(what).or_insert(0) += times;
                }
            }
            let missing: Vec<_> = EXPECTED.iter().filter(|what| !seen.contains_key(**what)).collect();
            assert!(missing.is_empty(), "the seeds never came to {missing:?}; they came to {seen:?}");
        }
    };
}

pair!(sqlite_and_sqlite: sqlite_file::SqliteHarness, sqlite_file::SqliteHarness);
// pair!(sqlite_and_redis: sqlite_file::SqliteHarness, redis_server::RedisHarness);
