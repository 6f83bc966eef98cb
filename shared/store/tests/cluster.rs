//! The whole suite on a real cluster of three masters, and what only a cluster has.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    reason = "a test may panic; a part of a harness is enough"
)]

#[macro_use]
#[path = "suite/list.rs"]
mod list;
mod suite;
#[path = "suite/redis_server.rs"]
mod redis_server;
#[path = "suite/redis_cluster.rs"]
mod redis_cluster;

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use redis_cluster::{Cluster, ClusterHarness};
use suite::kit::{Harness, LONG, add, claim, coded, in_time, report, take};

/// How many partitions a namespace has here.
const PARTITIONS: u32 = 8;

/// What asks for an order over all tasks. There is one within a partition only, so these have one partition.
const IN_ORDER: [&str; 8] = [
    "high_goes_before_normal_before_low_and_first_before_last",
    "no_priority_starves",
    "repositories_take_turns",
    "an_expired_lease_is_delivered_again",
    "a_release_is_not_charged",
    "outcomes_of_a_dead_coordinator_are_taken_over",
    "a_filter_finds_what_is_meant",
    "the_event_log_keeps_the_newest",
];

/// A test for each part of the suite: its functions share a cluster, since one takes seconds to start.
macro_rules! test_each_part {
    ($($part:ident: $($test:ident),+;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $part() {
                let cluster = Cluster::start();
                let mut failed = Vec::new();
                $(
                    let name = stringify!($test);
                    let partitions = if IN_ORDER.contains(&name) { 1 } else { PARTITIONS };
                    let harness = ClusterHarness::new(&cluster, name, partitions).await;
                    let test = AssertUnwindSafe(in_time(name, suite::$part::$test(&harness)));
                    if test.catch_unwind().await.is_err() {
                        failed.push(name);
                    }
                )+
                assert!(failed.is_empty(), "{failed:?}");
            }
        )+
    };
}

conformance!(test_each_part!);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_outlives_a_restart_of_all_nodes_and_each_has_a_part() {
    let cluster = Cluster::start();
    let harness = ClusterHarness::new(&cluster, "spread", PARTITIONS).await;
    let store = harness.store().await;
    let names: Vec<_> = (0..40).map(|n| format!("t{n}")).collect();
    add(&store, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let keys = cluster.keys("spread:");
    assert!(keys.iter().all(|n| *n > 5), "{keys:?} keys on the nodes");
    let before = claim(&store, "w", 20, LONG).await;
    assert_eq!(before.len(), 20);
    cluster.restart();
    store.check().await.unwrap();
    let after = claim(&store, "w", 40, LONG).await;
    assert_eq!(after.len(), 20);
    for claim in before.iter().chain(&after) {
        report(&store, &claim.lease, coded("h")).await;
    }
    assert_eq!(take(&store, "c", 100).await.len(), 40);
}
