//! How long an attempt waits for its tree, in a repository of many files that the worker has a copy of.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use refile_core::TaskId;
use refile_worker::workspace::{Claim, Workspace};

use crate::figures::{Trees, median};
use crate::{Sizes, say};

/// Makes trees from nothing and from what was checked out ahead.
pub(crate) async fn trees(sizes: &Sizes) -> anyhow::Result<Trees> {
    let (files, rounds) = (sizes.of(10_000), sizes.rounds(11));
    let folder = tempfile::Builder::new().prefix("refile-benchmarks-").tempdir()?;
    let origin = folder.path().join("origin");
    fill(&origin, files)?;
    let workspace = Workspace::open(&folder.path().join("work"))?;
    let mirror = workspace.mirror(&origin.to_string_lossy()).await?;
    let (mut cold, mut ahead) = (Vec::new(), Vec::new());
    let task = TaskId::parse("bench").map_err(|error| anyhow::anyhow!("{error}"))?;
    for round in 0..2 * rounds {
        let base = mirror.fetch("main").await?;
        if round % 2 == 1 {
            workspace.prepare(&mirror, &base).await?;
            // The base moved since, as it does where changes land.
            change(&origin, round)?;
        }
        let started = Instant::now();
        let base = mirror.fetch("main").await?;
        let claim = Claim { task: &task, phase: "change", attempt: 1, fence: round as u64 };
        let tree = workspace.tree(&mirror, claim, "main", &base, &base).await?;
        let took = started.elapsed().as_secs_f64() * 1_000.0;
        (if round % 2 == 1 { &mut ahead } else { &mut cold }).push(took);
        drop(tree);
    }
    let found = Trees { files, rounds, cold_ms: median(&cold), ahead_ms: median(&ahead) };
    say(&format!("trees of {files} files: {:.0} ms from nothing, {:.0} ms ahead", found.cold_ms, found.ahead_ms));
    Ok(found)
}

/// A repository with so many files of some lines.
fn fill(origin: &Path, files: u64) -> anyhow::Result<()> {
    for file in 0..files {
        let dir = origin.join(format!("part{}/of{}", file / 1_000, file / 50));
        if file % 50 == 0 {
            std::fs::create_dir_all(&dir)?;
        }
        let text = format!("fn f{file}() {{}}\n").repeat(40);
        std::fs::write(dir.join(format!("f{file}.rs")), text)?;
    }
    git(origin, &["init", "--quiet", "--initial-branch=main"])?;
    commit(origin)
}

/// A commit on top that changes ten files.
fn change(origin: &Path, round: usize) -> anyhow::Result<()> {
    for file in 0..10 {
        std::fs::write(origin.join(format!("part0/of0/f{file}.rs")), format!("fn round{round}() {{}}\n"))?;
    }
    commit(origin)
}

fn commit(origin: &Path) -> anyhow::Result<()> {
    git(origin, &["add", "--all"])?;
    let who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
    git(origin, &[&who[..], &["commit", "--quiet", "--message=Files"]].concat())
}

fn git(dir: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let ended = Command::new("git").arg("-C").arg(dir).args(arguments).output().context("cannot run git")?;
    if !ended.status.success() {
        bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&ended.stderr));
    }
    Ok(())
}
