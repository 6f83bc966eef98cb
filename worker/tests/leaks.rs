//! What an agent was given and wrote down: it reaches no branch, no artifact, no log and no reviewer.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::Path;
use std::process::Command;

use common::Place;
use common::fleet::{Try, gate, task};
use refile_core::Outcome;

const KEY: &str = "canary-of-the-agent-51c0";

/// Runs a test of this file again, by itself and with keys in its environment; says whether this is that run.
fn is_again(test: &str) -> bool {
    if std::env::var_os("MY_TEST_KEY").is_some() {
        return true;
    }
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("MY_TEST_KEY", KEY)
        .env("MY_MODE", "production")
        .env("MY_SHORT", "x1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
    assert!(!said.contains(KEY), "{said}");
    false
}

/// The files below a folder that hold the key.
fn holding(dir: &Path) -> String {
    let found = Command::new("grep").args(["-rlaF", KEY]).arg(dir).output().unwrap();
    String::from_utf8_lossy(&found.stdout).into_owned()
}

fn attempt(script: &str) -> Try<'static> {
    let mut attempt = Try::script(script);
    attempt.agent.env = ["MY_TEST_KEY", "MY_MODE", "MY_SHORT"].map(str::to_owned).to_vec();
    attempt.gates = vec![gate("test", "cat notes.txt 2> /dev/null; true")];
    attempt
}

#[tokio::test]
async fn a_secret_in_a_change_is_named_and_goes_nowhere() {
    if !is_again("a_secret_in_a_change_is_named_and_goes_nowhere") {
        return;
    }
    let place = Place::bare();
    place.commit(&[("settings", "mode = production\n")]);
    let task = task(&place, "t1");
    for (at, (script, says)) in [
        (
            "echo \"key = $MY_TEST_KEY\" > notes.txt",
            "Take the value of $MY_TEST_KEY out of `notes.txt`: it is a secret",
        ),
        ("printf 'a\\0b'$MY_TEST_KEY > data.bin", "out of `data.bin`"),
        ("ln -s \"$MY_TEST_KEY\" link", "out of `link`"),
        ("echo x > \"$MY_TEST_KEY.txt\"", "out of `[MY_TEST_KEY].txt`"),
        ("sed -i \"s/one/$MY_TEST_KEY/\" a.txt", "out of `a.txt`"),
    ]
    .into_iter()
    .enumerate()
    {
        let outcome = Try { attempt: at as u32 + 1, ..attempt(script) }.run(&place, &task).await;
        assert!(!format!("{outcome:?}").contains(KEY), "it is in the outcome of {script}");
        let Outcome::Coded { change, gates, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!((gates.len(), gates[0].name.as_str(), gates[0].passed), (1, "diff_policy", false), "{gates:?}");
        let said = gates[0].required_change.as_deref().unwrap();
        assert!(said.contains(says), "{script}: {said}");
        assert_eq!(change.diff, None);
    }
    assert_eq!(place.branches(), ["main"]);
    assert_eq!(holding(&place.root.path().join("artifacts")), "");
    // A setting that the repository knows, a short word and a value that was there are none.
    let plain = "echo \"mode = $MY_MODE, short = $MY_SHORT\" > notes.txt";
    assert_eq!(Try { attempt: 9, ..attempt(plain) }.change(&place, &task).await.files, 1);
}

#[tokio::test]
async fn what_gates_print_is_kept_without_the_secrets() {
    if !is_again("what_gates_print_is_kept_without_the_secrets") {
        return;
    }
    let place = Place::bare();
    let mut attempt =
        attempt("echo $MY_TEST_KEY > /dev/null; mkdir kept; echo $MY_TEST_KEY > kept/key; echo kept/ > .gitignore");
    attempt.gates = vec![gate("test", "cat kept/key; exit 1")];
    let outcome = attempt.run(&place, &task(&place, "t1")).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    let output = &gates.last().unwrap().output;
    assert!(output.contains("[MY_TEST_KEY]") && !output.contains(KEY), "{output}");
    assert_eq!(holding(&place.root.path().join("artifacts")), "");
}
