//! What is wrong is said, with what to do about it, and nothing is lost or half done.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use common::command::{Desk, STRICT_REVIEWER};
use common::redis::{DURABLE, Redis, free_port};

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_one() {
    let place = Desk::new();
    place.write("refile.toml", "[policy]\n\nmax_atempts = 4\n");
    let says = ["refile.toml", "line 3", "max_atempts", "did you mean `max_attempts`?"];
    for command in [&["task", "list"][..], &["submit", "x"], &["up", "--drain"], &["config", "show"]] {
        place.fails(command, 1, &says);
    }
    assert!(!place.path(".refile").exists(), "nothing is made before the configuration is read");
    place.fails(&["--config", "other.toml", "task", "list"], 1, &["other.toml", "refile init"]);
}

#[test]
fn a_bad_environment_variable_is_named() {
    let place = Desk::new();
    let ran = place.command(&["task", "list"]).env("REFILE_POLICY_MAX_ATTEMPTS", "many").output().unwrap();
    common::command::ended(ran).must(1, &["REFILE_POLICY_MAX_ATTEMPTS", "many"]);
    // What is no text is nobody's mistake here, and in one of ours it is never read as something else.
    let no_text = OsStr::from_bytes(b"\xff");
    let ran = place.command(&["task", "list"]).env("OTHER", no_text).env(no_text, "x").output().unwrap();
    common::command::ended(ran).must(0, &[]);
    let no_path = OsStr::from_bytes(b"sqlite:f\xff.db");
    for (name, value) in [("REFILE_POLICY_MAX_ATTEMPTS", no_text), ("REFILE_STORE", no_path)] {
        let files = || std::fs::read_dir(place.dir.path()).unwrap().count();
        let before = files();
        let ran = place.command(&["submit", "x"]).env(name, value).output().unwrap();
        common::command::ended(ran).must(1, &[name, "no text"]);
        assert_eq!(files(), before, "nothing is made under another name");
    }
}

#[test]
fn a_repository_or_a_branch_that_is_not_there_is_said_at_submit() {
    let place = Desk::new();
    place.git(&["branch", "release"]);
    place.fails(&["submit", "x", "--base", "trunk"], 2, &["trunk", "main", "release", "nothing was submitted"]);
    place.fails(&["submit", "x", "--repository", "nowhere"], 2, &["nowhere", "nothing was submitted"]);
    place.write("tasks.jsonl", "{\"title\":\"good\"}\n{\"title\":\"bad\",\"base\":\"trunk\"}\n");
    place.fails(&["submit", "--file", "tasks.jsonl"], 2, &["trunk", "nothing was submitted"]);
    place.fails(&["submit", "x", "--base", "--upload-pack=evil"], 2, &["upload-pack"]);
    place.fails(&["submit", "  "], 2, &["title", "nothing was submitted"]);
    place.fails(&["submit"], 2, &["TITLE"]);
    place.fails(&["submit", "x", "--priority", "urgent"], 2, &["high, normal and low"]);
    assert_eq!(place.tasks(), 0);
}

#[test]
fn up_says_what_it_lacks_before_it_takes_work() {
    let place = Desk::new();
    let id = place.submit("x");
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    place.write("refile.toml", &config.replacen("[\"sh\", ", "[\"no-such-agent\", ", 1));
    place.fails(&["up", "--drain"], 1, &["agents.fixer.command", "no-such-agent"]);
    let (head, reviewer) = config.split_once("[reviewers.strict]").unwrap();
    place.write("refile.toml", head);
    place.fails(&["up", "--drain"], 1, &["no reviewer is configured", "[reviewers.NAME]"]);
    let (head, _) = head.split_once("[agents.fixer]").unwrap();
    place.write("refile.toml", &format!("{head}[reviewers.strict]{reviewer}"));
    place.fails(&["up", "--drain"], 1, &["no agent is configured", "[agents.NAME]", "refile init"]);
    place.write("refile.toml", &config);
    assert_eq!(place.json(&["task", "show", &id])["state"], "open");
    place.ok(&["up", "--drain"]);
    assert_eq!(place.json(&["task", "show", &id])["state"], "merged", "nothing was lost");
}

#[test]
fn up_says_that_its_address_is_taken_or_open_to_others() {
    let place = Desk::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let up = |address: &str| {
        let ran = place.command(&["up", "--drain"]).env("REFILE_COORDINATOR_LISTEN", address).output().unwrap();
        common::command::ended(ran)
    };
    let address = taken.local_addr().unwrap().to_string();
    up(&address).must(1, &["cannot listen", &address, "coordinator.listen"]);
    up("0.0.0.0:0").must(1, &["coordinator.listen", "loopback"]);
}

#[track_caller]
fn refused(name: &str, text: &str, says: &[&str]) {
    let place = Desk::new();
    place.write(name, text);
    place.fails(&["submit", "--file", name], 2, says);
    let ran = place.run_with_input(&["submit", "--file", "-"], text);
    assert_eq!((ran.status, ran.out.as_str()), (2, ""), "{ran:?}");
    assert_eq!(place.tasks(), 0, "{text}");
}

#[test]
fn one_bad_task_among_good_ones_submits_none() {
    let good = "{\"title\": \"good\"}\n";
    let nothing = "nothing was submitted";
    refused("t.jsonl", &format!("{good}\n{{\"title\": \"b\",\n{good}"), &["t.jsonl, line 3", nothing]);
    refused("t.jsonl", &format!("{good}{{\"titel\": \"b\"}}\n"), &["line 2", "titel", "title", nothing]);
    refused("t.jsonl", &format!("{good}{{\"title\": \"\"}}\n"), &["line 2", "`title` is empty", nothing]);
    refused("t.jsonl", &format!("{good}{{\"title\": \"b\", \"workflow\": \"w\"}}\n"), &["line 2", "`w`", nothing]);
    refused("t.jsonl", &format!("{good}{{\"description\": \"b\"}}\n"), &["line 2", "title", nothing]);
    let good = "- title: good\n";
    refused("t.yaml", &format!("{good}- titel: b\n{good}"), &["t.yaml", "line 2", "titel", nothing]);
    refused("t.yaml", &format!("{good}- title: b\n  priority: urgent\n"), &["line 3", "urgent", "high", nothing]);
    refused("t.yaml", &format!("{good}- title: ''\n"), &["line 2", "`title` is empty", nothing]);
    refused("t.yaml", &format!("{good}  - [\n"), &["t.yaml", nothing]);
}

#[test]
fn a_file_that_holds_no_task_or_is_not_there_is_said() {
    let place = Desk::new();
    for (name, text) in [("t.jsonl", ""), ("t.yaml", "[]\n"), ("t.ndjson", "\n\n")] {
        place.write(name, text);
        place.fails(&["submit", "--file", name], 2, &[name, "holds no task"]);
    }
    place.fails(&["submit", "--file", "absent.yaml"], 1, &["absent.yaml"]);
    assert_eq!(place.tasks(), 0);
}

#[test]
fn a_redis_that_is_away_is_said_at_once() {
    let place = Desk::new();
    let url = format!("redis://:s3cret@127.0.0.1:{}/0", free_port());
    let started = Instant::now();
    for command in [&["submit", "x"][..], &["task", "list"], &["up", "--drain"], &["up"], &["escalation", "list"]] {
        let ran = place.run(&[&["--store", url.as_str()], command].concat());
        let ran = ran.must(1, &["127.0.0.1", "does not answer", "check that it runs"]);
        assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
        assert_eq!(ran.err.matches("Connection refused").count(), 1, "the cause is told once: {}", ran.err);
    }
    // Not a measurement: it must not hang until somebody looks.
    assert!(started.elapsed() < Duration::from_mins(1));
}

#[test]
fn a_redis_that_may_lose_tasks_is_refused_unless_it_is_wanted() {
    let evicts =
        Redis::start_with(&[&DURABLE[..], &["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]].concat());
    let forgets = Redis::start_with(&["--save", "", "--appendonly", "no"]);
    for (server, says) in [(&evicts, ["allkeys-lru", "noeviction"]), (&forgets, ["on disk", "appendonly yes"])] {
        let (place, url) = (Desk::new(), server.url());
        for command in [&["submit", "x"][..], &["up", "--drain"]] {
            let ran = place.fails(&[&["--store", url.as_str()], command].concat(), 1, &says);
            assert!(ran.err.contains("--allow-volatile"), "{ran:?}");
        }
        let on = |args: &[&str]| place.ok(&[&["--store", url.as_str(), "--allow-volatile"], args].concat());
        let id = on(&["submit", "x"]);
        on(&["up", "--drain"]);
        assert!(on(&["task", "show", id.trim()]).contains("merged"));
    }
    let durable = Redis::start_with(&DURABLE);
    let place = Desk::new();
    place.ok(&["--store", &durable.url(), "submit", "x"]);
}

#[test]
fn a_store_that_is_none_is_said() {
    let place = Desk::new();
    for url in ["postgres://me:s3cret@host/db", "reddis:me:s3cret@host", "fleet.db", "sqlite:"] {
        let ran = place.fails(&["--store", url, "task", "list"], 1, &["is not a store", "sqlite:PATH", "redis://"]);
        assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
    }
    place.write("junk.db", "this is no database, but it is somebody's work\n");
    place.fails(&["--store", "sqlite:junk.db", "submit", "x"], 1, &["junk.db", "not a sound SQLite database"]);
    let kept = std::fs::read_to_string(place.path("junk.db")).unwrap();
    assert_eq!(kept, "this is no database, but it is somebody's work\n");
}

#[test]
fn a_password_is_never_shown() {
    let place = Desk::new();
    let url = "redis://fleet:s3cret@127.0.0.1:1/0";
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    place.write("refile.toml", &format!("store = \"{url}\"\n{config}"));
    for command in [&["config", "show"][..], &["config", "show", "--json"], &["task", "list"], &["submit", "x"]] {
        let ran = place.run(command);
        assert!(ran.out.contains("fleet:***@127.0.0.1") || ran.err.contains("fleet:***@127.0.0.1"), "{ran:?}");
        assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
    }
}

#[test]
fn a_task_that_is_not_there_or_not_named_clearly_is_said() {
    let place = Desk::new();
    let lines: Vec<String> = (0..40).map(|i| format!("{{\"title\":\"task {i}\"}}")).collect();
    place.write("t.jsonl", &lines.join("\n"));
    let ids = place.ok(&["submit", "--file", "t.jsonl"]);
    let ids: Vec<&str> = ids.split_whitespace().collect();
    // 40 ids over 32 letters: two of them begin alike.
    let first = |id: &str| id.chars().next().unwrap().to_string();
    let shared = ids.iter().map(|i| first(i)).find(|c| ids.iter().filter(|i| i.starts_with(c)).count() > 1).unwrap();
    for command in ["show", "log", "diff", "cancel", "retry"] {
        place.fails(&["task", command, &shared], 1, &["more than one task", &shared]);
        place.fails(&["task", command, "zzzzzzzzzzzz9"], 1, &["no task zzzzzzzzzzzz9", "refile task list"]);
        place.fails(&["task", command, "No/Id"], 2, &["not a task id"]);
    }
    assert!(place.ok(&["task", "show", &ids[0][..8]]).contains(ids[0]), "a beginning that is one task's is enough");
    place.fails(&["task", "diff", ids[0]], 1, &["no such attempt with a change", "refile task show"]);
    place.fails(&["escalation", "show", ids[0]], 1, &["is open", "nothing of it waits"]);
    place.fails(&["escalation", "approve", &format!("{}.1", ids[0])], 1, &["no escalation", "refile escalation list"]);
    for none in ["nosuch", "zzzzzzzzzzzz9.1"] {
        for command in ["show", "approve", "retry", "reject"] {
            let says = [&format!("no escalation {none} waits"), "refile escalation list"];
            let ran = place.fails(&["escalation", command, none], 1, &says);
            assert!(!ran.err.contains("task"), "{ran:?}");
        }
    }
    place.fails(&["task", "retry", ids[0]], 1, &["is going on", "refile task show"]);
    assert_eq!(place.tasks(), 40);
}

#[test]
fn an_escalation_is_decided_once_and_by_what_makes_sense() {
    let place = Desk::with("cat > work.txt", STRICT_REVIEWER, "");
    let id = place.submit("x");
    assert_eq!(place.run(&["up", "--drain"]).status, 3);
    let escalation = format!("{id}.1");
    place.fails(&["escalation", "refile", &escalation], 2, &["REQUIRED_CHANGE"]);
    for empty in ["", "  ", "---"] {
        let says = ["the required change is empty", "one imperative sentence", "such as"];
        place.fails(&["escalation", "refile", "--", &escalation, empty], 1, &says);
    }
    place.fails(&["escalation", "refile", &escalation, "Do it", "--attempts", "0"], 2, &["--attempts"]);
    place.fails(&["escalation", "approve", &format!("{id}.7")], 1, &["no escalation"]);
    assert_eq!(place.json(&["escalation", "list"]).as_array().unwrap().len(), 1, "it still waits");

    place.ok(&["escalation", "reject", &escalation, "--by", "berta", "--note", "not now"]);
    for second in ["approve", "retry", "reject"] {
        place.fails(&["escalation", second, &escalation], 1, &["decided already", "reject by berta"]);
    }
    place.fails(&["escalation", "refile", &escalation, "Do it"], 1, &["decided already", "berta"]);
    place.fails(&["task", "cancel", &id], 1, &["is rejected already"]);
    let shown = place.json(&["task", "show", &id]);
    assert_eq!((&shown["state"], &shown["escalations"][0]["decision"]["by"]), (&"rejected".into(), &"berta".into()));
    let log = place.ok(&["task", "log", &id]);
    assert!(log.contains("reject by berta: not now"), "{log}");
    let shown = place.ok(&["escalation", "show", &escalation]);
    assert!(shown.contains("reject by berta") && !shown.contains("escalation approve"), "{shown}");
}

#[test]
fn there_is_nothing_to_approve_where_the_attempt_left_nothing() {
    let place = Desk::with("true", "echo APPROVE", "");
    let id = place.submit("x");
    assert_eq!(place.run(&["up", "--drain"]).status, 3);
    place.fails(&["escalation", "approve", &id], 1, &["no change to approve", "reject"]);
    assert_eq!(place.json(&["task", "show", &id])["state"], "escalated");
    let shown = place.ok(&["escalation", "show", &id]);
    assert!(!shown.contains("escalation approve") && !shown.contains("task diff"), "{shown}");
    for can_work in ["task log", "escalation refile", "escalation retry", "escalation reject"] {
        assert!(shown.contains(can_work), "no {can_work:?} in {shown}");
    }
    place.ok(&["task", "cancel", &id]);
    let shown = place.ok(&["escalation", "show", &format!("{id}.1")]);
    assert!(shown.contains("nothing left to decide: the task is cancelled"), "{shown}");
    assert!(!shown.contains("escalation reject"), "{shown}");
}

#[test]
fn who_approves_over_a_failed_gate_is_told_and_it_is_kept() {
    let place = Desk::with("cat > work.txt", "echo APPROVE", "[[gates]]\nname = \"lint\"\nrun = \"false\"");
    let [one, other] = ["x", "y"].map(|title| place.submit(title));
    assert_eq!(place.run(&["up", "--drain"]).status, 3);
    let shown = place.ok(&["escalation", "show", &one]);
    assert!(shown.contains("escalation approve") && shown.contains("although this failed: lint"), "{shown}");
    let approved = place.json(&["escalation", "approve", &one]);
    assert_eq!((&approved["state"], &approved["overridden_gates"]), (&"open".into(), &serde_json::json!(["lint"])));
    let said = place.ok(&["escalation", "approve", &other, "--note", "false alarm"]);
    assert!(said.contains("although this failed: lint"), "{said}");
    let decided = &place.json(&["task", "show", &other])["escalations"][0]["decision"];
    assert_eq!(decided["overridden_gates"], serde_json::json!(["lint"]));
    for command in ["task", "escalation"] {
        let what = if command == "task" { "log" } else { "show" };
        let id = if command == "task" { other.clone() } else { format!("{other}.1") };
        let told = place.ok(&[command, what, &id]);
        assert!(told.contains("approve by ann, over what failed: lint: false alarm"), "{told}");
    }
    // Of what passed its gates nothing is said.
    let fine = Desk::with("cat > work.txt", STRICT_REVIEWER, "[[gates]]\nname = \"lint\"\nrun = \"true\"");
    let id = fine.submit("x");
    assert_eq!(fine.run(&["up", "--drain"]).status, 3);
    assert!(!fine.ok(&["escalation", "show", &id]).contains("although"));
    assert_eq!(fine.json(&["escalation", "approve", &id])["overridden_gates"], serde_json::json!([]));
    assert!(!fine.ok(&["task", "log", &id]).contains("over what failed"));
}

#[test]
fn the_log_holds_what_people_said_and_in_full_what_attempts_started_with() {
    let place = Desk::with("cat > work.txt", STRICT_REVIEWER, "");
    let id = place.submit("Say hello");
    assert_eq!(place.run(&["up", "--drain"]).status, 3);
    let said = "Write DONE into work.txt. It is what the reviewer looks for.";
    place.ok(&["escalation", "refile", &id, said, "--note", "as agreed", "--attempts", "2"]);
    place.ok(&["up", "--drain"]);
    let log = place.ok(&["task", "log", &id]);
    for words in ["refile by ann: as agreed", &format!("required change: {said}"), "for 2 more attempts"] {
        assert!(log.contains(words), "no {words:?} in {log}");
    }
    assert!(!log.contains("## ATTEMPT #2") && !log.contains("what it started with"), "{log}");
    let full = place.ok(&["task", "log", &id, "--full"]);
    assert_eq!(full.matches("--- what it started with").count(), 2, "{full}");
    assert!(full.contains("    ## ATTEMPT #2 — previous attempt rejected"), "{full}");
}

#[test]
fn nothing_goes_on_in_a_task_that_waits_or_is_over_and_what_nobody_knows_is_no_zero() {
    let place = Desk::with("exit 3", "echo APPROVE", "");
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    place.write("refile.toml", &config.replace("[policy]\n", "[policy]\nmax_infra_failures = 1\n"));
    let id = place.submit("x");
    assert!(place.ok(&["task", "show", &id]).contains("going on"));
    assert_eq!(place.run(&["up", "--drain"]).status, 3);
    let shown = place.ok(&["task", "show", &id]);
    assert!(shown.contains("waits for a person: coder_unavailable") && !shown.contains("going on"), "{shown}");
    assert!(shown.lines().any(|line| line.contains("fixer") && line.contains("waits for a person")), "{shown}");
    assert!(shown.contains("s of work; tokens and cost are unknown") && !shown.contains('$'), "{shown}");
    assert_eq!(place.json(&["task", "show", &id])["attempts"][0]["outcome"], serde_json::Value::Null);
}

#[test]
fn a_variable_that_nothing_reads_is_told() {
    let place = Desk::new();
    let run = |args: &[&str], name: &str| common::command::ended(place.command(args).env(name, "x").output().unwrap());
    let told = run(&["task", "list"], "REFILE_STROE").must(0, &["REFILE_STROE", "did you mean REFILE_STORE?", "WARN"]);
    assert_eq!(told.err.lines().count(), 1, "{told:?}");
    run(&["up", "--drain"], "REFILE_MAX_ATTEMPTS").must(0, &["did you mean REFILE_POLICY_MAX_ATTEMPTS?"]);
    // What the fleet tells its commands is none of those: an agent may run this program.
    assert_eq!(run(&["task", "list"], "REFILE_TASK_ID").err, "");
}

#[test]
fn what_a_person_approved_is_shown_without_the_demand_before() {
    let place = Desk::with("cat > work.txt", STRICT_REVIEWER, "");
    let id = place.submit("x");
    assert_eq!(place.run(&["up", "--drain"]).status, 3);
    for command in ["log", "show"] {
        assert!(place.ok(&["task", command, &id]).contains("Write DONE into work.txt."), "{command}");
    }
    place.ok(&["escalation", "approve", &id]);
    place.ok(&["up", "--drain"]);
    let log = place.ok(&["task", "log", &id]);
    assert!(log.lines().any(|line| line.trim() == "accepted"), "{log}");
    let table = place.ok(&["task", "show", &id]);
    assert!(table.lines().all(|line| !(line.contains("accepted") && line.contains("DONE"))), "{table}");
}

#[test]
fn what_is_most_likely_not_meant_is_said_where_the_fleet_starts_and_where_values_are_shown() {
    let place = Desk::with("cat > work.txt", "echo APPROVE", "confidence = 0.9");
    let says = ["reviewers.strict.confidence changes nothing", "format = "];
    place.run(&["config", "show"]).must(0, &says);
    place.run(&["up", "--drain"]).must(0, &says[..1]);
    place.run(&["task", "list"]).must(0, &[]);
}

#[test]
fn addresses_that_are_none_and_names_that_are_not_there_are_refused_at_once() {
    let place = Desk::new();
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    for (more, says) in [
        ("[providers.p]\nkind = \"openai\"\nbase_url = \"bogus\"\n", &["providers.p.base_url", "`bogus`"][..]),
        ("[limits]\nworkflows = { chnage = 1 }\n", &["`chnage`", "did you mean `change`?"]),
        ("[limits]\nagents = { fxer = 1 }\n", &["`fxer`", "did you mean `fixer`?"]),
    ] {
        place.write("refile.toml", &format!("{config}{more}"));
        place.fails(&["config", "show"], 1, says);
    }
    place.write("refile.toml", &format!("store = \"bogus\"\n{config}"));
    place.fails(&["config", "show"], 1, &["`bogus` is not a store", "sqlite:PATH"]);
}

#[test]
fn up_says_which_key_is_missing_before_it_takes_work() {
    let place = Desk::new();
    let id = place.submit("x");
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    let (head, _) = config.split_once("[reviewers.strict]").unwrap();
    let judge = "[reviewers.judge]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m\"\n[providers.p]\nkind = \"anthropic\"\n\
                 api_key_env = \"SOME_KEY\"\n";
    place.write("refile.toml", &format!("{head}{judge}"));
    let says = ["reviewers.judge asks the provider `p`", "SOME_KEY"];
    place.fails(&["up", "--drain"], 1, &says);
    place.fails(&["up"], 1, &says);
    let empty = place.command(&["up", "--drain"]).env("SOME_KEY", " ").output().unwrap();
    common::command::ended(empty).must(1, &says);
    assert_eq!(place.json(&["task", "show", &id])["attempts"][0]["outcome"], serde_json::Value::Null);
}

#[test]
fn a_look_at_a_folder_without_a_fleet_makes_none() {
    let place = Desk::empty();
    place.fails(&["task", "list"], 1, &["no refile.toml", "refile init"]);
    place.fails(&["escalation", "list"], 1, &["no refile.toml"]);
    assert!(!place.path(".refile").exists());
}
