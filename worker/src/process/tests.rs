//! Real processes, their grandchildren included.

use super::*;

fn sh(script: &str, timeout: Duration) -> Command {
    Command::new(["sh", "-c", script], Path::new("/"), timeout)
}

const LONG: Duration = Duration::from_mins(1);

/// Whether the process is gone or only waits to be reaped.
fn is_dead(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn pid_in(file: &Path) -> i32 {
    let mut pid = None;
    eventually("the grandchild writes its pid", || {
        pid = std::fs::read_to_string(file).ok().filter(|t| t.ends_with('\n')).and_then(|t| t.trim().parse().ok());
        pid.is_some()
    })
    .await;
    pid.unwrap()
}

#[tokio::test]
async fn both_streams_and_the_code_come_back() {
    let done = run(&sh("echo out; echo err >&2; exit 3", LONG)).await.unwrap();
    assert_eq!(
        (done.exit, done.stdout_text().as_str(), done.stderr_text().as_str()),
        (Exit::Code(3), "out\n", "err\n")
    );
    assert_eq!(done.output.len(), 8);
    let done = run(&sh("kill -9 $$", LONG)).await.unwrap();
    assert_eq!(done.exit, Exit::Signal(9));
}

#[tokio::test]
async fn much_input_and_output_at_once_is_no_deadlock() {
    let mut command = Command::new(["cat"], Path::new("/"), LONG);
    command.stdin = vec![b'x'; 3 << 20];
    let done = run(&command).await.unwrap();
    assert_eq!((done.exit, done.stdout.len(), done.cut), (Exit::Code(0), 3 << 20, false));
    command.argv = vec!["true".into()];
    assert!(run(&command).await.unwrap().exit.is_ok());
}

#[tokio::test]
async fn an_output_is_kept_whole_in_a_file_without_secrets() {
    const NAME: &str = "CARGO_MANIFEST_DIR";
    let dir = tempfile::tempdir().unwrap();
    let whole = Whole::in_file(&dir.path().join("whole")).unwrap();
    let mut command = sh(&format!("seq 1 9; echo ${NAME}; seq 10 99999"), LONG);
    (command.limits, command.secrets) = (Limits { head: 10, tail: 5 }, Secrets::of(&[NAME.to_owned()]));
    (command.env, command.whole) = (environment(&[NAME.to_owned()]), Some(whole.clone()));
    assert!(run(&command).await.unwrap().cut);
    whole.note("a note\n");
    command.argv = ["printf", "no end of line"].map(OsString::from).to_vec();
    run(&command).await.unwrap();
    whole.note("another\n");
    let mut kept = String::new();
    std::io::Read::read_to_string(&mut whole.finish().unwrap(), &mut kept).unwrap();
    assert!(!kept.contains(env!("CARGO_MANIFEST_DIR")), "{kept:.100}");
    assert!(kept.starts_with("1\n2\n"), "{kept:.100}");
    assert!(kept.ends_with("\n99998\n99999\na note\nno end of line\nanother\n"));
    assert_eq!(kept.lines().filter(|line| line.parse::<u32>().is_ok()).count(), 99_999);
}

#[tokio::test]
async fn output_over_the_limit_is_said_to_be_cut() {
    let mut command = sh("head -c 100000 /dev/zero | tr '\\0' a; echo end", LONG);
    command.limits = Limits { head: 10, tail: 5 };
    let done = run(&command).await.unwrap();
    assert!(done.cut);
    assert_eq!(done.stdout_text(), "aaaaaaaaaa\n[... 99989 bytes left out ...]\naend\n");
}

#[tokio::test]
async fn a_grandchild_dies_when_the_run_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let script = format!("sh -c 'sleep 1000 & echo $! > {0}; wait' & wait", file.display());
    let command = sh(&script, LONG);
    let running = tokio::spawn(async move { run(&command).await });
    let pid = pid_in(&file).await;
    assert!(!is_dead(pid));
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    eventually("the grandchild dies", || is_dead(pid)).await;
}

#[tokio::test]
async fn a_grandchild_dies_when_the_time_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    // Both ignore SIGTERM.
    let script = format!("trap '' TERM; sleep 1000 & echo $! > {}; wait; sleep 1000", file.display());
    let done = run(&sh(&script, Duration::from_millis(500))).await.unwrap();
    assert_eq!(done.exit, Exit::TimedOut);
    let pid = pid_in(&file).await;
    eventually("the grandchild dies", || is_dead(pid)).await;
}

#[tokio::test]
async fn a_grandchild_dies_when_the_command_ends() {
    let done = run(&sh("sleep 1000 & echo $!", LONG)).await.unwrap();
    assert_eq!(done.exit, Exit::Code(0));
    let pid = done.stdout_text().trim().parse().unwrap();
    eventually("the grandchild dies", || is_dead(pid)).await;
}

#[tokio::test]
async fn only_the_named_variables_are_passed_on() {
    let done = run(&Command::new(["env"], Path::new("/"), LONG)).await.unwrap();
    for line in done.stdout_text().lines() {
        let name = line.split('=').next().unwrap();
        assert!(ALLOWED.contains(&name) || name.starts_with("LC_"), "{name}");
    }
    // Cargo sets this one for tests.
    let asked = ["CARGO_MANIFEST_DIR".to_owned(), "REFILE_STORE".to_owned()];
    assert!(environment(&asked).iter().any(|(name, _)| name == "CARGO_MANIFEST_DIR"));
    assert!(!environment(&[]).iter().any(|(name, _)| name == "CARGO_MANIFEST_DIR"));
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = run(&Command::new(["no-such-program"], Path::new("/"), LONG)).await.unwrap_err();
    assert!(matches!(&missing, ProcessError::NotFound(p) if p == "no-such-program"), "{missing}");
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "x").unwrap();
    let error = run(&Command::new([&plain], dir.path(), LONG)).await.unwrap_err();
    assert!(matches!(error, ProcessError::NotExecutable(_)), "{error}");
    let error = run(&Command::new(["true"], &dir.path().join("gone"), LONG)).await.unwrap_err();
    assert!(matches!(error, ProcessError::NoFolder { .. }), "{error}");
}

#[tokio::test]
async fn a_command_that_holds_locks_is_asked_to_end_and_may_tidy_up() {
    let dir = tempfile::tempdir().unwrap();
    let (pid, lock) = (dir.path().join("pid"), dir.path().join("lock"));
    let script = format!(
        // A shell tells of a child that was ended, and nobody would read it.
        "exec 2> /dev/null; touch {0}; trap 'rm {0}; exit 1' TERM; echo $$ > {1}; while :; do sleep 1; done",
        lock.display(),
        pid.display()
    );
    let command = Command { holds_locks: true, ..sh(&script, LONG) };
    let running = tokio::spawn(async move { run(&command).await });
    let leader = pid_in(&pid).await;
    assert!(lock.exists());
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    eventually("it takes its lock away", || !lock.exists()).await;
    eventually("it ends", || is_dead(leader)).await;
}

#[cfg(target_os = "linux")]
#[test]
fn the_environment_is_closed_to_processes_of_the_same_user() {
    probe::close_environment();
    assert!(!nix::sys::prctl::get_dumpable().unwrap());
}
