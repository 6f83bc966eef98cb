//! What each command does when it is used as it is meant.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::command::{Desk, STRICT_REVIEWER, command, ended};
use common::git;
use common::redis::Redis;
use serde_json::{Value, json};

/// The titles of a list.
fn titles(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|t| t["title"].as_str().unwrap()).collect()
}

/// Where a value of `config show --json` comes from, and what it is.
fn setting(place: &Desk, key: &str) -> (Value, String) {
    let all = place.json(&["config", "show"]);
    let line = all.as_array().unwrap().iter().find(|l| l["key"] == key).unwrap_or_else(|| panic!("no {key}"));
    (line["value"].clone(), line["source"].as_str().unwrap().to_owned())
}

/// Runs `init` in a repository with these files, and gives what `config show` says of the gates.
#[track_caller]
fn gates_guessed(files: &[(&str, &str)]) -> Vec<String> {
    let place = Desk::empty();
    git(place.dir.path(), &["init", "--quiet", "--initial-branch=trunk"]);
    for (file, text) in files {
        place.write(file, text);
    }
    assert!(place.ok(&["init"]).contains("refile up --drain"));
    assert_eq!(setting(&place, "repository.base"), (json!("trunk"), "refile.toml".to_owned()));
    let all = place.json(&["config", "show"]);
    let is_gate = |key: &str| key.starts_with("gates[") && key.ends_with("].run");
    all.as_array()
        .unwrap()
        .iter()
        .filter(|l| is_gate(l["key"].as_str().unwrap()))
        .map(|l| l["value"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn init_guesses_gates_from_the_files() {
    let cargo = ["cargo clippy --all-targets -- -D warnings", "cargo test"];
    assert_eq!(gates_guessed(&[("Cargo.toml", "[package]")]), cargo);
    assert_eq!(gates_guessed(&[("package.json", r#"{"scripts": {"test": "x"}}"#)]), ["npm run test"]);
    let go = ["go vet ./...", "go build ./...", "go test ./..."];
    assert_eq!(gates_guessed(&[("go.mod", ""), ("Makefile", "test:\n")]), go);
    assert_eq!(gates_guessed(&[("pytest.ini", "")]), ["python3 -m pytest"]);
    assert_eq!(
        gates_guessed(&[("pom.xml", "")]),
        ["mvn --batch-mode --quiet -Dmaven.repo.local=\"$HOME/.m2/own\" test"]
    );
    assert_eq!(gates_guessed(&[("Makefile", "test:\n")]), ["make test"]);
    assert_eq!(gates_guessed(&[("notes.txt", ""), ("Makefile", "all:\n")]), Vec::<String>::new());
}

#[test]
fn init_writes_over_nothing_and_needs_a_repository() {
    let place = Desk::empty();
    place.fails(&["init"], 1, &["not in a git repository", "git init"]);
    assert!(!place.path("refile.toml").exists());
    git(place.dir.path(), &["init", "--quiet", "--initial-branch=main"]);
    place.write("refile.toml", "# mine\n");
    place.fails(&["init"], 1, &["refile.toml is there already", "--force"]);
    assert_eq!(std::fs::read_to_string(place.path("refile.toml")).unwrap(), "# mine\n");
    assert_eq!(place.json(&["init", "--force"])["base"], "main");
    assert_eq!(setting(&place, "policy.max_attempts"), (json!(3), "refile.toml".to_owned()));
}

#[test]
fn init_in_a_subfolder_is_about_the_whole_repository() {
    let place = Desk::new();
    let deep = place.path("repo/deep/er");
    std::fs::create_dir_all(&deep).unwrap();
    let run = |args: &[&str]| ended(command(&deep, args).output().unwrap());
    run(&["init"]).must(0, &[]);
    let submitted = run(&["submit", "x", "--json"]).must(0, &[]);
    let submitted: Value = serde_json::from_str(&submitted.out).unwrap();
    assert_eq!(submitted[0]["added"], true);
}

#[test]
fn config_show_tells_where_each_value_comes_from() {
    let place = Desk::new();
    assert_eq!(setting(&place, "policy.max_attempts"), (json!(1), "refile.toml".to_owned()));
    assert_eq!(setting(&place, "workers.lease"), (json!("1m"), "default".to_owned()));
    assert_eq!(setting(&place, "coordinator.listen").1, "REFILE_COORDINATOR_LISTEN");
    let shown = place.ok(&["--store", "sqlite:other.db", "config", "show"]);
    let line = shown.lines().find(|l| l.trim_start().starts_with("store ")).unwrap();
    assert!(line.contains("sqlite:other.db") && line.ends_with("--store"), "{line:?}");
}

#[test]
fn a_task_is_submitted_in_every_way() {
    let place = Desk::new();
    place.ok(&["submit", "  from  a title "]);
    let described = place.run_with_input(&["submit", "described", "-d", "-"], "line one\nline two\n");
    let described = described.must(0, &[]).out.trim().to_owned();
    place.write(
        "t.jsonl",
        "{\"title\":\"json 1\",\"labels\":[\"a\"]}\n\n{\"title\":\"json 2\",\"priority\":\"high\"}\n",
    );
    assert_eq!(place.ok(&["submit", "--file", "t.jsonl", "--label", "b", "--priority", "low"]).lines().count(), 2);
    place.write(
        "t.yaml",
        "# Two.\n- title: yaml 1 # the first\n  description: |\n    more\n    of it\n- title: yaml 2\n",
    );
    place.ok(&["submit", "--file", "t.yaml"]);
    place.run_with_input(&["submit", "--file", "-"], "{\"title\":\"stdin json\"}\n").must(0, &[]);
    place.run_with_input(&["submit", "--file", "-"], "- title: stdin yaml\n").must(0, &[]);
    place.write("t.json", "[{\"title\": \"array\"}]\n");
    place.ok(&["submit", "--file", "t.json"]);

    let list = place.json(&["task", "list"]);
    let mut newest_first = titles(&list);
    newest_first.reverse();
    let wanted =
        ["from a title", "described", "json 1", "json 2", "yaml 1", "yaml 2", "stdin json", "stdin yaml", "array"];
    assert_eq!(newest_first, wanted);
    let of = |title: &str| list.as_array().unwrap().iter().find(|t| t["title"] == title).unwrap().clone();
    assert_eq!((&of("json 1")["labels"], &of("json 1")["priority"]), (&json!(["a", "b"]), &json!("low")));
    assert_eq!(of("json 2")["priority"], "high", "the file's own word goes before the option's");
    assert_eq!(place.json(&["task", "show", &described])["description"], "line one\nline two\n");
    assert_eq!(place.json(&["task", "show", of("yaml 1")["id"].as_str().unwrap()])["description"], "more\nof it\n");
    assert_eq!(place.json(&["task", "show", of("yaml 2")["id"].as_str().unwrap()])["description"], "yaml 2");
}

#[test]
fn the_same_key_is_the_same_task() {
    let place = Desk::new();
    let first = place.json(&["submit", "x", "--key", "k1"]);
    let second = place.json(&["submit", "another title", "--key", "k1"]);
    assert_eq!((&first[0]["added"], &second[0]["added"]), (&json!(true), &json!(false)));
    assert_eq!(first[0]["id"], second[0]["id"]);
    assert!(place.ok(&["submit", "x", "--key", "k1"]).contains("was there already"));
    place.write("t.jsonl", "{\"title\":\"a\",\"key\":\"k2\"}\n{\"title\":\"b\",\"key\":\"k2\"}\n{\"title\":\"c\"}\n");
    let of_file = place.json(&["submit", "--file", "t.jsonl"]);
    let added: Vec<bool> = of_file.as_array().unwrap().iter().map(|s| s["added"].as_bool().unwrap()).collect();
    assert_eq!(added, [true, false, true]);
    assert_eq!(place.tasks(), 3);
}

#[test]
fn a_list_is_filtered() {
    let place = Desk::new();
    assert!(place.ok(&["task", "list"]).contains("refile submit"), "an empty list says what to do");
    place.ok(&["submit", "First thing", "--label", "ui"]);
    place.ok(&["submit", "Second thing", "--label", "ui", "--label", "slow"]);
    let third = place.submit("Third");
    place.ok(&["task", "cancel", &third]);
    let of = |args: &[&str]| place.json(&[&["task", "list"], args].concat());
    assert_eq!(titles(&of(&["--state", "cancelled"])), ["Third"]);
    assert_eq!(titles(&of(&["--state", "cancelled", "--state", "open"])).len(), 3);
    assert_eq!(titles(&of(&["--label", "slow"])), ["Second thing"]);
    assert_eq!(titles(&of(&["--text", "THING"])), ["Second thing", "First thing"]);
    assert_eq!(titles(&of(&["--text", &third])), ["Third"]);
    assert_eq!(titles(&of(&["--repository", "repo", "--state", "open"])).len(), 2);
    assert_eq!(titles(&of(&["--repository", "other"])), Vec::<&str>::new());
    assert_eq!(titles(&of(&["--limit", "2"])), ["Third", "Second thing"]);
    place.fails(&["task", "list", "--limit", "0"], 2, &["--limit"]);
    place.fails(&["task", "list", "--state", "done"], 2, &["merged", "escalated"]);
    let human = place.run(&["task", "list", "--limit", "1"]);
    assert!(human.out.contains("TITLE") && human.out.contains("Third"), "{human:?}");
    assert!(human.err.contains("--limit shows more"), "{human:?}");
    let nothing = place.ok(&["task", "list", "--label", "none"]);
    assert!(nothing.contains("no task is like that"), "{nothing}");
}

#[test]
fn high_goes_before_normal_before_low() {
    // Each writes a file of its own, so that their landings do not conflict.
    let place = Desk::with("cat > $REFILE_TASK_ID.txt", "echo APPROVE", "");
    for priority in ["low", "normal", "high"] {
        place.ok(&["submit", priority, "--priority", priority]);
    }
    let drained = place.command(&["up", "--drain"]).env("REFILE_WORKERS_CODERS", "1").output().unwrap();
    let log = ended(drained).must(0, &[]).err;
    let of_id: Vec<(String, String)> = place
        .json(&["task", "list"])
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["id"].as_str().unwrap().to_owned(), t["title"].as_str().unwrap().to_owned()))
        .collect();
    let claimed: Vec<&str> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["message"] == "claimed" && line["queue"] == "code")
        .map(|line| of_id.iter().find(|(id, _)| line["task"] == id.as_str()).unwrap().1.as_str())
        .collect();
    assert_eq!(claimed, ["high", "normal", "low"]);
}

#[test]
fn a_task_is_called_off_and_done_again() {
    let place = Desk::with("cat > work.txt", STRICT_REVIEWER, "");
    let called_off = place.submit("never");
    assert!(place.ok(&["task", "cancel", &called_off]).contains("cancelled"));
    place.ok(&["up", "--drain"]);
    assert_eq!(place.json(&["task", "show", &called_off])["attempts"][0]["outcome"], "cancelled");
    let again = place.json(&["task", "retry", &called_off]);
    assert_eq!(again["retry_of"], called_off.as_str());
    assert_ne!(again["id"], called_off.as_str());
    assert_eq!(place.json(&["task", "show", &called_off])["state"], "cancelled", "an outcome is final");

    // The reviewer demands what the task does not say, and one attempt is all it has.
    assert_eq!(place.run(&["up", "--drain"]).status, 3);
    let escalated = again["id"].as_str().unwrap();
    assert_eq!(place.json(&["task", "show", escalated])["state"], "escalated");
    let shown = place.ok(&["task", "show", escalated]);
    assert!(shown.contains("waits for a person: attempts_exhausted"), "{shown}");
    assert!(place.ok(&["task", "retry", escalated]).contains("open"));
    assert_eq!(place.run(&["up", "--drain"]).status, 3);
    let list = place.json(&["escalation", "list"]);
    assert_eq!((list.as_array().unwrap().len(), &list[0]["id"]), (1, &json!(format!("{escalated}.2"))));
    // What a person demands leads the prompt, the agent writes it down, and the reviewer finds it.
    place.ok(&["escalation", "refile", escalated, "Write DONE into work.txt"]);
    place.ok(&["up", "--drain"]);
    assert_eq!(place.json(&["task", "show", escalated])["state"], "merged");
    assert!(place.git(&["show", "main:work.txt"]).contains("**Required change**: Write DONE into work.txt"));
}

/// The verdict that a reply holds; parsing it always ends with 0.
#[track_caller]
fn verdict(format: &str, reply: &str) -> Value {
    let ran = Desk::empty().run_with_input(&["verdict", "parse", "--format", format], reply);
    serde_json::from_str(&ran.must(0, &[]).out).unwrap()
}

#[test]
fn a_verdict_is_read_in_three_formats() {
    let of = |v: &Value| (v["verdict"].clone(), v["required_change"].clone(), v["conf"].clone());
    let json =
        r#"Well: {"verdict":"Request-Changes","required_change":"Add a test. Now.","critique":"c","conf":"90%"}"#;
    assert_eq!(of(&verdict("json", json)), (json!("needs_changes"), json!("Add a test."), json!(0.9)));
    assert_eq!(of(&verdict("text", "approve")), (json!("approved"), json!(""), json!(1.0)));
    assert_eq!(of(&verdict("text", "RETRY: Do it")), (json!("needs_changes"), json!("Do it"), json!(1.0)));
    let sent_back = verdict("text", "RETRY_PREDECESSOR plan: Think again");
    assert_eq!((&sent_back["verdict"], &sent_back["phase"]), (&json!("retry_predecessor"), &json!("plan")));
    let judge = r#"{"verdict":"fail","summary":"s","findings":[],"required_fixes":["Fix a","Fix b"]}"#;
    assert_eq!(of(&verdict("judge", judge)), (json!("needs_changes"), json!("Fix a"), json!(1.0)));
    for format in ["json", "text", "judge"] {
        for garbage in
            ["", "I like it.", "{\"verdict\":", "\u{0}\u{1b}[2J", "{\"verdict\":\"approved\"} {\"verdict\":\"reject\"}"]
        {
            let read = verdict(format, garbage);
            assert_eq!(read["verdict"], "retry", "{format}: {garbage:?}");
            assert!(read["failure"].is_string(), "{read}");
        }
    }
    let place = Desk::empty();
    place.write("reply.txt", "REJECT: No");
    assert_eq!(place.json(&["verdict", "parse", "--format", "text", "reply.txt"])["verdict"], "reject");
    place.fails(&["verdict", "parse", "absent.txt"], 1, &["absent.txt"]);
    place.fails(&["verdict", "parse", "--format", "xml"], 2, &["json", "text", "judge"]);
}

#[test]
fn no_colours_and_no_panic_where_the_output_is_no_terminal() {
    let place = Desk::new();
    let lines: Vec<String> = (0..400).map(|i| format!("{{\"title\":\"task {i} {}\"}}", "x".repeat(250))).collect();
    place.write("t.jsonl", &lines.join("\n"));
    place.ok(&["submit", "--file", "t.jsonl"]);
    place.fails(&["submit", "a\u{1b}[31mred"], 2, &["`title` holds a control character", "nothing was submitted"]);
    let evil = place.ok(&["submit", "red\u{202e}", "--description", "\u{1b}[31m"]).trim().to_owned();
    for args in [&["task", "list"][..], &["task", "show", &evil], &["task", "log", &evil], &["config", "show"]] {
        let ran = place.run(args);
        assert!(!ran.out.contains('\u{1b}') && !ran.out.contains('\u{202e}'), "{args:?}: {ran:?}");
    }
    // A reader that goes away after one line, long before the pipe could hold it all.
    for args in [&["task", "list", "--limit", "400"][..], &["task", "list", "--limit", "400", "--json"]] {
        let mut child = place.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        ended(child.wait_with_output().unwrap()).must(0, &[]);
    }
}

#[test]
fn a_file_has_one_partition() {
    let place = Desk::new();
    assert_eq!(place.ok(&["partitions"]), "1 partition\n");
    assert_eq!(place.json(&["partitions", "1"]), json!({ "partitions": 1 }));
    place.fails(&["partitions", "2"], 1, &["a file has one partition", "Redis"]);
    place.fails(&["partitions", "0"], 2, &["'0'"]);
    place.fails(&["partitions", "few"], 2, &["'few'"]);
}

#[test]
fn a_queue_in_redis_gets_more_partitions_and_never_fewer() {
    let place = Desk::new();
    let (redis, before) = (Redis::start(), "before");
    let url = redis.url();
    let on =
        |args: &[&'static str]| [&["--store", &url], args].concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
    let ok = |args: &[&'static str]| place.ok(&on(args).iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ok(&["partitions"]), "1 partition\n");
    ok(&["submit", before]);
    assert_eq!(ok(&["partitions", "4"]), "4 partitions\n");
    ok(&["submit", "after"]);
    assert_eq!(ok(&["partitions", "--json"]).split_whitespace().collect::<String>(), "{\"partitions\":4}");
    let list: Value = serde_json::from_str(&ok(&["task", "list", "--json"])).unwrap();
    assert_eq!(titles(&list), ["after", before]);
    let fewer = on(&["partitions", "2"]);
    place.fails(&fewer.iter().map(String::as_str).collect::<Vec<_>>(), 1, &["4 partitions", "can only grow"]);
}

#[test]
fn config_show_tells_the_limits_without_passwords() {
    let place = Desk::with("true", "true", "[limits]\nrepository = 3\nrepositories = { \"https://u:secret@h/a\" = 2 }");
    assert_eq!(setting(&place, "limits.repository").0, json!(3));
    assert_eq!(setting(&place, "limits.repositories.https://u:***@h/a").0, json!(2));
    place.write("refile.toml", "[limits]\nagents = { ghost = 1 }\n");
    place.fails(&["config", "show"], 1, &["limits.agents names `ghost`", "[agents.ghost]"]);
}

#[test]
fn every_command_says_what_it_does() {
    let place = Desk::empty();
    let says = [
        (&[][..], "a rejection leads the next attempt"),
        (&["demo"], "sample repository"),
        (&["init"], "Write refile.toml"),
        (&["up"], "coordinator, coders and reviewers"),
        (&["submit"], "Submit a task"),
        (&["task"], "Call a task off"),
        (&["task", "list"], "newest first"),
        (&["task", "show"], "with its attempts"),
        (&["task", "log"], "what happened"),
        (&["task", "diff"], "diff of an attempt"),
        (&["task", "cancel"], "Call a task off"),
        (&["task", "retry"], "submit it anew"),
        (&["escalation"], "waits for a person"),
        (&["escalation", "list"], "waits for a person"),
        (&["escalation", "show"], "evidence"),
        (&["escalation", "approve"], "land it"),
        (&["escalation", "refile"], "another attempt"),
        (&["escalation", "retry"], "same job again"),
        (&["escalation", "reject"], "Turn the task down"),
        (&["verdict", "parse"], "verdict that a reply holds"),
        (&["calibration"], "what turned out to be right"),
        (&["agent", "list"], "and the presets"),
        (&["agent", "check"], "could be run here"),
        (&["provider", "list"], "what is paused of each"),
        (&["provider", "pause"], "Leave a provider alone"),
        (&["provider", "resume"], "End the pauses"),
        (&["config", "show"], "where it comes from"),
        (&["partitions"], "how many partitions"),
        (&["bench"], "how fast the queue is"),
    ];
    for (command, what) in says {
        let help = place.ok(&[command, &["--help"]].concat());
        assert!(help.contains(what) && help.contains("Usage: refile"), "{command:?}: {help}");
    }
    let help = place.ok(&["--help"]);
    assert!(help.contains("0 done, 1 failed, 2 wrong use, 3 done but something waits for a person"), "{help}");
    for command in help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty()) {
        let name = command.split_whitespace().next().unwrap();
        assert!(name == "help" || says.iter().any(|(c, _)| c.first() == Some(&name)), "{name} is not tested here");
    }
    place.fails(&["no-such-command"], 2, &["no-such-command", "--help"]);
    place.fails(&[], 2, &["Usage: refile"]);
}

#[test]
fn agents_and_presets_are_listed_and_checked() {
    let place = Desk::empty();
    place.write(
        "refile.toml",
        "[agents.mine]\npreset = \"claude\"\nmodel = \"m-1\"\nargs = [\"--max-turns\", \"9\"]\n[agents.plain]\ncommand = [\"sh\", \"x.sh\"]\n",
    );
    // A program of that name that says a version.
    place.write("bin/claude", "#!/bin/sh\necho 9.8.7 \"($DISABLE_AUTOUPDATER)\"\n");
    let program = place.path("bin/claude");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", place.path("bin").display());
    let json = |args: &[&str], key: Option<&str>| {
        let mut command = place.command(args);
        command.arg("--json").env("PATH", &path).env("HOME", place.dir.path());
        command.envs(key.map(|key| (key, "x")));
        let out = command.output().unwrap();
        (out.status.code(), serde_json::from_slice::<Value>(&out.stdout).unwrap())
    };
    let (status, listed) = json(&["agent", "list"], None);
    assert_eq!(status, Some(0));
    let mine = &listed["agents"][0];
    assert_eq!((&mine["name"], &mine["preset"], &mine["found"]), (&json!("mine"), &json!("claude"), &json!(true)));
    let words: Vec<&str> = mine["command"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    assert!(words.ends_with(&["--model", "m-1", "--max-turns", "9"]), "{words:?}");
    assert_eq!((&listed["agents"][1]["program"], &listed["agents"][1]["preset"]), (&json!("sh"), &Value::Null));
    let names: Vec<&str> = listed["presets"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["claude", "codex", "gemini", "aider", "opencode", "mini-swe-agent"]);

    let (status, checked) = json(&["agent", "check", "mine"], None);
    assert_eq!((status, &checked["version"], &checked["ready"]), (Some(1), &json!("9.8.7 (1)"), &json!(false)));
    let (status, checked) = json(&["agent", "check", "mine"], Some("CLAUDE_CODE_OAUTH_TOKEN"));
    assert_eq!((status, &checked["ready"]), (Some(0), &json!(true)), "{checked}");
    assert_eq!(checked["credentials"]["set"], json!(["CLAUDE_CODE_OAUTH_TOKEN"]));
    place.write(".codex/auth.json", "{}");
    let (status, checked) = json(&["agent", "check", "codex"], None);
    assert_eq!((status, &checked["credentials"]["login"]), (Some(1), &json!(".codex/auth.json")));
    assert!(checked["missing"][0].as_str().unwrap().contains("npm install -g @openai/codex"), "{checked}");
    let (status, checked) = json(&["agent", "check", "plain"], None);
    assert_eq!((status, &checked["found"]), (Some(1), &json!(false)));
    assert!(checked["missing"][0].as_str().unwrap().contains("the file `x.sh` is not there"), "{checked}");
    place.write("x.sh", "");
    assert_eq!(json(&["agent", "check", "plain"], None).0, Some(0));
    place.fails(&["agent", "check", "nobody"], 2, &["nobody", "agent list"]);
}

#[test]
fn a_provider_is_left_alone_and_called_again() {
    let providers = "[reviewers.judge]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m-1\"\nfallback_model = \"m-2\"\n\
                     [providers.p]\nkind = \"openai\"\n[providers.q]\nkind = \"ollama\"";
    let place = Desk::with("true", "echo APPROVE", providers);
    let listed = || place.json(&["provider", "list"]);
    assert_eq!(listed()[0], json!({"name": "p", "kind": "openai", "models": ["m-1", "m-2"], "pauses": []}));
    assert!(place.ok(&["provider", "list"]).contains("open"));

    assert!(place.ok(&["provider", "pause", "p", "--for", "2h", "--reason", "budget"]).contains("p is paused until 2"));
    assert_eq!(place.json(&["provider", "pause", "p", "--model", "m-1"]), json!({"name": "p", "state": "paused"}));
    let pauses = &listed()[0]["pauses"];
    let of = |n: usize, key: &str| pauses[n][key].clone();
    assert_eq!((of(0, "state"), of(0, "reason"), of(0, "model")), (json!("paused"), json!("ann: budget"), Value::Null));
    assert_eq!((of(1, "until"), of(1, "reason"), of(1, "model")), (Value::Null, json!("ann"), json!("m-1")));
    assert!(of(0, "until").as_u64().unwrap() > 0);
    let table = place.ok(&["provider", "list"]);
    assert!(table.contains("paused m-1") && table.contains("ann: budget"), "{table}");
    assert_eq!(listed()[1]["pauses"], json!([]));

    assert!(place.ok(&["provider", "resume", "p", "--model", "m-1"]).contains("1 pause ended"));
    assert!(place.ok(&["provider", "resume", "p"]).contains("1 pause ended"));
    assert_eq!(listed()[0]["pauses"], json!([]));
    place.fails(&["provider", "pause", "nobody"], 2, &["no provider `nobody`", "p, q"]);
    place.fails(&["provider", "resume", "nobody"], 2, &["no provider `nobody`"]);
    let (near, none) = ("did you mean `m-1`?", "there is: m-1, m-2");
    for (model, hint) in [("m-11", near), ("typo", none)] {
        for command in ["pause", "resume"] {
            let says = ["asks the provider `p`", model, hint];
            place.fails(&["provider", command, "p", "--model", model], 2, &says);
        }
    }
    assert_eq!(listed()[0]["pauses"], json!([]), "nothing that is refused is paused");
    place.ok(&["provider", "pause", "p", "--model", "m-2"]);
    place.ok(&["provider", "resume", "p"]);
    place.fails(&["provider", "pause", "p", "--for", "soon"], 2, &["soon"]);
}
