//! A provider that turns a whole fleet away for a minute: real processes, real stores, a real repository, HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::command::{Desk, ended};
use common::judge::{Kept, Provider, Say, Script};
use refile_core::TaskState;
use refile_store::{Filter, OpenOptions};
use serde_json::json;

/// Twenty reviewers in four processes, a coder and a coordinator, a real repository, and a provider that turns everything
/// away for a minute from its third call on; each time it says that it does for one second more.
async fn a_minute_of_429(kept: &Kept) {
    const TASKS: u64 = 40;
    let began: Arc<Mutex<Option<Instant>>> = Arc::default();
    let calls = AtomicU64::new(0);
    let script: Script = Arc::new(move |_, _| {
        if calls.fetch_add(1, Ordering::SeqCst) < 2 {
            return Say::Verdict;
        }
        let since = *began.lock().unwrap().get_or_insert_with(Instant::now);
        if since.elapsed() < Duration::from_mins(1) { Say::RateLimit } else { Say::Verdict }
    });
    let (provider, address) = Provider::start(script, Duration::ZERO).await;
    let desk = Desk::new();
    desk.write(
        "refile.toml",
        &format!(
            "store = \"{}\"\n[repository]\nurl = \"repo\"\n[workers]\nreviewers = 8\n\
             [agents.coder]\ncommand = [\"sh\", \"-c\", \"cat > $REFILE_TASK_ID.txt\"]\n\
             [reviewers.judge]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m\"\n\
             [providers.p]\nkind = \"openai\"\nbase_url = \"{address}\"\n",
            kept.url()
        ),
    );
    let lines: Vec<String> = (1..=TASKS).map(|n| json!({"title": format!("Task {n}")}).to_string()).collect();
    desk.write("tasks.jsonl", &lines.join("\n"));
    desk.ok(&["submit", "--file", "tasks.jsonl"]);
    let reviewer = |_| {
        let mut command = std::process::Command::new(common::program("refile-reviewer"));
        command.args(["--concurrency", "4"]).current_dir(desk.dir.path()).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut reviewers: Vec<_> = (0..3).map(reviewer).collect();
    let mut up = desk.command(&["up", "--drain"]);
    let up = tokio::task::spawn_blocking(move || up.output());
    let up = tokio::time::timeout(Duration::from_mins(4), up).await;
    for reviewer in &mut reviewers {
        reviewer.kill().unwrap();
        reviewer.wait().unwrap();
    }
    let up = ended(up.expect("the fleet is done in time").unwrap().unwrap());
    assert_eq!(up.status, 0, "{}", up.err);

    let store = refile_store::open(&kept.url(), desk.dir.path(), OpenOptions::default()).await.unwrap();
    let tasks = store.list(&Filter::default(), None, 500).await.unwrap().tasks;
    assert!(tasks.iter().all(|t| t.state == TaskState::Merged));
    let attempts = || tasks.iter().flat_map(|t| &t.phases[0].attempts);
    let reviews = || attempts().flat_map(|a| &a.reviews);
    assert!(reviews().all(|r| r.failure.is_none()), "nothing is counted");
    assert_eq!((attempts().count(), reviews().count()), (48, 48), "each of forty once, and eight again");
    // Calls that were under way when the first was turned away are no more than there are reviewers; from then on there is
    // one a second, which is what the provider asks for.
    let turned_away: Vec<Instant> = provider.calls().iter().filter(|c| c.1 == Say::RateLimit).map(|c| c.0).collect();
    let (at_first, later): (Vec<Instant>, Vec<Instant>) =
        turned_away.iter().partition(|at| at.duration_since(turned_away[0]) <= Duration::from_millis(900));
    println!("{} at first, {} probes", at_first.len(), later.len());
    assert!(at_first.len() <= 20 && (10..=60).contains(&later.len()), "{} and {}", at_first.len(), later.len());
    for pair in later.windows(2) {
        let apart = pair[1].duration_since(pair[0]);
        assert!(apart >= Duration::from_millis(900), "{apart:?}");
    }
    assert!(store.pauses().await.unwrap().is_empty(), "the call that went well ended the pause");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_reviewers_leave_a_provider_alone_for_the_minute_that_it_asks_for() {
    let [file, server] = Kept::both();
    tokio::join!(a_minute_of_429(&file), a_minute_of_429(&server));
}
