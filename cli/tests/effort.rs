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
    // The same demand again, of the last agent that there is.
    let (agents, shown) = climbed("echo 'RETRY: Do it well. It is not.'", "[\"fixer\", \"strong\"]", another);
    assert_eq!((agents.len(), &shown["escalations"][0]["reason"]), (2, &json!("repeated_rejection")), "{shown:#}");
    // The same diff again, whatever is demanded.
    let (agents, shown) = climbed(NEVER, "[\"fixer\"]", "echo same > work.txt");
    assert_eq!((agents.len(), &shown["escalations"][0]["reason"]), (2, &json!("repeated_rejection")), "{shown:#}");
}
