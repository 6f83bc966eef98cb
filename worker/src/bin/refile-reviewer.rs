//! The reviewer as a process of its own.

use clap::{CommandFactory, FromArgMatches};
use refile_worker::service::{Arguments, serve};
use refile_worker::worker::Role;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let command =
        Arguments::command().name("refile-reviewer").about("Judges attempts. Any number may run on one store.");
    let arguments = Arguments::from_arg_matches(&command.get_matches())?;
    serve(Role::Reviewer, arguments).await
}
