//! What is promised of pauses, of queues and of providers, and of calls that are let through beside them.

use std::sync::Arc;
use std::time::Duration;

use refile_core::{Queue, Timestamp};
use refile_store::{
    Admission, ClaimRequest, Draw, Entry, Pass, Pause, PauseLength, PauseTarget, Paused, Place, ProviderPart, Store,
};

use super::kit::*;

fn part(provider: &str, model: Option<&str>, key: Option<&str>) -> ProviderPart {
    ProviderPart { provider: provider.to_owned(), model: model.map(str::to_owned), key: key.map(str::to_owned) }
}

fn paused(target: &PauseTarget, until: Option<u64>, holds: bool) -> Paused {
    Paused { target: target.clone(), pause: pause(until), holds }
}

fn pause(until: Option<u64>) -> Pause {
    Pause { until: until.map(Timestamp), reason: "ann: lunch".to_owned(), tries: 3 }
}

pub(crate) async fn a_paused_queue_hands_nothing_out(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    add(&store, &["a"]).await;
    let (queue, provider) = (PauseTarget::Queue(Queue::Code), PauseTarget::Provider(part("p:1", Some("a/m:7b"), None)));
    store.set_pause(&queue, Some(&pause(None))).await.unwrap();
    store.set_pause(&provider, Some(&pause(Some(u64::MAX / 4)))).await.unwrap();
    assert!(claim(&other, "w", 10, LONG).await.is_empty());
    assert_eq!(job(&other, "a").await.place, Place::Queued);
    let expected = [paused(&queue, None, true), paused(&provider, Some(u64::MAX / 4), true)];
    assert_eq!(other.pauses().await.unwrap(), expected);
    // A claim that waits gets the job when the queue is resumed.
    let waiting = {
        let other = other.clone();
        let request = ClaimRequest { wait: LONG, ..request("w", 1, LONG) };
        tokio::spawn(async move { other.claim(&request).await.unwrap() })
    };
    store.set_pause(&queue, None).await.unwrap();
    assert_eq!(in_time("the claim", waiting).await.unwrap().len(), 1);
    store.set_pause(&provider, None).await.unwrap();
    assert!(store.pauses().await.unwrap().is_empty());
}

pub(crate) async fn a_pause_of_a_provider_is_kept_until_it_is_ended(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    let whole = PauseTarget::Provider(part("p", None, None));
    let call = PauseTarget::Provider(part("p", Some("a/m:7b"), Some("0f")));
    store.set_pause(&whole, Some(&pause(None))).await.unwrap();
    store.set_pause(&call, Some(&pause(Some(1)))).await.unwrap();
    let expected = [paused(&whole, None, true), paused(&call, Some(1), false)];
    assert_eq!(other.pauses().await.unwrap(), expected);
    other.set_pause(&call, None).await.unwrap();
    assert_eq!(store.pauses().await.unwrap(), expected[..1]);
    // A person's ends with its time.
    other.set_pause(&whole, Some(&pause(Some(1)))).await.unwrap();
    assert!(store.pauses().await.unwrap().is_empty());
}

fn entry(call: &ProviderPart, draws: Vec<Draw>) -> Entry {
    Entry { call: call.clone(), probe: LONG, draws }
}

/// Lets a call through that nothing holds back.
async fn pass(store: &Arc<dyn Store>, call: &ProviderPart) -> Pass {
    match store.admit(&entry(call, Vec::new())).await.unwrap() {
        Admission::Granted(pass) => pass,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn a_provider_is_held_for_as_long_as_the_longest_says(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    let (call, of_other_key) = (part("p", Some("m"), Some("0f")), part("p", Some("m"), Some("1e")));
    let target = PauseTarget::Provider(part("p", None, Some("0f")));
    let before = store.now().await.unwrap().0;
    let first = store.hold(&target, PauseLength::For(LONG), "429 \"slow\"").await.unwrap().expect("a new pause");
    let ends = first.until.unwrap().0 - LONG.as_millis() as u64;
    assert!((before..=store.now().await.unwrap().0).contains(&ends), "by the store's clock");
    assert_eq!(other.hold(&target, PauseLength::Growing, "x").await.unwrap(), None, "it holds for longer already");
    assert_eq!(store.pauses().await.unwrap(), [Paused { target: target.clone(), pause: first.clone(), holds: true }]);
    let expected = Admission::Paused { reason: "429 \"slow\"".to_owned(), until: first.until };
    assert_eq!(other.admit(&entry(&call, Vec::new())).await.unwrap(), expected);
    pass(&other, &of_other_key).await;
    pass(&other, &part("q", Some("m"), Some("0f"))).await;
    // A call that was let through before it does not end it.
    assert!(other.answered(&call, store.now().await.unwrap()).await.unwrap().is_empty());
    let for_ever = other.hold(&target, PauseLength::UntilResumed, "no money").await.unwrap().unwrap();
    assert_eq!((for_ever.until, for_ever.tries), (None, 0));
    assert_eq!(store.hold(&target, PauseLength::For(LONG), "x").await.unwrap(), None);
    assert!(store.answered(&call, Timestamp(u64::MAX / 4)).await.unwrap().is_empty(), "only a person ends it");
    // A person's pause is for every key, and ends with its time.
    let whole = PauseTarget::Provider(part("q", None, None));
    store.set_pause(&whole, Some(&pause(None))).await.unwrap();
    let any = part("q", Some("m"), Some("0f"));
    assert!(matches!(other.admit(&entry(&any, Vec::new())).await.unwrap(), Admission::Paused { until: None, .. }));
    store.set_pause(&whole, Some(&pause(Some(1)))).await.unwrap();
    assert!(pass(&other, &any).await.probes.is_empty());
}

pub(crate) async fn after_a_pause_one_call_goes_first(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    let call = part("p", Some("m"), Some("0f"));
    let of_key = PauseTarget::Provider(part("p", None, Some("0f")));
    let of_model = PauseTarget::Provider(call.clone());
    let over = Pause { tries: 1, ..pause(Some(1)) };
    store.set_pause(&of_key, Some(&over)).await.unwrap();
    store.set_pause(&of_model, Some(&over)).await.unwrap();
    let first = pass(&store, &call).await;
    assert_eq!(first.probes, [of_key.clone(), of_model.clone()]);
    let probing = async |store: &Arc<dyn Store>, call: &ProviderPart| matches!(store.admit(&entry(call, Vec::new())).await.unwrap(), Admission::Probing { wait } if wait <= LONG);
    let same_key = part("p", Some("n"), Some("0f"));
    assert!(probing(&other, &call).await && probing(&store, &call).await && probing(&other, &same_key).await);
    // It was turned away: the pause grows, and nobody has the provider to itself.
    let grown = store.hold(&of_key, PauseLength::Growing, "429").await.unwrap().unwrap();
    assert_eq!(grown.tries, 2);
    assert!(matches!(other.admit(&entry(&call, Vec::new())).await.unwrap(), Admission::Paused { .. }));
    store.set_pause(&of_key, Some(&over)).await.unwrap();
    assert!(probing(&other, &call).await, "the model's is still tried by the first call");
    assert_eq!(pass(&other, &same_key).await.probes, std::slice::from_ref(&of_key));
    // An answer to the first one ends what was over when it was let through.
    assert_eq!(other.answered(&call, first.at).await.unwrap(), [of_key, of_model]);
    assert!(store.pauses().await.unwrap().is_empty());
    assert!(pass(&other, &call).await.probes.is_empty());
    // One of whom nothing is heard has it to itself for no longer than it said.
    store.set_pause(&PauseTarget::Provider(call.clone()), Some(&over)).await.unwrap();
    let short = Entry { probe: Duration::from_millis(200), ..entry(&call, Vec::new()) };
    assert!(matches!(store.admit(&short).await.unwrap(), Admission::Granted(_)));
    let again = async {
        while !matches!(other.admit(&short).await.unwrap(), Admission::Granted(_)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    in_time("the next that tries", again).await;
}

pub(crate) async fn what_there_is_a_minute_is_shared(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    let call = part("p", Some("m"), Some("0f"));
    let draw = |name: &str, amount| Draw { name: name.to_owned(), amount, per_minute: 6 };
    let wait = async |store: &Arc<dyn Store>, draws: &[Draw]| match store
        .admit(&entry(&call, draws.to_vec()))
        .await
        .unwrap()
    {
        Admission::Granted(_) => None,
        Admission::Spent { wait } => Some(wait),
        other => panic!("{other:?}"),
    };
    for handle in [&store, &other, &store] {
        assert_eq!(wait(handle, &[draw("calls", 2)]).await, None);
    }
    // One comes back every ten seconds; all or nothing is taken.
    let refused = wait(&other, &[draw("tokens", 6), draw("calls", 1)]).await.expect("there is nothing left");
    assert!(refused > Duration::from_secs(5) && refused <= Duration::from_secs(10), "{refused:?}");
    assert_eq!(wait(&other, &[draw("tokens", 1_000)]).await, None, "more than there ever is goes when all is there");
    assert!(wait(&store, &[draw("tokens", 1)]).await.is_some());
    // Who finds nothing left does not try whether a pause is over.
    let over = PauseTarget::Provider(call.clone());
    store.set_pause(&over, Some(&pause(Some(1)))).await.unwrap();
    assert!(wait(&store, &[draw("tokens", 1)]).await.is_some());
    assert_eq!(pass(&other, &call).await.probes, [over]);
}

pub(crate) async fn a_pause_ends_by_itself(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    let queue = PauseTarget::Queue(Queue::Code);
    store.set_pause(&queue, Some(&pause(Some(1)))).await.unwrap();
    assert!(store.pauses().await.unwrap().is_empty());
    assert_eq!(claim(&store, "w", 1, LONG).await.len(), 1);
    let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64 + 200;
    store.set_pause(&queue, Some(&pause(Some(soon)))).await.unwrap();
    let request = ClaimRequest { wait: LONG, ..request("w", 1, LONG) };
    assert_eq!(in_time("the claim", store.claim(&request)).await.unwrap().len(), 1);
    assert!(store.pauses().await.unwrap().is_empty());
}
