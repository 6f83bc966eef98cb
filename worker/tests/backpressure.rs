//! What a worker makes of providers that turn calls away, on a real store: what it may claim, and what it may call.

#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use refile_config::Config;
use refile_core::failure::{Failure, FailureKind, Scope};
use refile_store::{Pause, PauseTarget, ProviderPart, SqliteStore, Store};
use refile_worker::backpressure::Backpressure;
use refile_worker::llm::{Call, Left, Turnstile};

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

fn config(dir: &Path) -> Arc<Config> {
    std::fs::write(dir.join("refile.toml"), CONFIG).unwrap();
    Arc::new(refile_config::load(Some(&dir.join("refile.toml")), [], &[]).unwrap().0)
}

fn view(dir: &Path) -> (Arc<dyn Store>, Backpressure) {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.join("fleet.db"), None).unwrap());
    (store.clone(), Backpressure::new(store, config(dir), Arc::default()))
}

/// What a call that is turned away pauses, without a key.
fn target(model: &str) -> PauseTarget {
    let key = Some("none".to_owned());
    PauseTarget::Provider(ProviderPart { provider: "p".to_owned(), model: Some(model.to_owned()), key })
}

/// A pause whose time is over.
fn over() -> Pause {
    Pause { until: Some(refile_core::Timestamp(1)), reason: "HTTP 429".to_owned(), tries: 0 }
}

fn call(provider: &'static str, model: &'static str) -> Call<'static> {
    Call { provider, model, tokens: 100, timeout: Duration::from_mins(1) }
}

fn turned_away(retry_after_ms: u64) -> Failure {
    let retry_after_ms = Some(retry_after_ms);
    Failure { scope: Scope::Model, retry_after_ms, ..Failure::new(FailureKind::RateLimit, "HTTP 429") }
}

const WELL: Left<'static> = Left { failure: None, used_up: None };

fn badly(failure: &Failure) -> Left<'_> {
    Left { failure: Some(failure), used_up: None }
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
    view.left(&call("p", "m-2"), None, badly(&turned_away(60_000))).await;
    assert_eq!(closed(&view).await, ["reviewer:board", "reviewer:judge"]);
    let failure = view.enter(&call("p", "m-2")).await.unwrap_err();
    assert_eq!((failure.kind, failure.scope), (FailureKind::RateLimit, Scope::Key));
    view.enter(&call("p", "m-1")).await.unwrap();

    // A person's pause is for all models, and ends with its time.
    let person = PauseTarget::Provider(ProviderPart { provider: "q".to_owned(), ..ProviderPart::default() });
    let pause = |until| Pause { until: Some(refile_core::Timestamp(until)), reason: "ann".to_owned(), tries: 0 };
    store.set_pause(&person, Some(&pause(store.now().await.unwrap().0 + 60_000))).await.unwrap();
    assert_eq!(closed(&view).await, ["reviewer:board", "reviewer:judge", "reviewer:other"]);
    store.set_pause(&person, Some(&pause(1))).await.unwrap();
    view.enter(&call("q", "m-1")).await.unwrap();
}

#[tokio::test]
async fn after_a_pause_one_call_goes_first_and_its_answer_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = view(dir.path());
    let other = Backpressure::new(store.clone(), config(dir.path()), Arc::default());
    let (p, short) = (call("p", "m-1"), Call { timeout: Duration::from_millis(200), ..call("p", "m-1") });
    // Two were under way when the first was turned away.
    let early = view.enter(&p).await.unwrap();
    view.left(&p, None, badly(&turned_away(60_000))).await;
    view.left(&p, early, WELL).await;
    assert_eq!(closed(&view).await, ["reviewer:board", "reviewer:judge"], "what began before it shows nothing");

    // One job may be claimed in the whole fleet, and one call goes through, whoever has a job already.
    store.set_pause(&target("m-1"), Some(&over())).await.unwrap();
    let limits = view.room().await.limits;
    for reviewer in ["reviewer:judge", "reviewer:board"] {
        assert_eq!(limits.providers[reviewer].iter().map(|probe| limits.named[probe]).collect::<Vec<_>>(), [1]);
    }
    let probe = view.enter(&p).await.unwrap();
    assert_eq!(probe.as_ref().unwrap().probes, [target("m-1")]);
    let failure = other.enter(&short).await.unwrap_err();
    assert!(failure.detail.contains("another call tries") && failure.scope == Scope::Key, "{failure}");
    // Whoever has the time waits for what comes of it.
    let waiting = tokio::spawn(async move { other.enter(&call("p", "m-1")).await });
    view.left(&p, probe, badly(&Failure::new(FailureKind::Refused, "no"))).await;
    let pass = waiting.await.unwrap().unwrap().unwrap();
    assert!(pass.probes.is_empty(), "a refusal is an answer");
    assert!(store.pauses().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_probe_that_tells_nothing_makes_the_pause_longer() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = view(dir.path());
    let p = call("p", "m-1");
    for (tries, seconds) in [(1, 30), (2, 60), (3, 120)] {
        store.set_pause(&target("m-1"), Some(&Pause { tries: tries - 1, ..over() })).await.unwrap();
        let probe = view.enter(&p).await.unwrap();
        let before = store.now().await.unwrap().0;
        view.left(&p, probe, badly(&Failure::new(FailureKind::Network, "cut"))).await;
        let paused = store.pauses().await.unwrap().remove(0);
        assert_eq!(paused.pause.tries, tries);
        assert!(paused.pause.until.unwrap().0 >= before + seconds * 1_000, "{paused:?}");
    }
    // One that was no probe says nothing of the provider.
    store.set_pause(&target("m-1"), None).await.unwrap();
    let pass = view.enter(&p).await.unwrap();
    view.left(&p, pass, badly(&Failure::new(FailureKind::Network, "cut"))).await;
    assert!(store.pauses().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_provider_that_says_that_nothing_is_left_is_not_asked_until_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = view(dir.path());
    let pass = view.enter(&call("p", "m-1")).await.unwrap();
    let used_up = Left { failure: None, used_up: Some(Duration::from_secs(40)) };
    view.left(&call("p", "m-1"), pass, used_up).await;
    let paused = store.pauses().await.unwrap().remove(0);
    assert!(paused.holds && paused.target == target("m-1") && paused.pause.reason.contains("nothing is left"));
    assert_eq!(closed(&view).await, ["reviewer:board", "reviewer:judge"]);
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
    view.left(&call("p", "m-3"), None, badly(&turned_away(60_000))).await;
    assert_eq!(closed(&view).await, ["agent:coder"]);
}
