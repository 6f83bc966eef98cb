//! Checks that need no model: the built-in ones about the diff, and the commands of the configuration.

mod baseline;
pub mod policy;
pub(crate) mod programs;

use std::ffi::OsString;
use std::time::Duration;

use refile_config::{Baseline, Gate};
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::{EMPTY_DIFF, GateReport, MERGE_CONFLICT, output_tail};
use refile_store::artifacts::Shelf;
use tokio::io::AsyncReadExt as _;

pub use baseline::Bases;
use programs::Missing;

use crate::agent::{digest, no_room, not_started};
use crate::disk;
use crate::git::{GitError, Mirror, Tree};
use crate::process::{self, Command, Exit, Finished, Reach, Secrets, Whole, tail};
use crate::workspace::Claim;

/// The signal that nobody can refuse.
const KILL: i32 = 9;
/// The exit code of a shell whose child was ended by it.
const KILLED: i32 = 128 + KILL;
/// How much of what a gate printed is told with why it could not run, in characters.
const SAID: usize = 400;

/// The configured gates, and what they run on.
#[derive(Debug, Clone, Copy)]
pub struct Gates<'a> {
    /// The gates, in their order.
    pub gates: &'a [Gate],
    /// Run every gate even when one has failed.
    pub keep_going: bool,
    /// Where outputs are kept.
    pub shelf: &'a Shelf,
    /// What is being checked.
    pub claim: Claim<'a>,
    /// What must not show in what gates print.
    pub secrets: &'a Secrets,
    /// Where a gate is tried on the untouched base, for those with a `baseline`.
    pub bases: Bases<'a>,
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
        let Some(report) = one(gates, gate, tree, base, changed).await? else { continue };
        let passed = report.passed;
        reports.push(report);
        if !passed && !gates.keep_going {
            break;
        }
    }
    Ok(reports)
}

/// What a gate says of a change; nothing where it fails on the base as well and that is to be ignored.
async fn one(
    gates: &Gates<'_>,
    gate: &Gate,
    tree: &Tree,
    base: &str,
    changed: &[String],
) -> Result<Option<GateReport>, Failure> {
    let mut said = runs(gates, gate, tree, base).await?;
    if let Some(missing) = &said.missing {
        // What is known of the base may be from before it went missing.
        let on_base = baseline::anew(gates, gates.bases, gate, base).await?;
        // Where the base does not lack it, or lacks something else, the change is what broke it.
        if on_base.missing.as_ref() == Some(missing) {
            return Err(cannot_run(gate, &said.output));
        }
    } else if !said.passed && gate.setup && !brings(gates, gate, base, changed).await? {
        // A registry may be away now that was there when the base was tried.
        let on_base = baseline::anew(gates, gates.bases, gate, base).await?;
        if !on_base.passes {
            return Err(cannot_run(gate, &said.output));
        }
    }
    if !said.passed && gate.baseline != Baseline::Fail && !brings(gates, gate, base, changed).await? {
        let on_base = baseline::on_base(gates, gates.bases, gate, base).await?;
        if !on_base.passes {
            let note = format!(
                "[the gate `{}` fails on the untouched base {base} as well; it is not held against the change]",
                gate.name
            );
            said.before = format!("[on the untouched base]\n{}\n\n[on the change]\n", on_base.output.trim_end());
            said.add(&format!("{note}\n"));
            said.passed = true;
            if gate.baseline == Baseline::Ignore {
                return said.keep(gates.shelf, gate).await.map(|_| None);
            }
        }
    }
    if let Some(note) = baseline::hint(gates, gate, &said, base, changed).await {
        said.add(&format!("{note}\n"));
    }
    Ok(Some(GateReport {
        name: gate.name.clone(),
        passed: said.passed,
        required_change: gate.required_change.clone(),
        output: output_tail(&format!("{}{}", said.before, said.output)),
        duration_ms: said.duration_ms,
        log: Some(said.keep(gates.shelf, gate).await?),
    }))
}

/// What all runs of a gate came to.
struct Said {
    passed: bool,
    /// What is to be told before the output.
    before: String,
    /// The output of each run, one after the other: beginnings and ends.
    output: String,
    /// The same without anything left out.
    whole: Whole,
    /// What the last run ended for want of.
    missing: Option<Missing>,
    duration_ms: u64,
}

impl Said {
    fn nothing(tree: &Tree) -> Result<Self, Failure> {
        let path = tree.file_beside(&format!("{}.log", uuid::Uuid::new_v4().simple()));
        let whole = Whole::in_file(&path).map_err(|error| cannot_keep(&error))?;
        let (before, output) = (String::new(), String::new());
        Ok(Self { passed: false, before, output, whole, missing: None, duration_ms: 0 })
    }

    /// Adds words of the worker's own, on a line of their own.
    fn add(&mut self, words: &str) {
        self.output.truncate(self.output.trim_end().len());
        self.output.extend(["\n", words]);
        self.whole.note(words);
    }

    /// Puts the whole output away and gives the artifact's name.
    async fn keep(self, on: &Shelf, gate: &Gate) -> Result<String, Failure> {
        let whole = self.whole.finish().map_err(|error| cannot_keep(&error))?;
        let content = self.before.as_bytes().chain(tokio::fs::File::from_std(whole));
        let name = format!("gate-{}.log", file_name(&gate.name));
        on.put_from(&name, content).await.map_err(|error| Failure::new(FailureKind::Configuration, error.to_string()))
    }
}

fn cannot_keep(error: &std::io::Error) -> Failure {
    let why = format!(
        "the output of a gate cannot be kept: {error}\n  make room on the disk of the worker's folder (workers.dir)"
    );
    Failure::new(FailureKind::Configuration, why)
}

/// Runs a gate until it passes or has no retries left.
async fn runs(gates: &Gates<'_>, gate: &Gate, tree: &Tree, base: &str) -> Result<Said, Failure> {
    let mut said = Said::nothing(tree)?;
    for run in 0..=gate.retries {
        if run > 0 {
            said.add(&format!("\n[run {} of the gate `{}`]\n", run + 1, gate.name));
        }
        let done = start(gates, gate, tree, base, &said.whole).await?;
        said.output.push_str(&done.output_text());
        said.duration_ms += done.wall_ms();
        (said.passed, said.missing) = (done.exit.is_ok(), programs::missing(&done, tree.dir()));
        if !said.passed {
            said.add(&format!("[the gate `{}` {}]\n", gate.name, ending(done.exit, gate.timeout.0)));
        } else if run > 0 {
            said.add(&format!("[the gate `{}` failed, and passed in run {}]\n", gate.name, run + 1));
        }
        if said.passed || said.missing.is_some() {
            break;
        }
    }
    Ok(said)
}

/// One run of a gate that said something.
async fn start(gates: &Gates<'_>, gate: &Gate, tree: &Tree, base: &str, whole: &Whole) -> Result<Finished, Failure> {
    let argv = ["sh", "-c", &gate.run].map(OsString::from);
    let sandbox =
        tree.sandbox(&argv, Reach { network: gate.network.unwrap_or(false), is_gate: true, ..Reach::default() });
    let has_own_tmp = sandbox.as_ref().is_some_and(process::Sandbox::hides);
    let mut command = Command::new(argv, tree.dir(), gate.timeout.0).confined(sandbox);
    command.env = gates.claim.environment(base, &[]);
    (command.secrets, command.whole) = (gates.secrets.clone(), Some(whole.clone()));
    let done = process::run(&command).await.map_err(|error| not_started(&error))?;
    could_not_run(gate, &done, tree, has_own_tmp).map_or(Ok(done), |(kind, why)| Err(Failure::new(kind, why)))
}

fn ending(exit: Exit, timeout: Duration) -> String {
    match exit {
        Exit::TimedOut => format!("timed out after {} s", timeout.as_secs_f64()),
        exit => exit.to_string(),
    }
}

/// Whether a gate's command names what the change brings and the base does not have: there it fails for want of it, which
/// excuses nothing.
async fn brings(gates: &Gates<'_>, gate: &Gate, base: &str, changed: &[String]) -> Result<bool, Failure> {
    let is_changed = |path: &String| changed.iter().any(|file| file == path || file.starts_with(&format!("{path}/")));
    for path in programs::paths(gate).iter().filter(|path| is_changed(path)) {
        if !gates.bases.mirror.holds(base, path).await.map_err(|error| error.failure())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Why a gate says nothing about the change: the disk is full, or somebody killed it, which is what a system does that is
/// out of memory.
fn could_not_run(gate: &Gate, done: &Finished, tree: &Tree, has_own_tmp: bool) -> Option<(FailureKind, String)> {
    let output = done.output_text();
    let said = tail(&output, SAID);
    if !done.exit.is_ok() && disk::is_full(tree.dir(), has_own_tmp, tail(&output, 4_000)) {
        let why = format!(
            "the gate `{}` ran out of disk space: {said}\n  make room on the disk of the worker's folder (workers.dir)",
            gate.name
        );
        return Some((FailureKind::Configuration, why));
    }
    if done.exit == Exit::NoRoom {
        let failure = no_room(&format!("the gate `{}`", gate.name));
        return Some((failure.kind, failure.detail));
    }
    // A shell tells of a child that was killed by 128 and the signal's number.
    if matches!(done.exit, Exit::Signal(KILL) | Exit::Code(KILLED)) {
        let why = format!(
            "the gate `{}` was killed from outside; is this machine out of memory? {said}\n  give it more memory, or run fewer jobs at once: [workers] coders",
            gate.name
        );
        return Some((FailureKind::Crash, why));
    }
    None
}

/// Of a gate that the base does not run either: for want of the same programs, or of what it was to bring.
fn cannot_run(gate: &Gate, output: &str) -> Failure {
    let (run, said) = (gate.run.chars().take(200).collect::<String>(), tail(output, SAID));
    let why = format!(
        "the gate `{}` cannot run `{run}`, on the untouched base as well: {said}\n  install what it needs where the worker runs, or correct [[gates]]",
        gate.name
    );
    Failure::new(FailureKind::Configuration, why)
}

/// The name of a gate's log: no two gates have one, whatever letters files may have.
fn file_name(gate: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if gate.chars().all(is_plain) {
        return gate.to_owned();
    }
    let plain: String = gate.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
    format!("{plain}.{}", &digest(gate)[..8])
}
