//! Panels with real programs and a model on loopback; and a model that refuses.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Place;
use common::fleet::{Try, artifacts, shelf_of, site, task};
use common::model::{End, Model, Say, says};
use indexmap::IndexMap;
use refile_config::schema::ProviderKind;
use refile_config::{Config, Reviewer};
use refile_core::Outcome;
use refile_core::failure::FailureKind;
use refile_core::task::Review;
use refile_core::verdict::VerdictKind;
use refile_worker::llm::Client;
use refile_worker::review::{ReviewJob, review};

const APPROVED: &str = r#"{"verdict": "approved", "conf": 0.9, {receipt}}"#;

/// What `[reviewers]` of a configuration says.
fn reviewers(text: &str) -> IndexMap<String, Reviewer> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("refile.toml");
    std::fs::write(&file, format!("{text}\n[providers.p]\nkind = \"anthropic\"\n")).unwrap();
    let (config, _): (Config, _) = refile_config::load(Some(&file), [], &[]).unwrap();
    config.reviewers
}

/// A section of a command that runs a script; `{place}` is the folder of the test.
fn command(name: &str, script: &str) -> String {
    let script = serde_json::Value::from(script);
    format!("[reviewers.{name}]\ncommand = [\"sh\", \"-c\", {script}]\ntimeout = \"30s\"\n")
}

/// What the first reviewer makes of a change; what a model on loopback was asked.
async fn judged(text: &str, say: Vec<Say>) -> (Review, Place, Model) {
    let place = Place::new();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    let model = Model::start(say).await;
    let providers = [("p".to_owned(), model.provider(ProviderKind::Anthropic))].into();
    let reviewers = reviewers(&text.replace("{place}", place.root.path().to_str().unwrap()));
    let (name, reviewer) = reviewers.first().unwrap();
    let (shelf, client) = (shelf_of(&place, &task, 50), Client::new().unwrap());
    let outcome = review(&ReviewJob {
        site: site(&place, &shelf, &task, 1, 50),
        change: &change,
        gates: &[],
        previous_required_change: None,
        name,
        reviewer,
        reviewers: &reviewers,
        providers: &providers,
        client: &client,
    })
    .await;
    let Outcome::Reviewed(review) = outcome else { panic!("{outcome:?}") };
    assert_eq!((review.head.as_str(), review.reviewer.as_str()), (change.head.as_str(), name.as_str()));
    assert_eq!(std::fs::read_dir(place.workspace.dir().join("trees")).unwrap().count(), 0);
    (review, place, model)
}

/// A panel by this rule, and its members.
fn panel(rule: &str, members: &[(&str, &str)]) -> String {
    let names: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    let sections: String = members.iter().map(|(name, script)| command(name, script)).collect();
    format!("[reviewers.board]\ntype = \"panel\"\nmembers = {names:?}\nrule = \"{rule}\"\n{sections}")
}

fn kinds(review: &Review) -> Vec<(&str, VerdictKind)> {
    review.members.iter().map(|m| (m.reviewer.as_str(), m.verdict.verdict)).collect()
}

fn said(text: &str, end: End) -> Say {
    says(ProviderKind::Anthropic, text, end)
}

const YES: &str = "echo APPROVE";
const NO: &str = "echo 'RETRY: Add a test.'";
const LATE: &str = "echo 'HTTP 429' >&2; exit 1";

#[tokio::test]
async fn the_rule_makes_one_verdict_of_the_members_and_each_opinion_is_kept() {
    for (rule, verdict) in
        [("any", VerdictKind::Approved), ("majority", VerdictKind::Approved), ("unanimous", VerdictKind::NeedsChanges)]
    {
        let (review, place, _) = judged(&panel(rule, &[("a", YES), ("b", NO), ("c", YES)]), Vec::new()).await;
        assert_eq!((review.verdict.verdict, &review.failure), (verdict, &None), "{rule}");
        let said = [("a", VerdictKind::Approved), ("b", VerdictKind::NeedsChanges), ("c", VerdictKind::Approved)];
        assert_eq!(kinds(&review), said);
        assert_eq!(review.members[1].verdict.required_change, "Add a test.");
        for (member, reply) in review.members.iter().zip(["APPROVE\n", "RETRY: Add a test.\n", "APPROVE\n"]) {
            let name = member.reply.as_ref().unwrap();
            assert!(name.ends_with(&format!("review-board-{}-50.txt", member.reviewer)), "{name}");
            assert_eq!(artifacts(&place).get(name).await.unwrap().unwrap(), reply);
            assert_eq!(member.prompt_digest.as_ref().unwrap().len(), 64);
        }
        let work: u64 = review.members.iter().map(|m| m.usage.wall_ms).sum();
        assert_eq!(review.usage.wall_ms, work);
    }
}

#[tokio::test]
async fn members_are_asked_at_once_in_trees_of_their_own() {
    // Each goes on only when the other has begun, and finds nothing in its tree but the change.
    let meet = |me: &str, other: &str| {
        format!(
            "test ! -e mine && touch mine {{place}}/{me}; while [ ! -e {{place}}/{other} ]; do sleep 0.02; done; \
                 test \"$(cat new.txt)\" = x && echo APPROVE"
        )
    };
    let (a, b) = (meet("a", "b"), meet("b", "a"));
    let (review, ..) = judged(&panel("unanimous", &[("a", &a), ("b", &b)]), Vec::new()).await;
    assert_eq!((review.verdict.verdict, &review.failure), (VerdictKind::Approved, &None), "{:?}", review.members);
}

#[tokio::test]
async fn a_member_that_fails_counts_neither_way() {
    let (review, ..) = judged(&panel("majority", &[("a", YES), ("b", LATE), ("c", YES)]), Vec::new()).await;
    assert_eq!((review.verdict.verdict, &review.failure), (VerdictKind::Approved, &None));
    assert_eq!(review.members[1].failure.as_ref().unwrap().kind, FailureKind::RateLimit);

    let (review, ..) = judged(&panel("majority", &[("a", YES), ("b", LATE), ("c", "exit 3")]), Vec::new()).await;
    let failure = review.failure.clone().unwrap();
    assert_eq!((review.verdict.verdict, failure.kind), (VerdictKind::Retry, FailureKind::RateLimit));
    assert!(failure.detail.contains("too few members") && failure.detail.contains("b: "), "{failure}");
    assert_eq!(review.members[0].verdict.verdict, VerdictKind::Approved, "the one opinion is kept");
    let silent = &review.members[2].failure.as_ref().unwrap().detail;
    assert!(silent.ends_with(" and said nothing"), "{silent}");

    // The failure that tells most speaks, wherever it stands.
    let (review, ..) = judged(&panel("majority", &[("a", YES), ("b", "exit 3"), ("c", LATE)]), Vec::new()).await;
    let failure = review.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::RateLimit);
    assert!(failure.detail.contains("c: ") && !failure.detail.contains("b: "), "{failure}");

    let slow = panel("any", &[("a", YES), ("b", "sleep 60")])
        .replace("sleep 60\"]\ntimeout = \"30s\"", "sleep 60\"]\ntimeout = \"1s\"");
    let (review, ..) = judged(&slow, Vec::new()).await;
    assert_eq!(review.verdict.verdict, VerdictKind::Approved);
    assert_eq!(review.members[1].failure.as_ref().unwrap().kind, FailureKind::Timeout);
}

#[tokio::test]
async fn a_model_is_a_member_like_any_other() {
    let text = format!(
        "[reviewers.board]\ntype = \"panel\"\nmembers = [\"a\", \"m\"]\n{}\
         [reviewers.m]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m-1\"\n",
        command("a", YES)
    );
    let (review, _, model) = judged(&text, vec![said(APPROVED, End::Said)]).await;
    assert_eq!(
        (review.verdict.verdict, review.verdict.conf),
        (VerdictKind::Approved, 0.9),
        "a majority of two is both: as sure as the less sure one"
    );
    assert_eq!(review.usage.input_tokens, 15);
    assert_eq!(model.asked().len(), 1);
}

#[tokio::test]
async fn the_other_model_is_asked_where_the_first_refuses() {
    let judge = "[reviewers.judge]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m-1\"\nfallback_model = \"m-2\"\n";
    let models = |model: &Model| model.asked().iter().map(|(.., body)| body["model"].clone()).collect::<Vec<_>>();
    let say = vec![said("I will not.", End::Refused), said(APPROVED, End::Said)];
    let (review, _, model) = judged(judge, say).await;
    assert_eq!((review.verdict.verdict, &review.failure), (VerdictKind::Approved, &None));
    assert_eq!((models(&model), review.usage.input_tokens), (vec!["m-1".into(), "m-2".into()], 30));

    let say = vec![said("I will not.", End::Refused), said("Nor will I.", End::Refused)];
    let (review, _, model) = judged(judge, say).await;
    assert_eq!((review.failure.unwrap().kind, model.asked().len()), (FailureKind::Refused, 2));

    let (review, _, model) = judged(judge, vec![said(APPROVED, End::Truncated)]).await;
    assert_eq!((review.failure.unwrap().kind, model.asked().len()), (FailureKind::Truncated, 1), "no refusal");
}

#[tokio::test]
async fn no_call_is_made_or_recorded_where_no_time_is_left() {
    let judge = "[reviewers.judge]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m-1\"\nfallback_model = \"m-2\"\n\
                 timeout = \"0s\"\n";
    let (review, _, model) = judged(judge, vec![said(APPROVED, End::Said)]).await;
    let failure = review.failure.unwrap();
    assert_eq!((failure.kind, review.calls.len(), model.asked().len()), (FailureKind::Timeout, 0, 0), "{failure}");
}
