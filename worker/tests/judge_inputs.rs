//! What a judge is given, what must hold before and after it is asked, and what is kept of it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Place;
use common::fleet::{Try, artifacts, shelf_of, site, task};
use common::model::{End, Model, Say, overloaded, question, says, whole};
use refile_config::schema::ProviderKind;
use refile_config::{Config, Price};
use refile_core::Outcome;
use refile_core::failure::FailureKind;
use refile_core::gate::GateReport;
use refile_core::task::{Call, Change, Review};
use refile_core::verdict::VerdictKind;
use refile_telemetry::Metrics;
use refile_worker::llm::Client;
use refile_worker::review::{ReviewJob, review};
use serde_json::{Value, json};

const KIND: ProviderKind = ProviderKind::Anthropic;
const APPROVED: &str = r#"{"verdict": "approved", "conf": 0.9, {receipt}}"#;

/// A change to a file that is there, a new file, and one that is removed; the coder says `I did it all.`
const SCRIPT: &str = "sed -i 's/one/ONE/' a.txt; printf 'x\\ny\\n' > new.txt; rm b.txt; echo 'I did it all.'";

fn said(text: &str) -> Say {
    says(KIND, text, End::Said)
}

fn gate(output: &str) -> GateReport {
    serde_json::from_value(json!({"name": "test", "passed": true, "output": output})).unwrap()
}

/// A change, and a judge of it.
struct Desk {
    place: Place,
    change: Change,
    gates: Vec<GateReport>,
    metrics: Metrics,
}

impl Desk {
    async fn new() -> Self {
        let place = Place::new();
        let change = Try::script(SCRIPT).change(&place, &task(&place, "t1")).await;
        Self { place, change, gates: Vec::new(), metrics: Metrics::new().unwrap() }
    }

    /// What a judge with this in its section makes of the change, and what it was asked.
    async fn judged(&self, more: &str, say: Vec<Say>) -> (Review, Vec<Value>) {
        let model = Model::start(say).await;
        let text = format!(
            "[reviewers.judge]\ntype = \"llm\"\nmodel = \"p/m-1\"\n{more}\n[providers.p]\nkind = \"anthropic\"\n\
             [prices.m-1]\ninput = 3.0\ncached_input = 0.3\noutput = 15.0\n"
        );
        let file = self.place.root.path().join("refile.toml");
        std::fs::write(&file, text).unwrap();
        let (config, _): (Config, _) = refile_config::load(Some(&file), [], &[]).unwrap();
        let task = task(&self.place, "t1");
        let artifacts = shelf_of(&self.place, &task, 50);
        let client = Client::new().unwrap().with_metrics(&self.metrics).with_prices(&config.prices);
        let outcome = review(&ReviewJob {
            site: site(&self.place, &artifacts, &task, 1, 50),
            change: &self.change,
            gates: &self.gates,
            previous_required_change: None,
            name: "judge",
            reviewer: &config.reviewers["judge"],
            reviewers: &config.reviewers,
            providers: &[("p".to_owned(), model.provider(KIND))].into(),
            client: &client,
        })
        .await;
        let Outcome::Reviewed(review) = outcome else { panic!("{outcome:?}") };
        (review, model.asked().into_iter().map(|(_, _, body)| body).collect())
    }

    async fn kept(&self, name: Option<&String>) -> String {
        let content = artifacts(&self.place).get(name.unwrap()).await.unwrap().unwrap();
        String::from_utf8(content.to_vec()).unwrap()
    }

    fn cost(&self) -> f64 {
        self.metrics.llm_cost.with_label_values(&["p", "m-1"]).get()
    }
}

fn packet(asked: &Value) -> &str {
    asked["messages"][0]["content"].as_str().unwrap()
}

#[tokio::test]
async fn a_judge_is_given_what_its_inputs_name_and_no_more() {
    let desk = Desk { gates: vec![gate("3 passed")], ..Desk::new().await };
    let (_, asked) = desk.judged("", vec![said(APPROVED)]).await;
    let usual = packet(&asked[0]);
    assert!(
        usual.contains("BEGIN issue>>>") && usual.contains("3 passed") && usual.contains("\n-one\n+ONE\n"),
        "{usual}"
    );
    assert!(!usual.contains("I did it all.") && !usual.contains("BEGIN files>>>"), "{usual}");

    let inputs = "inputs = [\"files\", \"summary\"]";
    let (review, asked) = desk.judged(inputs, vec![said(APPROVED)]).await;
    assert_eq!((review.verdict.verdict, &review.failure), (VerdictKind::Approved, &None));
    let given = packet(&asked[0]);
    for part in ["I did it all.", ">>> a.txt\nONE\ntwo\n", ">>> b.txt\n[removed]\n", ">>> new.txt\nx\ny\n"] {
        assert!(given.contains(part), "{part:?} is not in {given}");
    }
    assert!(!given.contains("BEGIN diff>>>") && !given.contains("BEGIN issue>>>"), "{given}");
    let told = asked[0]["system"].as_str().unwrap();
    assert!(told.contains("- `summary`: ") && !told.contains("- `diff`: "), "{told}");
}

#[tokio::test]
async fn the_fields_of_a_judge_stage_all_reach_the_model() {
    let stage = "inputs = [\"issue\", \"git_diff\", \"test_output\"]\nrequire = { verdict = \"pass\" }\n\
                 instructions = \"Mind the locks.\"\noutput = \"review_result\"\ncontinue_on_error = true\n\
                 max_tokens = 77\ntimeout = \"2m\"";
    let desk = Desk::new().await;
    let (review, asked) = desk.judged(stage, vec![said(APPROVED)]).await;
    assert_eq!((asked[0]["model"].as_str(), asked[0]["max_tokens"].as_u64()), (Some("m-1"), Some(77)));
    assert!(asked[0]["system"].as_str().unwrap().contains("Mind the locks."));
    assert!(review.output.as_ref().unwrap().ends_with("/output-review_result.json"));
    let output: Value = serde_json::from_str(&desk.kept(review.output.as_ref()).await).unwrap();
    assert_eq!((&output["verdict"], &output["reviewer"]), (&json!("approved"), &json!("judge")));
    // What is no verdict leaves no output.
    let (failed, _) = desk.judged(stage, vec![overloaded(KIND)]).await;
    assert_eq!((failed.output, failed.failure.unwrap().kind), (None, FailureKind::Overloaded));
}

#[tokio::test]
async fn what_is_required_must_be_there_before_the_judge_is_asked() {
    let require = "require = { inputs = [\"gate_output\"] }";
    let mut desk = Desk::new().await;
    let (review, asked) = desk.judged(require, vec![said(APPROVED)]).await;
    assert_eq!((review.failure.unwrap().kind, review.verdict.verdict), (FailureKind::Empty, VerdictKind::Retry));
    assert_eq!((asked.len(), review.calls.len(), review.prompt), (0, 0, None));
    // Nothing that was collected tells of the change.
    let (review, asked) = desk.judged("inputs = [\"issue\", \"gate_output\"]", vec![said(APPROVED)]).await;
    assert_eq!((review.failure.unwrap().kind, asked.len()), (FailureKind::Empty, 0));
    desk.gates = vec![gate("3 passed")];
    let (review, asked) = desk.judged(require, vec![said(APPROVED)]).await;
    assert_eq!((review.verdict.verdict, asked.len()), (VerdictKind::Approved, 1));
}

#[tokio::test]
async fn a_question_may_be_put_the_other_way_round() {
    let turned = "format = \"judge\"\nrequire = { verdict = \"fail\" }\ninstructions = \"Does it leak a secret?\"";
    let desk = Desk::new().await;
    let fail = r#"{"verdict": "fail", "summary": "No.", "required_fixes": ["Nothing leaks."], {receipt}}"#;
    let (review, _) = desk.judged(turned, vec![said(fail)]).await;
    assert_eq!((review.verdict.verdict, review.verdict.required_change.as_str()), (VerdictKind::Approved, ""));
    assert!(review.verdict.critique.starts_with("Nothing leaks."), "{}", review.verdict.critique);
    let pass = r#"{"verdict": "pass", "summary": "A key is printed.", {receipt}}"#;
    let (review, _) = desk.judged(turned, vec![said(pass)]).await;
    assert_eq!(review.verdict.verdict, VerdictKind::Escalate);
    assert!(review.verdict.critique.contains("A key is printed."), "{}", review.verdict.critique);
    // Garbage is no approval either way.
    let (review, _) = desk.judged(turned, vec![said("fail"), said("{\"verdict\": \"fail")]).await;
    assert_eq!((review.verdict.verdict, review.failure.unwrap().kind), (VerdictKind::Retry, FailureKind::Malformed));
}

#[tokio::test]
async fn a_packet_that_is_cut_says_what_is_missing() {
    let place = Place::new();
    let script = "for f in 1 2 3; do seq 1000 > $f.txt; done; echo short > z.txt";
    let change = Try::script(script).change(&place, &task(&place, "t1")).await;
    let desk = Desk { place, change, gates: Vec::new(), metrics: Metrics::new().unwrap() };
    let (_, asked) = desk.judged("inputs = [\"files\", \"diff\"]\nmax_input_bytes = 8000", vec![said(APPROVED)]).await;
    let given = packet(&asked[0]);
    assert!(given.len() <= 8_000 && given.len() > 6_000, "{}", given.len());
    for part in ["diff: all of a/2.txt b/2.txt", " of 1000 lines of ", ">>> z.txt\nshort\n"] {
        assert!(given.contains(part), "{part:?} is not in {given}");
    }
    let (review, asked) = desk.judged("inputs = [\"diff\"]\nmax_input_bytes = 4000", vec![said(APPROVED)]).await;
    assert_eq!((review.failure, asked.len()), (None, 1), "one small file is enough to be asked");
}

#[tokio::test]
async fn all_of_a_review_is_kept() {
    let desk = Desk::new().await;
    let (review, asked) = desk.judged("", vec![said("Fine!"), said(APPROVED)]).await;
    let prompt = desk.kept(review.prompt.as_ref()).await;
    assert_eq!(prompt, format!("{}\n\n{}", asked[0]["system"].as_str().unwrap(), packet(&asked[0])));
    assert_eq!(review.prompt_digest.as_deref(), Some(refile_worker::agent::digest(&prompt).as_str()));
    assert!(desk.kept(review.reply.as_ref()).await.starts_with("Fine!\n\n--- asked again ---"));
    // 10 tokens at 3, 5 out of the cache at 0.3, 4 written at 15 dollars per million.
    let call = |failure, of: &Call| Call {
        provider: "p".into(),
        model: "m-1".into(),
        failure,
        input_tokens: 15,
        cached_input_tokens: 5,
        output_tokens: 4,
        cost_micros: Some(92),
        latency_ms: of.latency_ms,
    };
    let [first, second] = &review.calls[..] else { panic!("{:?}", review.calls) };
    assert_eq!((first, second), (&call(Some(FailureKind::Malformed), first), &call(None, second)));
    assert_eq!((review.usage.cost_micros, review.usage.input_tokens), (184, 30));
    assert_eq!(review.usage.wall_ms, first.latency_ms + second.latency_ms);
    assert!((desk.cost() - 0.000_184).abs() < 1e-9, "{}", desk.cost());
}

#[tokio::test]
async fn a_failed_call_costs_what_its_usage_says() {
    let desk = Desk::new().await;
    let (review, _) = desk.judged("", vec![says(KIND, APPROVED, End::Truncated)]).await;
    assert_eq!((review.failure.unwrap().kind, review.usage.cost_micros), (FailureKind::Truncated, 92));
    // An error within a good status, with what was used up before it.
    let mut broken = whole(KIND, "", End::Said);
    broken["error"] = json!({"type": "overloaded_error", "message": "x"});
    let (review, _) = desk.judged("", vec![Say::Reply(200, Vec::new(), broken.to_string())]).await;
    assert_eq!((review.failure.unwrap().kind, review.usage.cost_micros), (FailureKind::Overloaded, 92));
    let (review, _) = desk.judged("", vec![overloaded(KIND)]).await;
    assert_eq!((review.calls[0].cost_micros, review.usage.cost_micros), (Some(0), 0));
}

#[tokio::test]
async fn what_an_unknown_model_costs_is_not_said() {
    let model = Model::start(vec![said("hello")]).await;
    let metrics = Metrics::new().unwrap();
    let prices = [("other".to_owned(), Price { input: 1.0, output: 1.0, cached_input: None })].into();
    let client = Client::new().unwrap().with_metrics(&metrics).with_prices(&prices);
    let messages = [refile_worker::llm::Message::user("Hello.")];
    let answer = client.ask(&model.provider(KIND), &question(&messages)).await;
    let call = answer.call.unwrap();
    assert_eq!((call.cost_micros, call.usage().cost_micros), (None, 0));
    let costs = metrics.registry.gather().into_iter().find(|family| family.name() == "refile_llm_cost_usd_total");
    assert!(costs.is_none(), "{costs:?}");
}
