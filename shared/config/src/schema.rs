//! The file's sections and keys. Every key has a default that works.
//!
//! # Layout
//! - `policy`: the rules by which the fleet decides
//! - `reviewers`: who judges, and by what
//! - `providers`: where models are
//! - here: everything else

mod policy;
mod reviewers;
mod providers;

use std::path::PathBuf;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::agents::Tool;
use crate::bounds::{DiffPolicy, ProcessLimits, Sandbox, WorkspaceSection};
use crate::duration::Span;
use crate::forge::{ForgeSection, Merging};
use crate::presets::Preset;
use crate::prices::Prices;
pub use policy::{BudgetSection, CarrySection, PolicySection};
pub use providers::{Provider, ProviderKind};
use reviewers::is_default;
pub use reviewers::{Reviewer, ReviewerType};

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The store's URL: `sqlite:PATH`, `redis://…`, `rediss://…` or `redis+cluster://HOST:PORT,HOST:PORT`.
    pub store: String,
    /// Where logs, diffs and replies are kept: `file:PATH`.
    pub artifacts: String,
    /// Whether agents, gates and command reviewers run in a sandbox: `auto`, `required` or `off`.
    pub sandbox: Sandbox,
    /// The repository of tasks that name none.
    pub repository: Repository,
    /// The rules by which the fleet decides.
    pub policy: PolicySection,
    /// The coordinator's own settings.
    pub coordinator: Coordinator,
    /// The workers' settings.
    pub workers: Workers,
    /// How many jobs may run at once in the whole fleet.
    pub limits: LimitsSection,
    /// Coders by name; the first one is the default.
    pub agents: IndexMap<String, Agent>,
    /// Reviewers by name; the first one is the default.
    pub reviewers: IndexMap<String, Reviewer>,
    /// Providers of models by name.
    pub providers: IndexMap<String, Provider>,
    /// What models cost, by their names; well-known ones have built-in prices.
    pub prices: Prices,
    /// Checks that need no model, in the order in which they run.
    pub gates: Vec<Gate>,
    /// What a change may hold.
    pub diff_policy: DiffPolicy,
    /// The copies of repositories that a worker keeps.
    pub workspace: WorkspaceSection,
    /// How an approved change comes to the base branch.
    pub land: Land,
    /// The forge that the repositories lie on.
    pub forge: ForgeSection,
    /// The folder that relative paths start from: that of the file.
    #[serde(skip)]
    pub dir: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: "sqlite:.refile/fleet.db".to_owned(),
            artifacts: "file:.refile/artifacts".to_owned(),
            sandbox: Sandbox::default(),
            repository: Repository::default(),
            policy: PolicySection::default(),
            coordinator: Coordinator::default(),
            workers: Workers::default(),
            limits: LimitsSection::default(),
            agents: IndexMap::new(),
            reviewers: IndexMap::new(),
            providers: IndexMap::new(),
            prices: Prices::new(),
            gates: Vec::new(),
            diff_policy: DiffPolicy::default(),
            workspace: WorkspaceSection::default(),
            land: Land::default(),
            forge: ForgeSection::default(),
            dir: PathBuf::from("."),
        }
    }
}

/// A repository and its base branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Repository {
    /// A path or a URL.
    pub url: String,
    /// The branch that changes land on.
    pub base: String,
}

impl Default for Repository {
    fn default() -> Self {
        Self { url: ".".to_owned(), base: "main".to_owned() }
    }
}

/// The coordinator's own settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Coordinator {
    /// Where it serves the API and its metrics.
    pub listen: String,
    /// An outcome that a coordinator took and did not decide within this time is taken by another.
    pub takeover: Span,
}

impl Default for Coordinator {
    fn default() -> Self {
        Self { listen: "127.0.0.1:7420".to_owned(), takeover: Span::seconds(15) }
    }
}

/// The workers' settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workers {
    /// Jobs that the coders of one process do at once.
    pub coders: usize,
    /// Jobs that the reviewers of one process do at once.
    pub reviewers: usize,
    /// How long a claim holds without a heartbeat.
    pub lease: Span,
    /// How long running jobs may go on after SIGTERM before they are given back.
    pub grace: Span,
    /// Where mirrors of repositories and the attempts' trees lie.
    pub dir: String,
    /// Files and folders that every sandboxed command may read, beside the system's and the usual tools'.
    pub readable: Vec<String>,
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            coders: 2,
            reviewers: 2,
            lease: Span::seconds(60),
            grace: Span::seconds(20),
            dir: ".refile/work".to_owned(),
            readable: Vec::new(),
        }
    }
}

/// How many jobs may run at once in the whole fleet, whatever its size; what is absent has no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsSection {
    /// On each repository that is not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<u32>,
    /// On a repository, by its path or URL.
    pub repositories: IndexMap<String, u32>,
    /// Of a workflow, by its name.
    pub workflows: IndexMap<String, u32>,
    /// Of a coder, by its name.
    pub agents: IndexMap<String, u32>,
    /// Of a reviewer, by its name.
    pub reviewers: IndexMap<String, u32>,
    /// Of a provider of models, by its name.
    pub providers: IndexMap<String, u32>,
    /// What one command may use up.
    pub process: ProcessLimits,
}

/// The kinds of agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentType {
    /// Any program.
    #[default]
    Command,
    /// A model, with the built-in tools.
    Llm,
    /// Any program that speaks the Agent Client Protocol on its standard input and output.
    Acp,
}

/// How an agent is given its prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptDelivery {
    /// On standard input.
    #[default]
    Stdin,
    /// In a file: `{prompt_file}` in the command and `REFILE_PROMPT_FILE` name it.
    File,
    /// As the last argument.
    Argument,
}

/// A coder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// What it is.
    #[serde(rename = "type", default)]
    pub kind: AgentType,
    /// A well-known coding agent: fills in the command, how it is given its prompt, and how its output is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Of a `command` and an `acp`: the program and its arguments; `{prompt_file}` stands for the file that holds the prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Arguments behind those of the command or the preset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// How it is given its prompt.
    #[serde(default)]
    pub prompt: PromptDelivery,
    /// How long one run may take.
    #[serde(default = "half_an_hour")]
    pub timeout: Span,
    /// Names of environment variables that it gets from the worker's environment.
    #[serde(default)]
    pub env: Vec<String>,
    /// Whether it reaches the network from the sandbox; it does by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<bool>,
    /// Files and folders outside of its tree that it may read from the sandbox, such as its login.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readable: Vec<String>,
    /// Those that it may also write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<String>,
    /// The model that it works with: of an `llm` the one that is asked, of others for reviewers with
    /// `other_model_than_coder`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Of an `llm`: the name of its provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Of an `llm`: what it is told beside the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Of an `llm` and an `acp`: what it may do; everything where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<Tool>>,
    /// Of an `llm`: how many answers of the model a run may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Of an `llm`: the longest answer, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Of an `llm`: the tokens in and out that a run may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_total_tokens: Option<u64>,
    /// Of an `llm`: what a run may cost, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// Of an `llm`: the longest output of a tool that it is shown, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<usize>,
    /// Of an `llm`: the model's window, in tokens; older outputs of tools are left out to stay within it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            kind: AgentType::default(),
            preset: None,
            command: Vec::new(),
            args: Vec::new(),
            prompt: PromptDelivery::default(),
            timeout: half_an_hour(),
            env: Vec::new(),
            network: None,
            readable: Vec::new(),
            writable: Vec::new(),
            model: None,
            provider: None,
            instructions: None,
            allowed_tools: None,
            max_steps: None,
            max_tokens: None,
            max_total_tokens: None,
            max_cost_usd: None,
            max_output_bytes: None,
            context_tokens: None,
        }
    }
}

fn half_an_hour() -> Span {
    Span::seconds(1_800)
}

fn ten_minutes() -> Span {
    Span::seconds(600)
}

/// A check that needs no model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Its name; `lint`, `build` and `test` have imperatives of their own.
    pub name: String,
    /// What runs, by `sh -c`, in the attempt's tree.
    pub run: String,
    /// How long it may take.
    #[serde(default = "ten_minutes")]
    pub timeout: Span,
    /// Whether it reaches the network from the sandbox; it does not by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<bool>,
    /// It only brings what the gates after it need: where it fails on the untouched base as well, it cannot run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub setup: bool,
    /// The imperative that its failure turns into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_change: Option<String>,
    /// How often it is run again where it failed; a pass after a retry is a pass.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retries: u32,
    /// What a failure means that the untouched base has as well: `fail`, `warn` or `ignore`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub baseline: Baseline,
}

/// What a gate's failure means where the gate fails on the untouched base as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// It is a failure like any other; the base is not looked at.
    #[default]
    Fail,
    /// The change passes, and the gate's report says why.
    Warn,
    /// The change passes, and nothing is reported.
    Ignore,
}

/// How a change comes to the base branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// As one commit.
    #[default]
    Squash,
    /// Each commit of the attempt on top of the base, as it is; the last one tells where it comes from.
    Rebase,
    /// Beside the base, brought together with it by a merge commit.
    Merge,
    /// By a pull request on the forge.
    PullRequest,
}

/// How an approved change comes to the base branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Land {
    /// As what.
    pub strategy: Strategy,
    /// Who merges a pull request: `manual` for people, `auto` for the fleet.
    pub merge: Merging,
    /// Changes for one base branch that are tried together: the gates run once for all of them.
    pub batch: u32,
}

impl Default for Land {
    fn default() -> Self {
        Self { strategy: Strategy::default(), merge: Merging::default(), batch: 1 }
    }
}

impl Config {
    /// A path of the configuration, from the file's folder where it is relative.
    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }

    /// A repository as git can reach it from anywhere: a URL as it is, a path made absolute.
    pub fn repository_url(&self, url: &str) -> String {
        let is_url = url.contains("://") || url.split_once(':').is_some_and(|(host, _)| !host.contains('/'));
        if is_url {
            return url.to_owned();
        }
        let path = self.path(url);
        path.canonicalize().unwrap_or(path).to_string_lossy().into_owned()
    }
}
