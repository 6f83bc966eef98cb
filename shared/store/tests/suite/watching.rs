//! What those who watch are promised: lists, events, presence, statistics.

use refile_core::decide::submission::NewTask;
use refile_core::decide::{Notice, What};
use refile_core::{Policy, Priority, Queue, TaskState};
use refile_store::{Committed, Filter, Presence};

use super::kit::*;

pub(crate) async fn pages_show_each_task_once(harness: &impl Harness) {
    let store = harness.store().await;
    let names: Vec<_> = (0..53).map(|n| format!("t{n}")).collect();
    let (batch, single) = names.split_at(40);
    add(&store, &batch.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for name in single {
        add(&store, &[name]).await;
    }
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = store.list(&Filter::default(), cursor, 10).await.unwrap();
        assert!(page.tasks.len() <= 10 && page.undecodable.is_empty());
        seen.extend(page.tasks.iter().map(|t| t.id.to_string()));
        pages += 1;
        // What is submitted meanwhile is newer than every page that follows.
        add(&store, &[&format!("later{pages}")]).await;
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    let mut newest_first: Vec<_> = names.iter().rev().cloned().collect();
    if harness.partitions() > 1 {
        // Tasks of one call have an order within their partition only.
        seen[single.len()..].sort();
        newest_first[single.len()..].sort();
    }
    assert_eq!(seen, newest_first);
}

pub(crate) async fn a_filter_finds_what_is_meant(harness: &impl Harness) {
    let store = harness.store().await;
    let batch: Vec<_> = (0..12)
        .map(|n| {
            let new = NewTask {
                title: if n % 4 == 0 { "Repair the Parser".to_owned() } else { "Other".to_owned() },
                repository: if n % 2 == 0 { "even".to_owned() } else { "odd".to_owned() },
                labels: if n % 3 == 0 { vec!["x".to_owned(), "three".to_owned()] } else { Vec::new() },
                ..new_task("")
            };
            submission(&format!("t{n}"), new)
        })
        .collect();
    store.submit(&batch).await.unwrap();
    let found = task(&store, "t4").await;
    assert_eq!(commit_one(&store, by_person(&found, &cancelled())).await, Committed::Applied);
    let find = async |filter: Filter| {
        let (mut ids, mut cursor) = (Vec::new(), None);
        loop {
            let page = store.list(&filter, cursor, 2).await.unwrap();
            ids.extend(page.tasks.into_iter().map(|t| t.id.to_string()));
            match page.next {
                Some(next) => cursor = Some(next),
                None => return ids,
            }
        }
    };
    let all = Filter::default();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(find(Filter { text: text("pArSeR"), ..all.clone() }).await, ["t8", "t4", "t0"]);
    assert_eq!(find(Filter { text: text("T1"), ..all.clone() }).await, ["t11", "t10", "t1"]);
    assert_eq!(find(Filter { label: text("three"), ..all.clone() }).await, ["t9", "t6", "t3", "t0"]);
    assert_eq!(find(Filter { states: vec![TaskState::Cancelled], ..all.clone() }).await, ["t4"]);
    let both = Filter { repository: text("even"), states: vec![TaskState::Open], label: text("x"), ..all.clone() };
    assert_eq!(find(both).await, ["t6", "t0"]);
    assert_eq!(find(Filter { states: vec![TaskState::Open, TaskState::Cancelled], ..all.clone() }).await.len(), 12);
    assert!(find(Filter { repository: text("none"), ..all }).await.is_empty());
}

pub(crate) async fn events_follow_a_cursor(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    assert!(store.events("", 10).await.unwrap().is_empty());
    add(&store, &["a", "b"]).await;
    let all = other.events("", 100).await.unwrap();
    let mut told: Vec<_> = all.iter().map(|e| (e.task.as_str(), e.notice.what)).collect();
    if harness.partitions() > 1 {
        // Of two tasks of one call either may be told of first; of one task there is an order.
        told.sort_by_key(|(task, _)| *task);
    }
    let (submitted, started) = (What::Submitted, What::AttemptStarted);
    assert_eq!(told, [("a", submitted), ("a", started), ("b", submitted), ("b", started)]);
    assert_eq!(all[0].notice.detail, all[0].task.as_str());
    let mut one_by_one = Vec::new();
    let mut cursor = String::new();
    loop {
        let mut next = other.events(&cursor, 1).await.unwrap();
        assert!(next.len() <= 1);
        let Some(event) = next.pop() else { break };
        cursor.clone_from(&event.cursor);
        one_by_one.push(event);
    }
    assert_eq!(one_by_one, all);
    let found = task(&store, "a").await;
    assert_eq!(commit_one(&store, by_person(&found, &cancelled())).await, Committed::Applied);
    let later = other.events(&cursor, 100).await.unwrap();
    let told: Vec<_> = later.iter().map(|e| (e.task.as_str(), e.notice.what)).collect();
    assert_eq!(told, [("a", What::Decided), ("a", What::Finished)]);
}

pub(crate) async fn the_event_log_keeps_the_newest(harness: &impl Harness) {
    let store = harness.store().await;
    // Two lines a step, as there are on average.
    let batch: Vec<_> = (0..6_000)
        .map(|n| {
            let mut long = submission(&format!("t{n}"), new_task("t"));
            let notice = long.notices[0].clone();
            long.notices = (0..2).map(|m| Notice { detail: format!("{n}.{m}"), ..notice.clone() }).collect();
            long
        })
        .collect();
    for some in batch.chunks(500) {
        store.submit(some).await.unwrap();
    }
    let kept = store.events("", 20_000).await.unwrap();
    assert!((10_000..11_000).contains(&kept.len()), "{} lines are kept", kept.len());
    let oldest = 12_000 - kept.len();
    let expected = (oldest..12_000).map(|n| format!("{}.{}", n / 2, n % 2));
    assert!(kept.iter().map(|e| &e.notice.detail).eq(&expected.collect::<Vec<_>>()), "the newest, without a gap");
}

pub(crate) async fn a_process_is_seen_until_it_leaves(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    let process = |id: &str, running| Presence {
        id: id.to_owned(),
        role: "coder".to_owned(),
        host: "host".to_owned(),
        pid: 7,
        running,
    };
    store.presence(&process("p1", 0), false).await.unwrap();
    store.presence(&process("p2", 1), false).await.unwrap();
    store.presence(&process("p1", 3), false).await.unwrap();
    let seen = async || {
        let mut workers = other.stats().await.unwrap().workers;
        workers.sort_by(|a, b| a.id.cmp(&b.id));
        workers
    };
    assert_eq!(seen().await, [process("p1", 3), process("p2", 1)]);
    store.presence(&process("p1", 3), true).await.unwrap();
    assert_eq!(seen().await, [process("p2", 1)]);
}

pub(crate) async fn statistics_are_true(harness: &impl Harness) {
    let store = harness.store().await;
    let empty = store.stats().await.unwrap();
    assert_eq!(empty.depth.values().sum::<u64>() + empty.leases.values().sum::<u64>(), 0);
    assert_eq!((empty.oldest_escalation_ms, empty.oldest_ms.is_empty()), (None, true));

    let high = NewTask { priority: Priority::High, ..new_task("h") };
    store.submit(&[submission("h", high)]).await.unwrap();
    let asking = work(&store, asks()).await;
    assert_eq!(commit_one(&store, decided(&asking, &Policy::default())).await, Committed::Applied);
    add(&store, &["a", "b", "c", "d"]).await;
    let claims = claim(&store, "w", 2, LONG).await;
    report(&store, &claims[0].lease, coded("h")).await;
    let stats = store.stats().await.unwrap();
    let depth = |queue, priority| stats.depth.get(&(queue, priority)).copied().unwrap_or(0);
    assert_eq!(depth(Queue::Code, Priority::Normal), 2);
    assert_eq!(stats.depth.values().sum::<u64>(), 2);
    assert_eq!(stats.leases.get(&Queue::Code), Some(&1));
    assert_eq!(stats.leases.values().sum::<u64>(), 1);
    assert_eq!((stats.outcomes, stats.delayed, stats.quarantined), (1, 0, 0));
    assert_eq!(stats.oldest_ms.keys().collect::<Vec<_>>(), [&Queue::Code]);
    assert!(stats.oldest_escalation_ms.is_some_and(|ms| ms < 600_000), "{stats:?}");
    until("what is ready and what is escalated grows older", async || {
        let later = store.stats().await.unwrap();
        later.oldest_ms[&Queue::Code] > stats.oldest_ms[&Queue::Code]
            && later.oldest_escalation_ms > stats.oldest_escalation_ms
    })
    .await;
    for (metric, labels, expected) in [
        ("tasks", &["open"][..], 4),
        ("tasks", &["escalated"], 1),
        ("escalations_open", &["needs_input"], 1),
        ("escalations_total", &["needs_input"], 1),
        ("task_attempts_current", &["1"], 5),
        ("tasks_submitted_total", &[], 5),
    ] {
        assert_eq!(counted(&store, metric, labels).await, expected, "{metric} {labels:?}");
    }
    let found = task(&store, "h").await;
    assert_eq!(commit_one(&store, by_person(&found, &retried(&found.task))).await, Committed::Applied);
    let stats = store.stats().await.unwrap();
    assert_eq!(stats.oldest_escalation_ms, None);
    assert_eq!(stats.depth.get(&(Queue::Code, Priority::High)), Some(&1));
    assert_eq!(counted(&store, "escalations_open", &["needs_input"]).await, 0);
}

pub(crate) async fn a_sound_store_passes_its_check(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    add(&store, &["a"]).await;
    store.check().await.unwrap();
    other.check().await.unwrap();
    assert_eq!(task(&other, "a").await.version, 1);
}
