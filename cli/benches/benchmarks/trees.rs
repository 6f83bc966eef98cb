//! How long an attempt waits for its tree, in a repository of many files that the worker has a copy of.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use futures::future::try_join_all;
use refile_core::TaskId;
use refile_worker::process::Guard;
use refile_worker::workspace::{Claim, Workspace};

use crate::figures::{Trees, median};
use crate::targets::TOGETHER;
use crate::{Sizes, say};

/// Makes trees from nothing and from what was checked out ahead, one and several at a time.
pub(crate) async fn trees(sizes: &Sizes) -> anyhow::Result<Trees> {
    let (files, rounds) = (sizes.of(10_000), sizes.rounds(11));
    let folder = tempfile::Builder::new().prefix("refile-benchmarks-").tempdir()?;
    let origin = folder.path().join("origin");
    fill(&origin, files)?;
    let file = folder.path().join("refile.toml");
    std::fs::write(&file, "sandbox = \"off\"\n")?;
    let (config, _) = refile_config::load(Some(&file), [], &[])?;
    let workspace = Workspace::open(&folder.path().join("work"))?;
    let workspace = workspace.guarded(Guard::start(&config).await?, u64::MAX).for_jobs(TOGETHER);
    let mirror = workspace.mirror(&origin.to_string_lossy()).await?;
    let task = TaskId::parse("bench").map_err(|error| anyhow::anyhow!("{error}"))?;
    let (mut cold, mut ahead, mut together) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds as u64 {
        let attempt = async |nth: u64| {
            let started = Instant::now();
            let base = mirror.fetch("main").await?;
            let claim = Claim { task: &task, phase: "change", attempt: 1, fence: 10 * round + nth };
            let tree = workspace.tree(&mirror, claim, "main", &base, &base).await?;
            anyhow::Ok((started.elapsed().as_secs_f64() * 1_000.0, tree))
        };
        cold.push(attempt(0).await?.0);
        workspace.prepare(&mirror, &mirror.fetch("main").await?).await?;
        // The base moved since, as it does where changes land.
        change(&origin, 2 * round)?;
        ahead.push(attempt(1).await?.0);
        workspace.prepare(&mirror, &mirror.fetch("main").await?).await?;
        change(&origin, 2 * round + 1)?;
        let burst = try_join_all((2..).take(TOGETHER).map(&attempt)).await?;
        together.push(burst.iter().map(|(took, _)| *took).fold(0.0, f64::max));
    }
    let found =
        Trees { files, rounds, cold_ms: median(&cold), ahead_ms: median(&ahead), together_ms: median(&together) };
    say(&format!(
        "trees of {files} files: {:.0} ms from nothing, {:.0} ms ahead, {:.0} ms the last of {TOGETHER} together",
        found.cold_ms, found.ahead_ms, found.together_ms
    ));
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
fn change(origin: &Path, round: u64) -> anyhow::Result<()> {
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
