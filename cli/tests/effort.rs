//! What a task may use up over its attempts, through the real binary: growth, a fresh start at the end, money, quota.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use common::command::Desk;
use serde_json::{Value, json};

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
}

#[test]
fn an_agent_whose_quota_is_used_up_is_not_charged() {
    let result = json!({
        "type": "result", "is_error": true, "api_error_status": 429, "total_cost_usd": 0.0,
        "result": "API Error: Rate limit reached. Please try again in 0.1s.",
    });
    let place = desk(&claude(&result, 1), "echo APPROVE", "max_attempts = 1\nmax_infra_failures = 3");
    let task = place.submit("Make it good");
    place.run(&["up", "--drain"]).must(3, &[]);
    let shown = place.json(&["task", "show", &task]);
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!((attempts.len(), &attempts[0]["rejection"]), (1, &Value::Null), "{shown:#}");
    let failures: Vec<&str> = attempts[0]["failures"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    assert!(failures.len() == 3 && failures.iter().all(|f| f.starts_with("rate_limit: ")), "{failures:?}");
    assert_eq!(shown["escalations"][0]["reason"], "coder_unavailable", "{shown:#}");
}
