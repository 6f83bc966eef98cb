//! Review jobs with real programs, real repositories and a model on loopback.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::fleet::{Try, artifacts, shelf_of, site, task};
use common::model::{Model, Say, anthropic, openai};
use common::{Place, git};
use indexmap::IndexMap;
use refile_config::schema::{ProviderKind, ReviewerType};
use refile_config::{Provider, Reviewer, Span};
use refile_core::failure::FailureKind;
use refile_core::panel::Rule;
use refile_core::task::{Change, Review};
use refile_core::verdict::{Format, VerdictKind};
use refile_core::{Outcome, Task};
use refile_worker::llm::Client;
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
        max_input_bytes: 100_000,
        timeout: Span::seconds(60),
        env: Vec::new(),
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
    let _ = rustls::crypto::ring::default_provider().install_default();
    let providers: IndexMap<String, Provider> = provider.into_iter().map(|p| ("p".to_owned(), p)).collect();
    let (shelf, client) = (shelf_of(place, task, 50), Client::new().unwrap());
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

#[tokio::test]
async fn a_model_judges_with_a_receipt() {
    let (review, model) = by_model(ProviderKind::Anthropic, None, vec![anthropic(APPROVED, "end_turn")]).await;
    assert_eq!((review.verdict.verdict, review.failure), (VerdictKind::Approved, None));
    assert_eq!((review.usage.input_tokens, review.usage.output_tokens), (15, 3));
    let body = model.asked().remove(0).2;
    assert!(body["system"].as_str().unwrap().contains("\"diff_hash\""));
    assert!(body["messages"][0]["content"].as_str().unwrap().contains("+x"));

    let judged = r#"{"verdict": "fail", "required_fixes": ["Add a test."], {receipt}}"#;
    let (review, _) = by_model(ProviderKind::Openai, Some(Format::Judge), vec![openai(judged, "stop")]).await;
    assert_eq!(review.verdict.required_change, "Add a test.");
}

#[tokio::test]
async fn an_unreadable_reply_is_asked_for_once_more() {
    let (review, model) =
        by_model(ProviderKind::Anthropic, None, vec![anthropic("Fine!", "end_turn"), anthropic(APPROVED, "end_turn")])
            .await;
    assert_eq!((review.verdict.verdict, review.usage.input_tokens), (VerdictKind::Approved, 30));
    let messages = model.asked()[1].2["messages"].clone();
    assert_eq!(messages[1]["content"], "Fine!");
    assert!(messages[2]["content"].as_str().unwrap().contains("could not be read: the reply holds no JSON object"));

    let never = vec![openai("Fine!", "stop"), openai("Really!", "stop"), openai(APPROVED, "stop")];
    let (review, model) = by_model(ProviderKind::Openai, None, never).await;
    assert_eq!(review.verdict.verdict, VerdictKind::Retry);
    assert_eq!((review.failure.unwrap().kind, model.asked().len()), (FailureKind::Malformed, 2));
}

#[tokio::test]
async fn a_wrong_receipt_or_a_cut_reply_is_no_verdict() {
    let wrong = r#"{"verdict": "approved", "conf": 0.9, "files": 7, "diff_hash": "abc"}"#;
    for (say, kind) in [
        (anthropic(wrong, "end_turn"), FailureKind::Malformed),
        (anthropic(APPROVED, "max_tokens"), FailureKind::Truncated),
        ((529, Vec::new(), String::new()), FailureKind::Overloaded),
    ] {
        let (review, model) = by_model(ProviderKind::Anthropic, None, vec![say.clone()]).await;
        assert_eq!((review.failure.unwrap().kind, review.verdict.verdict), (kind, VerdictKind::Retry), "{say:?}");
        assert_eq!(model.asked().len(), 1);
    }
}
