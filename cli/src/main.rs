//! `refile`: the operator's command, and the whole fleet in one process.
//!
//! # Layout
//! - [`arguments`]: the commands and their options
//! - [`context`]: the configuration and the store that a command works on
//! - [`output`]: tables, colours, JSON
//! - [`commands`]: one file per command
//! - [`fleet`]: coordinator, coders and reviewers in this process

mod arguments;
mod context;
mod output;
mod commands;
mod fleet;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Arguments;

/// How a command ended, as the process's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// 0: done.
    Done,
    /// 3: done, and something waits for a person.
    Waiting,
}

/// Most of the work is small texts that come and go; this allocator is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// One thread: the work waits for others, and handing it between threads cost more than it gained. Agents are processes.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // A wrong use of the command line ends in here, with 2.
    let arguments = Arguments::parse();
    refile_telemetry::process::install_tls();
    match commands::run(arguments).await {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Waiting) => ExitCode::from(3),
        Err(error) => {
            output::error(&error);
            let is_usage = error.downcast_ref::<context::UsageError>().is_some();
            ExitCode::from(if is_usage { 2 } else { 1 })
        }
    }
}
