//! One file per command.

mod demo;
mod init;
mod up;
mod submit;
mod task;
mod history;
mod escalation;
mod verdict;
pub(crate) mod calibration;
mod config;
mod provider;
mod agent;
mod dry;
mod partitions;
mod bench;

use std::io::IsTerminal;

use refile_telemetry::logging;

use crate::Ended;
use crate::arguments::{Arguments, Command, ConfigCommand, VerdictCommand};
use crate::context::Context;

/// Runs the command.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    let Arguments { global, command } = arguments;
    // `up` is a fleet: its log says what it does, but on a terminal the progress does. Other commands say what they found.
    logging::init(!matches!(command, Command::Up(_)) || std::io::stderr().is_terminal());
    match command {
        Command::Demo(arguments) => demo::run(&arguments, global.json).await,
        Command::Verdict(VerdictCommand::Parse(arguments)) => verdict::parse(&arguments),
        Command::Calibration => calibration::run(&Context::new(&global)?).await,
        Command::Init(arguments) => init::run(&arguments, global.json),
        Command::Up(arguments) => up::run(&Context::new(&global)?, &arguments).await,
        Command::Submit(arguments) => submit::run(&Context::new(&global)?, arguments).await,
        Command::Task(command) => task::run(&Context::new(&global)?, command).await,
        Command::Escalation(command) => escalation::run(&Context::new(&global)?, command).await,
        Command::Agent(command) => agent::run(&Context::new(&global)?, command).await,
        Command::Provider(command) => provider::run(&Context::new(&global)?, command).await,
        Command::Partitions(arguments) => partitions::run(&Context::new(&global)?, &arguments).await,
        Command::Bench(arguments) => bench::run(&global, arguments).await,
        Command::BenchPart => bench::run_part().await,
        Command::Config(ConfigCommand::Show) => config::show(&Context::new(&global)?),
    }
}
