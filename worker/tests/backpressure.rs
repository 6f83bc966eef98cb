//! What a worker makes of providers that turn calls away, on a real store: what it may claim, and what it may call.

#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use refile_core::failure::{Failure, FailureKind, Scope};
use refile_store::{Pause, PauseTarget, ProviderPart, SqliteStore, Store};
use refile_worker::backpressure::Backpressure;
use refile_worker::llm::{Call, Turnstile};

const CONFIG: &str = "
[reviewers.judge]
type = \"llm\"
provider = \"p\"
model = \"m-1\"
fallback_model = \"m-2\"
[reviewers.other]
type = \"llm\"
provider = \"q\"
model = \"m-1\"
[reviewers.board]
type = \"panel\"
members = [\"judge\", \"other\"]
[agents.coder]
type = \"llm\"
provider = \"p\"
model = \"m-3\"
[providers.p]
kind = \"openai\"
[providers.q]
kind = \"openai\"
requests_per_minute = 1
";

fn view(dir: &Path) -> (Arc<dyn Store>, Backpressure) {
    std::fs::write(dir.join("refile.toml"), CONFIG).unwrap();
    let (config, _) = refile_config::load(Some(&dir.join("refile.toml")), [], &[]).unwrap();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.join("fleet.db"), None).unwrap());
    (store.clone(), Backpressure::new(store, Arc::new(config), Arc::default()))
}

fn call(provider: &'static str, model: &'static str) -> Call<'static> {
    Call { provider, model, tokens: 100 }
}

fn turned_away(retry_after_ms: u64) -> Failure {
    let retry_after_ms = Some(retry_after_ms);
    Failure { scope: Scope::Model, retry_after_ms, ..Failure::new(FailureKind::RateLimit, "HTTP 429") }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Whose jobs may not be claimed.
async fn closed(view: &Backpressure) -> Vec<String> {
    let limits = view.room().await.limits;
    limits.named.iter().filter(|(_, most)| **most == 0).map(|(name, _)| name.clone()).collect()
}

#[tokio::test]
async fn whoever_may_ask_a_model_that_is_paused_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = view(dir.path());
    assert!(closed(&view).await.is_empty());
    // The model that is asked where the first refuses, and a member of a panel.
    view.left(&call("p", "m-2"), now(), Some(&turned_away(60_000))).await;
    assert_eq!(closed(&view).await, ["reviewer:board", "reviewer:judge"]);
    let failure = view.enter(&call("p", "m-2")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::RateLimit);
    view.enter(&call("p", "m-1")).await.unwrap();

    // A person's pause is for all models, and ends with its time.
    let person = PauseTarget::Provider(ProviderPart { provider: "q".to_owned(), ..ProviderPart::default() });
    let pause = |until| Pause { until: Some(refile_core::Timestamp(until)), reason: "ann".to_owned(), tries: 0 };
    store.set_pause(&person, Some(&pause(now() + 60_000))).await.unwrap();
    assert_eq!(closed(&view).await, ["reviewer:board", "reviewer:judge", "reviewer:other"]);
    store.set_pause(&person, Some(&pause(1))).await.unwrap();
    view.enter(&call("q", "m-1")).await.unwrap();
}

#[tokio::test]
async fn only_a_call_that_began_after_the_pause_shows_that_it_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = view(dir.path());
    let before = now();
    view.left(&call("p", "m-1"), before, Some(&turned_away(1))).await;
    assert_eq!(closed(&view).await, ["reviewer:board", "reviewer:judge"]);
    view.left(&call("p", "m-1"), before, None).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.pauses().await.unwrap()[0].holds {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Its time is over: one job may try in the whole fleet.
    let limits = view.room().await.limits;
    let probe = &limits.providers["reviewer:judge"];
    assert_eq!(limits.named[probe], 1);
    view.left(&call("p", "m-1"), before, None).await;
    assert_eq!(store.pauses().await.unwrap().len(), 1, "what began before the pause shows nothing");
    view.left(&call("p", "m-1"), now(), None).await;
    assert!(store.pauses().await.unwrap().is_empty());
}

#[tokio::test]
async fn the_fleets_own_minute_holds_calls_back_and_pauses_who_needs_more() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = view(dir.path());
    view.enter(&call("q", "m-1")).await.unwrap();
    let failure = view.enter(&call("q", "m-1")).await.unwrap_err();
    assert!(failure.detail.contains("limit for a minute"), "{failure}");
    assert!(store.pauses().await.unwrap()[0].holds);
    assert_eq!(closed(&view).await, ["reviewer:board", "reviewer:other"]);
}

#[tokio::test]
async fn an_agent_whose_model_is_paused_gets_no_job() {
    let dir = tempfile::tempdir().unwrap();
    let (_, view) = view(dir.path());
    view.left(&call("p", "m-3"), now(), Some(&turned_away(60_000))).await;
    assert_eq!(closed(&view).await, ["agent:coder"]);
}
