//! The whole fleet with agents that are no mere commands: the built-in one, and one that speaks the Agent Client Protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[allow(dead_code, unreachable_pub)]
#[path = "../../worker/tests/common/model.rs"]
mod model;
#[allow(dead_code, unreachable_pub)]
#[path = "../../worker/tests/common/tools.rs"]
mod tools;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::command::Desk;
use model::{End, Model, Say};
use refile_config::schema::ProviderKind;
use serde_json::{Value, json};

const KIND: ProviderKind = ProviderKind::Openai;

/// A repository with a bug that a test shows, a gate that runs the test, and this agent.
fn desk(agent: &str) -> Desk {
    let place = Desk::new();
    let config = format!(
        "[repository]\nurl = \"repo\"\n[policy]\nbackoff = \"50ms\"\n{agent}\n\
         [reviewers.strict]\ncommand = [\"sh\", \"-c\", \"echo APPROVE\"]\n\
         [[gates]]\nname = \"test\"\nrun = \"sh test.sh\"\n"
    );
    place.write("refile.toml", &config);
    place.write("repo/add.sh", "echo $(($1 - $2))\n");
    place.write("repo/test.sh", "test \"$(sh add.sh 2 3)\" = 5 || { echo '2 + 3 is not 5'; exit 1; }\n");
    place.git(&["add", "--all"]);
    place.git(&["commit", "--quiet", "--message=A bug"]);
    place
}

fn call(name: &str, arguments: Value) -> Say {
    tools::call(KIND, name, arguments)
}

fn edit(old: &str, new: &str) -> Say {
    call("edit", json!({"path": "add.sh", "old": old, "new": new}))
}

fn done() -> Say {
    call("done", json!({"summary": "It adds."}))
}

/// The fleet with the built-in agent, whose model says this.
async fn with_model(say: Vec<Say>) -> (Desk, Model) {
    let model = Model::start(say).await;
    let agent = format!(
        "[agents.built-in]\ntype = \"llm\"\nmodel = \"p/gpt-4.1\"\n\
         [providers.p]\nkind = \"openai\"\nbase_url = \"{}\"\n",
        model.address
    );
    (desk(&agent), model)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_models_work_goes_back_from_the_gate_and_lands() {
    let bash = || call("bash", json!({"command": "sh test.sh"}));
    let say = vec![edit("-", "*"), done(), bash(), edit("*", "+"), bash(), done()];
    let (place, model) = with_model(say).await;
    let task = place.submit("Make add.sh add");
    place.run(&["up", "--drain"]).must(0, &[]);
    let shown = place.json(&["task", "show", &task]);
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!((&shown["state"], attempts.len()), (&json!("merged"), 2), "{shown:#}");
    assert_eq!(attempts[0]["required_change"], "Fix the failing tests listed in the gate output");
    assert_eq!(place.git(&["show", "main:add.sh"]), "echo $(($1 + $2))");
    // Six answers of 15 tokens in and 4 out, at 2, 0.5 and 8 dollars for a million.
    let spent = &shown["spent"];
    assert_eq!((&spent["input_tokens"], &spent["output_tokens"]), (&json!(90), &json!(24)));
    assert!((324..=336).contains(&spent["cost_micros"].as_u64().unwrap()), "{spent}");
    let asked = model.asked();
    let second = asked[2].2["messages"][1]["content"].as_str().unwrap();
    assert!(second.starts_with("## ATTEMPT #2") && second.contains("2 + 3 is not 5"), "{second}");
    let log = place.ok(&["task", "log", &task, "--full"]);
    assert!(log.contains("> edit {") && log.contains("! exit code 1"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_turns_the_agent_away_is_waited_for_and_nobody_is_charged() {
    let limited = || {
        let body = r#"{"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}"#;
        Say::Reply(429, vec![("retry-after", "1".to_owned())], body.to_owned())
    };
    let (place, model) = with_model(vec![limited(), edit("-", "+"), limited(), done()]).await;
    let task = place.submit("Make add.sh add");
    place.run(&["up", "--drain"]).must(0, &["put back, uncharged: it would fail again now"]);
    let shown = place.json(&["task", "show", &task]);
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!((&shown["state"], attempts.len(), model.asked().len()), (&json!("merged"), 1, 4), "{shown:#}");
    assert!(attempts[0]["agent_failures"].as_array().is_none_or(Vec::is_empty), "{shown:#}");
    assert_eq!(shown["spent"]["output_tokens"], 8);
}

/// Starts the fleet and kills it at last.
struct Fleet(std::process::Child);

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_an_agent_says_is_shown_while_it_works_and_stays_where_the_fleet_is_killed() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../worker/tests/scripts/acp_agent.py");
    let over_protocol = format!("type = \"acp\"\ncommand = [\"python3\", {script:?}]\nargs = [\"says\", \".\"]\n");
    let program = "command = [\"sh\", \"-c\", \"echo I look around.; sleep 1000\"]\n".to_owned();
    for agent in [over_protocol, program] {
        let place = desk(&format!("[agents.it]\nenv = [\"CARGO_MANIFEST_DIR\"]\n{agent}"));
        let task = place.submit("Look around");
        let mut up = place.command(&["up"]);
        up.env("CARGO_MANIFEST_DIR", "/a/folder").stdout(Stdio::null()).stderr(Stdio::null());
        let fleet = Fleet(up.spawn().unwrap());
        let log = || place.ok(&["task", "log", &task, "--full"]);
        let deadline = Instant::now() + Duration::from_mins(1);
        while !log().contains("I look around.") {
            assert!(Instant::now() < deadline, "{agent}: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(log().contains("transcript so far"), "{}", log());
        assert_eq!(place.json(&["task", "show", &task])["attempts"][0]["transcript"], Value::Null);
        drop(fleet);
        assert!(log().contains("I look around."), "{}", log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_are_no_mere_commands_are_checked() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../worker/tests/scripts/acp_agent.py");
    let well = model::says(KIND, "OK", End::Said);
    let limited = Say::Reply(404, Vec::new(), r#"{"error": {"message": "no such model"}}"#.to_owned());
    let model = Model::start(vec![well, limited]).await;
    let config = format!(
        "[repository]\nurl = \"repo\"\n[reviewers.strict]\ncommand = [\"sh\", \"-c\", \"echo APPROVE\"]\n\
         [providers.here]\nkind = \"openai\"\nbase_url = \"{}\"\n\
         [providers.far]\nkind = \"openai\"\napi_key_env = \"SOME_KEY\"\n\
         [agents.local]\ntype = \"llm\"\nmodel = \"here/m-1\"\n\
         [agents.paid]\ntype = \"llm\"\nmodel = \"far/m-2\"\n\
         [agents.acp]\ntype = \"acp\"\ncommand = [\"python3\", {script:?}]\nargs = [\"hang\", \".\"]\n\
         [agents.deaf]\ntype = \"acp\"\ncommand = [\"sh\", \"-c\", \"echo no protocol; exit 4\"]\n",
        model.address
    );
    let place = Desk::empty();
    place.write("refile.toml", &config);
    let json = |args: &[&str], key: Option<&str>| {
        let mut command = place.command(args);
        let out = command.arg("--json").envs(key.map(|key| (key, "some-key"))).output().unwrap();
        let said = serde_json::from_slice::<Value>(&out.stdout);
        (out.status.code(), said.unwrap_or_else(|_| panic!("{args:?}: {out:?}")))
    };
    let (_, listed) = json(&["agent", "list"], None);
    let found: Vec<bool> = listed["agents"].as_array().unwrap().iter().map(|a| a["found"] == true).collect();
    assert_eq!(found, [true, false, true, true]);

    let (status, checked) = json(&["agent", "check", "local"], None);
    assert_eq!((status, &checked["ready"], &checked["dry_prompt"]["answered"]), (Some(0), &json!(true), &json!(true)));
    let asked = model.asked();
    assert!(asked.len() == 1 && asked[0].2.to_string().contains("Reply with OK"), "{asked:?}");
    let (status, checked) = json(&["agent", "check", "local"], None);
    assert_eq!((status, &checked["dry_prompt"]["answered"]), (Some(1), &json!(false)));
    assert!(checked["missing"][0].as_str().unwrap().contains("no such model"), "{checked}");

    let (status, checked) = json(&["agent", "check", "paid"], None);
    assert_eq!(status, Some(1));
    assert!(checked["missing"][0].as_str().unwrap().contains("SOME_KEY"), "{checked}");
    let (status, checked) = json(&["agent", "check", "paid"], Some("SOME_KEY"));
    let not_made = json!({"made": false, "why": "it would cost money"});
    assert_eq!((status, &checked["dry_prompt"]), (Some(0), &not_made));

    let (status, checked) = json(&["agent", "check", "acp"], None);
    assert_eq!((status, &checked["version"]), (Some(0), &json!("scripted 1.2.3")), "{checked}");
    let (status, checked) = json(&["agent", "check", "deaf"], None);
    assert_eq!(status, Some(1));
    assert!(checked["missing"][0].as_str().unwrap().contains("exit code 4"), "{checked}");
    assert!(place.ok(&["agent", "check", "acp"]).contains("version: scripted 1.2.3"));
}

/// A program that is turned away for the first seconds, as its preset reads it, and notes each run.
const TURNED_AWAY: &str = r#"cat > /dev/null
now=$(date +%s)
[ -e began ] || echo "$now" > began
if [ $((now - $(cat began))) -lt 4 ]; then
    echo away >> runs
    echo '{"type":"result","is_error":true,"api_error_status":429,"result":"Rate limit: try again in 2s"}'
    exit 1
fi
echo well >> runs
echo "$REFILE_TASK_ID" > "$OLDPWD/$REFILE_TASK_ID.txt"
echo '{"type":"result","is_error":false,"result":"Done."}'
"#;

#[test]
fn a_program_that_its_provider_turns_away_is_left_alone_by_the_whole_fleet() {
    let place = Desk::new();
    place.write("stage/claude.sh", TURNED_AWAY);
    let stage = place.path("stage");
    let config = format!(
        "[repository]\nurl = \"repo\"\n[workers]\ncoders = 4\n\
         [agents.known]\npreset = \"claude\"\ncommand = [\"sh\", \"-c\", \"cd {0} && . ./claude.sh\"]\n\
         writable = [\"{0}\"]\n[reviewers.strict]\ncommand = [\"sh\", \"-c\", \"echo APPROVE\"]\n",
        stage.display()
    );
    place.write("refile.toml", &config);
    let lines: Vec<String> = (1..=12).map(|n| json!({"title": format!("Task {n}")}).to_string()).collect();
    place.write("tasks.jsonl", &lines.join("\n"));
    place.ok(&["submit", "--file", "tasks.jsonl"]);
    let says = ["the provider is paused for the whole fleet", "wait: the provider agent:known is paused until "];
    place.run(&["up", "--drain"]).must(0, &says);

    let tasks = place.json(&["task", "list", "--limit", "50"]);
    let tasks = tasks.as_array().unwrap();
    assert_eq!(tasks.len(), 12);
    for task in tasks {
        let shown = place.json(&["task", "show", task["id"].as_str().unwrap()]);
        let attempts = shown["attempts"].as_array().unwrap();
        assert_eq!((&shown["state"], attempts.len()), (&json!("merged"), 1), "{shown:#}");
        assert!(attempts[0]["agent_failures"].as_array().is_none_or(Vec::is_empty), "{shown:#}");
    }
    let runs = std::fs::read_to_string(stage.join("runs")).unwrap();
    let (well, away) = (runs.matches("well").count(), runs.matches("away").count());
    // Those that ran when the first was turned away, and a probe each time that a pause of two seconds was over.
    assert!(well == 12 && (1..=4 + 3).contains(&away), "{well} well, {away} turned away");
    let listed = place.json(&["provider", "list"]);
    assert_eq!(
        (&listed[0]["name"], &listed[0]["kind"], &listed[0]["pauses"]),
        (&json!("agent:known"), &json!("agent"), &json!([]))
    );
    let paused = place.json(&["provider", "pause", "agent:known"]);
    assert_eq!((&paused["name"], &paused["state"]), (&json!("agent:known"), &json!("paused")));
    assert_eq!(place.json(&["provider", "list"])[0]["pauses"][0]["state"], "paused");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_over_the_protocol_lands_its_change() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../worker/tests/scripts/acp_agent.py");
    let agent = format!("[agents.acp]\ntype = \"acp\"\ncommand = [\"python3\", {script:?}, \"end_turn\", \".\"]\n");
    let place = desk(&agent);
    place.write("repo/add.sh", "echo $(($1 + $2))\n");
    place.git(&["commit", "--quiet", "--all", "--message=It adds"]);
    let task = place.submit("Write new.txt");
    place.run(&["up", "--drain"]).must(0, &[]);
    assert_eq!(place.json(&["task", "show", &task])["state"], "merged");
    assert_eq!(place.git(&["show", "main:new.txt"]), "new");
    assert!(place.ok(&["task", "log", &task, "--full"]).contains("As far as I came."));
}
