//! One fleet: a bare repository, a configuration with scripted agents, and the processes that work on it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{origin, processes, program, until};

/// How many lines of each log are shown when a test fails.
const TAIL: usize = 25;

/// A program of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Coordinator,
    Coder,
    Reviewer,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "refile-coordinator",
            Self::Coder => "refile-coder",
            Self::Reviewer => "refile-reviewer",
        }
    }
}

/// A process of the fleet, by its number in [`Place`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member(usize);

struct Running {
    role: Role,
    child: Child,
    log: PathBuf,
}

/// A fleet in a folder of its own. When it is dropped, every process of it is killed, agents included.
pub struct Place {
    root: tempfile::TempDir,
    store: String,
    /// Each worker has a folder of its own, as on a machine of its own.
    apart: bool,
    running: Vec<Running>,
}

impl Place {
    /// A place whose configuration begins with these settings. A `store` of nothing is a file in the folder.
    pub fn new(store: Option<&str>, policy: &str, workers: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        for folder in ["logs", "stage/prompts", "first/tasks"] {
            std::fs::create_dir_all(dir.join(folder)).unwrap();
        }
        std::fs::write(dir.join("agent.sh"), include_str!("scripts/agent.sh")).unwrap();
        std::fs::write(dir.join("review.sh"), include_str!("scripts/review.sh")).unwrap();
        std::fs::write(dir.join("first/common.txt"), "start\n").unwrap();
        std::fs::write(dir.join("first/tasks/.keep"), "").unwrap();
        origin(dir);
        let stage = dir.join("stage").display().to_string();
        let config = format!(
            "sandbox = \"off\"\n[repository]\nurl = \"origin.git\"\n\n\
             [policy]\nbackoff = \"200ms\"\n{policy}\n\n\
             [coordinator]\nlisten = \"127.0.0.1:0\"\ntakeover = \"2s\"\n\n\
             [workers]\n{workers}\n\n\
             [agents.scripted]\ncommand = [\"sh\", \"agent.sh\", \"{stage}\"]\ntimeout = \"5m\"\n\n\
             [reviewers.scripted]\ncommand = [\"sh\", \"review.sh\", \"{stage}\"]\ntimeout = \"1m\"\n\n\
             [[gates]]\nname = \"lint\"\nrun = \"if grep -rn BAD tasks; then exit 1; fi\"\n"
        );
        std::fs::write(dir.join("refile.toml"), config).unwrap();
        let store = store.map_or_else(|| format!("sqlite:{}", dir.join("fleet.db").display()), str::to_owned);
        Self { apart: store.starts_with("redis"), root, store, running: Vec::new() }
    }

    pub fn dir(&self) -> &Path {
        self.root.path()
    }

    /// The repository that the tasks are about.
    pub fn origin(&self) -> PathBuf {
        self.dir().join("origin.git")
    }

    /// Where agents and reviewers leave notes.
    pub fn stage(&self, name: &str) -> PathBuf {
        self.dir().join("stage").join(name)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(program(name));
        let passed = std::env::vars_os().filter(|(k, _)| !k.to_string_lossy().starts_with("REFILE_"));
        command.env_clear().envs(passed).current_dir(self.dir()).stdin(Stdio::null());
        command.env("FORGE_TOKEN", "forge-token-that-must-stay-secret");
        command.args(["--config", "refile.toml", "--store", &self.store]);
        command
    }

    /// Starts a process.
    pub fn start(&mut self, role: Role, more: &[&str]) -> Member {
        let number = self.running.len();
        let log = self.dir().join(format!("logs/{number}-{}.log", role.name()));
        let stderr = std::fs::File::create(&log).unwrap();
        let mut command = self.command(role.name());
        if self.apart {
            command.env("REFILE_WORKERS_DIR", self.dir().join(format!("work-{number}")));
        }
        let child = command.args(more).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        self.running.push(Running { role, child, log });
        Member(number)
    }

    pub fn pid(&self, member: Member) -> Pid {
        Pid::from_raw(i32::try_from(self.running[member.0].child.id()).unwrap())
    }

    pub fn signal(&self, member: Member, signal: Signal) {
        kill(self.pid(member), signal).unwrap();
    }

    /// Ends a process as a crash would.
    pub fn kill(&mut self, member: Member) {
        let child = &mut self.running[member.0].child;
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Kills a coder that has a job, and starts one in its place until such a moment was hit. Gives the one that was
    /// killed last; none is started in its place.
    #[track_caller]
    pub fn kill_at_work(&mut self, mut coder: Member) -> Member {
        for _ in 0..20 {
            until("the coder works", Duration::from_mins(1), || self.is_at_work(coder).then_some(()));
            self.kill(coder);
            if self.is_at_work(coder) {
                return coder;
            }
            coder = self.start(Role::Coder, &[]);
        }
        panic!("no coder could be killed at work");
    }

    /// Whether its log tells of more claims than reports.
    fn is_at_work(&self, member: Member) -> bool {
        self.said(member, "claimed") > self.said(member, "reported")
    }

    /// Whether it ended, and how.
    pub fn ended(&mut self, member: Member) -> Option<ExitStatus> {
        self.running[member.0].child.try_wait().unwrap()
    }

    /// The lines of its log so far.
    pub fn log(&self, member: Member) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.running[member.0].log).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// How often it logged a message that begins so.
    pub fn said(&self, member: Member, message: &str) -> usize {
        let is_it = |line: &&Value| line["message"].as_str().is_some_and(|m| m.starts_with(message));
        self.log(member).iter().filter(is_it).count()
    }

    /// The address that it said it serves on.
    #[track_caller]
    pub fn address(&self, member: Member) -> String {
        until("the process says where it serves", Duration::from_secs(30), || {
            self.log(member).iter().find_map(|line| Some(line["address"].as_str()?.to_owned()))
        })
    }

    /// Runs `refile … --json` and gives what it printed.
    #[track_caller]
    pub fn refile(&self, args: &[&str]) -> Value {
        let out = self.command("refile").arg("--json").args(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "refile {args:?}: {said}");
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// Submits a task of each kind, numbered from 1. Gives their ids in order.
    #[track_caller]
    pub fn submit(&self, kinds: &[&str]) -> Vec<String> {
        self.submit_from(1, kinds)
    }

    /// The same, numbered from another number.
    #[track_caller]
    pub fn submit_from(&self, first: usize, kinds: &[&str]) -> Vec<String> {
        let mut lines = String::new();
        for (i, kind) in kinds.iter().enumerate() {
            let number = format!("{:02}", first + i);
            let description = format!("Do what is to be done.\n\nNumber: {number}\nKind: {kind}\n");
            let _ = writeln!(lines, "{}", json!({ "title": format!("{kind} {number}"), "description": description }));
        }
        std::fs::write(self.dir().join("tasks.jsonl"), lines).unwrap();
        let submitted = self.refile(&["submit", "--file", "tasks.jsonl"]);
        let list = submitted.as_array().unwrap();
        assert!(list.len() == kinds.len() && list.iter().all(|s| s["added"] == true), "{list:?}");
        list.iter().map(|s| s["id"].as_str().unwrap().to_owned()).collect()
    }

    /// A task with all its evidence.
    #[track_caller]
    pub fn show(&self, id: &str) -> Value {
        self.refile(&["task", "show", id])
    }

    /// How many tasks there are in each state.
    #[track_caller]
    pub fn states(&self) -> BTreeMap<String, usize> {
        let mut states = BTreeMap::new();
        for task in self.refile(&["task", "list", "--limit", "1000"]).as_array().unwrap() {
            *states.entry(task["state"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        states
    }

    /// How many tasks are no longer open.
    #[track_caller]
    pub fn done(&self) -> usize {
        self.states().iter().filter(|(state, _)| *state != "open").map(|(_, n)| n).sum()
    }

    /// Waits until a task of the kind `hold` is held by its agent; gives the agent's process group.
    #[track_caller]
    pub fn held(&self, number: &str) -> i32 {
        until("the agent runs", Duration::from_secs(30), || {
            std::fs::read_to_string(self.stage(&format!("held-{number}"))).ok()?.trim().parse().ok()
        })
    }

    /// Lets a task of the kind `hold` go on.
    pub fn let_go(&self, number: &str) {
        std::fs::write(self.stage(&format!("go-{number}")), "").unwrap();
    }

    /// Holds that no agent found fault with its prompt.
    #[track_caller]
    pub fn assert_prompts_were_right(&self) {
        let wrong = std::fs::read_to_string(self.stage("wrong")).unwrap_or_default();
        assert!(wrong.is_empty(), "agents found fault with their prompts:\n{wrong}");
    }

    fn print_logs(&self) {
        for Running { role, child, log } in &self.running {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("--- {} {}: the end of its log", role.name(), child.id());
            for line in &lines[lines.len().saturating_sub(TAIL)..] {
                eprintln!("{line}");
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
        for Running { child, .. } in &mut self.running {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        // Agents and what they started stand in trees in this place; nobody else does.
        let Ok(root) = self.dir().canonicalize() else { return };
        for process in processes() {
            let is_here = std::fs::read_link(format!("/proc/{}/cwd", process.pid)).is_ok_and(|c| c.starts_with(&root));
            if is_here {
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
        }
    }
}
