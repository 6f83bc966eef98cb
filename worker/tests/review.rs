//! Review jobs with real programs, real repositories and a model on loopback.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::fleet::{Try, artifacts, client, shelf_of, site, task};
use common::model::{End, Model, Say, overloaded, says};
use common::{Place, git};
use indexmap::IndexMap;
use refile_config::schema::{ProviderKind, ReviewerType};
use refile_config::{Input, Provider, Require, Reviewer, Span};
use refile_core::failure::FailureKind;
use refile_core::panel::Rule;
use refile_core::task::{Change, Review};
use refile_core::verdict::{Format, VerdictKind, schema as schema_of};
use refile_core::{Outcome, Task};
use refile_worker::review::{ReviewJob, review};

fn reviewer(kind: ReviewerType, script: &str) -> Reviewer {
    Reviewer {
        kind,
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        format: None,
        provider: Some("p".to_owned()),
        model: Some("m-1".to_owned()),
        instructions: None,
        max_tokens: 500,
        inputs: Input::default_list(),
        max_input_bytes: 100_000,
        require: Require::default(),
        output: None,
        continue_on_error: false,
        timeout: Span::seconds(60),
        env: Vec::new(),
        network: None,
        fallback_model: None,
        members: Vec::new(),
        rule: Rule::default(),
        confidence: None,
        other_model_than_coder: false,
    }
}

async fn judged(
    place: &Place,
    task: &Task,
    change: &Change,
    reviewer: &Reviewer,
    provider: Option<Provider>,
) -> Review {
    let providers: IndexMap<String, Provider> = provider.into_iter().map(|p| ("p".to_owned(), p)).collect();
    let (shelf, client) = (shelf_of(place, task, 50), client());
    let outcome = review(&ReviewJob {
        site: site(place, &shelf, task, 1, 50),
        change,
        gates: &[],
        previous_required_change: Some("Add a test."),
        name: "strict",
        reviewer,
        reviewers: &IndexMap::new(),
        providers: &providers,
        client: &client,
    })
    .await;
    match outcome {
        Outcome::Reviewed(review) => review,
        other => panic!("{other:?}"),
    }
}

async fn by_command(script: &str) -> Review {
    let place = Place::new();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    let review = judged(&place, &task, &change, &reviewer(ReviewerType::Command, script), None).await;
    assert_eq!((review.head.as_str(), review.reviewer.as_str()), (change.head.as_str(), "strict"));
    review
}

#[tokio::test]
async fn a_program_judges_by_the_packet_the_diff_and_the_tree() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    let script = "cat > packet; grep -q 'Add a test.' packet && grep -q 'Do it well.' packet && grep -q '^+x' packet \
                  && grep -q '^+x' \"$REFILE_DIFF_FILE\" && test \"$(cat new.txt)\" = x \
                  && test $REFILE_TASK_ID = t1 && echo APPROVE";
    let review = judged(&place, &task, &change, &reviewer(ReviewerType::Command, script), None).await;
    assert_eq!((review.verdict.verdict, &review.failure), (VerdictKind::Approved, &None));
    assert_eq!(review.prompt_digest.unwrap().len(), 64);
    let reply = artifacts(&place).get(&review.reply.unwrap()).await.unwrap().unwrap();
    assert_eq!(reply, "APPROVE\n");
    assert_eq!(std::fs::read_dir(place.workspace.dir().join("trees")).unwrap().count(), 0);
}

#[tokio::test]
async fn what_a_program_says_is_read_strictly() {
    let asked = by_command("echo 'RETRY: Add a test.'").await;
    assert_eq!(
        (asked.verdict.verdict, asked.verdict.required_change.as_str()),
        (VerdictKind::NeedsChanges, "Add a test.")
    );
    for (script, kind) in [
        ("echo looks fine to me", FailureKind::Malformed),
        ("true", FailureKind::Empty),
        ("echo APPROVE; exit 1", FailureKind::Crash),
        ("echo 'HTTP 429' >&2; exit 1", FailureKind::RateLimit),
        ("no-such-reviewer", FailureKind::Configuration),
    ] {
        let review = by_command(script).await;
        assert_eq!(review.verdict.verdict, VerdictKind::Retry, "{script}");
        assert_eq!(review.failure.unwrap().kind, kind, "{script}");
    }
}

#[tokio::test]
async fn only_the_change_that_was_reported_is_judged() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    let approving = reviewer(ReviewerType::Command, "echo APPROVE");
    let empty = Change { head: change.base_commit.clone(), ..change.clone() };
    git(&place.origin, &["update-ref", &format!("refs/heads/{}", change.branch), "main"]);
    let review = judged(&place, &task, &change, &approving, None).await;
    assert_eq!(review.failure.unwrap().kind, FailureKind::Repository);
    let review = judged(&place, &task, &empty, &approving, None).await;
    assert_eq!(review.failure.unwrap().kind, FailureKind::Empty);
    git(&place.origin, &["branch", "-D", &change.branch]);
    let review = judged(&place, &task, &change, &approving, None).await;
    assert_eq!((review.failure.unwrap().kind, review.verdict.verdict), (FailureKind::Repository, VerdictKind::Retry));
}

async fn by_model(kind: ProviderKind, format: Option<Format>, say: Vec<Say>) -> (Review, Model) {
    let place = Place::new();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    let model = Model::start(say).await;
    let reviewer = Reviewer { format, ..reviewer(ReviewerType::Llm, "") };
    let review = judged(&place, &task, &change, &reviewer, Some(model.provider(kind))).await;
    (review, model)
}

const APPROVED: &str = r#"{"verdict": "approved", "conf": 0.9, {receipt}}"#;

fn said(kind: ProviderKind, text: &str) -> Say {
    says(kind, text, End::Said)
}

#[tokio::test]
async fn a_model_judges_with_a_receipt() {
    for kind in ProviderKind::ALL {
        let (review, model) = by_model(kind, None, vec![said(kind, APPROVED)]).await;
        assert_eq!((review.verdict.verdict, review.failure), (VerdictKind::Approved, None), "{kind:?}");
        assert_eq!((review.usage.input_tokens, review.usage.output_tokens), (15, 4));
        let body = model.asked().remove(0).2.to_string();
        assert!(body.contains(r#"\"diff_hash\""#) && body.contains("+x"), "{body}");
    }
    let judged = r#"{"verdict": "fail", "required_fixes": ["Add a test."], {receipt}}"#;
    let say = vec![said(ProviderKind::Gemini, judged)];
    let (review, model) = by_model(ProviderKind::Gemini, Some(Format::Judge), say).await;
    assert_eq!(review.verdict.required_change, "Add a test.");
    // The prompt and the schema come from the type that reads the reply.
    let body = model.asked().remove(0).2;
    let schema = &body["generationConfig"]["responseJsonSchema"];
    assert_eq!(*schema, schema_of(Format::Judge, &[]).unwrap());
    assert!(body["systemInstruction"].to_string().contains("required_fixes"));
}

#[tokio::test]
async fn an_unreadable_or_empty_reply_is_asked_for_once_more() {
    let kind = ProviderKind::Anthropic;
    let (review, model) = by_model(kind, None, vec![said(kind, "Fine!"), said(kind, APPROVED)]).await;
    assert_eq!((review.verdict.verdict, review.usage.input_tokens), (VerdictKind::Approved, 30));
    let messages = model.asked()[1].2["messages"].clone();
    assert_eq!(messages[1]["content"], "Fine!");
    assert!(messages[2]["content"].as_str().unwrap().contains("could not be read: the reply holds no JSON object"));

    // There are no words of the model's that could be repeated to it.
    let (review, model) = by_model(kind, None, vec![said(kind, ""), said(kind, APPROVED)]).await;
    assert_eq!(review.verdict.verdict, VerdictKind::Approved);
    let messages = model.asked()[1].2["messages"].clone();
    assert!(messages[1]["content"].as_str().unwrap().contains("holds no text"), "{messages}");

    let kind = ProviderKind::Openai;
    let never = vec![said(kind, "Fine!"), said(kind, "{\"verdict\": \"appr"), said(kind, APPROVED)];
    let (review, model) = by_model(kind, None, never).await;
    assert_eq!(review.verdict.verdict, VerdictKind::Retry);
    assert_eq!((review.failure.unwrap().kind, model.asked().len()), (FailureKind::Malformed, 2));
}

#[tokio::test]
async fn a_wrong_receipt_a_cut_reply_or_a_busy_provider_is_no_verdict() {
    let wrong = r#"{"verdict": "approved", "conf": 0.9, "files": 7, "diff_hash": "abc"}"#;
    let of = ProviderKind::Anthropic;
    for (say, kind) in [
        (said(of, wrong), FailureKind::WrongReceipt),
        (says(of, APPROVED, End::Truncated), FailureKind::Truncated),
        (overloaded(of), FailureKind::Overloaded),
    ] {
        let (review, model) = by_model(of, None, vec![say.clone()]).await;
        assert_eq!((review.failure.unwrap().kind, review.verdict.verdict), (kind, VerdictKind::Retry), "{say:?}");
        assert_eq!(model.asked().len(), 1);
    }
}

#[tokio::test]
async fn the_limit_on_time_holds_for_the_whole_review() {
    let place = Place::new();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    // It is unreadable at first, and then silent.
    let kind = ProviderKind::Openai;
    let model = Model::start(vec![said(kind, "Fine!")]).await;
    let limited = Reviewer { timeout: Span::seconds(1), ..reviewer(ReviewerType::Llm, "") };
    let review = judged(&place, &task, &change, &limited, Some(model.provider(kind))).await;
    assert_eq!((review.failure.unwrap().kind, model.asked().len()), (FailureKind::Timeout, 2));
}
