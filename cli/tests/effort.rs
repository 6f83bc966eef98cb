//! What a task may use up over its attempts, through the real binary: growth, a fresh start at the end, money, quota.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::command::Desk;
use refile_coordinator::Coordinator;
use refile_core::TaskState;
use refile_core::count::Count;
use refile_store::OpenOptions;
use refile_store::artifacts::Artifacts;
use refile_telemetry::{Health, Metrics, process};
use refile_worker::llm::Client;
use refile_worker::pool;
use refile_worker::worker::{Role, Worker};
use refile_worker::workspace::Workspace;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Rejects each attempt for another reason.
const NEVER: &str = "echo \"RETRY: Do it in way number $REFILE_ATTEMPT. It is not good.\"";

/// A desk whose policy has these keys.
fn desk(agent: &str, reviewer: &str, policy: &str) -> Desk {
    let place = Desk::new();
    let quoted = |text: &str| Value::from(text).to_string();
    place.write(
        "refile.toml",
        &format!(
            "[repository]\nurl = \"repo\"\n[policy]\nbackoff = \"50ms\"\n{policy}\n\
             [agents.fixer]\n{agent}\n\
             [reviewers.strict]\ncommand = [\"sh\", \"-c\", {}]\n",
            quoted(reviewer)
        ),
    );
    place
}

/// An agent that is a shell script.
fn script(text: &str) -> String {
    format!("command = [\"sh\", \"-c\", {}]", Value::from(text))
}

#[test]
fn a_task_that_grows_is_named_and_its_last_attempt_starts_anew() {
    // Each attempt adds to what it finds; the last one finds nothing, and adds more than all before.
    let grows = "test -e work.txt && echo kept >> seen.txt; if [ $REFILE_ATTEMPT = 4 ]; then seq 50; else seq 9; fi >> work.txt";
    let place = desk(&script(grows), NEVER, "max_attempts = 4\nfresh_last = true");
    let task = place.submit("Make it good");
    place.run(&["up", "--drain"]).must(3, &[]);
    let shown = place.json(&["task", "show", &task]);
    let attempts = shown["attempts"].as_array().unwrap();
    let lines: Vec<u64> = attempts.iter().map(|a| a["change"]["lines"].as_u64().unwrap()).collect();
    assert_eq!(lines, [9, 19, 29, 50], "{shown:#}");
    assert_eq!(shown["growing"], json!([9, 19, 29, 50]));
    assert!(
        place
            .ok(&["task", "show", &task])
            .contains("it grows: each attempt changed more lines than the one before: 9, 19, 29, 50")
    );
    let files: Vec<u64> = attempts.iter().map(|a| a["change"]["files"].as_u64().unwrap()).collect();
    assert_eq!(files, [1, 2, 2, 1], "only the last attempt starts from the base: {shown:#}");

    let steady = desk(&script("echo $REFILE_ATTEMPT > work.txt"), NEVER, "max_attempts = 3");
    let task = steady.submit("Make it good");
    steady.run(&["up", "--drain"]).must(3, &[]);
    assert_eq!(steady.json(&["task", "show", &task])["growing"], Value::Null);
    assert!(!steady.ok(&["task", "show", &task]).contains("it grows"));
}

/// An agent with the preset `claude` that prints this at the end of a run.
fn claude(result: &Value, exit: u8) -> String {
    let run = format!("echo $REFILE_ATTEMPT > work.txt; echo '{result}'; exit {exit}");
    format!("preset = \"claude\"\n{}", script(&run))
}

#[test]
fn what_an_agent_says_that_it_cost_counts_for_the_budget() {
    let result = json!({
        "type": "result", "is_error": false, "result": "Done.", "total_cost_usd": 0.4,
        "usage": { "input_tokens": 1_000, "cache_read_input_tokens": 500, "output_tokens": 100 },
    });
    let place = desk(&claude(&result, 0), NEVER, "max_attempts = 9\nbudget = { cost_usd = 1.0 }");
    let task = place.submit("Make it good");
    place.run(&["up", "--drain"]).must(3, &[]);
    let shown = place.json(&["task", "show", &task]);
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 3, "{shown:#}");
    assert_eq!(shown["escalations"][0]["reason"], "budget_exhausted", "{shown:#}");
    let spent = &shown["spent"];
    assert_eq!((&spent["cost_micros"], &spent["input_tokens"]), (&json!(1_200_000), &json!(4_500)));
    assert_eq!(shown["attempts"][0]["change"]["summary"], "Done.");
    // What its reviewer paid nobody knows: that is a command.
    assert_eq!(spent["cost_unknown"], true, "{shown:#}");
    let said = place.ok(&["task", "show", &task]);
    assert!(said.contains("4500 tokens in, 300 out, at least $1.20, "), "{said}");
    assert!(place.ok(&["escalation", "show", &task]).contains("4800 tokens, at least 1.200000 USD"));
}

#[test]
fn an_agent_whose_quota_is_used_up_is_waited_for_and_not_charged() {
    let limited = json!({
        "type": "result", "is_error": true, "api_error_status": 429, "total_cost_usd": 0.0,
        "result": "API Error: Rate limit reached. Please try again in 1s.",
    });
    let well = json!({"type": "result", "is_error": false, "result": "Done."});
    let run = |dir: &std::path::Path| {
        format!(
            "echo run >> {0}/runs; if [ $(wc -l < {0}/runs) -lt 4 ]; then echo '{limited}'; exit 1; fi; \
             echo x > work.txt; echo '{well}'",
            dir.display()
        )
    };
    let stage = tempfile::tempdir().unwrap();
    let agent = format!("preset = \"claude\"\nwritable = [{:?}]\n{}", stage.path(), script(&run(stage.path())));
    let place = desk(&agent, "echo APPROVE", "max_attempts = 1\nmax_infra_failures = 2");
    let task = place.submit("Make it good");
    place.run(&["up", "--drain"]).must(0, &[]);
    let shown = place.json(&["task", "show", &task]);
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!((&shown["state"], attempts.len()), (&json!("merged"), 1), "{shown:#}");
    assert_eq!((&attempts[0]["rejection"], &attempts[0]["failures"]), (&Value::Null, &json!([])), "{shown:#}");
    assert_eq!(std::fs::read_to_string(stage.path().join("runs")).unwrap().lines().count(), 4);
}

/// A fleet of one coder in this process, for which a run of an agent that lasts so long must have done work. It stops when no
/// task is open.
async fn code(place: &Desk, long_run: Duration) {
    process::install_tls();
    let (config, _) = refile_config::load(Some(&place.path("refile.toml")), [], &[]).unwrap();
    let config = Arc::new(config);
    let store = refile_store::open(&config.store, &config.dir, OpenOptions::default()).await.unwrap();
    let (metrics, health) = (Metrics::new().unwrap(), Health::default());
    let coordinator = Coordinator {
        store: store.clone(),
        config: config.clone(),
        metrics: metrics.clone(),
        health: health.clone(),
        name: process::unique_name("coordinator"),
    };
    let worker = Worker {
        store: store.clone(),
        artifacts: Artifacts::open(&config.artifacts, &config.dir).unwrap(),
        workspace: Workspace::open(&config.path(&config.workers.dir)).unwrap(),
        client: Client::new().unwrap(),
        metrics,
        health,
        name: process::unique_name("coder"),
        role: Role::Coder,
        queues: Role::Coder.queues(),
        concurrency: 1,
        config,
    };
    let shutdown = CancellationToken::new();
    let coordinating = tokio::spawn(coordinator.run(None, shutdown.clone()));
    let coding = tokio::spawn(pool::run(Arc::new(worker.pool_where(long_run)), shutdown.clone()));
    let deadline = Instant::now() + Duration::from_mins(2);
    let open = Count::new("tasks", &[TaskState::Open.as_str()]).key();
    while store.stats().await.unwrap().counts.get(&open).is_some_and(|open| *open > 0) {
        assert!(Instant::now() < deadline, "the task is still open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shutdown.cancel();
    coordinating.await.unwrap();
    coding.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_in_the_middle_of_a_run_counts_and_its_work_is_gone_on_from() {
    let stage = tempfile::tempdir().unwrap();
    let limit = json!({"type": "turn.failed", "error": {"message": "You've hit your usage limit, try again in 1s."}});
    let run = format!(
        "n=$(ls {0} | wc -l); cat work.txt > {0}/saw-$n 2>/dev/null; echo part $n >> work.txt; sleep 0.5; echo {1}; exit 1",
        stage.path().display(),
        format!("'{limit}'").replace("You've", "You'\\''ve")
    );
    let agent = format!("preset = \"codex\"\nwritable = [{:?}]\n{}", stage.path(), script(&run));
    let place = desk(&agent, "echo APPROVE", "max_attempts = 1\nmax_infra_failures = 3");
    let task = place.submit("Make it good");
    code(&place, Duration::from_millis(500)).await;
    let saw = |run: usize| std::fs::read_to_string(stage.path().join(format!("saw-{run}"))).unwrap();
    assert_eq!(std::fs::read_dir(stage.path()).unwrap().count(), 3, "each run costs");
    assert_eq!((saw(0).as_str(), saw(1).as_str(), saw(2).as_str()), ("", "part 0\n", "part 0\npart 1\n"));
    let shown = place.json(&["task", "show", &task]);
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!((&shown["escalations"][0]["reason"], attempts.len()), (&json!("coder_unavailable"), 1), "{shown:#}");
    assert_eq!((&attempts[0]["rejection"], attempts[0]["failures"].as_array().unwrap().len()), (&Value::Null, 3));
    assert!(shown["spent"]["wall_ms"].as_u64().unwrap() >= 1_500, "{shown:#}");
    assert_eq!(shown["spent"]["cost_unknown"], true, "{shown:#}");
    let left = attempts[0]["change"]["branch"].as_str().unwrap();
    assert_eq!(place.git(&["show", &format!("{left}:work.txt")]), "part 0\npart 1\npart 2");
    // No gate has run on it.
    let offered = place.ok(&["escalation", "show", &task]);
    assert!(offered.contains("escalation retry") && !offered.contains("escalation approve"), "{offered}");
    place.fails(&["escalation", "approve", &task], 1, &["had not ended", "`retry`"]);

    // Its time counts against the budget, too.
    let place = desk(&agent, "echo APPROVE", "max_attempts = 1\nmax_infra_failures = 9\nbudget = { wall = \"800ms\" }");
    let task = place.submit("Make it good");
    code(&place, Duration::from_millis(500)).await;
    let shown = place.json(&["task", "show", &task]);
    assert_eq!(shown["escalations"][0]["reason"], "budget_exhausted", "{shown:#}");
    // Two runs are longer than that, and on a slow machine one is.
    let failures = shown["attempts"][0]["failures"].as_array().unwrap().len();
    assert!((1..=2).contains(&failures) && shown["spent"]["wall_ms"].as_u64().unwrap() > 800, "{shown:#}");
}

#[test]
fn tokens_and_working_time_are_bounded_as_money_is() {
    let result = json!({
        "type": "result", "is_error": false, "result": "Done.", "usage": { "input_tokens": 900, "output_tokens": 100 },
    });
    let place = desk(&claude(&result, 0), NEVER, "max_attempts = 9\nbudget = { tokens = 1_999 }");
    let task = place.submit("Make it good");
    place.run(&["up", "--drain"]).must(3, &[]);
    let shown = place.json(&["task", "show", &task]);
    assert_eq!(shown["escalations"][0]["reason"], "budget_exhausted", "{shown:#}");
    // It is looked at between jobs: the second attempt is not reviewed any more.
    let reviews = |n: usize| shown["attempts"][n]["reviews"].as_array().unwrap().len();
    assert_eq!((shown["attempts"].as_array().unwrap().len(), reviews(0), reviews(1)), (2, 1, 0), "{shown:#}");
    let spent = &shown["spent"];
    assert_eq!((&spent["input_tokens"], &spent["output_tokens"]), (&json!(1_800), &json!(200)));

    let slow = script("sleep 0.4; echo $REFILE_ATTEMPT > work.txt");
    let place = desk(&slow, NEVER, "max_attempts = 9\nbudget = { wall = \"300ms\" }");
    let task = place.submit("Make it good");
    place.run(&["up", "--drain"]).must(3, &[]);
    let shown = place.json(&["task", "show", &task]);
    assert_eq!(shown["escalations"][0]["reason"], "budget_exhausted", "{shown:#}");
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 1, "{shown:#}");
    assert!(shown["spent"]["wall_ms"].as_u64().unwrap() >= 400, "{shown:#}");
}

#[test]
fn tokens_of_an_agent_that_prints_no_cost_are_priced_or_it_is_told_that_they_are_not() {
    let turn = json!({"type": "turn.completed", "usage": {"input_tokens": 1_000, "output_tokens": 100}});
    let run = format!("echo $REFILE_ATTEMPT > work.txt; echo '{turn}'");
    let codex = |more: &str| format!("preset = \"codex\"\n{more}\n{}", script(&run));
    let prices = "[prices.own]\ninput = 100\noutput = 1000\n";
    // It is spent by the first attempt, before there is a review.
    let budget = |more: &str| format!("max_attempts = 3\nbudget = {{ cost_usd = 0.1, wall = \"1h\" }}\n{more}");
    let place = desk(&codex("model = \"own\""), NEVER, &budget(prices));
    let task = place.submit("Make it good");
    let ran = place.run(&["up", "--drain"]).must(3, &[]);
    assert!(!ran.err.contains("cost_usd"), "{}", ran.err);
    let shown = place.json(&["task", "show", &task]);
    assert_eq!(shown["escalations"][0]["reason"], "budget_exhausted", "{shown:#}");
    assert_eq!((&shown["spent"]["cost_micros"], &shown["spent"]["cost_unknown"]), (&json!(200_000), &Value::Null));

    // A price of nothing is known, too.
    let free = "[prices.own]\ninput = 0\noutput = 0\n";
    let place = desk(&codex("model = \"own\""), NEVER, &format!("budget = {{ tokens = 9 }}\n{free}"));
    let task = place.submit("Make it good");
    place.run(&["up", "--drain"]).must(3, &[]);
    let said = place.ok(&["task", "show", &task]);
    assert!(said.contains("1000 tokens in, 100 out, $0.00, "), "{said}");

    let place = desk(&codex(""), NEVER, &budget(""));
    let task = place.submit("Make it good");
    place.run(&["up", "--drain"]).must(3, &["policy.budget.cost_usd does not count what agents.fixer costs"]);
    let shown = place.json(&["task", "show", &task]);
    assert_eq!(shown["escalations"][0]["reason"], "attempts_exhausted", "{shown:#}");
    assert_eq!((&shown["spent"]["cost_micros"], &shown["spent"]["cost_unknown"]), (&json!(0), &json!(true)));
}

/// Two agents, the second stronger: what each attempt was made by, and how the task ended.
fn climbed(reviewer: &str, ladder: &str, cheap: &str) -> (Vec<String>, Value) {
    let more = format!("max_attempts = 5\nladder = {ladder}\n[agents.strong]\n{}", script("echo strong > work.txt"));
    let place = desk(&script(cheap), reviewer, &more);
    let task = place.submit("Make it good");
    place.run(&["up", "--drain"]);
    let shown = place.json(&["task", "show", &task]);
    let agents = shown["attempts"].as_array().unwrap().iter().map(|a| a["agent"].as_str().unwrap().to_owned());
    (agents.collect(), shown)
}

#[test]
fn what_repeats_itself_goes_up_the_ladder_and_then_to_a_person() {
    const STRICT: &str = "grep -q strong work.txt && echo APPROVE || echo 'RETRY: Do it well. It is not.'";
    let another = "echo $REFILE_ATTEMPT > work.txt";
    let (agents, shown) = climbed(STRICT, "[\"fixer\", \"strong\"]", another);
    assert_eq!((agents, &shown["state"]), (vec!["fixer".into(), "strong".into()], &json!("merged")), "{shown:#}");
    // There may be other rungs of the first agent in between.
    let (agents, shown) = climbed(STRICT, "[\"fixer\", \"fixer\", \"fixer\", \"strong\"]", another);
    assert_eq!((agents, &shown["state"]), (["fixer", "fixer", "strong"].map(str::to_owned).into(), &json!("merged")));
    // The same demand again, of the last agent that there is.
    let (agents, shown) = climbed("echo 'RETRY: Do it well. It is not.'", "[\"fixer\", \"strong\"]", another);
    assert_eq!((agents.len(), &shown["escalations"][0]["reason"]), (2, &json!("repeated_rejection")), "{shown:#}");
    // The same diff again, whatever is demanded.
    let (agents, shown) = climbed(NEVER, "[\"fixer\"]", "echo same > work.txt");
    assert_eq!((agents.len(), &shown["escalations"][0]["reason"]), (2, &json!("repeated_rejection")), "{shown:#}");
}
