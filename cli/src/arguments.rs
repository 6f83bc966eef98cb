//! The commands and their options.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use refile_config::Span;
use refile_core::{Priority, TaskState};

/// A fleet of coding agents in which a rejection leads the next attempt.
#[derive(Debug, Parser)]
#[command(
    name = "refile",
    version,
    after_help = "Exit status: 0 done, 1 failed, 2 wrong use, 3 done but something waits for a person."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The configuration; `refile.toml` here by default
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The store, in place of the configuration's
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Take a Redis server that may evict keys or keeps nothing on disk
    #[arg(long, global = true)]
    pub(crate) allow_volatile: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Play the whole loop on a sample repository; needs no key and no server
    Demo(DemoArguments),
    /// Write refile.toml for the repository that you stand in
    Init(InitArguments),
    /// Run coordinator, coders and reviewers in this process
    Up(UpArguments),
    /// Submit a task, or a file of them
    Submit(SubmitArguments),
    /// Look at tasks, call them off, do them again
    #[command(subcommand)]
    Task(TaskCommand),
    /// Look at what waits for a person, and decide it
    #[command(subcommand)]
    Escalation(EscalationCommand),
    /// Read reviewers' replies
    #[command(subcommand)]
    Verdict(VerdictCommand),
    /// Compare reviewers' verdicts with what turned out to be right
    #[command(
        after_help = "A verdict is right where it said of the change whether it is good as it is, and that turned out so: a person approved the change on an escalation, or turned it down; it was reverted later (`This reverts commit …` on the base branch); or it has been on the base branch for a week. Of most verdicts nobody knows; those have no label.\n\nHistories are read of repositories on this machine, and of those that a worker here has a mirror of.\n\nA confidence passes where it is greater than the threshold: `confidence` of the reviewer, or of [policy]."
    )]
    Calibration,
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look at the coders, and whether one could be run here
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Say which providers of models are left alone, leave one alone, call it again
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Say how many partitions the queue has, or give it more
    Partitions(PartitionsArguments),
    /// Measure how fast the queue is, with agents that do nothing
    Bench(BenchArguments),
    /// A part of the benchmark's fleet; started by `bench`
    #[command(hide = true)]
    BenchPart,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Keep everything in this folder, which must be empty or new; a temporary one by default
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InitArguments {
    /// Write over a refile.toml that is there
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    /// Stop when no work is left; what waits for people, here or on the forge, is left to them
    #[arg(long)]
    pub(crate) drain: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A file holds one JSON object a line, or a YAML list:\n\n  - title: Handle 429 responses\n    description: fetch() panics on 429. Retry later.\n    priority: high          # also: repository, base, workflow, key, labels\n\nThe agent reads the description; a task without one is its title."
)]
pub(crate) struct SubmitArguments {
    /// What is wanted, in one line
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) title: Option<String>,
    /// What is wanted, in full; `-` reads it from standard input
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    pub(crate) description: Option<String>,
    /// Tasks from a file (JSON lines or YAML); `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The repository of tasks that name none
    #[arg(long, value_name = "PATH|URL")]
    pub(crate) repository: Option<String>,
    /// The base branch of tasks that name none
    #[arg(long, value_name = "BRANCH")]
    pub(crate) base: Option<String>,
    /// Which tasks go first
    #[arg(long, value_name = "high|normal|low", value_parser = parse_priority)]
    pub(crate) priority: Option<Priority>,
    /// An idempotency key: a second task with the same one is the first
    #[arg(long, value_name = "KEY", conflicts_with = "file")]
    pub(crate) key: Option<String>,
    /// A word to find the task by; may be given again
    #[arg(long, value_name = "WORD")]
    pub(crate) label: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// List tasks, newest first
    List(ListArguments),
    /// Show a task with its attempts
    Show(TaskArgument),
    /// Tell what happened to a task, in order
    Log(LogArguments),
    /// Print the diff of an attempt
    Diff(DiffArguments),
    /// Call a task off
    Cancel(TaskArgument),
    /// Do a task's last job again if it is escalated; submit it anew if it is over
    Retry(TaskArgument),
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// List the agents of the configuration, and the presets
    List,
    /// Say whether an agent or a preset could be run here: its program, its version, its key or login; no prompt is sent
    Check(AgentArguments),
}

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// Its name in the configuration, or a preset's
    pub(crate) name: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProviderCommand {
    /// List the providers, and what is paused of each
    List,
    /// Leave a provider alone: jobs that need it stay in their queue
    Pause(PauseArguments),
    /// End the pauses of a provider, whoever made them
    Resume(ProviderArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ProviderArguments {
    /// Its name in the configuration
    pub(crate) name: String,
    /// Only this model of it
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PauseArguments {
    #[command(flatten)]
    pub(crate) provider: ProviderArguments,
    /// For so long, e.g. 30m; until it is resumed by default
    #[arg(long = "for", value_name = "TIME", value_parser = Span::parse)]
    pub(crate) for_: Option<Span>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Only tasks in this state; may be given again
    #[arg(long, value_parser = parse_state)]
    pub(crate) state: Vec<TaskState>,
    /// Only tasks of this repository
    #[arg(long, value_name = "PATH|URL")]
    pub(crate) repository: Option<String>,
    /// Only tasks with this label
    #[arg(long, value_name = "WORD")]
    pub(crate) label: Option<String>,
    /// Only tasks with this text in id or title
    #[arg(long, value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// At most so many
    #[arg(long, default_value = "50", value_name = "N")]
    pub(crate) limit: std::num::NonZeroUsize,
}

#[derive(Debug, Args)]
pub(crate) struct TaskArgument {
    /// The task's id, or the beginning of it
    pub(crate) task: String,
}

#[derive(Debug, Args)]
pub(crate) struct LogArguments {
    /// The task's id, or the beginning of it
    pub(crate) task: String,
    /// Print prompts, transcripts, gate outputs and reviewers' replies whole
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// The task's id, or the beginning of it
    pub(crate) task: String,
    /// The attempt; the last that left a change by default
    #[arg(long, value_name = "N")]
    pub(crate) attempt: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EscalationCommand {
    /// List what waits for a person
    List,
    /// Show an escalation with its evidence
    Show(EscalationArgument),
    /// The change is good: land it
    Approve(DecisionArguments),
    /// Start another attempt, led by the change that you require
    Refile(RefileArguments),
    /// Do the same job again
    Retry(DecisionArguments),
    /// Turn the task down
    Reject(DecisionArguments),
}

#[derive(Debug, Args)]
pub(crate) struct EscalationArgument {
    /// The escalation's id, or its task's
    pub(crate) escalation: String,
}

#[derive(Debug, Args)]
pub(crate) struct DecisionArguments {
    #[command(flatten)]
    pub(crate) which: EscalationArgument,
    #[command(flatten)]
    pub(crate) audit: Audit,
}

/// Who decides, and why.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Who decides; your user name by default
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Why; kept with the decision
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RefileArguments {
    #[command(flatten)]
    pub(crate) which: EscalationArgument,
    /// What the next attempt must do: one imperative sentence
    pub(crate) required_change: String,
    /// How many more attempts the task gets
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) attempts: u32,
    #[command(flatten)]
    pub(crate) audit: Audit,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VerdictCommand {
    /// Print the verdict that a reply holds, as JSON; `--format text` for APPROVE, RETRY: and the like
    Parse(ParseArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ParseArguments {
    /// The form of the reply
    #[arg(long, value_enum, default_value_t = ReplyFormat::Json)]
    pub(crate) format: ReplyFormat,
    /// The reply; standard input by default
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ReplyFormat {
    /// An object with a verdict, a required change, a critique and a confidence
    Json,
    /// APPROVE, RETRY: feedback and the like
    Text,
    /// An object with pass or fail, a summary, findings and required fixes
    Judge,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every value that is in force, and where it comes from
    Show,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A queue in Redis begins with one partition. In a cluster each lies on one node, so that more of them spread the\nwork over more nodes. New tasks go to all of them; tasks that are there stay where they are. Processes that\nrun learn of it within seconds. There are never fewer again. Jobs have an order within a partition only."
)]
pub(crate) struct PartitionsArguments {
    /// How many there are to be
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without --store the queue is a new SQLite file. On a Redis server every part is a process, and all keys start\nwith `refile-bench`; nothing else there is touched, but what else the server does shows in the figures."
)]
pub(crate) struct BenchArguments {
    /// Tasks that go through the whole fleet
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) tasks: u64,
    /// Bytes of a task's description
    #[arg(long, default_value_t = 1_024, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(64..=1_000_000))]
    pub(crate) payload: u64,
    /// Coders, and as many reviewers
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) workers: u64,
    /// Jobs at once in each of them
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) concurrency: u64,
    /// The share of tasks whose first attempt is rejected, 0 to 1
    #[arg(long, default_value_t = 0.0, value_name = "SHARE", value_parser = parse_share)]
    pub(crate) rejected: f64,
    /// Tasks due per second, whether or not the store keeps up; as fast as it takes them by default
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// Measure bare Redis streams in the same run, too, and print the ratio
    #[arg(long)]
    pub(crate) limit: bool,
    /// Further open tasks that are there from the start and not yet due
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pub(crate) backlog: u64,
    /// On Redis: go on with what earlier runs left under the benchmark's keys, and leave it there
    #[arg(long, conflicts_with = "limit")]
    pub(crate) keep: bool,
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is a number from 0 to 1".to_owned())
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.1..=1e6).contains(rate));
    rate.ok_or_else(|| "a rate is a number from 0.1 to 1000000".to_owned())
}

fn parse_priority(name: &str) -> Result<Priority, String> {
    Priority::parse(name).ok_or_else(|| "there are high, normal and low".to_owned())
}

fn parse_state(name: &str) -> Result<TaskState, String> {
    TaskState::parse(name).ok_or_else(|| {
        let names: Vec<&str> = TaskState::ALL.iter().map(|s| s.as_str()).collect();
        format!("there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_commands_are_well_formed() {
        super::Arguments::command().debug_assert();
    }
}
