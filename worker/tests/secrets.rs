//! What must not show does not show in part either: it is hidden before anything is cut.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Place;
use common::fleet::{Try, artifacts, task};
use common::model::Model;
use common::tools::call;
use indexmap::IndexMap;
use refile_config::Agent;
use refile_config::schema::{AgentType, ProviderKind};
use refile_core::Outcome;
use serde_json::json;

/// A variable that Cargo sets for tests, in place of a key.
const NAME: &str = "CARGO_MANIFEST_DIR";
const SECRET: &str = env!("CARGO_MANIFEST_DIR");

/// Holds that neither the beginning nor the end of the secret is in a text, next to this letter.
#[track_caller]
fn holds_nothing_of_it(text: &str, letter: &str) {
    let (begin, end) = (format!("{letter}{}", &SECRET[..4]), format!("{}{letter}", &SECRET[SECRET.len() - 4..]));
    for part in [begin, end] {
        assert!(
            !text.contains(&part),
            "{part} is in it: {:.300}",
            &text[text.find(&part).unwrap().saturating_sub(20)..]
        );
    }
}

async fn log(place: &Place, transcript: Option<&String>) -> String {
    let log = artifacts(place).get(transcript.unwrap()).await.unwrap().unwrap();
    String::from_utf8(log.to_vec()).unwrap()
}

/// A script whose output is cut in the middle of the secret: at the end of its beginning, and at the beginning of its end.
fn at_both_seams(head: usize, tail: usize) -> String {
    let letters = |n: usize| format!("head -c {n} /dev/zero | tr '\\0' a");
    let secret = format!("printf %s \"${NAME}\"");
    format!("{}; {secret}; {}; {secret}; {}", letters(head - 5), letters(1 << 20), letters(tail - 5))
}

#[tokio::test]
async fn no_half_of_it_is_in_what_a_program_leaves() {
    let place = Place::new();
    let run = async |script: String| {
        let mut attempt = Try::script(&script);
        attempt.agent.env = vec![NAME.to_owned()];
        let outcome = attempt.run(&place, &task(&place, "t1")).await;
        if let Outcome::Coded { change, .. } = &outcome {
            common::git(&place.origin, &["branch", "-D", &change.branch]);
        }
        outcome
    };
    let outcome = run(format!("echo x > new.txt; {}", at_both_seams(1 << 20, 4 << 20))).await;
    let Outcome::Coded { transcript, .. } = outcome else { panic!("{outcome:?}") };
    let kept = log(&place, transcript.as_ref()).await;
    assert!(kept.contains("bytes left out") && kept.len() > 4 << 20);
    holds_nothing_of_it(&kept, "a");

    let shown = |letters: usize| format!("printf %s \"${NAME}\"; head -c {letters} /dev/zero | tr '\\0' a");
    let outcome = run(format!("echo x > new.txt; {}", shown(495))).await;
    let Outcome::Coded { change, .. } = outcome else { panic!("{outcome:?}") };
    assert!(change.summary.ends_with("aaa"));
    holds_nothing_of_it(&change.summary, "a");

    let outcome = run(format!("({}) >&2; exit 3", shown(595))).await;
    let Outcome::AgentFailed { failure, .. } = outcome else { panic!("{outcome:?}") };
    assert!(failure.detail.contains("exit code 3") && failure.detail.ends_with("aaa"));
    holds_nothing_of_it(&failure.detail, "a");
}

#[tokio::test]
async fn no_half_of_it_goes_to_the_model() {
    let kind = ProviderKind::Anthropic;
    let place = Place::new();
    // A line that is longer than what is told of one.
    place.commit(&[("found.txt", &format!("{}{SECRET}{}", "a".repeat(395), "b".repeat(400)))]);
    let say = vec![
        call(kind, "bash", json!({"command": at_both_seams(900, 900)})),
        call(kind, "grep", json!({"pattern": "aaa"})),
        call(kind, "read", json!({"path": "found.txt"})),
        call(kind, "done", json!({"summary": format!("{SECRET}{}", "a".repeat(495))})),
    ];
    let model = Model::start(say).await;
    let agent = Agent {
        kind: AgentType::Llm,
        provider: Some("p".to_owned()),
        model: Some("gpt-4.1".to_owned()),
        env: vec![NAME.to_owned()],
        max_output_bytes: Some(2_000),
        ..Agent::default()
    };
    let providers = IndexMap::from([("p".to_owned(), model.provider(kind))]);
    let attempt = Try { agent, providers, ..Try::script("") };
    let outcome = attempt.run(&place, &task(&place, "t1")).await;
    let Outcome::Coded { change, transcript, .. } = outcome else { panic!("{outcome:?}") };
    assert!(change.summary.ends_with("aaa"));
    holds_nothing_of_it(&change.summary, "a");
    let asked = model.asked();
    let told = asked[3].2["messages"].to_string();
    assert!(told.contains("bytes left out") && told.contains("found.txt:1:aaa"), "{told}");
    holds_nothing_of_it(&told, "a");
    holds_nothing_of_it(&log(&place, transcript.as_ref()).await, "a");
}
