//! The workers' processes say why they do not start.

#![allow(clippy::unwrap_used, missing_docs)]

use std::ffi::OsStr;
use std::net::TcpListener;
use std::process::Command;

const CODER: &str = env!("CARGO_BIN_EXE_refile-coder");
const REVIEWER: &str = env!("CARGO_BIN_EXE_refile-reviewer");
const AGENT: &str = "[agents.fixer]\ncommand = [\"sh\", \"-c\", \"true\"]\n";

/// Runs a worker, which must not come up, and holds what it says.
#[track_caller]
fn refused(program: &str, config: &str, arguments: &[&str], says: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("refile.toml"), config).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let mut command = Command::new(program);
    let ran = command.args(arguments).current_dir(dir.path()).env_clear().env("PATH", path).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for word in says {
        assert!(said.contains(word), "does not say {word:?}: {said}");
    }
    assert!(!said.contains("panicked") && !said.contains("s3cret"), "{said}");
    said
}

#[test]
fn a_redis_that_is_away_is_said() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://:s3cret@127.0.0.1:{port}/0");
    let said = refused(CODER, AGENT, &["--store", &url], &["127.0.0.1", "does not answer", "check that it runs"]);
    assert_eq!(said.matches("Connection refused").count(), 1, "the cause is told once: {said}");
}

#[test]
fn a_sandbox_is_told_whether_it_works_is_missing_or_not_wanted() {
    let dir = tempfile::tempdir().unwrap();
    for tool in ["sh", "git"] {
        let found =
            std::env::split_paths(&std::env::var_os("PATH").unwrap()).map(|d| d.join(tool)).find(|p| p.is_file());
        std::os::unix::fs::symlink(found.unwrap(), dir.path().join(tool)).unwrap();
    }
    let with = |mode: &str, path: &OsStr| {
        std::fs::write(dir.path().join("refile.toml"), format!("sandbox = \"{mode}\"\n{AGENT}")).unwrap();
        // The store is away, so that none comes up.
        let ran = Command::new(CODER)
            .args(["--store", "redis://127.0.0.1:1/0"])
            .current_dir(dir.path())
            .env_clear()
            .env("PATH", path)
            .output()
            .unwrap();
        assert_eq!(ran.status.code(), Some(1));
        String::from_utf8(ran.stderr).unwrap()
    };
    let lacks_it = dir.path().as_os_str();
    let said = with("required", lacks_it);
    assert!(said.contains("`bwrap` is not installed") && said.contains("install bubblewrap"), "{said}");
    assert!(!said.contains("127.0.0.1"), "{said}");
    let said = with("auto", lacks_it);
    assert!(said.contains("NO SANDBOX") && said.contains("environment") && said.contains("127.0.0.1"), "{said}");
    let said = with("off", lacks_it);
    assert!(said.contains("can do all that this user can do") && said.contains("environment"), "{said}");
    assert!(said.contains("127.0.0.1"), "{said}");
    for mode in ["required", "auto"] {
        let said = with(mode, &std::env::var_os("PATH").unwrap());
        assert!(said.contains("the sandbox works") && said.contains("write nothing but their tree, a home"), "{said}");
        assert!(!said.contains("NO SANDBOX") && said.contains("127.0.0.1"), "{said}");
    }
}

#[test]
fn what_is_not_configured_or_not_installed_is_said() {
    refused(CODER, "", &[], &["no agent is configured", "[agents.NAME]"]);
    refused(REVIEWER, AGENT, &[], &["no reviewer is configured", "[reviewers.NAME]"]);
    let missing = AGENT.replace("\"sh\"", "\"no-such-agent\"");
    refused(CODER, &missing, &[], &["agents.fixer.command", "no-such-agent"]);
    let model = "[agents.fixer]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m\"\n\
                 [providers.p]\nkind = \"openai\"\napi_key_env = \"NO_SUCH_KEY\"\n";
    refused(CODER, model, &[], &["agents.fixer", "NO_SUCH_KEY", "holds no key"]);
    // An agent that gets no job needs none.
    let unused = format!("[policy]\nladder = [\"other\"]\n[agents.other]\ncommand = [\"no-such-agent\"]\n{model}");
    refused(CODER, &unused, &[], &["agents.other.command"]);
}

/// A model that is asked, or would be.
fn judge(name: &str, provider: &str) -> String {
    format!(
        "[reviewers.{name}]\ntype = \"llm\"\nprovider = \"{provider}\"\nmodel = \"m\"\n\
         [providers.{provider}]\nkind = \"anthropic\"\napi_key_env = \"{}_KEY\"\n",
        provider.to_uppercase()
    )
}

#[test]
fn a_reviewer_whose_key_is_missing_does_not_start() {
    let says = |of: &'static str, key: &'static str| ["the environment variable ", key, of, "set it"];
    refused(REVIEWER, &judge("strict", "one"), &[], &says("reviewers.strict asks the provider `one`", "ONE_KEY"));
    // A member of a panel, which nobody asks on its own.
    let board = "[reviewers.board]\ntype = \"panel\"\nmembers = [\"strict\"]\n";
    refused(REVIEWER, &(board.to_owned() + &judge("strict", "one")), &[], &says("reviewers.strict", "ONE_KEY"));
    // Whoever serves the queue of reviews must be able to.
    let coder = AGENT.to_owned() + &judge("strict", "one");
    refused(CODER, &coder, &["--queues", "review"], &says("reviewers.strict", "ONE_KEY"));
    // A worker that asks no model needs no key: it comes as far as its store.
    let away =
        format!("redis://127.0.0.1:{}/0", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    refused(CODER, &coder, &["--store", &away], &["does not answer"]);
    // Nor does one for a provider that no reviewer names.
    let unused = "[reviewers.plain]\ncommand = [\"sh\", \"-c\", \"true\"]\n[providers.one]\nkind = \"anthropic\"\n\
                  api_key_env = \"ONE_KEY\"\n";
    refused(REVIEWER, unused, &["--store", &away], &["does not answer"]);
}
