//! `refile bench` on real stores: small runs, whose figures must fit together. None of them says how fast a machine is.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use common::command::{Desk, command};
use common::redis::Redis;
use common::{processes, until};
use serde_json::Value;

const TASKS: &str = "200";

/// Runs a benchmark in a folder without a configuration.
#[track_caller]
fn bench(more: &[&str]) -> Value {
    let place = Desk::empty();
    let figures = place.json(&[&["bench", "--concurrency", "20"], more].concat());
    assert_eq!(place.dir.path().read_dir().unwrap().count(), 0, "nothing is left in the folder");
    figures
}

/// What every run must show.
#[track_caller]
fn assert_fits(figures: &Value, tasks: u64, code: u64) {
    let number = |of: &Value| of.as_f64().unwrap_or_else(|| panic!("{of} in {figures:#}"));
    assert_eq!(figures["tasks"], tasks);
    assert!(number(&figures["tasks_per_s"]) > 0.0);
    assert_eq!(figures["claims"]["code"], code, "{figures:#}");
    assert_eq!(figures["claims"]["review"], code, "{figures:#}");
    // Each task is submitted once; each review and each second attempt follows from an outcome.
    for (name, count) in [("submit_to_claim_ms", tasks), ("outcome_to_claim_ms", code + code - tasks)] {
        let of = &figures[name];
        assert_eq!(of["count"], count, "{name} in {figures:#}");
        let points: Vec<f64> = ["p50", "p90", "p99", "p99_9", "max"].iter().map(|p| number(&of[p])).collect();
        assert!(points[0] > 0.0 && points.is_sorted(), "{name}: {points:?}");
    }
}

/// What a server answers.
fn ask(server: &Redis, command: &str) -> String {
    let url = server.url();
    let mut stream = TcpStream::connect(url.trim_start_matches("redis://").trim_end_matches("/0")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "{command}\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_file_is_measured_in_one_process() {
    let figures = bench(&["--tasks", TASKS]);
    assert_fits(&figures, 200, 200);
    assert_eq!(figures["store"], "sqlite");
    let room = &figures["sqlite"];
    let of = |name: &str| room[name].as_f64().unwrap();
    // The description alone takes its 1,024 bytes.
    assert!(of("file_bytes_per_open_task") > 1_024.0, "{room}");
    assert!(of("file_bytes_per_finished_task") > of("file_bytes_per_open_task"), "{room}");
    assert!(figures["cpu_s_per_1000"]["process"].as_f64().unwrap() > 0.0);
    assert!(figures["limit_tasks_per_s"].is_null() && figures["redis"].is_null());
}

#[test]
fn rejected_attempts_are_made_again() {
    assert_fits(&bench(&["--tasks", TASKS, "--rejected", "0.5", "--workers", "2"]), 200, 300);
    assert_fits(&bench(&["--tasks", "100", "--rejected", "1"]), 100, 200);
}

#[test]
fn tasks_come_at_the_rate_that_is_asked_for() {
    let figures = bench(&["--tasks", "50", "--rate", "500"]);
    assert_fits(&figures, 50, 50);
    // The last task is due after 49/500 s: a run that took less did not keep to the rate.
    assert!(figures["seconds"].as_f64().unwrap() >= 0.098, "{figures:#}");
}

#[test]
fn a_server_is_measured_by_processes_and_left_as_it_was() {
    let server = Redis::start();
    let (place, url) = (Desk::new(), server.url());
    place.ok(&["submit", "Mine", "--store", &url]);
    let before = ask(&server, "DBSIZE");
    let figures = bench(&["--tasks", TASKS, "--rejected", "0.5", "--limit", "--store", &url]);
    assert_fits(&figures, 200, 300);
    assert_eq!(figures["store"], url);
    let of = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {figures:#}"));
    let ratio = of(&figures["tasks_per_s"]) / of(&figures["limit_tasks_per_s"]);
    assert!((of(&figures["ratio"]) - ratio).abs() < 1e-9, "{figures:#}");
    for part in ["coordinator", "workers", "submitter", "redis"] {
        assert!(of(&figures["cpu_s_per_1000"][part]) > 0.0, "{part}");
    }
    let redis = &figures["redis"];
    assert!(of(&redis["memory_bytes_per_open_task"]) > 1_024.0, "{redis}");
    assert!(of(&redis["aof_bytes_per_finished_task"]) > of(&redis["aof_bytes_per_open_task"]), "{redis}");
    assert!(of(&redis["aof_bytes_per_open_task"]) > 1_024.0, "{redis}");
    assert!(of(&redis["commands_per_task"]) > 0.0, "{redis}");
    assert!(of(&redis["inner_commands_per_task"]) > of(&redis["commands_per_task"]), "{redis}");

    assert_eq!(ask(&server, "KEYS refile-bench*"), "*0\r\n+OK\r\n");
    assert_eq!(ask(&server, "DBSIZE"), before);
    let tasks = place.json(&["task", "list", "--store", &url]);
    assert_eq!((tasks.as_array().unwrap().len(), &tasks[0]["state"]), (1, &"open".into()), "{tasks:#}");
}

#[test]
fn a_backlog_is_open_and_stays_where_the_keys_are_kept() {
    let server = Redis::start();
    let (place, url) = (Desk::empty(), server.url());
    let figures = bench(&["--tasks", TASKS, "--backlog", "300", "--keep", "--store", &url]);
    assert_fits(&figures, 200, 200);
    assert_eq!(figures["backlog"], 300);
    assert!(figures["redis"]["memory_bytes_per_open_task"].as_f64().unwrap() > 1_024.0, "{figures:#}");
    assert!(figures["redis"]["memory_bytes_per_finished_task"].is_null(), "{figures:#}");
    assert_fits(&bench(&["--tasks", TASKS, "--keep", "--store", &url]), 200, 200);
    assert!(ask(&server, "ZCARD refile-bench:{0}:delayed").starts_with(":300\r\n"));
    assert!(ask(&server, "HLEN refile-bench:{0}:records").starts_with(":700\r\n"));
    // The next one begins with nothing, and leaves nothing.
    assert_fits(&bench(&["--tasks", TASKS, "--store", &url]), 200, 200);
    assert_eq!(ask(&server, "DBSIZE"), ":0\r\n+OK\r\n");
    place.fails(&["bench", "--keep"], 2, &["--keep", "redis://"]);

    let figures = bench(&["--tasks", TASKS, "--backlog", "300"]);
    assert_fits(&figures, 200, 200);
    let claims = &figures["claim_ms"];
    assert!(claims["count"].as_u64().unwrap() > 0 && claims["p99"].as_f64().unwrap() > 0.0, "{figures:#}");
}

#[test]
fn what_a_run_that_was_killed_left_does_no_harm() {
    let server = Redis::start();
    let (place, url) = (Desk::empty(), server.url());
    let args = ["bench", "--tasks", "500", "--rate", "5", "--store", &url];
    let mut child = command(place.dir.path(), &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let parts = || children_of(pid);
    until("the run itself goes on", Duration::from_mins(1), || (parts().len() == 4).then_some(()));
    let parts = parts();
    place.fails(&["bench", "--tasks", "1", "--store", &url], 1, &["another benchmark runs on this server"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let runs = |pid: &i32| processes().iter().any(|p| p.pid == *pid && !p.is_dead);
    until("its processes end with it", Duration::from_secs(30), || (!parts.iter().any(runs)).then_some(()));
    assert_ne!(ask(&server, "KEYS refile-bench*"), "*0\r\n+OK\r\n", "it could not tidy up");

    assert_fits(&bench(&["--tasks", "50", "--store", &url]), 50, 50);
    assert_eq!(ask(&server, "DBSIZE"), ":0\r\n+OK\r\n");
}

#[test]
fn more_workers_are_more_processes() {
    let server = Redis::start();
    let place = Desk::empty();
    let args = ["bench", "--tasks", "300", "--rate", "100", "--workers", "2", "--json", "--store", &server.url()];
    let child = command(place.dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    // A coordinator, a submitter, and two workers of each kind.
    until("all of them run", Duration::from_mins(1), || (children_of(pid).len() == 6).then_some(()));
    let ran = common::command::ended(child.wait_with_output().unwrap()).must(0, &[]);
    assert_fits(&serde_json::from_str(&ran.out).unwrap(), 300, 300);
}

/// The processes that a process started.
fn children_of(pid: u32) -> Vec<i32> {
    let parent = |child: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    processes().into_iter().map(|p| p.pid).filter(|child| parent(child) == Some(pid)).collect()
}

#[test]
fn people_get_tables() {
    let place = Desk::empty();
    let said = place.ok(&["bench", "--tasks", "20"]);
    for words in
        ["20 tasks on sqlite", "tasks/s", "P99.9", "submit to claim", "outcome to next claim", "file while open"]
    {
        assert!(said.contains(words), "does not say {words:?}:\n{said}");
    }
}

#[test]
fn a_wrong_use_is_named() {
    let place = Desk::empty();
    place.write("fleet.db", "mine");
    for (args, says) in [
        (&["--tasks", "0"][..], "--tasks"),
        (&["--payload", "1"], "--payload"),
        (&["--workers", "0"], "--workers"),
        (&["--concurrency", "0"], "--concurrency"),
        (&["--rejected", "1.5"], "from 0 to 1"),
        (&["--rejected", "NaN"], "from 0 to 1"),
        (&["--rate", "0"], "from 0.1"),
        (&["--limit"], "--limit compares with bare Redis streams"),
        (&["--store", "sqlite:x.db", "--limit"], "--limit compares with bare Redis streams"),
        (&["--store", "http://u:secret@host/"], "is not a store"),
        (&["--store", "sqlite:"], "is not a store"),
        (&["--store", "sqlite:fleet.db"], "is there already"),
    ] {
        let ran = place.fails(&[&["bench"], args].concat(), 2, &[says]);
        assert!(!ran.err.contains("secret"), "{}", ran.err);
    }
    assert_eq!(std::fs::read_to_string(place.path("fleet.db")).unwrap(), "mine");
    place.fails(&["bench", "--store", "redis://127.0.0.1:1/0"], 1, &["does not answer"]);
    place.fails(&["bench", "--store", "sqlite:no/such/fleet.db"], 1, &["cannot make a folder in no/such"]);
}
