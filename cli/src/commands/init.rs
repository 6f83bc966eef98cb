//! `refile init`: a configuration for the repository that one stands in.

mod guesses;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use refile_config::{FILE_NAME, Preset};
use refile_worker::agent::preset::known;
use serde_json::json;

use crate::Ended;
use crate::arguments::InitArguments;
use crate::context::program;
use crate::output::{self, BOLD, styled};
use guesses::Guess;

/// The agents that are used if they are there, in this order: those that need no model to be named.
const AGENTS: [Preset; 3] = [Preset::Claude, Preset::Codex, Preset::Gemini];

/// Writes `refile.toml`.
pub(crate) fn run(arguments: &InitArguments, json: bool) -> anyhow::Result<Ended> {
    let here = Path::new(FILE_NAME);
    if here.exists() && !arguments.force {
        bail!("{FILE_NAME} is there already; --force writes over it");
    }
    let base = base_branch()?;
    let text = configuration(&repository()?, &base, Path::new("."));
    // What is written must be what is read.
    std::fs::write(here, &text).with_context(|| format!("cannot write {FILE_NAME}"))?;
    refile_config::load(Some(here), [], &[])?;
    if json {
        output::json(&json!({ "file": FILE_NAME, "base": base }))?;
        return Ok(Ended::Done);
    }
    output::line(format!("wrote {}", styled(BOLD, FILE_NAME)));
    output::line("Write or replace the programs of its agent and its reviewer, look at its gates, then:\n");
    let refile = program();
    output::line(format!("  {refile} submit \"WHAT YOU WANT\""));
    output::line(format!("  {refile} up --drain"));
    Ok(Ended::Done)
}

/// The branch that one stands on.
fn base_branch() -> anyhow::Result<String> {
    let told = Command::new("git").args(["symbolic-ref", "--short", "HEAD"]).output().context("cannot run git")?;
    if !told.status.success() {
        bail!("this folder is not in a git repository, or no branch is checked out; `git init` makes a repository");
    }
    Ok(String::from_utf8_lossy(&told.stdout).trim().to_owned())
}

/// The way from here to the repository's folder.
fn repository() -> anyhow::Result<String> {
    let told = Command::new("git").args(["rev-parse", "--show-cdup"]).output().context("cannot run git")?;
    let way = String::from_utf8_lossy(&told.stdout).trim().trim_end_matches('/').to_owned();
    Ok(if way.is_empty() { ".".to_owned() } else { way })
}

/// The file for a folder with these files in it.
fn configuration(url: &str, base: &str, dir: &Path) -> String {
    let on_path = |program: &str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|d| d.join(program).is_file())
    };
    let found = AGENTS.iter().find(|preset| known(**preset).is_ok_and(|known| on_path(&known.program)));
    let (name, agent) = match found {
        Some(preset) => (preset.as_str(), format!("preset = \"{}\"", preset.as_str())),
        None => ("fixer", r#"command = ["python3", "agent.py"]"#.to_owned()),
    };
    let mut text = format!(
        r#"# What each process of the fleet does. `refile config show` prints every value that is in force.

[repository]
url = {url}
base = {base}

[policy]
max_attempts = 3             # then a person decides

[agents.{name}]              # makes the changes: any program that edits the files of the folder that it runs in
{agent}                      # a command's prompt comes on standard input; `refile agent list` shows what is known

# A model with the built-in tools instead (also type = "acp": a program that speaks the Agent Client Protocol):
# [agents.built-in]
# type = "llm"
# provider = "anthropic"     # a section [providers.anthropic], as below
# model = "claude-sonnet-4-6"

[reviewers.strict]           # judges them: any program that prints APPROVE, RETRY: WHAT TO DO, or REJECT: WHY
command = ["python3", "review.py"]

# A model as the judge instead:
# [reviewers.judge]
# type = "llm"
# provider = "anthropic"
# model = "claude-sonnet-4-6"
#
# [providers.anthropic]
# kind = "anthropic"         # or openai (with a base_url: any server that speaks its API), openai-responses, gemini, ollama
# api_key_env = "ANTHROPIC_API_KEY"
"#,
        url = toml_string(url),
        base = toml_string(base),
    );
    let guessed = guesses::guesses(dir);
    for guess in &guessed {
        let Guess { file, gate, run, network } = guess;
        let _ = write!(text, "\n[[gates]]                    # guessed from {file}");
        if guess.is_setup() {
            text.push_str(": it brings what the gates after it need, in each new checkout");
        }
        let _ = write!(text, "\nname = \"{gate}\"\nrun = {}\n", toml_string(run));
        if guess.is_setup() {
            text.push_str("setup = true                 # where the untouched base fails it too, nobody is charged\n");
        }
        if *network {
            text.push_str("network = true               # gates have none by default\n");
            // Where it is the tests that fetch, a second run could hide that they fail now and then.
            text.push_str(if guess.is_setup() { "retries = 2                  # it fails now and then\n" } else { "" });
        }
    }
    if guessed.is_empty() {
        text.push_str("\n# Checks that need no model; a change that fails one goes back without a review:\n# [[gates]]\n# name = \"test\"\n# run = \"make test\"\n");
    }
    text
}

/// A text as a TOML string: JSON's escapes are TOML's.
fn toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["Cargo.toml", "Makefile"] {
            std::fs::write(dir.path().join(file), "build:\n").unwrap();
        }
        let path = dir.path().join(FILE_NAME);
        std::fs::write(&path, configuration(".", "trunk \"x\"", dir.path())).unwrap();
        let (config, _) = refile_config::load(Some(&path), [], &[]).unwrap();
        assert_eq!(config.repository.base, "trunk \"x\"");
        let gates: Vec<&str> = config.gates.iter().map(|g| g.name.as_str()).collect();
        assert_eq!(gates, ["lint", "build", "test"]);
        assert_eq!((config.agents.len(), config.reviewers.len()), (1, 1));
    }
}
