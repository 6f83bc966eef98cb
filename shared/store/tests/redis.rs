//! What only the Redis engine has: a server that lost what it had, and damage that only its layout knows.

#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, reason = "a test may panic; a part of the kit is enough")]

mod suite {
    pub(crate) mod kit;
}
#[path = "suite/redis_server.rs"]
mod redis_server;

use std::time::Duration;

use redis_server::RedisHarness;
use refile_store::{Place, StoreError};
use suite::kit::{Harness, LONG, add, claim, claim_one, coded, counted, job, report, take, take_request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_server_is_noticed_once_and_the_fleet_goes_on() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    add(&store, &["a"]).await;
    store.check().await.unwrap();
    let _: () = redis::cmd("FLUSHALL").query(&mut harness.connect()).unwrap();
    let noticed = store.check().await.unwrap_err();
    assert!(matches!(noticed, StoreError::LostData { .. }), "{noticed}");
    store.check().await.unwrap();
    add(&store, &["b"]).await;
    assert_eq!(claim_one(&store, "w", LONG).await.lease.task.as_str(), "b");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_rolled_back_is_noticed() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    for _ in 0..3 {
        store.check().await.unwrap();
    }
    // What an older file would bring back: the same epoch with fewer beats.
    let _: () = redis::cmd("HSET").arg("refile:{0}:meta").arg("beat").arg(1).query(&mut harness.connect()).unwrap();
    let noticed = store.check().await.unwrap_err();
    assert!(noticed.to_string().contains("rolled back"), "{noticed}");
    store.check().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_job_does_not_keep_others_from_being_reclaimed() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    assert_eq!(claim(&store, "w", 2, Duration::ZERO).await.len(), 2);
    let damage = redis::cmd("HSET").arg("refile:{0}:jobs").arg("a/change").arg("xx").to_owned();
    let _: () = damage.query(&mut harness.connect()).unwrap();
    assert_eq!(store.reclaim(5, 10).await.unwrap().redelivered, 1);
    assert_eq!(job(&store, "b").await.place, Place::Queued);
    assert_eq!(store.quarantined().await.unwrap().len(), 1);
    assert_eq!(counted(&store, "quarantined_total", &[]).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_is_no_outcome_does_not_strand_the_others() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    let mut connection = harness.connect();
    for fields in [vec!["junk", "1"], vec!["t", "NOT/A/TASK", "p", "x", "f", "1", "a", "1", "k", "outcome", "o", "x"]] {
        let _: String =
            redis::cmd("XADD").arg("refile:{0}:outcomes").arg("*").arg(fields).query(&mut connection).unwrap();
    }
    add(&store, &["a"]).await;
    let claim = claim_one(&store, "w", LONG).await;
    report(&store, &claim.lease, coded("h")).await;
    let taken = take(&store, "c", 10).await;
    assert_eq!(taken.len(), 1);
    assert_eq!(store.quarantined().await.unwrap().len(), 2);
    // Also where they were taken by one that died in between.
    drop(taken);
    let (takeover, wait) = (Duration::from_millis(1), Duration::from_secs(20));
    let again = refile_store::TakeRequest { takeover, wait, ..take_request("c2", 10) };
    assert_eq!(store.take_outcomes(&again).await.unwrap().len(), 1);
}
