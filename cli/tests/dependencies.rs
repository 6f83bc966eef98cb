//! What `refile init` guesses, run by a whole fleet in the sandbox: a project whose dependencies must be installed.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use common::command::Desk;
use common::git;

/// The task is done where the test passes: the dependency and what the agent writes must both be there.
const TEST: &str = "const helper = require('helper'); const fs = require('fs');\n\
                    if (helper() !== fs.readFileSync('new.txt', 'utf8').trim()) process.exit(1);\n\
                    console.log('helped');\n";
const PACKAGE: &str = r#"{"name": "app", "version": "1.0.0", "private": true,
  "scripts": {"test": "node test.js"}, "dependencies": {"helper": "file:./helper"}}"#;
const LOCK: &str = r#"{"name": "app", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {
  "": {"name": "app", "version": "1.0.0", "dependencies": {"helper": "file:./helper"}},
  "helper": {"version": "1.0.0"},
  "node_modules/helper": {"resolved": "helper", "link": true}}}"#;

#[test]
fn what_init_guesses_of_a_package_with_dependencies_lands_in_the_sandbox() {
    let place = Desk::empty();
    for (file, text) in [
        ("package.json", PACKAGE),
        ("package-lock.json", LOCK),
        ("test.js", TEST),
        (".gitignore", "node_modules/\n.refile/\nrefile.toml\nagent.sh\n"),
        ("helper/package.json", r#"{"name": "helper", "version": "1.0.0", "main": "index.js"}"#),
        ("helper/index.js", "module.exports = () => 'x';\n"),
        ("agent.sh", "echo x > new.txt\n"),
    ] {
        place.write(file, text);
    }
    let here = |args: &[&str]| git(place.dir.path(), args);
    here(&["init", "--quiet", "--initial-branch=main"]);
    here(&["add", "--all"]);
    here(&["commit", "--quiet", "--message=Start"]);
    place.ok(&["init"]);
    // The guessed gates as they are, with an agent and a reviewer.
    let written = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    let (_, gates) = written.split_once("\n[[gates]]").expect("gates are guessed");
    for said in ["name = \"install\"\nrun = \"npm ci\"\nsetup = true", "name = \"test\"\nrun = \"npm run test\""] {
        assert!(gates.contains(said), "{written}");
    }
    place.write(
        "refile.toml",
        &format!(
            "sandbox = \"required\"\n[agents.fixer]\ncommand = [\"sh\", \"agent.sh\"]\n\
             [reviewers.strict]\ncommand = [\"sh\", \"-c\", \"echo APPROVE\"]\n[[gates]]{gates}"
        ),
    );
    let task = place.submit("Write new.txt");
    place.run(&["up", "--drain"]).must(0, &[]);
    let shown = place.json(&["task", "show", &task]);
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!((&shown["state"], attempts.len()), (&"merged".into(), 1), "{shown:#}");
    let ran: Vec<&str> = attempts[0]["gates"].as_array().unwrap().iter().filter_map(|g| g["name"].as_str()).collect();
    assert_eq!(ran, ["empty_diff", "diff_policy", "merge_conflict", "install", "test"]);
    let output = attempts[0]["gates"].as_array().unwrap().last().and_then(|gate| gate["output"].as_str());
    assert!(output.is_some_and(|output| output.contains("helped")), "{shown:#}");
    assert_eq!(here(&["show", "--name-only", "--format=", "main"]), "new.txt");
    assert_eq!(here(&["show", "main:new.txt"]), "x");
}
