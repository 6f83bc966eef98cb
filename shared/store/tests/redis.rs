//! What only the Redis engine has: a server that lost what it had, damage that only its layout knows, and partitions that
//! are added.

#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, reason = "a test may panic; a part of the kit is enough")]

mod suite {
    pub(crate) mod kit;
}
#[path = "suite/redis_server.rs"]
mod redis_server;

use std::time::Duration;

use std::collections::BTreeSet;
use std::sync::Arc;

use redis_server::RedisHarness;
use refile_core::{Policy, TaskState};
use refile_store::redis::RedisStore;
use refile_store::{
    Committed, Filter, LeaseState, OpenOptions, Pause, PauseTarget, Place, Presence, Reported, Store, StoreError,
};
use suite::kit::*;

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

/// Damages a field of one of the shared hashes.
fn damage(harness: &RedisHarness, hash: &str, field: &str, value: &[u8]) {
    let mut set = redis::cmd("HSET");
    let changed: i64 =
        set.arg(format!("refile:{{0}}:{hash}")).arg(field).arg(value).query(&mut harness.connect()).unwrap();
    assert_eq!(changed, 0, "it was there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_or_a_description_that_cannot_be_read_does_not_keep_others_from_being_claimed() {
    for (hash, field, value) in
        [("jobs", "b/change", b"1 q 0-0 0 1 nowhere high lane".as_slice()), ("texts", "b", b"\xff\xfe")]
    {
        // Few jobs come with their records, and many without.
        for others in [1, 20] {
            let harness = RedisHarness::start();
            let store = harness.store().await;
            add(&store, &["b"]).await;
            add_all(&store, &names("t", others)).await;
            let before: String =
                redis::cmd("HGET").arg("refile:{0}:jobs").arg("b/change").query(&mut harness.connect()).unwrap();
            let entry = before.split(' ').nth(2).unwrap();
            let value =
                String::from_utf8(value.to_vec()).map_or(value.to_vec(), |v| v.replace("0-0", entry).into_bytes());
            damage(&harness, hash, field, &value);
            assert_eq!(claim(&store, "w", 100, LONG).await.len(), others, "{hash} {others}");
            let aside = store.quarantined().await.unwrap();
            assert_eq!(aside.iter().map(|q| q.task.as_str()).collect::<Vec<_>>(), ["b"], "{hash}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_job_that_cannot_be_read_is_set_aside_and_is_not_put_back_as_if_it_could() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    add(&store, &["a"]).await;
    let taken = work(&store, crashed()).await;
    assert_eq!(commit_one(&store, decided(&taken, &backoff(100))).await, Committed::Applied);
    assert_eq!(job(&store, "a").await.place, Place::Delayed);
    damage(&harness, "jobs", "a/change", b"xx");
    until("the job is due", || async {
        store.promote(10).await.unwrap();
        store.stats().await.unwrap().delayed == 0
    })
    .await;
    let aside = store.quarantined().await.unwrap();
    assert_eq!(aside.len(), 1);
    assert!(!store.replay(&aside[0].id).await.unwrap());
    assert_eq!(store.quarantined().await.unwrap().len(), 1, "it stays where an operator sees it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_of_a_task_whose_head_cannot_be_read_is_set_aside_and_the_others_are_decided() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    for claim in claim(&store, "w", 2, LONG).await {
        report(&store, &claim.lease, coded("h")).await;
    }
    let taken = take(&store, "c", 9).await;
    let commits: Vec<_> = taken.iter().map(|t| decided(t, &Policy::default())).collect();
    damage(&harness, "heads", "a", b"?");
    assert_eq!(store.commit(&commits).await.unwrap(), [Committed::Stale, Committed::Applied]);
    assert_eq!(store.quarantined().await.unwrap().len(), 1);
    assert_eq!(store.stats().await.unwrap().outcomes, 0);
}

fn names(of: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{of}{n}")).collect()
}

async fn add_all(store: &Arc<dyn Store>, names: &[String]) {
    add(store, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

/// Every task's id, a page at a time.
async fn listed(store: &Arc<dyn Store>, limit: usize) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.list(&Filter::default(), cursor, limit).await.unwrap();
        ids.extend(page.tasks.into_iter().map(|t| t.id.to_string()));
        cursor = page.next;
        if cursor.is_none() {
            return ids;
        }
    }
}

/// How many records each partition has.
fn spread(harness: &RedisHarness, partitions: u32) -> Vec<usize> {
    let count = |p| redis::cmd("HLEN").arg(format!("refile:{{{p}}}:records")).query(&mut harness.connect()).unwrap();
    (0..partitions).map(count).collect()
}

async fn say_presence(store: &Arc<dyn Store>, id: &str) {
    let presence =
        Presence { id: id.to_owned(), role: "coder".to_owned(), host: "host".to_owned(), pid: 1, running: 0 };
    store.presence(&presence, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_added_while_others_work() {
    let harness = RedisHarness::start();
    let (one, other, third) = (harness.store().await, harness.store().await, harness.store().await);
    let old = names("old", 40);
    add_all(&one, &old).await;
    let mut held = claim(&one, "w1", 5, LONG).await;
    held.extend(claim(&other, "w2", 5, LONG).await);
    report(&one, &held[0].lease, coded("h")).await;
    let seen = one.events("", 1_000).await.unwrap();
    let cursor = seen.last().unwrap().cursor.clone();
    let pause = Pause { until: None, reason: "ann".to_owned(), tries: 0 };
    let queue = PauseTarget::Queue(refile_core::Queue::Land);
    one.set_pause(&queue, Some(&pause)).await.unwrap();

    // Both go on while partitions are added.
    let meanwhile = names("meanwhile", 60);
    let submitting = async {
        for some in meanwhile.chunks(3) {
            add_all(&one, some).await;
        }
    };
    let claiming = async {
        let mut got = Vec::new();
        while got.len() < 20 {
            got.extend(claim(&other, "w2", 2, LONG).await);
        }
        got
    };
    let (grown, (), claimed) = tokio::join!(third.partitions(Some(4)), submitting, claiming);
    assert_eq!(grown.unwrap(), 4);

    // What was there is there for all, whatever they know.
    for store in [&one, &other, &third] {
        let ids: Vec<_> = old.iter().chain(&meanwhile).map(|name| id(name)).collect();
        assert!(store.tasks(&ids).await.unwrap().iter().all(Option::is_some));
    }
    say_presence(&one, "p1").await;
    other.check().await.unwrap();
    let everything: BTreeSet<_> = old.iter().chain(&meanwhile).cloned().collect();
    for store in [&one, &other, &third] {
        assert_eq!(store.partitions(None).await.unwrap(), 4);
        let ids = listed(store, 7).await;
        assert_eq!((ids.len(), ids.into_iter().collect::<BTreeSet<_>>()), (100, everything.clone()));
    }
    let leases: Vec<_> = held.iter().chain(&claimed).map(|c| c.lease.clone()).collect();
    let states = one.extend(&leases[1..], LONG).await.unwrap();
    assert!(states.iter().all(|s| *s == LeaseState::Held), "{states:?}");
    let gone = task(&third, held[1].task.id.as_str()).await;
    assert_eq!(commit_one(&third, by_person(&gone, &cancelled())).await, Committed::Applied);
    assert_eq!(state(&other, held[1].task.id.as_str()).await, TaskState::Cancelled);
    for lease in &leases[2..] {
        assert_eq!(report(&other, lease, coded("h")).await, Reported::Accepted);
    }
    let taken = take(&third, "c", 100).await;
    assert_eq!(taken.len(), leases.len() - 1);
    let commits: Vec<_> = taken.iter().map(|t| decided(t, &Policy::default())).collect();
    assert!(one.commit(&commits).await.unwrap().iter().all(|c| *c == Committed::Applied));

    // What is new is everywhere, and both claim it.
    let before = spread(&harness, 4);
    let new = names("new", 80);
    add_all(&other, &new).await;
    let after = spread(&harness, 4);
    assert!(before.iter().zip(&after).all(|(b, a)| a - b >= 8), "{before:?} became {after:?}");
    let mut all = claim(&one, "w1", 60, LONG).await;
    all.extend(claim(&other, "w2", 500, LONG).await);
    let all: BTreeSet<_> = all.into_iter().map(|c| c.task.id.to_string()).collect();
    assert!(new.iter().all(|name| all.contains(name)));
    assert_eq!(all.len(), 180 - leases.len());
    assert_eq!(counted(&one, "tasks_submitted_total", &[]).await, 180);

    // The old cursor goes on without a gap, and nothing twice; pauses hold in new partitions.
    let (mut lines, mut at) = (Vec::new(), cursor);
    loop {
        let some = other.events(&at, 17).await.unwrap();
        let Some(last) = some.last() else { break };
        at.clone_from(&last.cursor);
        lines.extend(some);
    }
    let all = third.events("", 10_000).await.unwrap();
    assert_eq!(seen.len() + lines.len(), all.len());
    let place = |e: &refile_store::LoggedEvent| (e.at, e.task.clone(), format!("{:?}", e.notice));
    let mut both: Vec<_> = seen.iter().chain(&lines).map(place).collect();
    let mut expected: Vec<_> = all.iter().map(place).collect();
    both.sort();
    expected.sort();
    assert_eq!(both, expected);
    let paused: bool =
        redis::cmd("HEXISTS").arg("refile:{3}:pauses").arg(queue.key()).query(&mut harness.connect()).unwrap();
    assert!(paused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_id_is_added_once_by_those_who_know_of_new_partitions_and_those_who_do_not() {
    let harness = RedisHarness::start();
    let fresh = harness.store().await;
    let ids = names("t", 12);
    let mut stale = Vec::new();
    for _ in 0..=ids.len() {
        stale.push(harness.store().await);
    }
    add(&fresh, &["before"]).await;
    fresh.partitions(Some(4)).await.unwrap();
    let first = stale.pop().unwrap();
    let again = first.submit(&[submission("before", new_task("before")), submission("after", new_task("after"))]).await;
    assert_eq!(again.unwrap().iter().map(|s| s.added).collect::<Vec<_>>(), [false, true]);
    for (name, stale) in ids.iter().zip(&stale) {
        let both = [submission(name, new_task(name))];
        let (a, b) = tokio::join!(stale.submit(&both), fresh.submit(&both));
        let added = [a.unwrap()[0].added, b.unwrap()[0].added];
        assert_eq!(added.iter().filter(|added| **added).count(), 1, "{name}: {added:?}");
    }
    assert_eq!(spread(&harness, 4).iter().sum::<usize>(), 14);
    assert_eq!(claim(&fresh, "w", 100, LONG).await.len(), 14);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_growths_at_once_one_wins_and_the_other_may_follow() {
    for round in 0..8 {
        let harness = RedisHarness::start();
        let (a, b) = (harness.store().await, harness.store().await);
        let names = names("t", 30);
        add_all(&a, &names).await;
        let (to_4, to_8) = tokio::join!(a.partitions(Some(4)), b.partitions(Some(if round == 0 { 4 } else { 8 })));
        for refused in [&to_4, &to_8].into_iter().filter_map(|r| r.as_ref().err()) {
            let text = refused.to_string();
            assert!(text.contains("somebody else is giving it") || text.contains("can only grow"), "{text}");
        }
        assert!(to_4.is_ok() || to_8.is_ok(), "{to_4:?} {to_8:?}");
        assert_eq!(a.partitions(Some(8)).await.unwrap(), 8);
        b.check().await.unwrap();
        add_all(&b, &["more".to_owned(), "and".to_owned()]).await;
        assert_eq!(listed(&b, 3).await.len(), 32);
        assert_eq!(claim(&b, "w", 100, LONG).await.len(), 32);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_growth_that_stopped_half_way_is_ended_before_another_begins() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    add(&store, &["a"]).await;
    // Two of four partitions were told when the command was killed.
    for (partition, fields) in [
        (0, ["growing", "1,4", "beat", "9"]),
        (3, ["partitions", "1,4", "generation", "2"]),
        (2, ["partitions", "1,4", "generation", "2"]),
    ] {
        let key = format!("refile:{{{partition}}}:meta");
        let _: () = redis::cmd("HSET").arg(key).arg(&fields).query(&mut harness.connect()).unwrap();
    }
    let refused = store.partitions(Some(8)).await.unwrap_err().to_string();
    assert!(refused.contains("run `refile partitions 4`"), "{refused}");
    add(&store, &["b"]).await;
    assert_eq!(store.partitions(Some(4)).await.unwrap(), 4);
    assert_eq!(store.partitions(Some(8)).await.unwrap(), 8);
    add(&store, &["c"]).await;
    assert_eq!(listed(&store, 1).await, ["c", "b", "a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_never_get_fewer_nor_too_many() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    assert_eq!(store.partitions(Some(4)).await.unwrap(), 4);
    assert_eq!(store.partitions(Some(4)).await.unwrap(), 4);
    let refused = store.partitions(Some(3)).await.unwrap_err().to_string();
    assert!(refused.contains("it has 4 partitions") && refused.contains("can only grow"), "{refused}");
    let refused = store.partitions(Some(5_000)).await.unwrap_err().to_string();
    assert!(refused.contains("too many"), "{refused}");
    assert_eq!(harness.store().await.partitions(None).await.unwrap(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_two_partitions_with_one_number_are_both_listed() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    store.partitions(Some(4)).await.unwrap();
    let names = names("t", 12);
    add_all(&store, &names).await;
    // As nodes of a cluster may number them that count by themselves.
    let mut connection = harness.connect();
    for partition in 0..4 {
        let key = format!("refile:{{{partition}}}:idx:open");
        let here: Vec<String> = redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).query(&mut connection).unwrap();
        for (n, id) in here.iter().enumerate() {
            let number = 1_700_000_000_000_000_u64 + n as u64;
            let _: () = redis::cmd("ZADD").arg(&key).arg(number).arg(id).query(&mut connection).unwrap();
        }
    }
    for limit in [1, 2, 5, 100] {
        let mut ids = listed(&store, limit).await;
        ids.sort();
        let mut expected = names.clone();
        expected.sort();
        assert_eq!(ids, expected, "pages of {limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_spread_over_the_partitions() {
    let harness = RedisHarness::start();
    let store = harness.store().await;
    store.partitions(Some(4)).await.unwrap();
    add_all(&store, &names("t", 80)).await;
    assert!(spread(&harness, 4).iter().all(|tasks| *tasks >= 2), "{:?}", spread(&harness, 4));
    let mut claimed = [0; 4];
    for _ in 0..8 {
        let task = claim(&store, "w", 1, LONG).await.remove(0).task.id;
        for (partition, claimed) in claimed.iter_mut().enumerate() {
            let mut look = redis::cmd("HEXISTS");
            look.arg(format!("refile:{{{partition}}}:records")).arg(task.as_str());
            *claimed += usize::from(look.query::<bool>(&mut harness.connect()).unwrap());
        }
    }
    // Of one worker each claim begins at the next partition, and each has something to give.
    assert_eq!(claimed, [2; 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_another_layout_are_refused_by_name() {
    let harness = RedisHarness::start();
    drop(harness.store().await);
    let _: () = redis::cmd("HSET").arg("refile:{0}:meta").arg("schema").arg(99).query(&mut harness.connect()).unwrap();
    let refused = RedisStore::open(&harness.url(), OpenOptions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("schema 99"), "{refused}");
}
