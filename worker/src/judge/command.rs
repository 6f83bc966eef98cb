//! A program as a reviewer: the packet on standard input, the verdict on standard output.

use std::path::Path;

use refile_config::Reviewer;
use refile_core::failure::Failure;
use refile_core::task::Usage;
use refile_core::verdict;

use super::Opinion;
use super::packet::Packet;
use crate::agent::{failed, hidden, is_confined, misses, not_started, resolve};
use crate::git::Tree;
use crate::process::{self, Command, Reach, Secrets, tail};
use crate::workspace::Claim;

/// Asks a program. It runs in a checkout of the change; `REFILE_DIFF_FILE` names the whole diff.
pub async fn ask(
    reviewer: &Reviewer,
    config_dir: &Path,
    packet: &Packet,
    diff: &[u8],
    tree: &Tree,
    claim: Claim<'_>,
) -> Opinion {
    let failed_before =
        |failure: Failure| Opinion { verdict: Err(failure), reply: None, calls: Vec::new(), usage: Usage::default() };
    let diff_file = match tree.put_beside("change.diff", diff) {
        Ok(file) => file,
        Err(error) => return failed_before(error.failure()),
    };
    let argv = resolve(&reviewer.command, config_dir);
    let sandbox = tree.sandbox(&argv, Reach { network: reviewer.network.unwrap_or(false), ..Reach::default() });
    let mut command = Command::new(argv, tree.dir(), reviewer.timeout.0).confined(sandbox);
    command.env = claim.environment(tree.base(), &reviewer.env);
    command.env.push(("REFILE_DIFF_FILE".into(), diff_file.into()));
    command.secrets = Secrets::of(&reviewer.env);
    command.stdin = packet.text.clone().into_bytes();
    let done = match process::run(&command).await {
        Ok(done) => done,
        Err(error) => return failed_before(not_started(&error)),
    };
    let reply = done.stdout_text();
    let verdict = if done.exit.is_ok() {
        let read = verdict::read(reviewer.format(), &reply);
        match read.failure {
            None => Ok(read.verdict),
            Some(kind) => Err(Failure::new(kind, read.verdict.critique)),
        }
    } else {
        let mut failure = failed(&reviewer.command, &done, &command.secrets);
        if is_confined(tree) && misses(&tail(&done.output_text(), 600).to_lowercase()) {
            failure.detail.push_str(&hidden("workers.readable"));
        }
        Err(failure)
    };
    // It may have asked a model, and says nothing of that.
    let usage = Usage { wall_ms: done.wall_ms(), cost_unknown: true, ..Usage::default() };
    Opinion { verdict, reply: Some(reply), calls: Vec::new(), usage }
}
