//! The reviewer as a process of its own.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use refile_telemetry::process;
use refile_worker::service::{Arguments, serve};
use refile_worker::worker::Role;

/// Most of the work is small texts that come and go; this allocator is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// One thread: the work waits for others, and handing it between threads cost more than it gained. Agents are processes.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let command =
        Arguments::command().name("refile-reviewer").about("Judges attempts. Any number may run on one store.");
    let arguments = Arguments::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    match serve(Role::Reviewer, arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => process::failed(error.as_ref()),
    }
}
