//! Reviews that a provider turns away, with the real binary on both stores and a model on loopback: what has cost nothing is
//! put back without a trace, what has cost something is kept and counted, and no attempt pays for either.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[allow(dead_code, unreachable_pub)]
#[path = "../../worker/tests/common/model.rs"]
mod model;

use common::command::{Desk, Ran};
use common::redis::Redis;
use model::{End, Model, Say, says};
use refile_config::schema::ProviderKind;
use serde_json::{Value, json};

const KIND: ProviderKind = ProviderKind::Anthropic;
const APPROVED: &str = r#"{"verdict": "approved", "conf": 0.9, {receipt}}"#;

fn yes() -> Say {
    says(KIND, APPROVED, End::Said)
}

/// Too many calls; the next may come in a second.
fn later() -> Say {
    let error = json!({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}});
    Say::Reply(429, vec![("retry-after", "1".to_owned())], error.to_string())
}

fn no_key() -> Say {
    let error = json!({"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}});
    Say::Reply(401, Vec::new(), error.to_string())
}

const JUDGE: &str = "[reviewers.judge]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m-1\"\n";
const BOARD: &str = "[reviewers.board]\ntype = \"panel\"\nmembers = [\"a\", \"b\"]\nrule = \"unanimous\"\n\
                     [reviewers.a]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m-1\"\n\
                     [reviewers.b]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m-2\"\n";

/// A fleet on a store, whose model says what a test tells it.
struct Fleet {
    place: Desk,
    store: String,
    model: Model,
}

impl Fleet {
    async fn new(store: &str, reviewers: &str, policy: &str, say: Vec<Say>) -> Self {
        let (place, model) = (Desk::new(), Model::start(say).await);
        let text = format!(
            "[repository]\nurl = \"repo\"\n[policy]\nbackoff = \"50ms\"\n{policy}\n\
             [agents.fixer]\ncommand = [\"sh\", \"-c\", \"cat > work.txt\"]\n{reviewers}\
             [providers.p]\nkind = \"anthropic\"\nbase_url = \"{}\"\n",
            model.address
        );
        place.write("refile.toml", &text);
        Self { place, store: store.to_owned(), model }
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.place.run(&[&["--store", self.store.as_str()], args].concat())
    }

    /// A task that a whole fleet worked on until nothing was left, which ended like this.
    fn worked(&self, status: i32) -> Value {
        let task = self.run(&["submit", "Write it down"]).must(0, &[]).out.trim().to_owned();
        self.run(&["up", "--drain"]).must(status, &[]);
        self.shown(&task)
    }

    fn shown(&self, task: &str) -> Value {
        let shown = self.run(&["task", "show", task, "--json"]).must(0, &[]).out;
        serde_json::from_str(&shown).unwrap()
    }
}

/// The reviews of the only attempt: what came of each, how many calls it and its members took, and their tokens.
fn reviews(task: &Value) -> Vec<(String, usize, u64)> {
    let attempts = task["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 1, "no attempt is charged: {task}");
    let calls = |review: &Value| review["calls"].as_array().map_or(0, Vec::len);
    let of = |review: &Value| {
        let members = review["members"].as_array().into_iter().flatten().map(calls).sum::<usize>();
        let what = review["failure"]["kind"].as_str().or(review["verdict"]["verdict"].as_str()).unwrap().to_owned();
        (what, calls(review) + members, review["usage"]["input_tokens"].as_u64().unwrap_or(0))
    };
    attempts[0]["reviews"].as_array().unwrap().iter().map(of).collect()
}

fn review(what: &str, calls: usize, tokens: u64) -> (String, usize, u64) {
    (what.to_owned(), calls, tokens)
}

/// Runs a case on one file and on a server.
async fn on_both(case: impl AsyncFn(&str)) {
    case("sqlite:fleet.db").await;
    let server = Redis::start();
    case(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_turned_away_at_once_leaves_no_trace() {
    on_both(async |store| {
        let fleet = Fleet::new(store, JUDGE, "", vec![later(), yes()]).await;
        assert_eq!(reviews(&fleet.worked(0)), [review("approved", 1, 15)]);
        assert_eq!(fleet.model.asked().len(), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panel_of_which_one_member_was_paid_is_kept_with_its_calls() {
    on_both(async |store| {
        // Whichever member is asked first answers, and the other is turned away.
        let fleet = Fleet::new(store, BOARD, "", vec![yes(), later(), yes(), yes()]).await;
        let task = fleet.worked(0);
        assert_eq!(reviews(&task), [review("rate_limit", 2, 15), review("approved", 2, 30)]);
        assert_eq!(task["spent"]["input_tokens"], 45, "nothing that was paid for is lost");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_question_that_is_turned_away_keeps_the_first() {
    on_both(async |store| {
        let say = vec![says(KIND, "Fine!", End::Said), later(), yes()];
        let fleet = Fleet::new(store, JUDGE, "", say).await;
        assert_eq!(reviews(&fleet.worked(0)), [review("rate_limit", 2, 15), review("approved", 1, 15)]);

        let fallback = format!("{JUDGE}fallback_model = \"m-2\"\n");
        let say = vec![says(KIND, "I will not.", End::Refused), later(), yes()];
        let fleet = Fleet::new(&store.replace("fleet.db", "second.db"), &fallback, "", say).await;
        assert_eq!(reviews(&fleet.worked(0)), [review("rate_limit", 2, 15), review("approved", 1, 15)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_that_cost_end_with_a_person() {
    on_both(async |store| {
        let say = vec![yes(), later(), yes(), later(), yes(), yes()];
        let fleet = Fleet::new(store, BOARD, "max_review_failures = 2", say).await;
        let task = fleet.worked(3);
        assert_eq!(reviews(&task), [review("rate_limit", 2, 15), review("rate_limit", 2, 15)]);
        assert_eq!(task["escalations"][0]["reason"], "reviewer_unavailable", "{task}");
        assert_eq!(fleet.model.asked().len(), 4, "it is not asked on");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_key_is_turned_down_leaves_its_job_to_others() {
    on_both(async |store| {
        // As often as would use up the failed reviews that an attempt has.
        let say = vec![no_key(), no_key(), no_key(), yes()];
        let fleet = Fleet::new(store, JUDGE, "max_review_failures = 2", say).await;
        let task = fleet.run(&["submit", "Write it down"]).must(0, &[]).out.trim().to_owned();
        for _ in 0..3 {
            fleet
                .run(&["up", "--drain"])
                .must(1, &["auth: ", "the provider `p` wants a key", "api_key_env", "invalid x-api-key"]);
            let shown = fleet.shown(&task);
            assert_eq!((&shown["state"], reviews(&shown).len()), (&json!("open"), 0), "{shown}");
        }
        fleet.run(&["up", "--drain"]).must(0, &[]);
        assert_eq!(reviews(&fleet.shown(&task)), [review("approved", 1, 15)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_says_what_its_reviews_wait_for() {
    on_both(async |store| {
        let fleet = Fleet::new(store, JUDGE, "", vec![yes()]).await;
        fleet.run(&["submit", "Write it down"]).must(0, &[]);
        fleet.run(&["provider", "pause", "p", "--for", "4s", "--reason", "at lunch"]).must(0, &[]);
        let ran =
            fleet.run(&["up", "--drain"]).must(0, &["1 review waits: the provider p is paused until ", "at lunch"]);
        assert_eq!(ran.err.matches("1 review waits").count(), 1, "it is said once: {}", ran.err);
    })
    .await;
}
