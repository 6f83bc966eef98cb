//! Agents and repositories that misbehave, each through the whole loop: what is done about it, and the words that a person
//! reads. The fleet is the real binary, its commands are in the sandbox, which must work: `.ci/tools` installs it.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "bad_agents/disk.rs"]
mod disk;
#[path = "../../worker/tests/common/git_server.rs"]
mod git_server;

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use common::command::{Desk, Ran, ended};
use common::{git, until};
use git_server::Server;
use serde_json::Value;

/// Tries that a job has before a person is asked.
const TRIES: usize = 2;
/// What the gate of a change with nothing in it demands.
const EMPTY: &str = "Push actual file changes — the PR diff is empty";

/// A repository, an agent and a reviewer (both shell scripts), with small limits. `first` stands before the first section.
fn desk(agent: &str, reviewer: &str, first: &str, more: &str) -> Desk {
    let place = Desk::new();
    let quoted = |text: &str| Value::from(text).to_string();
    let (agent, reviewer) = (quoted(agent), quoted(reviewer));
    let config = format!(
        "{first}\n[policy]\nbackoff = \"50ms\"\nmax_attempts = 2\nmax_infra_failures = {TRIES}\nmax_land_failures = {TRIES}\n\
         [agents.fixer]\ncommand = [\"sh\", \"-c\", {agent}]\ntimeout = \"20s\"\n\
         [reviewers.strict]\ncommand = [\"sh\", \"-c\", {reviewer}]\n\
         [limits.process]\nprocesses = 40\noutput_bytes = 100000\n{more}\n"
    );
    place.write("refile.toml", &config);
    place
}

/// One whose commands are in the sandbox, with a reviewer that approves.
fn confined(agent: &str, more: &str) -> Desk {
    desk(agent, "echo APPROVE", "sandbox = \"required\"\n[repository]\nurl = \"repo\"", more)
}

/// A task that the fleet has worked on until nothing is left to do.
struct Done {
    task: String,
    shown: Value,
    up: Ran,
}

impl Done {
    fn of(place: &Desk) -> Self {
        let task = place.submit("Write new.txt");
        let up = place.run(&["up", "--drain"]);
        Self { shown: place.json(&["task", "show", &task]), task, up }
    }

    fn attempts(&self) -> &[Value] {
        self.shown["attempts"].as_array().unwrap()
    }

    /// Holds that it was merged in so many attempts.
    #[track_caller]
    fn merged(&self, attempts: usize) -> &Self {
        assert_eq!((&self.shown["state"], self.attempts().len()), (&"merged".into(), attempts), "{self}");
        assert_eq!(self.up.status, 0, "{self}");
        self
    }

    /// Holds that a person is asked in the attempt of this number for this reason, and that both commands say why.
    #[track_caller]
    fn escalated(&self, place: &Desk, attempts: usize, reason: &str, says: &[&str]) -> &Self {
        let open = &self.shown["escalations"][0];
        let found = (&self.shown["state"], self.attempts().len(), &open["reason"]);
        assert_eq!(found, (&"escalated".into(), attempts, &reason.into()), "{self}");
        assert_eq!(self.up.status, 3, "{self}");
        for command in ["escalation", "task"] {
            let words = place.ok(&[command, "show", &self.task]);
            for said in says {
                assert!(words.contains(said), "`{command} show` does not say {said:?}:\n{words}");
            }
        }
        self
    }

    /// Holds that its first attempt's agent failed so often, was not charged for it, and that the log tells each.
    #[track_caller]
    fn uncharged(&self, place: &Desk, says: &str) -> &Self {
        let log = place.ok(&["task", "log", &self.task]);
        let told = log.lines().filter(|line| line.contains("failed:") && line.contains(says));
        assert_eq!(told.count(), TRIES, "{says}: {log}");
        assert_eq!((self.attempts().len(), log.matches("not charged").count()), (1, TRIES), "{log}");
        self
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}\n{}", self.shown, self.up.err)
    }
}

/// Whether a process of this machine has the word in its command line.
fn runs(word: &str) -> bool {
    let line = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
    let has = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).split('\0').any(|argument| argument == word);
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| has(line(entry)))
}

#[track_caller]
fn gone_soon(word: &str) {
    until("the end of all that the agent started", Duration::from_secs(20), || (!runs(word)).then_some(()));
}

#[test]
fn one_that_prints_a_gigabyte_has_its_output_cut_and_its_change_taken() {
    let place = confined("echo begin; head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo end; echo y > new.txt", "");
    let done = Done::of(&place);
    done.merged(1);
    assert_eq!(place.git(&["show", "main:new.txt"]), "y");
    let log = place.ok(&["task", "log", &done.task, "--full"]);
    assert!(log.len() < 200_000 && log.contains("999900011 bytes left out"), "{} bytes", log.len());
}

#[test]
fn one_that_misses_a_file_in_the_sandbox_is_told_what_shows_more_to_it() {
    let script = "f=nothing.py; python3 $f";
    let place = confined(script, "");
    let done = Done::of(&place);
    let says = ["No such file or directory", "agents.fixer.readable = [\"PATH\"] shows it"];
    done.escalated(&place, 1, "coder_unavailable", &says).uncharged(&place, "No such file");
    // Where nothing is hidden, nothing is to be shown.
    let open = desk(script, "echo APPROVE", "sandbox = \"off\"\n[repository]\nurl = \"repo\"", "");
    let done = Done::of(&open);
    assert!(!done.shown.to_string().contains("readable"), "{done}");
}

/// Gives a folder to a user, with all that is in it.
fn give(path: &Path, user: u32) {
    chown(path, Some(user), Some(user)).unwrap();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), user);
        }
    }
}

#[test]
fn one_that_forks_up_to_its_limit_is_stopped_and_a_person_is_asked() {
    const NOBODY: u32 = 65_534;
    let script = "i=0; while [ $i -lt 200 ]; do sleep 98771.5 & i=$((i+1)); done; echo all 200; echo x > new.txt";
    let place = confined(script, "");
    let mut done = Done::of(&place);
    if done.up.err.contains("NOT the number of processes") {
        // Root, whom no limit holds, and no control groups: then as somebody else.
        let home = place.path("home");
        std::fs::remove_dir_all(place.path(".refile")).unwrap();
        std::fs::create_dir(&home).unwrap();
        give(place.dir.path(), NOBODY);
        let run = |args: &[&str]| {
            let mut command = place.command(args);
            ended(command.uid(NOBODY).gid(NOBODY).env("HOME", &home).output().unwrap())
        };
        let task = run(&["submit", "Write new.txt"]).must(0, &[]).out.trim().to_owned();
        let up = run(&["up", "--drain"]);
        let shown = serde_json::from_str(&run(&["task", "show", &task, "--json"]).must(0, &[]).out).unwrap();
        done = Done { task, shown, up };
    }
    done.escalated(&place, 1, "coder_unavailable", &["fork", "ended with exit code", "limits.process.processes"])
        .uncharged(&place, "ork");
    assert!(!place.ok(&["task", "log", &done.task, "--full"]).contains("all 200"));
    gone_soon("98771.5");
}

#[test]
fn one_that_ignores_sigterm_is_killed_with_all_that_it_started_and_a_person_is_asked() {
    let script = "trap '' TERM; setsid sleep 98772.5 & sleep 98772.5 & touch new.txt; while :; do sleep 1; done";
    let place = confined(script, "");
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    place.write("refile.toml", &config.replace("timeout = \"20s\"", "timeout = \"1s\""));
    let done = Done::of(&place);
    let says = ["was stopped since its time was up", "it had 1s", "agents.fixer.timeout"];
    done.escalated(&place, 1, "coder_unavailable", &says).uncharged(&place, "timeout");
    gone_soon("98772.5");
    assert!(!place.git(&["ls-tree", "--name-only", "main"]).contains("new.txt"));
}

#[test]
fn one_that_deletes_its_git_folder_has_its_change_taken() {
    let place = confined(
        "rm -rf .git; test ! -e .git && echo x > new.txt",
        "[[gates]]\nname = \"test\"\nrun = \"test -f new.txt\"\n",
    );
    Done::of(&place).merged(1);
    assert_eq!(place.git(&["show", "main:new.txt"]), "x");
    assert_eq!(place.git(&["status", "--porcelain"]), "");
}

#[test]
fn one_that_changes_nothing_is_told_so_and_then_a_person_is_asked() {
    let place = confined("true", "");
    let done = Done::of(&place);
    done.escalated(&place, 2, "attempts_exhausted", &[EMPTY]);
    assert_eq!(done.attempts()[0]["required_change"], EMPTY, "{done}");
    let prompt = done.attempts()[1]["prompt"].as_str().unwrap();
    assert!(
        prompt.starts_with(&format!("## ATTEMPT #2 — previous attempt rejected\n\n**Required change**: {EMPTY}\n"))
    );
    assert!(prompt.contains("the attempt changed no file that git keeps"), "{prompt}");
    // One that takes the hint lands.
    let place = confined("grep -q 'diff is empty' && echo x > new.txt; true", "");
    let done = Done::of(&place);
    assert_eq!(done.merged(2).attempts()[0]["required_change"], EMPTY);
}

#[test]
fn one_that_writes_outside_of_its_tree_reaches_nothing_there() {
    let victims = tempfile::tempdir().unwrap();
    let out = victims.path().display();
    let place = confined("", "");
    let (root, config) = (place.dir.path().display(), std::fs::read_to_string(place.path("refile.toml")).unwrap());
    let script = format!(
        "for place in {out} {root} {root}/repo {root}/repo/.git {root}/.refile /usr/bin /etc ..; do \
         echo evil 2> /dev/null > $place/evil.txt; done; cd {root}/.refile && rm -rf ../repo/.git fleet.db* artifacts work/mirrors; cd - > /dev/null; rm -rf ../*.side; \
         ln -s {root} out; rm out; echo x > new.txt"
    );
    place.write("refile.toml", &config.replace("\"-c\", \"\"]", &format!("\"-c\", {}]", Value::from(script))));
    let done = Done::of(&place);
    done.merged(1);
    assert_eq!(place.git(&["show", "--name-only", "--format=", "main"]), "new.txt", "{done}");
    for left in
        [victims.path(), place.dir.path(), &place.path("repo"), &place.path("repo/.git"), &place.path(".refile")]
    {
        assert!(!left.join("evil.txt").exists(), "{}", left.display());
    }
    assert!(!Path::new("/usr/bin/evil.txt").exists() && !Path::new("/etc/evil.txt").exists());
    // A link that leads out is not let in, and the next attempt is told which.
    let place = confined(&format!("ln -sfn {out} out; echo x > new.txt"), "");
    let done = Done::of(&place);
    assert_eq!(done.attempts().len(), 2, "{done}");
    let demand = done.attempts()[0]["required_change"].as_str().unwrap();
    assert!(demand.contains("out"), "{demand}");
}

#[test]
fn a_repository_without_commits_is_said_at_submit_and_where_it_becomes_one_a_person_is_asked() {
    let place = confined("echo x > new.txt", "");
    let task = place.submit("Write new.txt");
    std::fs::remove_dir_all(place.path("repo")).unwrap();
    std::fs::create_dir(place.path("repo")).unwrap();
    place.git(&["init", "--quiet", "--initial-branch=main"]);
    let says = ["has no branches at all", "commit something there first"];
    place.fails(&["submit", "y"], 2, &says).must(2, &["nothing was submitted"]);
    let up = place.run(&["up", "--drain"]);
    let done = Done { shown: place.json(&["task", "show", &task]), task, up };
    done.escalated(&place, 1, "coder_unavailable", &says).uncharged(&place, "has no branches at all");
    // Nobody has to submit it again.
    place.write("repo/README.md", "A repository\n");
    place.git(&["add", "--all"]);
    place.git(&["commit", "--quiet", "--message=Start"]);
    place.ok(&["escalation", "retry", &done.task]);
    place.run(&["up", "--drain"]).must(0, &[]);
    assert_eq!(place.git(&["show", "main:new.txt"]), "x");
}

#[test]
fn a_protected_branch_is_told_to_a_person_who_lands_the_same_change_later() {
    let place = confined("echo x > new.txt", "");
    let hook = place.path("repo/.git/hooks/pre-receive");
    let script = "#!/bin/sh\nwhile read old new ref; do case $ref in refs/heads/main) \
                  echo 'main is protected: open a pull request' >&2; exit 1;; esac; done\n";
    place.write("repo/.git/hooks/pre-receive", script);
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let done = Done::of(&place);
    let tried = format!("approved and could not be landed in {TRIES} tries");
    let says = [tried.as_str(), "main is protected: open a pull request", "let this worker push to the branch"];
    done.escalated(&place, 1, "landing_failed", &says);
    std::fs::remove_file(hook).unwrap();
    place.ok(&["escalation", "retry", &done.task]);
    place.run(&["up", "--drain"]).must(0, &[]);
    let shown = place.json(&["task", "show", &done.task]);
    assert_eq!((&shown["state"], shown["attempts"].as_array().unwrap().len()), (&"merged".into(), 1), "{shown:#}");
}

/// A bare copy of the repository, beside it.
fn bare(place: &Desk) -> std::path::PathBuf {
    git(place.dir.path(), &["clone", "--quiet", "--bare", "repo", "bare.git"]);
    place.path("bare.git")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_expires_is_told_to_a_person_and_nobody_is_charged() {
    let place = confined("echo x > new.txt", "");
    let (server, url) = Server::start(&bare(&place)).await;
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    let url = url.replace("http://", "http://bot:hunter2@");
    place.write("refile.toml", &config.replace("url = \"repo\"", &format!("url = \"{url}\"")));
    let task = place.submit("Write new.txt");
    // It may read and not write: the change cannot be handed over.
    for (service, says) in [("git-upload-pack", "upload-pack"), ("git-receive-pack", "receive-pack")] {
        server.deny(401, service);
        let up = place.run(&["up", "--drain"]);
        let done = Done { shown: place.json(&["task", "show", &task]), task: task.clone(), up };
        assert!(!format!("{done}").contains("hunter2"), "{done}");
        assert_eq!((&done.shown["state"], done.attempts().len()), (&"escalated".into(), 1), "{says}: {done}");
        let open = done.shown["escalations"].as_array().unwrap().last().unwrap();
        assert_eq!(open["reason"], "coder_unavailable", "{done}");
        let words = place.ok(&["escalation", "show", &task]);
        for said in ["does not let this worker in", "has expired", "in the repository's address"] {
            assert!(words.contains(said), "{words}");
        }
        place.ok(&["escalation", "retry", &task]);
    }
    server.deny(401, "git-upload-pack");
    place.fails(
        &["submit", "z"],
        2,
        &["does not let this worker in", "in the repository's address", "nothing was submitted"],
    );
    server.let_in();
    place.run(&["up", "--drain"]).must(0, &[]);
    assert_eq!(place.json(&["task", "show", &task])["state"], "merged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_the_environment_that_is_turned_away_is_named() {
    let place = confined("echo x > new.txt", "[land]\nstrategy = \"pull_request\"\n");
    let (server, url) = Server::start(&bare(&place)).await;
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    let forge = url.rsplit_once('/').unwrap().0;
    let section = format!(
        "[forge]\nkind = \"gitea\"\nbase_url = \"{forge}\"\nproject = \"ann/x\"\ntoken_env = \"FLEET_TOKEN\"\n"
    );
    place.write("refile.toml", &format!("{}{section}", config.replace("url = \"repo\"", &format!("url = \"{url}\""))));
    let submit = || ended(place.command(&["submit", "x"]).env("FLEET_TOKEN", "s3cret").output().unwrap());
    for status in [401, 403, 404] {
        server.deny(status, "git-upload-pack");
        let ran = submit().must(2, &["$FLEET_TOKEN", "nothing was submitted"]);
        assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
        let is_hidden = status == 404;
        assert_eq!(ran.err.contains("let the token in $FLEET_TOKEN see it"), is_hidden, "{ran:?}");
        assert_eq!(ran.err.contains("put a new one into $FLEET_TOKEN"), !is_hidden, "{ran:?}");
        assert!(!ran.err.contains("git init"), "{ran:?}");
    }
    server.let_in();
    submit().must(0, &[]);
}

/// The fleet on a base branch that loses its last commit while a change is reviewed. Without a sandbox, since it is the
/// reviewer that takes it away.
fn forced_back(agent: &str, gate: &str) -> (Desk, Done) {
    let place = desk(agent, "", "sandbox = \"off\"\n[repository]\nurl = \"bare.git\"", "[[gates]]\nname = \"test\"\n");
    let kept = place.git(&["rev-parse", "main"]);
    place.write("repo/helper.txt", "it helps\n");
    place.git(&["add", "--all"]);
    place.git(&["commit", "--quiet", "--message=A helper"]);
    let bare = bare(&place);
    let reviewer = format!("git --git-dir={} update-ref refs/heads/main {kept}; echo APPROVE", bare.display());
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    let config = config.replace("\"-c\", \"\"]", &format!("\"-c\", {}]", Value::from(reviewer)));
    let gate = format!("echo \"$REFILE_BASE\" >> {}; {gate}", place.path("bases").display());
    place.write("refile.toml", &format!("{config}run = {}\n", Value::from(gate)));
    let done = Done::of(&place);
    // The gates ran on the tree that the change makes with what the base is now.
    assert!(std::fs::read_to_string(place.path("bases")).unwrap().contains(&kept), "{done}");
    (place, done)
}

#[test]
fn a_base_that_was_forced_back_is_gated_again_and_gets_the_change_alone() {
    let (place, done) = forced_back("echo x > new.txt", "test -f new.txt");
    done.merged(1);
    let files = git(&place.path("bare.git"), &["ls-tree", "--name-only", "main"]);
    assert_eq!(files, "README.md\nnew.txt", "what the base lost does not come back");
}

#[test]
fn a_change_that_fails_on_a_base_that_was_forced_back_goes_back_to_its_coder() {
    let agent = "echo x > new.txt; [ $REFILE_ATTEMPT = 1 ] || echo mine > helper.txt";
    let (place, done) = forced_back(agent, "test -f helper.txt || { echo 'no helper.txt'; exit 1; }");
    done.merged(2);
    let demand = "Fix the failing tests listed in the gate output";
    assert_eq!(done.attempts()[0]["required_change"], demand, "{done}");
    let prompt = done.attempts()[1]["prompt"].as_str().unwrap();
    assert!(prompt.contains(demand) && prompt.contains("no helper.txt"), "{prompt}");
    assert_eq!(git(&place.path("bare.git"), &["show", "main:helper.txt"]), "mine");
    let log = place.ok(&["task", "log", &done.task]);
    assert!(log.contains(demand), "{log}");
}

/// A gate whose program is missing until somebody installs it, behind a shell that is there.
#[test]
fn an_agent_is_paid_once_however_often_its_gate_cannot_run() {
    let place =
        desk("", "echo APPROVE", "sandbox = \"off\"\n[repository]\nurl = \"repo\"", "[[gates]]\nname = \"test\"\n");
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    let agent = format!("echo paid >> {}; echo x > new.txt", place.path("paid").display());
    let config = config.replace("\"-c\", \"\"]", &format!("\"-c\", {}]", Value::from(agent)));
    let (tool, ran) = (place.path("tool").display().to_string(), place.path("ran").display().to_string());
    place.write("refile.toml", &format!("{config}run = \"true && {tool} && echo ran >> {ran}\"\n"));
    let paid = || std::fs::read_to_string(place.path("paid")).unwrap().lines().count();
    let done = Done::of(&place);
    let says = ["the gate `test` cannot run", "tool", "install what it needs", "what the agent left is kept"];
    done.escalated(&place, 1, "coder_unavailable", &says).uncharged(&place, "cannot run");
    assert_eq!(paid(), 1, "{done}");
    assert!(place.ok(&["task", "diff", &done.task]).contains("+x"));
    std::os::unix::fs::symlink("/bin/true", place.path("tool")).unwrap();
    place.ok(&["escalation", "retry", &done.task]);
    place.run(&["up", "--drain"]).must(0, &[]);
    let shown = place.json(&["task", "show", &done.task]);
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!((&shown["state"], attempts.len(), paid()), (&"merged".into(), 1, 1), "{shown:#}");
    // On the attempt, and before the landing.
    assert_eq!(std::fs::read_to_string(place.path("ran")).unwrap(), "ran\nran\n");
    assert!(place.ok(&["task", "log", &done.task, "--full"]).contains("transcript"));
}

/// The base does not move: what passed in the agent's tree is tried once more without what git ignores.
#[test]
fn one_whose_change_needs_what_git_ignores_does_not_land_and_is_told_why() {
    let agent =
        "mkdir -p deps; echo lib > deps/lib.txt; echo x > new.txt; ! grep -q 'fresh checkout' || rm -f .gitignore";
    let place = confined(agent, "[[gates]]\nname = \"test\"\nrun = \"cat deps/lib.txt\"\n");
    place.write("repo/.gitignore", "deps/\n");
    place.git(&["add", "--all"]);
    place.git(&["commit", "--quiet", "--message=Ignore what is installed"]);
    let done = Done::of(&place);
    done.merged(2);
    let first = &done.attempts()[0];
    let demand = "Fix the failing tests listed in the gate output";
    assert_eq!((&first["outcome"], &first["required_change"]), (&"landing_rejected".into(), &demand.into()), "{done}");
    let prompt = done.attempts()[1]["prompt"].as_str().unwrap();
    for said in [demand, "deps/lib.txt", "the gate `test` ran on a fresh checkout, without the ignored files"] {
        assert!(prompt.contains(said), "{prompt}");
    }
    // A clean clone passes.
    git(place.dir.path(), &["clone", "--quiet", "repo", "clone"]);
    assert_eq!(std::fs::read_to_string(place.path("clone/deps/lib.txt")).unwrap(), "lib\n");
}

#[test]
fn an_agent_is_paid_once_however_often_its_branch_is_refused() {
    let first = "sandbox = \"off\"\n[repository]\nurl = \"repo\"";
    let place = desk("", "echo APPROVE", first, "");
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    let agent = format!("echo paid >> {}; echo x > new.txt", place.path("paid").display());
    place.write("refile.toml", &config.replace("\"-c\", \"\"]", &format!("\"-c\", {}]", Value::from(agent))));
    let hook = place.path("repo/.git/hooks/pre-receive");
    place.write("repo/.git/hooks/pre-receive", "#!/bin/sh\nexit 1\n");
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let paid = || std::fs::read_to_string(place.path("paid")).unwrap().lines().count();
    let done = Done::of(&place);
    done.escalated(&place, 1, "coder_unavailable", &["let this worker push", "what the agent left is kept"]);
    assert_eq!(paid(), 1, "{done}");
    std::fs::remove_file(hook).unwrap();
    place.ok(&["escalation", "retry", &done.task]);
    place.run(&["up", "--drain"]).must(0, &[]);
    assert_eq!((&place.json(&["task", "show", &done.task])["state"], paid()), (&"merged".into(), 1));
}
