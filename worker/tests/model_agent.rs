//! The built-in agent on real repositories, with real tools, against a model server that follows a script.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use common::Place;
use common::fleet::{Try, artifacts, gate, task};
use common::model::{End, Model, Say, limited, says};
use common::processes::dies_with;
use common::tools::{call, calls};
use indexmap::IndexMap;
use refile_config::schema::{AgentType, ProviderKind};
use refile_config::{Agent, Span, Tool};
use refile_core::Outcome;
use refile_core::failure::FailureKind;
use refile_core::task::Usage;
use serde_json::{Value, json};

/// A module with a bug, and the test that shows it.
const PROJECT: &[(&str, &str)] = &[
    ("mean.py", "def mean(numbers):\n    return sum(numbers) / (len(numbers) - 1)\n"),
    (
        "test_mean.py",
        "import unittest\nfrom mean import mean\n\n\nclass Means(unittest.TestCase):\n    def test_mean(self):\n        \
         self.assertEqual(mean([1, 2, 6]), 3)\n",
    ),
    (".gitignore", "__pycache__/\n"),
];

const TEST: &str = "python3 -m unittest -q";

/// An attempt by the built-in agent, whose model says this.
struct Scripted {
    model: Model,
    attempt: Try<'static>,
}

impl Scripted {
    async fn of(kind: ProviderKind, say: Vec<Say>) -> Self {
        let model = Model::start(say).await;
        let agent = Agent {
            kind: AgentType::Llm,
            provider: Some("p".to_owned()),
            model: Some("gpt-4.1".to_owned()),
            timeout: Span::seconds(60),
            ..Agent::default()
        };
        let providers = IndexMap::from([("p".to_owned(), model.provider(kind))]);
        Self { model, attempt: Try { agent, providers, ..Try::script("") } }
    }

    async fn new(say: Vec<Say>) -> Self {
        Self::of(ProviderKind::Anthropic, say).await
    }

    fn with(mut self, change: impl FnOnce(&mut Agent)) -> Self {
        change(&mut self.attempt.agent);
        self
    }

    async fn run(&self, place: &Place) -> Outcome {
        self.attempt.run(place, &task(place, "t1")).await
    }

    /// What the model was told of its tools' work before its answer of this number, from 0.
    fn told(&self, answer: usize) -> String {
        self.model.asked()[answer].2.to_string()
    }
}

fn bash(command: &str) -> Say {
    call(ProviderKind::Anthropic, "bash", json!({ "command": command }))
}

fn done() -> Say {
    call(ProviderKind::Anthropic, "done", json!({"summary": "Done."}))
}

async fn transcript(place: &Place, outcome: &Outcome) -> String {
    let (Outcome::Coded { transcript, .. }
    | Outcome::AgentFailed { transcript, .. }
    | Outcome::NeedsInput { transcript, .. }) = outcome
    else {
        panic!("{outcome:?}")
    };
    let log = artifacts(place).get(transcript.as_ref().unwrap()).await.unwrap().unwrap();
    String::from_utf8(log.to_vec()).unwrap()
}

#[track_caller]
fn coded(outcome: &Outcome) -> (&refile_core::task::Change, Usage) {
    match outcome {
        Outcome::Coded { change, usage, .. } => (change, *usage),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn failed(outcome: &Outcome) -> (FailureKind, &str, Usage) {
    match outcome {
        Outcome::AgentFailed { failure, usage, .. } => (failure.kind, &failure.detail, *usage),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_real_bug_is_fixed_over_every_wire_format() {
    for kind in ProviderKind::ALL {
        let place = Place::new();
        place.commit(PROJECT);
        let script = vec![
            calls(kind, "I look.", &[("glob", json!({"pattern": "*.py"})), ("grep", json!({"pattern": "def mean"}))]),
            call(kind, "read", json!({"path": "mean.py"})),
            call(kind, "bash", json!({"command": TEST})),
            call(kind, "edit", json!({"path": "mean.py", "old": "(len(numbers) - 1)", "new": "len(numbers)"})),
            call(kind, "write", json!({"path": "docs/why.md", "content": "The mean divides by all.\n"})),
            call(kind, "bash", json!({"command": TEST})),
            call(kind, "done", json!({"summary": "The mean divides by the number of all numbers."})),
        ];
        let mut agent = Scripted::of(kind, script).await;
        agent.attempt.gates = vec![gate("test", TEST)];
        let outcome = agent.run(&place).await;
        let Outcome::Coded { change, gates, usage, prompt_digest, .. } = &outcome else { panic!("{outcome:?}") };
        assert!(gates.iter().all(|g| g.passed) && gates.last().unwrap().name == "test", "{gates:?}");
        assert_eq!(
            place.show(&format!("{}:mean.py", change.head)),
            "def mean(numbers):\n    return sum(numbers) / len(numbers)"
        );
        assert_eq!((change.files, change.summary.as_str()), (2, "The mean divides by the number of all numbers."));
        assert!(!prompt_digest.is_empty());
        assert_eq!((usage.input_tokens, usage.output_tokens), (7 * 15, 7 * 4), "{kind:?}");
        // 7 × (10 × $2 + 5 × $0.5 + 4 × $8) for a million; what runs on one's own machine is free.
        let price = if kind == ProviderKind::Ollama { 0 } else { 7 * 55 };
        assert!(usage.cost_micros.abs_diff(price) <= 7, "{kind:?}: {}", usage.cost_micros);
        // It was told what really happened.
        assert!(agent.told(0).contains("Do it well."), "the task");
        assert!(agent.told(1).contains("test_mean.py") && agent.told(1).contains("mean.py:1:def mean(numbers):"));
        assert!(agent.told(2).contains("len(numbers) - 1)"));
        assert!(agent.told(3).contains("FAILED (failures=1)") && agent.told(3).contains("exit code 1"));
        assert!(agent.told(4).contains("edited mean.py") && agent.told(6).contains("exit code 0"));
        let log = transcript(&place, &outcome).await;
        for words in [
            "--- step 7 · p gpt-4.1 · 15 tokens in (5 cached), 4 out",
            "> edit {",
            "! exit code 1",
            "< edited",
            "I look.",
        ] {
            assert!(log.contains(words), "{words}: {log}");
        }
    }
}

#[tokio::test]
async fn a_spent_bound_is_an_attempt_with_what_there_is() {
    let place = Place::new();
    let work = |n: usize| (0..n).map(|n| bash(&format!("echo {n} >> new.txt"))).collect::<Vec<_>>();
    for (change, says, answers) in [
        ((|a: &mut Agent| a.max_steps = Some(3)) as fn(&mut Agent), "stopped: its 3 steps are used up", 3),
        (|a| a.max_total_tokens = Some(38), "stopped: 38 of 38 tokens are used up", 2),
        (|a| a.max_cost_usd = Some(0.000_2), "stopped: $0.00 of $0.00 are used up", 4),
    ] {
        let agent = Scripted::new(work(9)).await.with(change);
        let outcome = agent.run(&place).await;
        let (change, usage) = coded(&outcome);
        assert_eq!((change.summary.as_str(), agent.model.asked().len()), (says, answers));
        assert_eq!(usage.output_tokens, 4 * answers as u64);
        let lines = place.show(&format!("{}:new.txt", change.head));
        assert_eq!(lines.lines().count(), answers, "{lines}");
        common::git(&place.origin, &["branch", "-D", &change.branch]);
    }
}

#[tokio::test]
async fn the_time_ends_a_command_and_the_model_and_nobody_is_charged() {
    let place = Place::new();
    for say in [vec![Say::Nothing], vec![bash("sleep 1000")]] {
        let steps = say.len() as u64;
        let agent = Scripted::new(say).await.with(|a| a.timeout = Span(Duration::from_millis(1_500)));
        let outcome = agent.run(&place).await;
        let (kind, detail, usage) = failed(&outcome);
        assert_eq!(kind, FailureKind::Timeout, "{detail}");
        assert!(
            detail.contains("1.5 s") && usage.wall_ms >= 1_500 && usage.output_tokens <= 4 * steps,
            "{detail} {usage:?}"
        );
    }
}

#[tokio::test]
async fn going_round_in_circles_ends_the_attempt() {
    let place = Place::new();
    let read = || call(ProviderKind::Anthropic, "read", json!({"path": "b.txt"}));
    let glob = || call(ProviderKind::Anthropic, "glob", json!({"pattern": "*.txt"}));
    for (script, says, answers) in [
        (vec![read(), read(), read(), read(), done()], "did the same four times", 4),
        (vec![bash("exit 3"), bash("exit 3"), bash("exit 3"), done()], "it failed each time", 3),
        (vec![read(), glob(), read(), glob(), read(), glob(), done()], "to and fro", 6),
    ] {
        let agent = Scripted::new(script).await;
        let outcome = agent.run(&place).await;
        let (change, _) = coded(&outcome);
        assert!(change.summary.starts_with("stopped: it ") && change.summary.contains(says), "{}", change.summary);
        assert_eq!((agent.model.asked().len(), change.files), (answers, 0));
        common::git(&place.origin, &["branch", "-D", &change.branch]);
    }
}

#[tokio::test]
async fn it_may_decline_and_ask_whatever_it_has_changed() {
    let place = Place::new();
    for (name, arguments) in
        [("ask", json!({"question": "Which port?"})), ("decline", json!({"reason": "Which port?"}))]
    {
        let script = vec![bash("echo x > new.txt"), call(ProviderKind::Anthropic, name, arguments)];
        let outcome = Scripted::new(script).await.run(&place).await;
        let Outcome::NeedsInput { words, usage, .. } = &outcome else { panic!("{outcome:?}") };
        assert_eq!((words.as_str(), usage.output_tokens), ("Which port?", 8));
        assert!(transcript(&place, &outcome).await.contains("a person is asked: Which port?"));
    }
}

#[tokio::test]
async fn an_answer_without_a_call_is_reminded_once() {
    let place = Place::new();
    let kind = ProviderKind::Anthropic;
    let script = vec![
        says(kind, "I think so.", End::Said),
        bash("echo x > new.txt"),
        says(kind, "Nearly.", End::Said),
        says(kind, "It is finished.", End::Said),
    ];
    let agent = Scripted::new(script).await;
    let outcome = agent.run(&place).await;
    let (change, _) = coded(&outcome);
    assert_eq!((change.summary.as_str(), change.files, agent.model.asked().len()), ("It is finished.", 1, 4));
    assert!(agent.told(1).contains("You called no tool") && agent.told(3).matches("You called no tool").count() == 2);
}

#[tokio::test]
async fn what_is_asked_for_wrongly_is_told_to_the_model() {
    let place = Place::new();
    let kind = ProviderKind::Anthropic;
    let script = vec![
        call(kind, "fly", json!({})),
        call(kind, "write", json!({"path": "x.txt", "content": "x"})),
        call(kind, "read", json!({"file": "b.txt"})),
        call(kind, "read", json!("b.txt")),
        done(),
    ];
    let agent = Scripted::new(script).await.with(|a| a.allowed_tools = Some(vec![Tool::Read, Tool::Grep]));
    let outcome = agent.run(&place).await;
    assert_eq!(coded(&outcome).0.files, 0);
    for (answer, says) in [
        (1, "there is no tool `fly`; there are read, grep, done, decline, ask"),
        (2, "there is no tool `write`"),
        (3, "missing field `path`"),
        (4, "no JSON object"),
    ] {
        assert!(agent.told(answer).contains(says), "{says}: {}", agent.told(answer));
    }
    let offered = &agent.model.asked()[0].2["tools"];
    let names: Vec<&str> = offered.as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["read", "grep", "done", "decline", "ask"]);
}

#[tokio::test]
async fn files_outside_of_the_tree_are_out_of_reach() {
    let place = Place::new();
    let secret = place.root.path().join("secret.txt");
    std::fs::write(&secret, "c4nary").unwrap();
    let dir = place.root.path().join("origin");
    std::os::unix::fs::symlink(&secret, dir.join("link")).unwrap();
    std::os::unix::fs::symlink(place.root.path(), dir.join("folder")).unwrap();
    common::git(&dir, &["add", "-A"]);
    common::git(&dir, &["commit", "-qm", "links"]);
    let kind = ProviderKind::Anthropic;
    let ways = [secret.display().to_string(), "link".into(), "folder/secret.txt".into(), "../../../secret.txt".into()];
    let mut script = Vec::new();
    for path in &ways {
        script.push(calls(
            kind,
            "",
            &[
                ("read", json!({"path": path})),
                ("write", json!({"path": path, "content": "taken"})),
                ("edit", json!({"path": path, "old": "c4nary", "new": "taken"})),
                ("grep", json!({"pattern": "c4n", "path": path})),
            ],
        ));
    }
    script.push(calls(
        kind,
        "",
        &[
            ("write", json!({"path": ".git/hooks/post-checkout", "content": "#!/bin/sh\n"})),
            ("read", json!({"path": ".git/config"})),
            ("grep", json!({"pattern": "c4nary"})),
            ("glob", json!({"pattern": "folder/**"})),
        ],
    ));
    script.push(done());
    let agent = Scripted::new(script).await;
    let outcome = agent.run(&place).await;
    assert_eq!(coded(&outcome).0.files, 0);
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "c4nary");
    for asked in agent.model.asked() {
        for message in asked.2["messages"].as_array().unwrap().iter().filter(|m| m["role"] == "user") {
            for result in message["content"].as_array().into_iter().flatten().filter(|b| b["type"] == "tool_result") {
                let text = result["content"].as_str().unwrap();
                let is_refused = ["outside of the repository", "out of bounds"].iter().any(|w| text.contains(w));
                let nothing = ["(no line fits)", "(no file fits)"].contains(&text);
                assert!(is_refused && result["is_error"] == true || nothing, "{result}");
            }
        }
    }
}

#[tokio::test]
async fn outputs_are_bounded_and_secrets_and_bytes_are_not_shown() {
    let place = Place::new();
    let script = vec![
        bash("seq 1 200000"),
        bash("head -c 5000 /dev/zero"),
        bash(
            "echo $CARGO_MANIFEST_DIR; echo ${CARGO_PKG_NAME:-nothing}; cat $REFILE_PROMPT_FILE; echo $REFILE_ATTEMPT",
        ),
        done(),
    ];
    let agent = Scripted::new(script).await.with(|a| {
        a.max_output_bytes = Some(2_000);
        a.env = vec!["CARGO_MANIFEST_DIR".to_owned()];
    });
    let outcome = agent.run(&place).await;
    let results = |answer: usize| -> String {
        let last: Value = agent.model.asked()[answer].2["messages"].as_array().unwrap().last().unwrap().clone();
        last["content"][0]["content"].as_str().unwrap().to_owned()
    };
    let long = results(1);
    assert!(
        long.len() < 2_200 && long.starts_with("exit code 0\n1\n2\n") && long.ends_with("199999\n200000\n"),
        "{long}"
    );
    assert!(long.contains("bytes left out ...]"));
    assert!(results(2).contains("bytes of binary output]"), "{}", results(2));
    assert_eq!(results(3), "exit code 0\n[CARGO_MANIFEST_DIR]\nnothing\nDo it well.1\n");
    assert!(!transcript(&place, &outcome).await.contains(env!("CARGO_MANIFEST_DIR")));
}

#[tokio::test]
async fn the_conversation_stays_within_the_window() {
    let place = Place::new();
    let fill = |n: usize| bash(&format!("echo {n}; head -c 20000 /dev/zero | tr '\\0' x"));
    let mut script: Vec<Say> = (0..12).map(fill).collect();
    script.push(done());
    let agent = Scripted::new(script).await.with(|a| {
        (a.context_tokens, a.max_tokens, a.max_output_bytes) = (Some(30_000), Some(1_000), Some(30_000));
    });
    coded(&agent.run(&place).await);
    let asked = agent.model.asked();
    let longest = asked.iter().map(|a| a.2.to_string().len()).max().unwrap();
    assert!((70_000..90_000).contains(&longest), "{longest}");
    let last = asked.last().unwrap().2["messages"].clone();
    assert!(last[0].to_string().contains("Do it well.") && last[2].to_string().contains("left out to fit"), "{last}");
    assert!(last[24].to_string().contains("exit code 0\\n11\\nxxx"));
}

#[tokio::test]
async fn a_window_that_is_smaller_than_told_is_met_once() {
    let place = Place::new();
    let fill = |n: usize| bash(&format!("echo {n}; head -c 20000 /dev/zero | tr '\\0' x"));
    let turned_away = || {
        let body =
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8"}}"#;
        Say::Reply(400, Vec::new(), body.to_owned())
    };
    let agent = Scripted::new(vec![fill(1), fill(2), fill(3), fill(4), turned_away(), done()]).await;
    coded(&agent.run(&place).await);
    let sizes: Vec<usize> = agent.model.asked().iter().map(|a| a.2.to_string().len()).collect();
    assert!(sizes[5] < sizes[4] / 2 + 5_000, "{sizes:?}");
    let twice = Scripted::new(vec![fill(1), fill(2), fill(3), fill(4), turned_away(), turned_away(), done()]).await;
    let outcome = twice.run(&place).await;
    assert_eq!(failed(&outcome).0, FailureKind::ContextTooLong);
    assert_eq!(twice.model.asked().len(), 6);
}

#[tokio::test]
async fn what_passes_by_itself_does_not_cost_the_run() {
    let place = Place::new();
    let kind = ProviderKind::Anthropic;
    let broken = || Say::Reply(500, Vec::new(), "<html>".to_owned());
    let script = vec![bash("echo x > new.txt"), broken(), says(kind, "half", End::Truncated), done()];
    let agent = Scripted::new(script).await;
    let outcome = agent.run(&place).await;
    let (change, usage) = coded(&outcome);
    // The answer that was cut off is paid for.
    assert_eq!((change.files, usage.output_tokens), (1, 12));
    assert!(agent.told(3).contains("is lost. Do it in smaller parts"), "{}", agent.told(3));
    let log = transcript(&place, &outcome).await;
    assert!(log.contains("asked again after 500 ms") && log.contains("· truncated"), "{log}");
}

#[tokio::test]
async fn a_provider_that_turns_away_is_reported_with_what_was_spent() {
    let place = Place::new();
    let outcome = Scripted::new(vec![limited(ProviderKind::Anthropic)]).await.run(&place).await;
    let (kind, _, usage) = failed(&outcome);
    assert_eq!((kind, usage.input_tokens + usage.output_tokens), (FailureKind::RateLimit, 0));
    let later = || {
        let body = r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}"#;
        Say::Reply(429, vec![("retry-after", "600".to_owned())], body.to_owned())
    };
    let outcome = Scripted::new(vec![bash("true"), later()]).await.run(&place).await;
    let (kind, _, usage) = failed(&outcome);
    assert_eq!((kind, usage.input_tokens, usage.output_tokens), (FailureKind::RateLimit, 15, 4));
}

#[tokio::test]
async fn what_it_started_ends_with_it() {
    let place = std::sync::Arc::new(Place::new());
    let file = place.root.path().join("pid");
    let agent = Scripted::new(vec![bash(&format!("sleep 1000 & echo $! > {}; wait", file.display()))]).await;
    let running = tokio::spawn({
        let place = place.clone();
        async move { agent.run(&place).await }
    });
    dies_with(running, &file).await;
}
