//! What a gate says of the untouched base: looked at where a gate with `baseline = "warn"` or `"ignore"` failed on a change,
//! and where any gate did in an attempt that is not the first.
//!
//! A gate runs on a base commit once for all workers that share a folder. What it said is kept there, by the repository, the
//! commit and the gate's command; a lock keeps two workers from finding it out at the same time.

use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use refile_config::{Baseline, Gate};
use refile_core::failure::{Failure, FailureKind};
use serde::{Deserialize, Serialize};

use super::programs::Missing;
use super::{Gates, Said, brings, runs};
use crate::agent::digest;
use crate::git::Mirror;
use crate::workspace::Workspace;

/// How long what was found out is kept after it was last written.
const KEPT: Duration = Duration::from_hours(14 * 24);
/// How often a worker looks whether the one that finds it out is done.
const LOOK: Duration = Duration::from_millis(100);

/// Where bases are checked out and what was found out is kept.
#[derive(Debug, Clone, Copy)]
pub struct Bases<'a> {
    /// The worker's folder.
    pub workspace: &'a Workspace,
    /// The task's repository.
    pub mirror: &'a Mirror,
    /// The base branch.
    pub branch: &'a str,
}

/// What is known of a gate on a base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OnBase {
    /// Whether it passes there, or cannot run there at all.
    pub(super) passes: bool,
    /// All that it printed there.
    pub(super) output: String,
    /// What it lacks there. Such an answer is not kept: somebody may install it.
    #[serde(skip)]
    pub(super) missing: Option<Missing>,
}

/// What a gate says of a base.
pub(super) async fn on_base(gates: &Gates<'_>, bases: Bases<'_>, gate: &Gate, base: &str) -> Result<OnBase, Failure> {
    let dir = bases.workspace.dir().join("baselines");
    let wrong = |error: std::io::Error| {
        Failure::new(FailureKind::Configuration, format!("cannot use {}: {error}", dir.display()))
    };
    std::fs::create_dir_all(&dir).map_err(wrong)?;
    let name = name(gates.gates, gate, &bases.mirror.shown(), base, &bases.workspace.terms());
    let file = dir.join(format!("{name}.json"));
    if let Some(known) = read(&file) {
        return Ok(known);
    }
    // Held until this is done or dropped; the system lets go of it where the worker dies.
    let _lock = lock(&file.with_extension("lock")).await.map_err(wrong)?;
    if let Some(known) = read(&file) {
        return Ok(known);
    }
    let found = anew(gates, bases, gate, base).await?;
    if found.missing.is_none() {
        keep(&dir, &file, &found).map_err(wrong)?;
    }
    Ok(found)
}

/// What is told of a gate that failed again where the change alone is held to account: whether the base fails as well. It may
/// be that it cannot run here at all; the verdict stays.
pub(super) async fn hint(
    gates: &Gates<'_>,
    gate: &Gate,
    said: &Said,
    base: &str,
    changed: &[String],
) -> Option<String> {
    if said.passed || gate.baseline != Baseline::Fail || gates.claim.attempt < 2 {
        return None;
    }
    let look = async {
        let is_own = brings(gates, gate, base, changed).await?;
        Ok::<_, Failure>(!is_own && !on_base(gates, gates.bases, gate, base).await?.passes)
    };
    let fails = look.await.unwrap_or_else(|failure| {
        tracing::warn!(gate = gate.name, %failure, "the gate could not be tried on the untouched base");
        false
    });
    fails.then(|| {
        format!(
            "[the gate `{}` fails on the untouched base as well: see whether it can run here at all, e.g. for want of \
             dependencies or network]",
            gate.name
        )
    })
}

/// What a gate says of a base now, whatever is known.
pub(super) async fn anew(gates: &Gates<'_>, bases: Bases<'_>, gate: &Gate, base: &str) -> Result<OnBase, Failure> {
    tracing::info!(gate = gate.name, base, "the gate is run on the untouched base");
    let failure = |error: crate::git::GitError| error.failure();
    let Bases { workspace, mirror, branch } = bases;
    let part = Some("baseline");
    let tree = workspace.tree_of(part, mirror, gates.claim, branch, base, base).await.map_err(failure)?;
    // One gate may install what the next one needs.
    for earlier in before(gates.gates, gate) {
        runs(gates, earlier, &tree, base).await?;
    }
    let Said { passed, output, missing, .. } = runs(gates, gate, &tree, base).await?;
    // What it runs may come with the change. That is no failure which the base has as well.
    Ok(OnBase { passes: passed || missing.is_some(), output, missing })
}

/// The gates that run in a tree before another one.
fn before<'a>(gates: &'a [Gate], gate: &Gate) -> impl Iterator<Item = &'a Gate> {
    gates.iter().take_while(|earlier| earlier.name != gate.name)
}

/// The name of what is known: nothing that can change what a gate says may be the same under one name.
fn name(gates: &[Gate], gate: &Gate, repository: &str, base: &str, terms: &str) -> String {
    let mut all = format!("{repository}\n{base}\n{terms}");
    for Gate { run, timeout, retries, network, .. } in before(gates, gate).chain([gate]) {
        let (timeout, network) = (timeout.as_millis(), network.unwrap_or(false));
        let _ = write!(all, "\n{network}\n{timeout}\n{retries}\n{run}");
    }
    digest(all)
}

fn read(file: &Path) -> Option<OnBase> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

async fn lock(path: &Path) -> std::io::Result<File> {
    let file = File::options().create(true).write(true).truncate(false).open(path)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(LOOK).await,
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Writes what was found out, whole or not at all, and removes what is old.
fn keep(dir: &Path, file: &PathBuf, found: &OnBase) -> std::io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(found)?)?;
    std::fs::rename(&new, file)?;
    for entry in std::fs::read_dir(dir)?.flatten() {
        let is_old = |at: std::time::SystemTime| at.elapsed().is_ok_and(|age| age > KEPT);
        if entry.metadata().and_then(|m| m.modified()).is_ok_and(is_old) {
            // Another worker may have been quicker.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}
