//! Presets of coding agents: what they printed in real runs, played back by an agent that uses the preset.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use common::Place;
use common::fleet::{Try, artifacts, task};
use refile_config::Preset;
use refile_config::schema::PromptDelivery;
use refile_core::Outcome;
use refile_core::failure::{FailureKind, Scope};
use refile_core::task::Usage;
use refile_worker::agent::preset::{Field, known, ready};

/// What an agent printed, and what must be read out of it.
struct Recorded {
    name: String,
    preset: Preset,
    head: String,
    stdout: String,
    stderr: String,
}

impl Recorded {
    fn all() -> Vec<Self> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agents");
        let mut all: Vec<Self> =
            std::fs::read_dir(dir).unwrap().map(|file| Self::read(&file.unwrap().path())).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn read(path: &std::path::Path) -> Self {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let preset = *Preset::ALL.iter().find(|p| name.starts_with(&format!("{}-", p.as_str()))).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let (head, rest) = text.split_once("\n--- stdout\n").unwrap();
        let (stdout, stderr) = rest.split_once("\n--- stderr\n").unwrap();
        Self { name, preset, head: head.to_owned(), stdout: stdout.to_owned(), stderr: stderr.to_owned() }
    }

    fn field(&self, key: &str) -> &str {
        self.head.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap().trim()
    }

    /// An agent of the preset that prints this, and leaves a change.
    fn agent(&self, place: &Place) -> Try<'static> {
        let file = |stream: &str, text: &str| {
            let path = place.root.path().join(format!("{}.{stream}", self.name));
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (out, err) = (file("out", &self.stdout), file("err", &self.stderr));
        let asks = self.field("expect").starts_with("asks");
        let change = if asks { "" } else { "echo x > new.txt;" };
        let mut played = Try::script(&format!("{change} cat {out}; cat {err} >&2; exit {}", self.field("exit")));
        played.agent.preset = Some(self.preset);
        played
    }
}

#[tokio::test]
async fn what_agents_print_is_read_and_their_providers_failures_are_not_the_coders() {
    let place = Place::new();
    let mut kinds = std::collections::BTreeSet::new();
    for recorded in Recorded::all() {
        let name = &recorded.name;
        let outcome = recorded.agent(&place).run(&place, &task(&place, name)).await;
        let (got, usage, summary) = match outcome {
            Outcome::Coded { change, usage, .. } => ("done".to_owned(), usage, change.summary),
            Outcome::NeedsInput { words, usage, .. } => (format!("asks {words}"), usage, String::new()),
            Outcome::AgentFailed { failure, usage, .. } => {
                let wait = failure.retry_after_ms.map(|ms| format!(" {ms}")).unwrap_or_default();
                (format!("{}{wait}", failure.kind.as_str()), usage, String::new())
            }
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(got, recorded.field("expect"), "{name}");
        let Usage { input_tokens, output_tokens, cost_micros, .. } = usage;
        assert_eq!(format!("{input_tokens} {output_tokens} {cost_micros}"), recorded.field("usage"), "{name}");
        if got == "done" && !recorded.field("says").is_empty() {
            assert_eq!(summary, recorded.field("says"), "{name}");
        }
        kinds.insert((recorded.preset.as_str(), got.split(' ').next().unwrap().to_owned()));
    }
    for preset in Preset::ALL {
        for kind in ["done", "rate_limit", "auth"] {
            assert!(
                kinds.contains(&(preset.as_str(), kind.to_owned())),
                "no recording of {} for {kind}",
                preset.as_str()
            );
        }
    }
}

/// An agent of a preset that runs a script.
fn scripted(preset: Preset, script: &str) -> Try<'static> {
    let mut attempt = Try::script(script);
    attempt.agent.preset = Some(preset);
    attempt
}

#[tokio::test]
async fn what_a_run_used_up_is_read_however_much_it_prints() {
    const TURN: &str = r#"{"type":"turn.completed","usage":{"input_tokens":7,"output_tokens":2}}"#;
    let place = Place::new();
    let lines = |mib: usize| format!("yes \"$(printf %01000d 7)\" | head -c {}; echo", mib << 20);
    for (id, before, after, is_known) in [("t1", 3, 6, true), ("t2", 20, 60, false)] {
        let script = format!("echo x > new.txt; {}; echo '{TURN}'; {}; echo '{TURN}'", lines(before), lines(after));
        let outcome = scripted(Preset::Codex, &script).run(&place, &task(&place, id)).await;
        let Outcome::Coded { usage, transcript, .. } = outcome else { panic!("{outcome:?}") };
        let turns = if is_known { 2 } else { 1 };
        assert_eq!((usage.input_tokens, usage.output_tokens), (7 * turns, 2 * turns), "{id}");
        let log = artifacts(&place).get(&transcript.unwrap()).await.unwrap().unwrap();
        let log = String::from_utf8(log.to_vec()).unwrap();
        assert!(log.len() < 6 << 20, "what is shown of it is bounded as ever");
        assert_eq!(log.contains("may be more than what is counted"), !is_known, "{id}");
    }
}

#[tokio::test]
async fn a_limit_in_the_middle_of_the_work_leaves_what_was_done() {
    let place = Place::new();
    let recorded = Recorded::all().into_iter().find(|recorded| recorded.name == "codex-usage-limit-midway").unwrap();
    let mut agent = recorded.agent(&place);
    let task = task(&place, "t1");
    // As long as it may be called turned away, nothing is kept of it.
    let outcome = agent.run(&place, &task).await;
    assert!(matches!(&outcome, Outcome::AgentFailed { change: None, .. }), "{outcome:?}");
    (agent.long_run, agent.attempt) = (Duration::ZERO, 2);
    let outcome = agent.run(&place, &task).await;
    let Outcome::AgentFailed { failure, change: Some(left), usage, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!((failure.kind, failure.scope, usage.has_cost()), (FailureKind::Quota, Scope::Key, false));
    assert!(left.unfinished && usage.cost_unknown && usage.wall_ms > 0, "{usage:?}");
    assert_eq!(place.show(&format!("{}:new.txt", left.head)), "x");
}

#[tokio::test]
async fn tokens_without_a_cost_are_priced_where_the_models_price_is_known() {
    const TURN: &str =
        r#"{"type":"turn.completed","usage":{"input_tokens":1000,"cached_input_tokens":400,"output_tokens":100}}"#;
    const PAID: &str = r#"{"type":"result","result":"Done.","total_cost_usd":0.0,"usage":{"output_tokens":100}}"#;
    let place = Place::new();
    for (nth, preset, prints, model, cost, unknown) in [
        (1, Preset::Codex, TURN, None, 0, true),
        (2, Preset::Codex, TURN, Some("nobody-knows"), 0, true),
        // 600 at 1.25, 400 at 0.125, 100 at 10 dollars a million.
        (3, Preset::Codex, TURN, Some("gpt-5"), 750 + 50 + 1_000, false),
        (4, Preset::Codex, "{}", Some("gpt-5"), 0, true),
        // What says its cost is believed.
        (5, Preset::Claude, PAID, Some("claude-opus-4-1"), 0, false),
    ] {
        let mut agent = scripted(preset, &format!("echo x > new.txt; echo '{prints}'"));
        (agent.attempt, agent.agent.model) = (nth, model.map(str::to_owned));
        let outcome = agent.run(&place, &task(&place, "t1")).await;
        let Outcome::Coded { usage, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!((usage.cost_micros, usage.cost_unknown), (cost, unknown), "{nth}");
    }
}

#[tokio::test]
async fn only_what_stands_in_a_field_holds_beyond_the_run() {
    let place = Place::new();
    for (preset, says, kind, scope) in [
        (Preset::Aider, "litellm.AuthenticationError: says a model, or a file", FailureKind::Auth, Scope::Call),
        (Preset::Aider, "litellm.RateLimitError: try again in 8s", FailureKind::RateLimit, Scope::Call),
        (Preset::Codex, "unexpected argument, says a model", FailureKind::Configuration, Scope::Call),
        (
            Preset::Claude,
            r#"{"type":"result","is_error":true,"api_error_status":401,"result":"Invalid API key"}"#,
            FailureKind::Auth,
            Scope::Key,
        ),
        (
            Preset::Codex,
            r#"{"type":"turn.failed","error":{"message":"401 Unauthorized"}}"#,
            FailureKind::Auth,
            Scope::Key,
        ),
    ] {
        let outcome = scripted(preset, &format!("echo '{says}'; exit 1")).run(&place, &task(&place, "t1")).await;
        let Outcome::AgentFailed { failure, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!((failure.kind, failure.scope), (kind, scope), "{says}");
    }
}

#[test]
fn each_preset_is_complete() {
    for preset in Preset::ALL {
        let known = known(preset).unwrap();
        let name = preset.as_str();
        assert!(!known.credentials.is_empty() && !known.install.is_empty() && !known.tried.is_empty(), "{name}");
        assert_eq!(known.command.iter().filter(|a| *a == "{model}").count(), 1, "{name}");
        assert_eq!(known.command.iter().filter(|a| *a == "{args}").count(), 1, "{name}");
        assert!(known.model.iter().any(|a| a.contains("{model}")), "{name}");
        let in_file = known.command.iter().any(|a| a.contains("{prompt_file}") || a.contains("REFILE_PROMPT_FILE"));
        assert_eq!(known.prompt == PromptDelivery::File, in_file, "{name}");
        let fields = || known.output.json.iter().map(|p| p.field).chain(known.output.lines.iter().map(|l| l.field));
        assert_eq!(fields().any(|field| field == Field::CostUsd), preset.prints_cost(), "{name}");
        assert!(fields().any(|field| field == Field::OutputTokens), "{name}");
        for rule in &known.failures {
            assert!(rule.says.iter().all(|words| *words == words.to_lowercase()), "{name}: {rule:?}");
            assert!(!(rule.says.is_empty() && rule.status.is_empty() && rule.exit.is_empty()), "{name}: {rule:?}");
        }
    }
}

#[test]
fn each_preset_runs_without_a_person_and_is_given_its_prompt() {
    use PromptDelivery::{File, Stdin};
    for (preset, words, prompt) in [
        (Preset::Claude, "claude --print --output-format json --permission-mode acceptEdits --allowedTools", Stdin),
        (
            Preset::Codex,
            "codex exec --json --skip-git-repo-check --ephemeral -c sandbox_mode=\"workspace-write\"",
            Stdin,
        ),
        (Preset::Gemini, "gemini --output-format json --approval-mode yolo", Stdin),
        (Preset::Opencode, "opencode run --format json --auto", Stdin),
        (Preset::Aider, "aider --message-file {prompt_file} --yes-always --no-auto-commits --no-dirty-commits", File),
        (Preset::MiniSweAgent, "mini --yolo --exit-immediately", File),
    ] {
        let known = known(preset).unwrap();
        let line = known.command.join(" ");
        assert!(line.contains(words), "{}: {line}", preset.as_str());
        assert_eq!(known.prompt, prompt, "{}", preset.as_str());
    }
}

#[test]
fn own_settings_go_before_those_of_the_preset() {
    let mut agent = Try::script("").agent;
    (agent.command, agent.preset) = (Vec::new(), Some(Preset::Codex));
    let usual = ready(&agent).unwrap();
    assert_eq!(usual.prompt, PromptDelivery::Stdin);
    let end = ["-c", "sandbox_mode=\"workspace-write\"", "-"].map(str::to_owned);
    assert!(usual.command.ends_with(&end), "{:?}", usual.command);
    (agent.model, agent.args) = (Some("gpt-5".to_owned()), vec!["--search".to_owned()]);
    agent.env = vec!["MORE".to_owned()];
    let told = ready(&agent).unwrap();
    let end = ["sandbox_mode=\"workspace-write\"", "--model", "gpt-5", "--search", "-"].map(str::to_owned);
    assert!(told.command.ends_with(&end), "{:?}", told.command);
    assert!(["MORE", "OPENAI_API_KEY"].iter().all(|name| told.env.contains(&(*name).to_owned())));
    agent.command = ["codex", "exec", "{model}"].map(str::to_owned).to_vec();
    agent.prompt = PromptDelivery::Argument;
    let own = ready(&agent).unwrap();
    assert_eq!(own.command, ["codex", "exec", "--model", "gpt-5", "--search"]);
    assert_eq!(own.prompt, PromptDelivery::Argument);
    assert!(own.known.is_some());
    agent.preset = None;
    let plain = ready(&agent).unwrap();
    assert_eq!(plain.command, ["codex", "exec", "{model}", "--search"]);
    assert!(plain.known.is_none());
}
