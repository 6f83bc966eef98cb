//! `refile calibration` with the real binary, real git and both stores: a fleet judges, people decide, changes are taken
//! back.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use common::command::Desk;
use common::redis::Redis;
use serde_json::{Value, json};

/// Writes a file of its own, so that landings do not conflict.
const AGENT: &str = "cat > $REFILE_TASK_ID.txt";
/// Is as sure as the last word of the task's title says, and approves.
const JUDGE: &str = "conf=$(grep -o 'sure: [0-9.]*' | head -n 1 | cut -d ' ' -f 2); \
                     echo \"{\\\"verdict\\\": \\\"approved\\\", \\\"conf\\\": $conf}\"";

/// The one reviewer of a report.
fn judge(report: &Value) -> Value {
    let list = report["reviewers"].as_array().unwrap();
    assert_eq!(list.len(), 1, "{report}");
    list[0].clone()
}

fn counts(of: &Value) -> [u64; 3] {
    ["right", "wrong", "unlabelled"].map(|key| of[key].as_u64().unwrap())
}

fn verdicts_are_compared_with_what_became_of_them(store: &str) {
    let place = Desk::with(AGENT, JUDGE, "format = \"json\"\nconfidence = 0.7");
    let on =
        |args: &[&str]| -> Vec<String> { ["--store", store].iter().chain(args).map(|a| (*a).to_owned()).collect() };
    let run = |args: &[&str]| {
        let args = on(args);
        place.run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let json = |args: &[&str]| -> Value {
        let ran = run(&[args, &["--json"]].concat()).must(0, &[]);
        serde_json::from_str(&ran.out).unwrap()
    };
    let nothing = run(&["calibration"]).must(0, &[]);
    assert!(nothing.out.contains("no reviewer has given a verdict yet"), "{nothing:?}");

    let submit = |title: &str| run(&["submit", title]).must(0, &[]).out.trim().to_owned();
    let landed: Vec<String> = ["sure: 0.9", "also sure: 0.95"].iter().map(|t| submit(t)).collect();
    let unsure: Vec<String> =
        ["not sure: 0.7", "hardly sure: 0.2", "barely sure: 0.3"].iter().map(|t| submit(t)).collect();
    run(&["up", "--drain"]).must(3, &[]);
    for (task, action) in unsure.iter().zip(["approve", "reject", "retry"]) {
        run(&["escalation", action, task]).must(0, &[]);
    }
    run(&["up", "--drain"]).must(3, &[]);

    let report = json(&["calibration"]);
    assert_eq!((&report["tasks"], &report["target"]), (&json!(5), &json!(0.8)), "{report}");
    // A retry says nothing, and an unsure reviewer is asked three times each.
    let approved = judge(&report);
    assert_eq!(counts(&approved), [3, 3, 2 + 6], "{report}");
    assert_eq!(approved["verdicts"], json!({"approved": {"right": 3, "wrong": 3, "unlabelled": 8}}));
    assert_eq!((&approved["too_few_labels"], &approved["suggested"]), (&json!(true), &Value::Null));
    let bins: Vec<[f64; 4]> = approved["bins"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| ["from", "right", "wrong", "share"].map(|k| b[k].as_f64().unwrap()))
        .collect();
    assert_eq!(bins, [[0.2, 0.0, 3.0, 0.0], [0.7, 3.0, 0.0, 1.0]], "{report}");
    assert_eq!(report["histories_not_read"], json!({}));

    // One of those that landed is taken back, then taken back again and brought again.
    let commit = |task: &str| json(&["task", "show", task])["landed"].as_str().unwrap().to_owned();
    place.git(&["revert", "--no-edit", &commit(&landed[0])]);
    place.git(&["revert", "--no-edit", &commit(&landed[1])]);
    place.git(&["revert", "--no-edit", "HEAD"]);
    let report = json(&["calibration"]);
    assert_eq!(counts(&judge(&report)), [3, 4, 1 + 6], "{report}");
    // A person's approval does not help a change that had to go.
    place.git(&["revert", "--no-edit", &commit(&unsure[0])]);
    assert_eq!(counts(&judge(&json(&["calibration"]))), [0, 7, 1 + 6]);

    let told = run(&["calibration"]).must(0, &[]).out;
    for line in ["strict: 0 right, 7 wrong, 7 without a label", "too few labels to tell: 7, and 20 are needed"] {
        assert!(told.contains(line), "no {line:?} in {told}");
    }
    assert!(told.lines().any(|l| l.contains("0.9 to 1.0") && l.contains("0.00 to 0.79")), "{told}");
}

#[test]
fn verdicts_are_compared_on_one_sqlite_file() {
    verdicts_are_compared_with_what_became_of_them("sqlite:fleet.db");
}

#[test]
fn verdicts_are_compared_on_redis() {
    let server = Redis::start();
    verdicts_are_compared_with_what_became_of_them(&server.url());
}

#[test]
fn a_repository_that_is_out_of_reach_is_said_to_be() {
    let place = Desk::with(AGENT, "echo APPROVE", "");
    place.submit("one");
    place.ok(&["up", "--drain"]);
    std::fs::rename(place.path("repo"), place.path("elsewhere")).unwrap();
    let report = place.json(&["calibration"]);
    let why = report["histories_not_read"].as_object().unwrap().values().next().unwrap().as_str().unwrap();
    assert!(why.contains("no git repository"), "{report}");
    assert_eq!(counts(&judge(&report)), [0, 0, 1]);
    let told = place.run(&["calibration"]).must(0, &["reverts in", "are not known"]);
    assert!(told.out.contains("strict: 0 right, 0 wrong, 1 without a label"), "{told:?}");
}
