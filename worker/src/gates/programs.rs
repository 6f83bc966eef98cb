//! Programs that a gate needs and that are not there: looked for before an agent is paid, and told from a change that is
//! broken where a gate has failed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use refile_config::Gate;
use refile_core::failure::{Failure, FailureKind};

use crate::git::Tree;
use crate::process::{self, Command, Exit, Finished, Reach};
use crate::workspace::Claim;

/// How long the search may take.
const SEARCH: Duration = Duration::from_mins(1);
/// Prints those of its arguments that a shell cannot run.
const SCRIPT: &str = "for program; do command -v \"$program\" > /dev/null 2>&1 || printf '%s\\n' \"$program\"; done";
/// The lines from the end of an output that tell why it ended.
const LAST: usize = 10;
/// What lies between two words of a shell.
const BETWEEN: &[char] = &[' ', '\t', '\n', '"', '\'', ';', '(', ')', '&', '|', '<', '>', '=', '$', '`', '{', '}'];

/// The paths that a gate's command names, as they are in its tree: of a pattern the folder.
pub(super) fn paths(gate: &Gate) -> Vec<String> {
    let plain = |word: &str| {
        let fixed = word.split(['*', '?', '[']).next().unwrap_or_default();
        fixed.trim_start_matches("./").trim_end_matches('/').to_owned()
    };
    gate.run.split(BETWEEN).map(plain).filter(|path| !path.is_empty()).collect()
}

/// The program that a gate's command begins with, where it can be told and does not come with the repository.
fn first(run: &str) -> Option<&str> {
    let mut words = run.trim_start().lines().next()?.split_whitespace();
    let word = loop {
        let word = words.next()?;
        let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.contains('/')) else { break word };
        // What the shell makes of it is the shell's; and where programs are looked for may be anywhere then.
        if name == "PATH" || value.contains(['$', '`', '"', '\'', '\\', '(']) {
            return None;
        }
    };
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/._+-!:[".contains(c));
    (is_plain && (word.starts_with('/') || !word.contains('/'))).then_some(word)
}

/// Holds that the program of each gate is there, as the gates will see it.
pub(crate) async fn require(gates: &[Gate], tree: &Tree, claim: Claim<'_>, base: &str) -> Result<(), Failure> {
    let words: Vec<(&Gate, &str)> = gates.iter().filter_map(|gate| Some((gate, first(&gate.run)?))).collect();
    if words.is_empty() {
        return Ok(());
    }
    let argv: Vec<OsString> =
        ["sh", "-c", SCRIPT, "sh"].into_iter().chain(words.iter().map(|(_, word)| *word)).map(OsString::from).collect();
    let sandbox = tree.sandbox(&argv, Reach { is_gate: true, ..Reach::default() });
    let hides = sandbox.as_ref().is_some_and(process::Sandbox::hides);
    let mut command = Command::new(argv, tree.dir(), SEARCH).confined(sandbox);
    command.env = claim.environment(base, &[]);
    // What goes wrong with the search says nothing of the programs.
    let Ok(done) = process::run(&command).await else { return Ok(()) };
    let said = done.stdout_text();
    let missing = |word: &str| done.exit.is_ok() && said.lines().any(|line| line == word);
    let Some((gate, word)) = words.into_iter().find(|(_, word)| missing(word)) else { return Ok(()) };
    let or = if hides { ", let the sandbox show it (workers.readable)" } else { "" };
    let why = format!(
        "the gate `{}` cannot run: the program `{word}` was not found; no attempt was made\n  install it where the worker runs{or}, or correct [[gates]]",
        gate.name
    );
    Err(Failure::new(FailureKind::Configuration, why))
}

/// What a run ended for want of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing {
    exit: Exit,
    /// The programs that were not found or could not be executed, as far as they are told.
    names: BTreeSet<String>,
}

/// What a run ended for want of, by the shell's exit codes, or by its words behind a program that has codes of its own:
/// `make` ends with 2. Words that only sound so are no proof, nor is this: whether the base lacks it too must be seen.
pub(super) fn missing(done: &Finished, tree: &Path) -> Option<Missing> {
    let Exit::Code(code @ 1..) = done.exit else { return None };
    let output = done.output_text().replace(&*tree.to_string_lossy(), ".");
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LAST)..];
    let is_so = matches!(code, 126 | 127) || last.iter().any(|line| tells_of_code(line) || tells_of_shell(line));
    let names = || last.iter().filter_map(|line| named(line)).map(str::to_owned).collect();
    is_so.then(|| Missing { exit: done.exit, names: names() })
}

/// `make: *** [Makefile:2: test] Error 127`, `npm error code 127`, `exit status 127`.
fn tells_of_code(line: &str) -> bool {
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).rev();
    let (number, before) = (words.next(), words.next());
    matches!(number, Some("126" | "127")) && matches!(before, Some("Error" | "code" | "status" | "errno"))
}

/// `test.sh: 1: ruff: not found`, `test.sh: line 1: ruff: command not found`: with the line, as shells alone say it.
fn tells_of_shell(line: &str) -> bool {
    let mut parts = line.rsplit(": ");
    let (Some("not found" | "command not found"), Some(_), Some(at), Some(_)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let number = at.strip_prefix("line ").unwrap_or(at);
    !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
}

/// The program that a line says is missing.
fn named(line: &str) -> Option<&str> {
    const ENDINGS: [&str; 6] = [
        ": not found",
        ": command not found",
        ": Command not found",
        ": No such file or directory",
        ": Permission denied",
        ": cannot execute: required file not found",
    ];
    if let Some((_, name)) = line.split_once("command not found: ") {
        return Some(name);
    }
    let rest = ENDINGS.iter().find_map(|ending| line.strip_suffix(ending))?;
    Some(rest.rsplit(": ").next().unwrap_or(rest).trim_matches(['\'', '"', '`', '‘', '’']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(code: i32, output: &str) -> Finished {
        let output = output.as_bytes().to_vec();
        let (stdout, stderr) = (Vec::new(), output.clone());
        Finished { exit: Exit::Code(code), stdout, stderr, output, cut: false, stdout_cut: false, wall: Duration::ZERO }
    }

    fn names(code: i32, output: &str) -> Option<Vec<String>> {
        missing(&done(code, output), Path::new("/work/tree")).map(|m| m.names.into_iter().collect())
    }

    #[test]
    fn what_is_missing_is_read_from_what_shells_and_make_say() {
        for (code, output) in [
            (127, "sh: 1: ruff: not found"),
            (127, "bash: line 1: ruff: command not found"),
            (127, "zsh:1: command not found: ruff"),
            (127, "/usr/bin/env: ‘ruff’: No such file or directory"),
            (2, "ruff .\nmake: ruff: No such file or directory\nmake: *** [Makefile:2: lint] Error 127"),
            (2, "/bin/sh: 1: ruff: not found\nmake[1]: *** [lint] Error 127\nmake: *** [all] Error 2"),
            (1, "test.sh: 12: ruff: not found"),
            (1, "/work/tree/test.sh: line 3: ruff: command not found"),
            (127, "> x@1 lint\n> ruff .\n\nsh: 1: ruff: not found\nnpm error code 127"),
        ] {
            assert_eq!(names(code, output), Some(vec!["ruff".to_owned()]), "{output}");
        }
        assert_eq!(names(127, "/work/tree/x.sh: not found"), Some(vec!["./x.sh".to_owned()]));
        assert_eq!(names(127, ""), Some(Vec::new()));
        let long = format!("test.sh: 1: ruff: not found\n{}", "ok\n".repeat(20));
        for (code, output) in [
            (0, "sh: 1: ruff: not found"),
            (1, "user: not found"),
            (2, "AssertionError: page: not found\nmake: *** [test] Error 1"),
            (1, "cat: x: No such file or directory"),
            (1, "expected status 200, got 404"),
            (1, long.as_str()),
        ] {
            assert_eq!(names(code, output), None, "{output}");
        }
    }

    #[test]
    fn the_program_of_a_gate_is_its_first_plain_word() {
        for (run, program) in [
            ("cargo test", Some("cargo")),
            ("  RUST_LOG=debug  CI=1 cargo test", Some("cargo")),
            ("/usr/bin/make test", Some("/usr/bin/make")),
            ("cd x && make", Some("cd")),
            ("[ -f x ]", Some("[")),
            ("./check.sh", None),
            ("node_modules/.bin/eslint .", None),
            ("$TOOL x", None),
            ("(cd x; make)", None),
            ("\"my tool\" x", None),
            ("X=1", None),
            ("X=1\nmake", None),
            ("VERSION=$(git rev-parse HEAD) make test", None),
            ("NAME='a b' make", None),
            ("PATH=/opt/x:/bin eslint .", None),
            ("", None),
        ] {
            assert_eq!(first(run), program, "{run}");
        }
    }
}
