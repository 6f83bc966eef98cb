//! Ten small bugs in three languages, each in a repository of its own: some are fixed at once, some after a gate's word,
//! some after a judge's, one never. The fleet is the real binary, the judge a scripted model over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[allow(dead_code, unreachable_pub)]
#[path = "../../worker/tests/common/model.rs"]
mod model;
#[allow(dead_code, unreachable_pub)]
#[path = "../../worker/tests/common/tools.rs"]
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;

use axum::Router;
use axum::body::Bytes;
use common::command::Desk;
use common::git;
use common::redis::Redis;
use model::{End, Say, whole};
use refile_config::schema::ProviderKind;
use serde_json::{Value, json};

/// What the gate `test` demands.
const GATE: &str = "Fix the failing tests listed in the gate output";
/// The attempts that a task has.
const CAP: usize = 3;

/// A bug with its tests: a folder of `tests/bugs`.
struct Bug {
    name: String,
    title: String,
    /// When it is fixed: `at_once`, `gate`, `judge` or `never`.
    how: String,
    description: String,
    dir: PathBuf,
    /// What the judge turns down, what it then demands, and why.
    judge: Option<[String; 3]>,
}

impl Bug {
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bugs");
        let mut all: Vec<Self> = std::fs::read_dir(folder).unwrap().map(|e| Self::read(e.unwrap().path())).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn read(dir: PathBuf) -> Self {
        let text = std::fs::read_to_string(dir.join("bug.txt")).unwrap();
        let (head, description) = text.split_once("\n\n").unwrap();
        let field = |key: &str| head.lines().find_map(|l| l.strip_prefix(key)).unwrap().trim().to_owned();
        let judge = std::fs::read_to_string(dir.join("judge.txt")).ok();
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        Self {
            title: field("title:"),
            how: field("how:"),
            description: format!("{}\n\nBug: {name}\n", description.trim()),
            judge: judge.map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>().try_into().unwrap()),
            name,
            dir,
        }
    }

    /// The attempts that it takes.
    fn attempts(&self) -> usize {
        match self.how.as_str() {
            "at_once" => 1,
            "gate" | "judge" => 2,
            "never" => CAP,
            other => panic!("{}: {other}", self.name),
        }
    }

    /// What is demanded of each attempt after the first.
    fn demand(&self) -> &str {
        self.judge.as_ref().map_or(GATE, |[_, demand, _]| demand)
    }

    /// The file that an attempt changes, as it leaves it: what any coder that is scripted does.
    fn after(&self, attempt: usize) -> (String, String) {
        let patches = ["first.patch", "second.patch", "third.patch"].map(|name| self.dir.join(name));
        let patch = patches.get(attempt - 1).filter(|p| p.exists()).cloned();
        let patch = patch.unwrap_or_else(|| self.dir.join("fix.patch"));
        let text = std::fs::read_to_string(&patch).unwrap();
        let file = text.lines().find_map(|line| line.strip_prefix("+++ b/")).unwrap().to_owned();
        let place = tempfile::tempdir().unwrap();
        std::fs::copy(self.dir.join("source").join(&file), place.path().join(&file)).unwrap();
        git(place.path(), &["apply", patch.to_str().unwrap()]);
        let content = std::fs::read_to_string(place.path().join(&file)).unwrap();
        (file, content)
    }

    /// Its repository.
    fn repository(&self, place: &Desk) -> PathBuf {
        let (work, bare) = (place.path(&format!("work/{}", self.name)), place.path(&format!("{}.git", self.name)));
        std::fs::create_dir_all(&work).unwrap();
        for file in std::fs::read_dir(self.dir.join("source")).unwrap().flatten() {
            std::fs::copy(file.path(), work.join(file.file_name())).unwrap();
        }
        std::fs::write(work.join(".gitignore"), "__pycache__/\n").unwrap();
        git(&work, &["init", "--quiet", "--initial-branch=main"]);
        git(&work, &["add", "--all"]);
        git(&work, &["commit", "--quiet", "--message=A bug"]);
        git(place.dir.path(), &["clone", "--quiet", "--bare", work.to_str().unwrap(), bare.to_str().unwrap()]);
        bare
    }

    /// Whether its tests pass on the branch `main` of its repository.
    fn is_fixed(&self, place: &Desk) -> bool {
        let clone = tempfile::tempdir().unwrap();
        let bare = place.path(&format!("{}.git", self.name));
        git(clone.path(), &["clone", "--quiet", bare.to_str().unwrap(), "."]);
        Command::new("sh").arg("test.sh").current_dir(clone.path()).output().unwrap().status.success()
    }

    /// What the judge says to a request.
    fn verdict(&self, packet: &str) -> Value {
        let (_, rest) = packet.split_once("The diff has ").unwrap();
        let (files, rest) = rest.split_once(" file").unwrap();
        let (_, hash) = rest.split_once("; its hash is ").unwrap();
        let receipt = json!({ "files": files.parse::<u32>().unwrap(), "diff_hash": &hash[..12] });
        let adds = |bad: &str| packet.lines().any(|line| line.starts_with('+') && line.contains(bad));
        let mut said = match &self.judge {
            Some([bad, demand, why]) if adds(bad) => {
                json!({ "verdict": "needs_changes", "required_change": demand, "critique": why, "conf": 0.9 })
            }
            _ => json!({ "verdict": "approved", "required_change": "", "critique": "", "conf": 0.9 }),
        };
        said.as_object_mut().unwrap().extend(receipt.as_object().unwrap().clone());
        said
    }
}

/// What the coder's model does next: it looks, writes what this attempt leaves, runs the tests, and ends.
fn coding(bug: &Bug, talk: &[Value], prompt: &str) -> Say {
    let attempt = prompt.strip_prefix("## ATTEMPT #").map_or(1, |rest| rest[..1].parse().unwrap());
    let (file, content) = bug.after(attempt);
    let told: Vec<&str> = talk.iter().filter(|m| m["role"] == "tool").filter_map(|m| m["content"].as_str()).collect();
    let test = ("bash", json!({ "command": "sh test.sh" }));
    let calls = match told[..] {
        [] => vec![("read", json!({ "path": file })), test],
        [_, before] => {
            // What a gate turned down fails here, too; what a judge turned down does not.
            assert_eq!(before.contains("exit code 0"), bug.how == "judge" && attempt > 1, "{}: {before}", bug.name);
            vec![("write", json!({ "path": file, "content": content })), test]
        }
        [.., after] => {
            let is_right = attempt == bug.attempts() || bug.how == "judge";
            assert_eq!(after.contains("exit code 0"), is_right && bug.how != "never", "{}: {after}", bug.name);
            vec![("done", json!({ "summary": format!("{} in attempt {attempt}", bug.title) }))]
        }
    };
    tools::calls(ProviderKind::Openai, "", &calls)
}

/// A model that judges and codes by what it is shown; gives its address.
async fn scripted_model() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let answer = async |body: Bytes| {
        let asked: Value = serde_json::from_slice(&body).unwrap();
        let talk = asked["messages"].as_array().unwrap();
        let texts = talk.iter().filter(|m| m["role"] != "tool").filter_map(|m| m["content"].as_str());
        let packet = texts.clone().collect::<Vec<_>>().join("\n");
        let bug = Bug::all().into_iter().find(|bug| packet.contains(&format!("Bug: {}\n", bug.name))).unwrap();
        if asked.get("tools").is_none() {
            return whole(ProviderKind::Openai, &bug.verdict(&packet).to_string(), End::Said).to_string();
        }
        let prompt = talk.iter().find(|m| m["role"] == "user").unwrap()["content"].as_str().unwrap();
        let Say::Reply(200, _, said) = coding(&bug, talk, prompt) else { panic!("not a reply") };
        said
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    address
}

/// The built-in agent, whose model follows a script.
fn built_in_agent(_: &Desk, _: &[Bug]) -> String {
    "[agents.fixer]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"gpt-4.1\"\n".to_owned()
}

/// A command agent that leaves what each bug's attempts leave.
fn command_agent(place: &Desk, bugs: &[Bug]) -> String {
    for bug in bugs {
        for attempt in 1..=CAP {
            let (file, content) = bug.after(attempt);
            place.write(&format!("stage/{}/{attempt}/{file}", bug.name), &content);
        }
        place.write(&format!("stage/{}/demand", bug.name), bug.demand());
    }
    place.write("fixer.sh", include_str!("common/scripts/fixer.sh"));
    let stage = place.path("stage").display().to_string();
    let stage = Value::from(stage);
    format!("[agents.fixer]\ncommand = [\"sh\", \"fixer.sh\", {stage}]\nwritable = [{stage}]\n")
}

/// The whole fleet on all bugs, with the agent of this section.
async fn ten_bugs(store: Option<String>, agent: fn(&Desk, &[Bug]) -> String) {
    let (place, bugs) = (Desk::empty(), Bug::all());
    assert_eq!(bugs.len(), 10);
    let address = scripted_model().await;
    let store = store.unwrap_or_else(|| "sqlite:fleet.db".to_owned());
    let config = format!(
        "store = \"{store}\"\n[policy]\nbackoff = \"50ms\"\nmax_attempts = {CAP}\n{}\
         [reviewers.judge]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"gpt-4.1\"\n\
         [providers.p]\nkind = \"openai\"\nbase_url = \"{address}\"\n\
         [[gates]]\nname = \"test\"\nrun = \"sh test.sh\"\n",
        agent(&place, &bugs)
    );
    place.write("refile.toml", &config);
    let lines = bugs.iter().map(|bug| {
        let repository = bug.repository(&place);
        assert!(!bug.is_fixed(&place), "{}: its tests pass before it is fixed", bug.name);
        json!({ "title": bug.title, "description": bug.description, "repository": repository }).to_string() + "\n"
    });
    place.write("tasks.jsonl", &lines.collect::<String>());
    let submitted = place.json(&["submit", "--file", "tasks.jsonl"]);
    // One waits for a person in the end.
    place.run(&["up", "--drain"]).must(3, &[]);

    for (bug, task) in bugs.iter().zip(submitted.as_array().unwrap()) {
        let shown = place.json(&["task", "show", task["id"].as_str().unwrap()]);
        check(&place, bug, &shown);
    }
    let open = place.json(&["escalation", "list"]);
    assert_eq!(open.as_array().unwrap().len(), 1, "{open:#}");
    let wrong = std::fs::read_to_string(place.path("stage/wrong")).unwrap_or_default();
    assert!(wrong.is_empty(), "attempts were not led by what was demanded:\n{wrong}");
}

/// Holds that a bug's task went as it must.
#[track_caller]
fn check(place: &Desk, bug: &Bug, shown: &Value) {
    let attempts = shown["attempts"].as_array().unwrap();
    let (name, is_never) = (&bug.name, bug.how == "never");
    assert_eq!(attempts.len(), bug.attempts(), "{name}: {shown:#}");
    assert_eq!(shown["state"], if is_never { "escalated" } else { "merged" }, "{name}: {shown:#}");
    assert_eq!(bug.is_fixed(place), !is_never, "{name}");
    for (at, attempt) in attempts.iter().enumerate() {
        let prompt = attempt["prompt"].as_str().unwrap();
        let lead = format!(
            "## ATTEMPT #{} — previous attempt rejected\n\n**Required change**: {}\n**Reviewer critique**: ",
            at + 1,
            bug.demand()
        );
        assert_eq!(prompt.starts_with(&lead), at > 0, "{name}: {prompt}");
        assert!(prompt.ends_with(&bug.description), "{name}: {prompt}");
        let is_last = at + 1 == attempts.len();
        let demanded = if !is_last || is_never { bug.demand().into() } else { Value::Null };
        assert_eq!(attempt["required_change"], demanded, "{name}: {shown:#}");
        // The evidence: what the gate said, and what was thought of it.
        let gate = attempt["gates"].as_array().unwrap().iter().find(|g| g["name"] == "test").unwrap();
        let is_by_gate = is_never || (bug.how == "gate" && !is_last);
        assert_eq!(gate["passed"], !is_by_gate, "{name}: {shown:#}");
        assert!(!is_by_gate || gate["output"].as_str().unwrap().contains("exit code"), "{name}: {gate:#}");
        assert_eq!(attempt["reviews"].as_array().unwrap().len(), usize::from(!is_by_gate), "{name}: {shown:#}");
    }
    if let Some([_, _, why]) = &bug.judge {
        assert!(attempts[1]["prompt"].as_str().unwrap().contains(why), "{name}: {shown:#}");
    }
    if is_never {
        let escalation = &shown["escalations"][0];
        assert_eq!(escalation["reason"], "attempts_exhausted", "{shown:#}");
        let evidence = place.ok(&["escalation", "show", escalation["id"].as_str().unwrap()]);
        assert!(evidence.contains(GATE) && evidence.contains("test"), "{evidence}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_agent_fixes_ten_bugs_on_sqlite() {
    ten_bugs(None, command_agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_agent_fixes_ten_bugs_on_redis() {
    let server = Redis::start();
    ten_bugs(Some(server.url()), command_agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_built_in_agent_fixes_ten_bugs_on_sqlite() {
    ten_bugs(None, built_in_agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_built_in_agent_fixes_ten_bugs_on_redis() {
    let server = Redis::start();
    ten_bugs(Some(server.url()), built_in_agent).await;
}

/// Holds of each fixture what the runs above rely on: the attempts that a gate turns down fail the tests, the others pass.
#[test]
fn the_fixtures_are_what_they_say() {
    let mut counted = std::collections::BTreeMap::new();
    for bug in Bug::all() {
        *counted.entry(bug.how.clone()).or_insert(0) += 1;
        let seen: Vec<bool> = (1..=bug.attempts()).map(|attempt| passes(&bug, attempt)).collect();
        let expected = match bug.how.as_str() {
            "at_once" => vec![true],
            "gate" => vec![false, true],
            "judge" => vec![true, true],
            _ => vec![false; CAP],
        };
        assert_eq!(seen, expected, "{}", bug.name);
        assert_eq!(bug.judge.is_some(), bug.how == "judge", "{}", bug.name);
    }
    let counted: Vec<(&str, i32)> = counted.iter().map(|(how, n)| (how.as_str(), *n)).collect();
    assert_eq!(counted, [("at_once", 3), ("gate", 3), ("judge", 3), ("never", 1)]);
}

fn passes(bug: &Bug, attempt: usize) -> bool {
    let place = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(bug.dir.join("source")).unwrap().flatten() {
        std::fs::copy(file.path(), place.path().join(file.file_name())).unwrap();
    }
    let (file, content) = bug.after(attempt);
    std::fs::write(place.path().join(file), content).unwrap();
    Command::new("sh").arg("test.sh").current_dir(place.path()).output().unwrap().status.success()
}
