//! Thresholds that follow recent confidences, and the walk through all records, on a real store.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, Instant};

use refile_config::Config;
use refile_coordinator::Coordinator;
use refile_coordinator::apply::apply;
use refile_coordinator::calibration::{Resolved, keep_figures, resolve, show, walk};
use refile_coordinator::submission::{TaskRequest, read, submit};
use refile_core::calibration::{Sample, calibrate};
use refile_core::event::PersonDecision;
use refile_core::task::{Change, Review, Usage};
use refile_core::verdict::{Verdict, VerdictKind};
use refile_core::{Event, Outcome, PhaseState, Queue, Task, TaskId, Timestamp};
use refile_store::{ClaimRequest, Report, SqliteStore, Store};
use refile_telemetry::{Health, Metrics};
use tokio_util::sync::CancellationToken;

const DAY: u64 = 86_400_000;
/// How long anything here may take.
const DEADLINE: Duration = Duration::from_secs(30);

struct Place {
    _dir: tempfile::TempDir,
    store: Arc<dyn Store>,
    config: Config,
}

impl Place {
    /// A store, and a configuration with these reviewers.
    fn new(reviewers: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("refile.toml");
        std::fs::write(&file, reviewers).unwrap();
        let (config, _) = refile_config::load(Some(&file), [], &[]).unwrap();
        let store = Arc::new(SqliteStore::open(&dir.path().join("fleet.db"), None).unwrap());
        Self { _dir: dir, store, config }
    }

    fn coordinator(&self) -> Coordinator {
        Coordinator {
            store: self.store.clone(),
            config: Arc::new(self.config.clone()),
            metrics: Metrics::new().unwrap(),
            health: Health::default(),
            name: "coordinator".into(),
        }
    }

    async fn happens(&self, id: &TaskId, outcome: Outcome) -> Task {
        let event = Event::Outcome { phase: "change".into(), attempt: 1, outcome };
        apply(self.store.as_ref(), &self.config.policy(), id, &event).await.unwrap()
    }

    async fn submitted(&self, title: &str) -> TaskId {
        let request = TaskRequest { title: title.into(), ..TaskRequest::default() };
        let new = read(request, &self.config).unwrap();
        submit(self.store.as_ref(), &self.config, vec![new]).await.unwrap().remove(0).id
    }

    /// Its first attempt leaves a change.
    async fn coded(&self, id: &TaskId) {
        let change = Change {
            branch: format!("refile/{id}"),
            base_commit: "base".into(),
            head: format!("head of {id}"),
            patch_id: format!("patch of {id}"),
            files: 1,
            lines: 0,
            diff: None,
            summary: String::new(),
        };
        let coded = Outcome::Coded {
            change,
            gates: Vec::new(),
            prompt_digest: "d".into(),
            transcript: None,
            usage: Usage::default(),
        };
        self.happens(id, coded).await;
    }

    /// A task whose first attempt gets this verdict from the judge.
    async fn judged(&self, title: &str, verdict: VerdictKind, conf: f64) -> TaskId {
        let id = self.submitted(title).await;
        self.coded(&id).await;
        self.happens(&id, Outcome::Reviewed(review(&id, verdict, conf))).await;
        id
    }

    async fn decided(&self, id: &TaskId, decision: PersonDecision) {
        let event = Event::Decided { escalation: format!("{id}.1"), decision, by: "ann".into(), note: None };
        apply(self.store.as_ref(), &self.config.policy(), id, &event).await.unwrap();
    }

    async fn resolved(&self) -> Resolved {
        resolve(self.store.as_ref(), &self.config).await.unwrap()
    }
}

fn review(task: &TaskId, verdict: VerdictKind, conf: f64) -> Review {
    let verdict =
        Verdict { verdict, required_change: "Add a test.".into(), critique: String::new(), conf, phase: None };
    Review::new("judge", format!("head of {task}"), verdict)
}

const QUANTILE: &str =
    "[reviewers.judge]\ncommand = [\"x\"]\nconfidence = \"q20\"\n[reviewers.other]\ncommand = [\"x\"]\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_threshold_follows_recent_confidences_once_there_are_enough() {
    let place = Place::new(QUANTILE);
    for n in 1..=19 {
        place.judged("t", VerdictKind::Approved, f64::from(n) / 20.0).await;
    }
    let Resolved { policy, too_few } = place.resolved().await;
    assert_eq!((policy.threshold("judge"), too_few), (0.6, vec![("judge".to_owned(), 19)]));
    place.judged("t", VerdictKind::NeedsChanges, 1.0).await;
    let Resolved { policy, too_few } = place.resolved().await;
    // The lowest four of twenty: 0.05 to 0.20.
    assert_eq!((policy.threshold("judge"), policy.threshold("other"), too_few), (0.2, 0.6, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_decided_by_the_threshold_of_the_moment() {
    let place = Place::new(QUANTILE);
    for n in 1..=20 {
        place.judged("t", VerdictKind::Approved, f64::from(n) / 20.0).await;
    }
    let one = place.submitted("one").await;
    place.coded(&one).await;
    let request = ClaimRequest {
        queues: vec![Queue::Review],
        owner: "worker".into(),
        max: 100,
        lease: DEADLINE,
        wait: DEADLINE,
        limits: Arc::default(),
    };
    let claims = place.store.claim(&request).await.unwrap();
    let lease = claims.into_iter().find(|c| c.task.id == one).unwrap().lease;
    // The policy's own threshold is 0.6.
    let outcome = Outcome::Reviewed(review(&one, VerdictKind::Approved, 0.3));
    place.store.report(&[Report { lease, outcome }]).await.unwrap();

    let shutdown = CancellationToken::new();
    let coordinator = place.coordinator();
    let shown = coordinator.metrics.reviewer_threshold.clone();
    let running = tokio::spawn(coordinator.run(None, shutdown.clone()));
    let since = Instant::now();
    let state = loop {
        let task = place.store.tasks(std::slice::from_ref(&one)).await.unwrap().remove(0).unwrap().task;
        if !task.phases[0].attempts[0].reviews.is_empty() {
            break task.phases[0].state;
        }
        assert!(since.elapsed() < DEADLINE, "nobody decided");
        tokio::task::yield_now().await;
    };
    assert_eq!(state, PhaseState::Landing);
    let shown = |reviewer: &str| shown.with_label_values(&[reviewer]).get();
    assert_eq!((shown("judge"), shown("other")), (0.2, 0.6));
    shutdown.cancel();
    tokio::time::timeout(DEADLINE, running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_newest_confidences_count() {
    let place = Place::new(QUANTILE);
    for n in 0..210 {
        place.judged("t", VerdictKind::Approved, if n < 100 { 0.1 } else { 0.9 }).await;
    }
    // 90 old ones are left of 200: more than a fifth, so that of the new ones none may fail with them.
    let threshold = place.resolved().await.policy.threshold("judge");
    assert!(threshold < 0.1, "{threshold}");
    for _ in 0..80 {
        place.judged("t", VerdictKind::Approved, 0.9).await;
    }
    let Resolved { policy, too_few } = place.resolved().await;
    assert_eq!((policy.threshold("judge"), too_few), (0.1, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walk_knows_what_people_decided_and_what_became_of_changes() {
    let place = Place::new("[policy]\nmax_reviews = 1\n[reviewers.judge]\ncommand = [\"x\"]\n");
    let unsure = place.judged("unsure", VerdictKind::Approved, 0.5).await;
    place.decided(&unsure, PersonDecision::Reject).await;
    let mut landed = Vec::new();
    for conf in [0.7, 0.8] {
        let id = place.judged("landed", VerdictKind::Approved, conf).await;
        place.happens(&id, Outcome::Landed { commit: "c".into() }).await;
        landed.push(id);
    }
    let reverted: BTreeSet<String> = [landed[1].to_string()].into();
    let now = refile_coordinator::now();
    let results = async |now: Timestamp, history: Result<BTreeSet<String>, String>| {
        let mut asked = 0;
        let walked = walk(place.store.as_ref(), now, usize::MAX, |_, base| {
            assert_eq!(base, "main");
            asked += 1;
            ready(history.clone())
        });
        let walked = walked.await.unwrap();
        let mut found: Vec<(f64, Option<bool>)> = walked.samples.iter().map(|s: &Sample| (s.conf, s.right)).collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert_eq!((walked.tasks, asked), (3, 1));
        (found, walked.unreachable.into_values().collect::<Vec<_>>())
    };
    let (rejected, taken_back) = ((0.5, Some(false)), (0.8, Some(false)));
    let soon = results(now, Ok(reverted.clone())).await;
    assert_eq!(soon, (vec![rejected, (0.7, None), taken_back], vec![]), "it is too early to call it good");
    let later = results(Timestamp(now.0 + 8 * DAY), Ok(reverted)).await;
    assert_eq!(later.0, [rejected, (0.7, Some(true)), taken_back]);
    let unknown = results(Timestamp(now.0 + 8 * DAY), Err("away".into())).await;
    assert_eq!(unknown, (vec![rejected, (0.7, None), (0.8, None)], vec!["away".to_owned()]));

    // The store's counters say the same of people's decisions.
    let counted = place.store.stats().await.unwrap().counts;
    let labels: Vec<_> = counted.iter().filter(|(key, _)| key.starts_with("reviewer_labels_total")).collect();
    assert_eq!(labels, [(&"reviewer_labels_total\u{1f}judge\u{1f}0.5\u{1f}wrong".to_owned(), &1)]);
    let walked = walk(place.store.as_ref(), now, usize::MAX, |_, _| ready(Err(String::new()))).await.unwrap();
    assert_eq!(calibrate(&walked.samples)[0].all.wrong, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_has_the_figures_of_calibration() {
    let place = Place::new("[policy]\nmax_reviews = 1\n[reviewers.judge]\ncommand = [\"x\"]\n");
    let mut landed = Vec::new();
    for _ in 0..30 {
        let id = place.judged("landed", VerdictKind::Approved, 0.9).await;
        place.happens(&id, Outcome::Landed { commit: "c".into() }).await;
        landed.push(id.to_string());
    }
    for _ in 0..2 {
        let unsure = place.judged("unsure", VerdictKind::Approved, 0.5).await;
        place.decided(&unsure, PersonDecision::Reject).await;
    }
    place.judged("nobody knows", VerdictKind::Approved, 0.3).await;
    let coordinator = place.coordinator();
    let (metrics, later) = (coordinator.metrics.clone(), Timestamp(refile_coordinator::now().0 + 8 * DAY));
    refile_telemetry::process::install_tls();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let app = refile_coordinator::api::metrics_router(coordinator);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let scrape = async || reqwest::get(&url).await.unwrap().text().await.unwrap();

    let taken_back: BTreeSet<String> = landed[..1].iter().cloned().collect();
    let walked = walk(place.store.as_ref(), later, usize::MAX, |_, _| ready(Ok(taken_back.clone()))).await.unwrap();
    show(&metrics, &walked);
    let text = scrape().await;
    for line in [
        "refile_reviewer_verdicts{result=\"right\",reviewer=\"judge\"} 29\n",
        "refile_reviewer_verdicts{result=\"wrong\",reviewer=\"judge\"} 3\n",
        "refile_reviewer_verdicts{result=\"unlabelled\",reviewer=\"judge\"} 1\n",
        "refile_reviewer_changes{fate=\"stood\",reviewer=\"judge\"} 29\n",
        "refile_reviewer_changes{fate=\"reverted\",reviewer=\"judge\"} 1\n",
        "refile_reviewer_right_ratio{bound=\"share\",confidence=\"0.5\",reviewer=\"judge\"} 0\n",
        "refile_reviewer_right_ratio{bound=\"low\",confidence=\"0.9\",reviewer=\"judge\"} 0.83",
        "refile_reviewer_right_ratio{bound=\"high\",confidence=\"0.9\",reviewer=\"judge\"} 0.99",
        "refile_reviewer_suggested_threshold{reviewer=\"judge\"} 0.89\n",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }

    // Without git nothing is said of what was taken back; what people decided is.
    let walked = walk(place.store.as_ref(), later, usize::MAX, |_, _| ready(Err("away".into()))).await.unwrap();
    show(&metrics, &walked);
    let text = scrape().await;
    assert!(text.contains("refile_reviewer_verdicts{result=\"wrong\",reviewer=\"judge\"} 2\n"), "{text}");
    for gone in ["refile_reviewer_changes{", "refile_reviewer_suggested_threshold{", "confidence=\"0.9\""] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_are_kept_while_a_process_runs_and_of_so_many_tasks_alone() {
    let place = Place::new("[reviewers.judge]\ncommand = [\"x\"]\n");
    for _ in 0..5 {
        place.judged("t", VerdictKind::Approved, 0.9).await;
    }
    let walked =
        walk(place.store.as_ref(), refile_coordinator::now(), 3, |_, _| ready(Err(String::new()))).await.unwrap();
    assert_eq!((walked.tasks, walked.samples.len()), (3, 3));
    let (store, metrics, shutdown) = (place.store.clone(), Metrics::new().unwrap(), CancellationToken::new());
    let (shown, stop) = (metrics.clone(), shutdown.clone());
    let running = tokio::spawn(async move {
        keep_figures(store.as_ref(), &metrics, &shutdown, |_, _| ready(Err(String::new()))).await;
    });
    let since = Instant::now();
    while shown.reviewer_verdicts.with_label_values(&["judge", "unlabelled"]).get() < 5.0 {
        assert!(since.elapsed() < DEADLINE, "nobody looked");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    tokio::time::timeout(DEADLINE, running).await.unwrap().unwrap();
}
