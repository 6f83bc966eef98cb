//! Checks that need no model: the built-in ones about the diff, and the commands of the configuration.

pub mod policy;

use std::ffi::OsString;
use std::time::Duration;

use refile_config::Gate;
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::{EMPTY_DIFF, GateReport, MERGE_CONFLICT, output_tail};
use refile_store::artifacts::Shelf;

use crate::agent::not_started;
use crate::git::{GitError, Mirror, Tree};
use crate::process::{self, Command, Exit, Finished, Reach, tail};
use crate::workspace::Claim;

/// The configured gates, and what they run on.
#[derive(Debug, Clone, Copy)]
pub struct Gates<'a> {
    /// The gates, in their order.
    pub gates: &'a [Gate],
    /// Run every gate even when one has failed.
    pub keep_going: bool,
    /// Where whole outputs are kept.
    pub shelf: &'a Shelf,
    /// What is being checked.
    pub claim: Claim<'a>,
}

/// A report of a built-in gate; it passed where there is nothing to say.
fn built_in(name: &str, complaint: Option<String>) -> GateReport {
    GateReport {
        name: name.to_owned(),
        passed: complaint.is_none(),
        required_change: None,
        output: complaint.unwrap_or_default(),
        log: None,
        duration_ms: 0,
    }
}

/// Fails where nothing changed.
pub fn empty_diff(files: &[String]) -> GateReport {
    built_in(EMPTY_DIFF, files.is_empty().then(|| "the attempt changed no file that git keeps".to_owned()))
}

/// A failed `merge_conflict` that lists the files.
pub fn conflict(reason: &str, files: &[String]) -> GateReport {
    built_in(MERGE_CONFLICT, Some(format!("{reason}:\n- {}", files.join("\n- "))))
}

/// Fails where conflict markers are left in files that were in conflict at the start, or where the change does not
/// merge with what the base is now.
pub async fn merge_conflict(
    mirror: &Mirror,
    head: &str,
    base: &str,
    base_now: &str,
    conflicted: &[String],
) -> Result<GateReport, GitError> {
    let left = mirror.with_markers(head, conflicted).await?;
    if !left.is_empty() {
        return Ok(conflict("conflict markers are left in", &left));
    }
    if base_now != base {
        let files = mirror.bring(base_now, base, head).await?.conflicts;
        if !files.is_empty() {
            return Ok(conflict(
                &format!("the base branch moved to {base_now}, and the change conflicts with it in"),
                &files,
            ));
        }
    }
    Ok(built_in(MERGE_CONFLICT, None))
}

/// Runs the configured gates in a tree. `changed` are the files that the change touches.
///
/// A gate that cannot run at all is a failure of the fleet, not of the change.
pub async fn run(gates: &Gates<'_>, tree: &Tree, base: &str, changed: &[String]) -> Result<Vec<GateReport>, Failure> {
    let mut reports = Vec::new();
    for gate in gates.gates {
        let report = one(gates, gate, tree, base, changed).await?;
        let passed = report.passed;
        reports.push(report);
        if !passed && !gates.keep_going {
            break;
        }
    }
    Ok(reports)
}

async fn one(
    gates: &Gates<'_>,
    gate: &Gate,
    tree: &Tree,
    base: &str,
    changed: &[String],
) -> Result<GateReport, Failure> {
    let argv = ["sh", "-c", &gate.run].map(OsString::from);
    let sandbox = tree.sandbox(&argv, Reach { network: gate.network.unwrap_or(false), ..Reach::default() });
    let mut command = Command::new(argv, tree.dir(), gate.timeout.0).confined(sandbox);
    command.env = gates.claim.environment(base, &[]);
    let done = process::run(&command).await.map_err(|error| not_started(&error))?;
    if let Some(why) = could_not_run(gate, &done, changed) {
        return Err(Failure::new(FailureKind::Configuration, why));
    }
    let mut output = done.output_text();
    if !done.exit.is_ok() {
        output = format!("{}\n[the gate `{}` {}]\n", output.trim_end(), gate.name, ending(done.exit, gate.timeout.0));
    }
    let log = gates.shelf.put(&format!("gate-{}.log", file_name(&gate.name)), output.clone()).await;
    Ok(GateReport {
        name: gate.name.clone(),
        passed: done.exit.is_ok(),
        required_change: gate.required_change.clone(),
        output: output_tail(&output),
        log: Some(log.map_err(|error| Failure::new(FailureKind::Configuration, error.to_string()))?),
        duration_ms: done.wall_ms(),
    })
}

fn ending(exit: Exit, timeout: Duration) -> String {
    match exit {
        Exit::TimedOut => format!("timed out after {} s", timeout.as_secs_f64()),
        exit => exit.to_string(),
    }
}

/// Why a gate says nothing about the change: its program is not there, or the disk is full.
fn could_not_run(gate: &Gate, done: &Finished, changed: &[String]) -> Option<String> {
    let output = done.output_text();
    let said = tail(&output, 600);
    if !done.exit.is_ok() && tail(&output, 4_000).contains("No space left on device") {
        return Some(format!("the gate `{}` ran out of disk space: {said}", gate.name));
    }
    // Where the change touches the very file that the gate runs, the change is what broke it.
    let plain = |word: &str| word.trim_matches(['"', '\'', ';']).trim_start_matches("./").to_owned();
    let is_of_the_change = gate.run.split_whitespace().any(|word| changed.contains(&plain(word)));
    let cannot = matches!(done.exit, Exit::Code(126 | 127)) && !is_of_the_change;
    cannot.then(|| {
        format!(
            "the gate `{}` cannot run `{}`: {said}\n  install what it needs, or correct [[gates]]",
            gate.name, gate.run
        )
    })
}

fn file_name(gate: &str) -> String {
    gate.chars().map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' }).collect()
}
