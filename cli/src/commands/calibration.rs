//! `refile calibration`: reviewers' verdicts against what turned out to be right.

use std::collections::BTreeSet;

use refile_coordinator::calibration::walk;
use refile_coordinator::now;
use refile_core::calibration::{Calibration, FEWEST, TARGET, calibrate};
use refile_worker::git::GitError;
use refile_worker::workspace::Workspace;
use serde_json::json;

use crate::Ended;
use crate::context::Context;
use crate::output::{self, BOLD, DIM, styled, untrusted};

/// Prints what is known of each reviewer.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Ended> {
    let store = context.existing_store().await?;
    let workspace = Workspace::open(&context.config.path(&context.config.workers.dir))?.with_config(&context.config);
    let look = |repository, base| taken_back(workspace.clone(), repository, base);
    let walked = walk(store.as_ref(), now(), usize::MAX, look).await?;
    let reviewers = calibrate(&walked.samples);
    if context.json {
        output::json(&json!({
            "tasks": walked.tasks,
            "unreadable": walked.unreadable,
            "target": TARGET,
            "reviewers": reviewers,
            "histories_not_read": walked.unreachable,
        }))?;
        return Ok(Ended::Done);
    }
    if reviewers.is_empty() {
        output::line("no reviewer has given a verdict yet");
    }
    for (at, reviewer) in reviewers.iter().enumerate() {
        if at > 0 {
            output::line("");
        }
        print(reviewer);
    }
    if walked.unreadable > 0 {
        output::note(format!("{} tasks were written by another version and cannot be read", walked.unreadable));
    }
    for (repository, why) in &walked.unreachable {
        let said = format!("reverts in {} are not known: {}", untrusted(repository), untrusted(why));
        output::note(styled(DIM, said));
    }
    Ok(Ended::Done)
}

/// The tasks whose changes were taken back on a base branch that is within reach of this machine.
pub(crate) async fn taken_back(
    workspace: Workspace,
    repository: String,
    base: String,
) -> Result<BTreeSet<String>, String> {
    if !workspace.reaches(&repository) {
        return Err("it is not on this machine, and no worker here has a mirror of it".to_owned());
    }
    reverted(&workspace, &repository, &base).await.map_err(|error| error.to_string())
}

async fn reverted(workspace: &Workspace, repository: &str, base: &str) -> Result<BTreeSet<String>, GitError> {
    let mirror = workspace.mirror(repository).await?;
    let head = mirror.fetch(base).await?;
    mirror.reverted(&head, "Refile-Task").await
}

fn print(of: &Calibration) {
    let all = of.all;
    let head = styled(BOLD, &of.reviewer);
    output::line(format!("{head}: {} right, {} wrong, {} without a label", all.right, all.wrong, all.unlabelled));
    output::line(format!("  of changes that stood: {}, that were reverted: {}", of.stood, of.reverted));
    for (verdict, tally) in &of.verdicts {
        let counts = format!("{} right, {} wrong, {} without a label", tally.right, tally.wrong, tally.unlabelled);
        output::line(format!("  {verdict}: {counts}"));
    }
    let mut table = output::table(&["confidence", "right", "wrong", "share right", "95 % interval"]);
    for bin in &of.bins {
        table.add_row([
            format!("{:.1} to {:.1}", bin.from, bin.to),
            bin.right.to_string(),
            bin.wrong.to_string(),
            format!("{:.2}", bin.share),
            format!("{:.2} to {:.2}", bin.low, bin.high),
        ]);
    }
    if !of.bins.is_empty() {
        output::print_table(&table, "");
    }
    let percent = TARGET * 100.0;
    output::line(match of.suggested {
        _ if of.too_few_labels => {
            format!("  too few labels to tell: {}, and {FEWEST} are needed", all.labelled())
        }
        Some(threshold) => format!(
            "  suggested: confidence = {threshold}; above it at least {percent} % are right, as far as the labels tell"
        ),
        None => {
            format!("  no threshold to suggest: above none does the interval of the right ones begin at {percent} %")
        }
    });
}
