//! What is kept of a model's reviews, as the operator's command shows it, with a model on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[allow(dead_code, unreachable_pub)]
#[path = "../../worker/tests/common/model.rs"]
mod model;

use common::command::Desk;
use model::{End, Model, Say, says};
use refile_config::schema::ProviderKind;
use refile_worker::agent::digest;
use serde_json::{Value, json};

const KIND: ProviderKind = ProviderKind::Anthropic;
const APPROVED: &str = r#"{"verdict": "approved", "conf": 0.9, {receipt}}"#;

/// A repository whose changes a model judges that says this.
async fn desk(say: Vec<Say>, more: &str) -> (Desk, Model) {
    let (place, model) = (Desk::new(), Model::start(say).await);
    place.write(
        "refile.toml",
        &format!(
            "[repository]\nurl = \"repo\"\n[policy]\nbackoff = \"50ms\"\n{more}\n\
             [agents.fixer]\ncommand = [\"sh\", \"-c\", \"cat > work.txt\"]\n\
             [reviewers.judge]\ntype = \"llm\"\nprovider = \"anthropic\"\nmodel = \"claude-sonnet-4-6\"\noutput = \"judged\"\n\
             [providers.anthropic]\nkind = \"anthropic\"\nbase_url = \"{}\"\n",
            model.address
        ),
    );
    (place, model)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_a_review_can_be_read_afterwards() {
    let say =
        vec![says(KIND, APPROVED, End::Truncated), says(KIND, "Fine!", End::Said), says(KIND, APPROVED, End::Said)];
    let (place, model) = desk(say, "").await;
    let task = place.submit("Write it down");
    let up = place.run(&["up", "--drain"]).must(0, &["a reviewer was asked", "truncated", "claude-sonnet-4-6"]);
    assert_eq!(model.asked().len(), 3, "{up:?}");

    let shown = place.json(&["task", "show", &task]);
    assert_eq!((&shown["state"], shown["attempts"].as_array().unwrap().len()), (&json!("merged"), 1), "not charged");
    let [failed, passed] = &shown["attempts"][0]["reviews"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert_eq!((&failed["failure"]["kind"], &passed["failure"]), (&json!("truncated"), &Value::Null));
    // At 3 dollars per million tokens read, a tenth of it out of the cache, and 15 written.
    let call = |failure: Option<&str>, of: &Value| {
        let mut call = json!({"provider": "anthropic", "model": "claude-sonnet-4-6", "input_tokens": 15,
            "cached_input_tokens": 5, "output_tokens": 4, "cost_micros": 92, "latency_ms": of["latency_ms"]});
        if let Some(failure) = failure {
            call["failure"] = json!(failure);
        }
        call
    };
    assert_eq!(failed["calls"], json!([call(Some("truncated"), &failed["calls"][0])]));
    let calls = &passed["calls"];
    assert_eq!(*calls, json!([call(Some("malformed"), &calls[0]), call(None, &calls[1])]));
    assert_eq!((&shown["spent"]["cost_micros"], &shown["spent"]["output_tokens"]), (&json!(276), &json!(12)));
    for review in [failed, passed] {
        let file = place.path(".refile/artifacts").join(review["prompt"].as_str().unwrap());
        assert_eq!(review["prompt_digest"], digest(std::fs::read(file).unwrap()));
    }
    assert!(passed["output"].as_str().unwrap().ends_with("output-judged.json") && failed["output"].is_null());
    assert_eq!(place.json(&["task", "log", &task])["attempts"][0]["reviews"], shown["attempts"][0]["reviews"]);

    let log = place.ok(&["task", "log", &task]);
    let line = "call of claude-sonnet-4-6 (anthropic): 15 tokens in (5 cached), 4 out, $0.000092, ";
    assert_eq!(log.matches(line).count(), 3, "{log}");
    for words in ["truncated: ", "(not charged)", " s, malformed", passed["prompt_digest"].as_str().unwrap()] {
        assert!(log.contains(words), "{words:?} is not in {log}");
    }
    assert!(!log.contains("You review one change"), "{log}");
    let full = place.ok(&["task", "log", "--full", &task]);
    for words in ["You review one change", ":BEGIN diff>>>", "--- asked again ---", "\"verdict\": \"approved\""] {
        assert!(full.contains(words), "{words:?} is not in {full}");
    }
    let table = place.ok(&["task", "show", &task]);
    // What the agent paid nobody knows: it is a command.
    assert!(table.contains("spent 45 tokens in, 12 out, at least $0.000276, "), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_reviews_cost_counts_against_the_budget() {
    let say = vec![says(KIND, APPROVED, End::Truncated), says(KIND, APPROVED, End::Said)];
    let (place, model) = desk(say, "budget = { cost_usd = 0.00005 }").await;
    place.submit("Write it down");
    place.run(&["up", "--drain"]).must(3, &[]);
    assert_eq!(place.json(&["escalation", "list"])[0]["reason"], "budget_exhausted");
    assert_eq!(model.asked().len(), 1);
}
