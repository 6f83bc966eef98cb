//! Who reviews, with the real binary: a panel, a person, and a reviewer that must not judge its own model's work.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use common::command::Desk;
use serde_json::{Value, json};

/// A place with these sections of reviewers, and an agent of which more is said.
fn with_reviewers(sections: &str, agent: &str) -> Desk {
    let place = Desk::with("cat > work.txt", "true", "");
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    let (before, _) = config.split_once("[reviewers.strict]\n").unwrap();
    place.write("refile.toml", &format!("{before}{agent}{sections}"));
    place
}

#[test]
fn members_of_a_panel_are_shown_with_the_task() {
    let board = "[reviewers.board]\ntype = \"panel\"\nmembers = [\"a\", \"b\", \"c\"]\nrule = \"any\"\n";
    let panel = "[reviewers.a]\ncommand = [\"sh\", \"-c\", \"echo APPROVE\"]\n\
                 [reviewers.b]\ncommand = [\"sh\", \"-c\", \"echo RETRY: Add a test.\"]\n\
                 [reviewers.c]\ncommand = [\"sh\", \"-c\", \"exit 3\"]\n";
    let place = with_reviewers(&format!("{board}{panel}"), "");
    let task = place.submit("one");
    place.ok(&["up", "--drain"]);
    let shown = place.json(&["task", "show", &task]);
    assert_eq!(shown["outcome"], "merged");
    let review = &shown["attempts"][0]["reviews"][0];
    assert_eq!((&review["reviewer"], &review["verdict"]["verdict"]), (&json!("board"), &json!("approved")));
    assert_eq!(review["members"].as_array().unwrap().len(), 3);
    assert!(place.ok(&["task", "show", &task]).contains("approved (a: approved, b: needs_changes, c: crash)"));
    let log = place.ok(&["task", "log", &task, "--full"]);
    for line in [
        "review by board: approved (confidence 1.00)",
        "member: review by a: approved (confidence 1.00)",
        "member: review by b: needs_changes (confidence 1.00)",
        "member: review by c: crash: ",
        "RETRY: Add a test.",
    ] {
        assert!(log.contains(line), "no {line:?} in {log}");
    }
}

#[test]
fn a_person_as_the_reviewer_is_asked_and_decides() {
    let place = with_reviewers("[reviewers.ann]\ntype = \"human\"\n", "");
    let task = place.submit("one");
    assert_eq!(place.run(&["up", "--drain"]).status, 3);
    let waiting = place.json(&["escalation", "list"]);
    assert_eq!(waiting[0]["reason"], "human_review", "{waiting}");
    assert!(waiting[0]["detail"].as_str().unwrap().contains("ann is a person"), "{waiting}");
    place.ok(&["escalation", "approve", &task]);
    place.ok(&["up", "--drain"]);
    assert_eq!(place.json(&["task", "show", &task])["outcome"], "merged");
}

#[test]
fn a_change_goes_past_the_reviewer_that_has_the_coders_model() {
    let judge = |name: &str, says: &str, more: &str| {
        format!("[reviewers.{name}]\ncommand = [\"sh\", \"-c\", \"echo {says}\"]\nmodel = \"{name}-1\"\n{more}\n")
    };
    let own = judge("own", "REJECT: Not this.", "other_model_than_coder = true");
    let agent = "model = \"OWN-1\"\n";
    let place = with_reviewers(&(own.clone() + &judge("other", "APPROVE", "")), agent);
    let task = place.submit("one");
    place.ok(&["up", "--drain"]);
    let shown = place.json(&["task", "show", &task]);
    assert_eq!(
        (&shown["outcome"], &shown["attempts"][0]["reviews"][0]["reviewer"]),
        (&json!("merged"), &json!("other"))
    );

    // Alone it judges all the same, and the log says so.
    let place = with_reviewers(&own, agent);
    let task = place.submit("one");
    let log = place.run(&["up", "--drain"]).must(0, &[]).err;
    assert_eq!(place.json(&["task", "show", &task])["outcome"], "rejected");
    let said = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let said: Vec<Value> = said.filter(|line| line["message"] == "same_model").collect();
    assert!(said[0]["detail"].as_str().unwrap().contains("own judges what its own model made"), "{said:?}");
}

/// A task that is over leaves no branches behind; those of tasks that go on, and of other fleets, stay.
#[test]
fn the_branches_of_tasks_that_are_over_are_removed() {
    let place = Desk::with(
        "cat > work.txt; sed -n 1p work.txt",
        "grep -q Bad work.txt && echo 'REJECT: Not this.'; grep -q Odd work.txt && echo 'ESCALATE: Is it right?'; echo APPROVE",
        "",
    );
    let branches = || place.git(&["for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/refile"]);
    place.git(&["branch", "refile/another-fleets/change/1-1"]);
    let (bad, odd) = (place.submit("Bad"), place.submit("Odd"));
    place.run(&["up", "--drain"]).must(3, &[]);
    assert_eq!(place.json(&["task", "show", &bad])["state"], "rejected");
    assert_eq!(place.json(&["task", "show", &odd])["state"], "escalated");
    assert_eq!(branches().lines().count(), 3, "{}", branches());
    // The next process that works on the repository finds them; it may be done before it has removed them.
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while branches().contains(&bad) {
        assert!(std::time::Instant::now() < deadline, "{}", branches());
        place.submit("Good");
        place.run(&["up", "--drain"]).must(3, &[]);
    }
    assert!(branches().contains(&odd) && branches().contains("another-fleets"), "{}", branches());
    assert_eq!(branches().lines().count(), 2, "{}", branches());
}
