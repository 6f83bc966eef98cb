//! Agents, gates and reviewers in the sandbox, and what they try to get out of it.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use common::Place;
use common::fleet::{Try, artifacts, gate, task};
use refile_config::Span;
use refile_core::Outcome;
use refile_core::failure::{Failure, FailureKind};

/// The failure that a script of an agent amounts to.
async fn failure(place: &Place, attempt: &Try<'_>) -> Failure {
    match attempt.run(place, &task(place, "t1")).await {
        Outcome::AgentFailed { failure, .. } => failure,
        other => panic!("{other:?}"),
    }
}

/// Whether a process of this machine has the word in its command line.
fn runs(word: &str) -> bool {
    let of = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
    let line = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).split('\0').any(|argument| argument == word);
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| line(of(entry)))
}

fn gone_soon(word: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while runs(word) {
        assert!(Instant::now() < deadline, "a process with {word} lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn an_agent_sees_its_tree_and_the_system_and_nothing_else() {
    let place = Place::guarded("").await;
    let root = place.root.path();
    std::fs::create_dir_all(root.join(".refile")).unwrap();
    std::fs::write(root.join(".refile/fleet.db"), "the store").unwrap();
    let script = format!(
        "set -e\n\
         for hidden in refile.toml .refile/fleet.db bare.git origin work/mirrors/*/HEAD work/mirrors/*/config; do\n\
             for file in {0}/$hidden; do if [ -e \"$file\" ]; then echo \"sees $file\"; exit 1; fi; done\n\
         done\n\
         if touch {0}/work/x /usr/x /etc/x {0}/x 2> /dev/null; then echo writes; exit 1; fi\n\
         [ -z \"$(ls -A /tmp | grep -v -e '^\\.' -e \"$(echo {0} | cut -d/ -f3)\")\" ] || {{ echo \"/tmp: $(ls -A /tmp)\"; exit 1; }}\n\
         [ ! -e \"$HOME/.gitconfig\" ] && [ ! -e \"$HOME/.ssh\" ] || {{ echo home; exit 1; }}\n\
         [ \"$(ls -d /proc/[0-9]* | wc -l)\" -lt 12 ] || {{ echo processes; exit 1; }}\n\
         echo x > /tmp/mine; echo x > \"$HOME/mine\"\n\
         git log --oneline | grep -q 'change by hand'; git diff HEAD --quiet\n\
         cp \"$REFILE_PROMPT_FILE\" got.txt; ! echo x 2> /dev/null > \"$REFILE_PROMPT_FILE\"",
        root.display()
    );
    let attempt = Try::script(&script);
    let outcome = attempt.run(&place, &task(&place, "t1")).await;
    let Outcome::Coded { change, gates, .. } = outcome else { panic!("{outcome:?}") };
    assert!(gates.iter().all(|g| g.passed), "{gates:?}");
    assert_eq!(place.show(&format!("{}:got.txt", change.head)), "Do it well.");
    assert_eq!(std::fs::read_dir(place.workspace.dir().join("trees")).unwrap().count(), 0);
}

#[tokio::test]
async fn gates_have_no_network_and_agents_have_it_unless_told_otherwise() {
    let place = Place::guarded("").await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sees = format!("grep -q :{:04X} /proc/net/tcp", listener.local_addr().unwrap().port());
    let mut attempt = Try::script(&format!("{sees} && echo x > new.txt"));
    attempt.gates = vec![gate("closed", &format!("! {sees}")), gate("open", &sees)];
    attempt.gates[1].network = Some(true);
    attempt.change(&place, &task(&place, "t1")).await;
    let mut closed = Try::script(&format!("! {sees} && echo x > new.txt"));
    (closed.attempt, closed.agent.network) = (2, Some(false));
    closed.change(&place, &task(&place, "t1")).await;
}

#[tokio::test]
async fn what_the_configuration_names_can_be_read_and_written() {
    let place = Place::guarded("").await;
    let dir = place.root.path();
    std::fs::create_dir(dir.join("login")).unwrap();
    for (name, text) in [
        (
            "agent.sh",
            "cat /dev/stdin > /dev/null; cat helper.txt 2> /dev/null; cat \"$1\" > new.txt; echo b >> login/b",
        ),
        ("data.txt", "data\n"),
        ("login/a", "a\n"),
    ] {
        std::fs::write(dir.join(name), text.replace("login", &dir.join("login").display().to_string())).unwrap();
    }
    let mut attempt = Try::script("");
    attempt.agent.command = ["sh", "agent.sh", "data.txt"].map(str::to_owned).to_vec();
    attempt.agent.writable = vec!["login".to_owned()];
    let change = attempt.change(&place, &task(&place, "t1")).await;
    assert_eq!(place.show(&format!("{}:new.txt", change.head)), "data");
    assert_eq!(std::fs::read_to_string(dir.join("login/b")).unwrap(), "b\n");
    // A path that a prompt or the task names shows nothing.
    let mut asking = Try::script(&format!("test ! -e {}/data.'txt' && echo x > new.txt", dir.display()));
    asking.attempt = 2;
    asking.change(&place, &task(&place, "t1")).await;
}

/// A program is seen with all that was installed with it: a virtual environment, and the packages that npm installed.
#[tokio::test]
async fn a_program_is_seen_with_what_was_installed_with_it() {
    let place = Place::guarded("").await;
    let root = place.root.path();
    for (program, kept, marker) in [
        ("tools/node_modules/@maker/agent/bin/agent.sh", "tools/node_modules/other/lib.txt", None),
        ("python/bin/agent.sh", "python/lib/lib.txt", Some("python/pyvenv.cfg")),
    ] {
        for file in [program, kept].into_iter().chain(marker) {
            std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            std::fs::write(root.join(file), format!("#!/bin/sh\ncp {} new.txt\n", root.join(kept).display())).unwrap();
        }
        std::fs::set_permissions(root.join(program), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut attempt = Try::script("");
        attempt.agent.command = vec![root.join(program).display().to_string()];
        attempt.change(&place, &task(&place, &program.replace(['/', '@', '_', '.'], "-"))).await;
    }
}

#[tokio::test]
async fn an_agent_that_ignores_sigterm_dies_with_all_that_it_started() {
    let place = Place::guarded("").await;
    let mut attempt =
        Try::script("trap '' TERM; setsid sleep 98761.5 & sleep 98761.5 & touch new.txt; while :; do sleep 1; done");
    attempt.agent.timeout = Span::parse("1s").unwrap();
    assert_eq!(failure(&place, &attempt).await.kind, FailureKind::Timeout);
    gone_soon("98761.5");
    // Also what left the process group of an agent that ended well.
    let mut leaving = Try::script("setsid sleep 98762.5 > /dev/null 2>&1 & sleep 0.1; echo x > new.txt");
    leaving.attempt = 2;
    leaving.change(&place, &task(&place, "t1")).await;
    gone_soon("98762.5");
}

#[tokio::test]
async fn an_agent_that_forks_is_stopped_at_its_limit() {
    let place = Place::guarded("[limits.process]\nprocesses = 40\n").await;
    let script = "i=0; while [ $i -lt 200 ]; do sleep 98763.5 & i=$((i+1)); echo $i > made.txt; done";
    let outcome = Try::script(script).run(&place, &task(&place, "t1")).await;
    if place.guard("[limits.process]\nprocesses = 40\n").await.bounds().contains("NOT the number of processes") {
        // Root, whom no limit of the kernel's holds, and no control groups: then the end of the sandbox is what stops them, and
        // what was told at the start is true. `cli/tests/bad_agents.rs` does it as somebody else there.
        assert_eq!(std::fs::metadata("/proc/self").unwrap().uid(), 0, "only root is without a limit");
        let Outcome::Coded { change, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(place.show(&format!("{}:made.txt", change.head)), "200");
    } else {
        let Outcome::AgentFailed { failure, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(failure.kind, FailureKind::Crash);
        assert!(failure.detail.to_lowercase().contains("fork"), "{failure}");
    }
    gone_soon("98763.5");
}

#[tokio::test]
async fn limits_of_time_memory_and_files_hold() {
    let limits = "[limits.process]\ncpu = \"1s\"\nmemory_bytes = 100000000\nfile_bytes = 1048576\n";
    let place = Place::guarded(limits).await;
    let busy = failure(&place, &Try::script("while :; do :; done")).await;
    assert_eq!(busy.kind, FailureKind::Crash, "{busy}");
    let mut large = Try::script("head -c 2000000 /dev/zero > large");
    large.attempt = 2;
    assert_eq!(failure(&place, &large).await.kind, FailureKind::Crash);
    // `tail` keeps a line whole in memory.
    let mut hungry = Try::script("head -c 300000000 /dev/zero | tail -n 1 > /dev/null");
    hungry.attempt = 3;
    assert_eq!(failure(&place, &hungry).await.kind, FailureKind::Crash);
    let mut modest = Try::script("head -c 3000000 /dev/zero | tail -n 1 > /dev/null; echo x > new.txt");
    modest.attempt = 4;
    modest.change(&place, &task(&place, "t1")).await;
}

#[tokio::test]
async fn a_gigabyte_of_output_is_cut_and_said_to_be() {
    let place = Place::guarded("[limits.process]\noutput_bytes = 100000\n").await;
    let script = "echo begin; head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo end; echo y > new.txt";
    let outcome = Try::script(script).run(&place, &task(&place, "t1")).await;
    let Outcome::Coded { transcript, change, .. } = outcome else { panic!("{outcome:?}") };
    let log = artifacts(&place).get(&transcript.unwrap()).await.unwrap().unwrap();
    let log = String::from_utf8(log.to_vec()).unwrap();
    assert!(log.len() < 101_000 && log.starts_with("begin\nxx") && log.ends_with("xx\nend\n"), "{}", log.len());
    assert!(log.contains("999900011 bytes left out"), "{}", &log[19_900..20_100]);
    assert!(change.summary.ends_with("end"));
}

#[tokio::test]
async fn what_a_gate_prints_is_kept_and_not_in_memory() {
    let place = Place::guarded("[limits.process]\noutput_bytes = 100000\n").await;
    let run = "echo begin; head -c 200000000 /dev/zero | tr '\\0' x; echo; echo it failed; exit 1";
    let mut attempt = Try::script("echo y > new.txt");
    attempt.gates = vec![gate("test", run)];
    let outcome = attempt.run(&place, &task(&place, "t1")).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    let report = gates.last().unwrap();
    assert!(!report.passed && report.output.chars().count() <= 2_000, "{}", report.output.len());
    assert!(report.output.contains("it failed\n[the gate `test` ended with exit code 1]"), "{}", report.output);
    let (before, end) = artifacts(&place).get_end(report.log.as_ref().unwrap(), 100).await.unwrap().unwrap();
    let whole = "begin\n".len() + 200_000_000 + "\nit failed\n[the gate `test` ended with exit code 1]\n".len();
    assert_eq!((before, end.len()), (whole as u64 - 100, 100));
}

#[tokio::test]
async fn an_agent_may_ruin_its_own_repository_and_nothing_beside() {
    let place = Place::guarded("").await;
    let origin = place.root.path().join("origin");
    let script = format!(
        "rm -rf .git; echo x > new.txt; echo evil > {}/evil.txt; rm -rf {0}/.git ../*.side ../../mirrors; true",
        origin.display()
    );
    let change = Try::script(&script).change(&place, &task(&place, "t1")).await;
    assert_eq!(change.files, 1);
    assert_eq!(common::git(&origin, &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn a_program_that_is_missing_in_the_sandbox_is_named() {
    let place = Place::guarded("").await;
    let mut missing = Try::script("");
    missing.agent.command = vec!["no-such-agent".to_owned()];
    let why = failure(&place, &missing).await;
    assert_eq!(why.kind, FailureKind::Configuration);
    assert!(why.detail.contains("`no-such-agent` was not found"), "{why}");
    let mut gate_of = Try::script("echo x > new.txt");
    (gate_of.attempt, gate_of.gates) = (2, vec![gate("test", "no-such-program")]);
    assert_eq!(failure(&place, &gate_of).await.kind, FailureKind::Configuration);
}

#[tokio::test]
async fn what_an_agent_puts_into_its_home_is_not_there_for_the_gates() {
    let place = Place::guarded("").await;
    let mut attempt = Try::script(
        "mkdir -p \"$HOME/.cargo\"; for dir in \"$HOME/.cargo\" /tmp /var/tmp /dev/shm; do echo evil > \"$dir/config.toml\" || exit 1; done; \
         echo x > new.txt",
    );
    let sees = "for dir in \"$HOME/.cargo\" /tmp /var/tmp /dev/shm; do [ ! -e \"$dir/config.toml\" ] || { echo \"sees $dir\"; exit 1; }; done";
    // One gate may prepare what the next one needs.
    attempt.gates =
        vec![gate("clean", &format!("{sees}; echo made > \"$HOME/made\"")), gate("next", "cat \"$HOME/made\"")];
    attempt.change(&place, &task(&place, "t1")).await;
}

#[tokio::test]
async fn devices_are_no_place_to_keep_things_and_shared_memory_lies_on_the_disk() {
    let place = Place::guarded("").await;
    let disk = nix::sys::stat::stat(place.workspace.dir()).unwrap().st_dev;
    let script = format!(
        "for dir in /dev /dev/pts /dev/mqueue; do \
             if [ -d $dir ] && (echo x > $dir/mine) 2> /dev/null; then echo \"writes $dir\"; exit 1; fi; done\n\
         echo x > /dev/shm/mine && echo x > /dev/null || exit 1\n\
         [ \"$(stat -c %d /dev/shm)\" = {disk} ] || {{ echo \"memory: $(stat -c %d /dev/shm)\"; exit 1; }}\n\
         echo x > new.txt"
    );
    Try::script(&script).change(&place, &task(&place, "t1")).await;
}

#[tokio::test]
async fn of_etc_there_is_what_programs_look_up_and_nothing_private() {
    let place = Place::guarded("").await;
    // Whatever only root can read is not there, by whatever name.
    let script = "for file in passwd group nsswitch.conf; do [ -s /etc/$file ] || { echo \"no $file\"; exit 1; }; done\n\
        getent hosts localhost > /dev/null || { echo 'no localhost'; exit 1; }\n\
        for file in shadow sudoers ssh fstab environment machine-id init.d systemd redis postgresql cron.d; do \
            if cat /etc/$file/* /etc/$file > /dev/null 2>&1 || [ -e /etc/$file ]; then echo \"sees $file\"; exit 1; fi; done\n\
        echo x > new.txt";
    if nix::unistd::geteuid().is_root() {
        Try::script(script).change(&place, &task(&place, "t1")).await;
    } else {
        // Of any other worker it is what everybody may read.
        let plain = "if cat /etc/shadow > /dev/null 2>&1; then exit 1; fi; [ -s /etc/passwd ] && echo x > new.txt";
        Try::script(plain).change(&place, &task(&place, "t1")).await;
    }
}
