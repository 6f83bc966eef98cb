//! A whole fleet in a folder of its own, with a forge that speaks the three wire formats and a real repository behind it.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../shared/forge/tests/fake/mod.rs"]
pub mod fake;

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use fake::{Fake, PROJECT, TOKEN};
use refile_config::ForgeKind;
use serde_json::Value;

use crate::common::{git, origin, program, until};

pub const DEADLINE: Duration = Duration::from_mins(1);
pub const SECRET: &str = "secret-of-the-webhooks";

/// A fleet, its repository and the forge on which that lies.
pub struct Story {
    pub root: tempfile::TempDir,
    pub fake: Fake,
    pub running: Vec<(Child, PathBuf)>,
}

impl Story {
    /// `more` is configuration: keys of `[policy]`, then of `[land]`, then of `[forge]`.
    pub fn new(kind: ForgeKind, policy: &str, land: &str, forge: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        std::fs::create_dir(dir.join("first")).unwrap();
        std::fs::write(dir.join("first/a.txt"), "a\n").unwrap();
        origin(dir);
        let fake = Fake::start(kind, &dir.join("origin.git"));
        let config = format!(
            "[repository]\nurl = \"origin.git\"\n\
             [policy]\nbackoff = \"100ms\"\nmax_backoff = \"300ms\"\n{policy}\n\
             [coordinator]\nlisten = \"127.0.0.1:0\"\n\
             [agents.fixer]\ncommand = [\"sh\", \"-c\", \"cat > work.txt\"]\n\
             [reviewers.strict]\ncommand = [\"sh\", \"-c\", \"echo APPROVE\"]\n\
             [land]\nstrategy = \"pull_request\"\n{land}\n\
             [forge]\nkind = \"{}\"\nbase_url = \"{}\"\nproject = \"{PROJECT}\"\ntoken_env = \"FORGE_TOKEN\"\n{forge}\n",
            kind.as_str(),
            fake.url
        );
        std::fs::write(dir.join("refile.toml"), config).unwrap();
        Self { root, fake, running: Vec::new() }
    }

    pub fn dir(&self) -> &Path {
        self.root.path()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program("refile"));
        let passed = std::env::vars_os().filter(|(k, _)| !k.to_string_lossy().starts_with("REFILE_"));
        command.env_clear().envs(passed).env("FORGE_TOKEN", TOKEN).env("REFILE_WEBHOOK_SECRET", SECRET);
        command.current_dir(self.dir()).stdin(Stdio::null()).args(["--config", "refile.toml"]).args(args);
        command
    }

    pub fn json(&self, args: &[&str]) -> Value {
        let out = self.command(&["--json"]).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// Starts a fleet of all parts.
    pub fn up(&mut self) -> usize {
        let log = self.dir().join(format!("log-{}", self.running.len()));
        let stderr = std::fs::File::create(&log).unwrap();
        let child = self.command(&["up"]).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        self.running.push((child, log));
        self.running.len() - 1
    }

    /// Puts other words into the configuration.
    pub fn configure(&self, old: &str, new: &str) {
        let file = self.dir().join("refile.toml");
        let config = std::fs::read_to_string(&file).unwrap();
        assert!(config.contains(old), "{config}");
        std::fs::write(&file, config.replace(old, new)).unwrap();
    }

    /// Ends a fleet as a crash would.
    pub fn kill(&mut self, fleet: usize) {
        let child = &mut self.running[fleet].0;
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks a fleet to end, and waits for it: then nobody takes it for one that still lives.
    pub fn stop(&mut self, fleet: usize) {
        let child = &mut self.running[fleet].0;
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        child.wait().unwrap();
    }

    pub fn log(&self, fleet: usize) -> String {
        std::fs::read_to_string(&self.running[fleet].1).unwrap()
    }

    pub fn address(&self, fleet: usize) -> String {
        until("the fleet says where it serves", DEADLINE, || {
            let log = self.log(fleet);
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.find_map(|line| Some(line["address"].as_str()?.to_owned()))
        })
    }

    pub fn submit(&self, title: &str) -> String {
        let added = self.json(&["submit", title, "-d", "Write the prompt into work.txt."]);
        let one = if added.is_array() { added[0].clone() } else { added };
        one["id"].as_str().unwrap().to_owned()
    }

    pub fn show(&self, id: &str) -> Value {
        self.json(&["task", "show", id])
    }

    /// Waits until the task's pull request waits for people; gives its number and head.
    pub fn proposed(&self, id: &str, attempt: u64) -> (u64, String) {
        until("the pull request waits", DEADLINE, || {
            let pull_request = self.show(id)["pull_request"].clone();
            let waits = pull_request["waits"] == true && pull_request["attempt"] == attempt;
            waits.then(|| (pull_request["number"].as_u64().unwrap(), pull_request["head"].as_str().unwrap().to_owned()))
        })
    }

    pub fn ended(&self, id: &str, state: &str) -> Value {
        until(&format!("the task is {state}"), DEADLINE, || {
            let task = self.show(id);
            (task["state"] == state).then_some(task)
        })
    }

    pub fn branches(&self) -> String {
        git(&self.dir().join("origin.git"), &["for-each-ref", "--format=%(refname:short)", "refs/heads"])
    }

    /// Holds that the token is nowhere that anybody reads.
    pub fn assert_nothing_leaked(&self) {
        let mut folders = vec![self.dir().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    let bytes = std::fs::read(entry.path()).unwrap_or_default();
                    let holds = |secret: &str| bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
                    let basic = BASE64_STANDARD.encode(format!("x-access-token:{TOKEN}"));
                    let is_clean = [TOKEN, SECRET, &basic].iter().all(|secret| !holds(secret));
                    assert!(is_clean, "{} holds a secret", entry.path().display());
                }
            }
        }
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        for (child, log) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let text = std::fs::read_to_string(log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                eprintln!("--- the end of a log\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
            }
        }
        if std::thread::panicking() {
            eprintln!("--- what the forge was asked: {:#?}", self.fake.world().requests);
        }
    }
}

/// Sends a webhook and gives the status.
pub fn webhook(address: &str, path: &str, headers: &[(&str, String)], body: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: forge.example\r\nconnection: close\r\n");
    for (name, value) in headers {
        let _ = write!(request, "{name}: {value}\r\n");
    }
    let _ = write!(request, "content-length: {}\r\n\r\n{body}", body.len());
    // A body that is refused for its length may not be read to its end.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

pub fn signature(secret: &str, body: &str) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    let tag = ring::hmac::sign(&key, body.as_bytes());
    tag.as_ref().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
