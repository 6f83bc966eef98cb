//! The file's sections and keys. Every key has a default that works.

use std::path::PathBuf;

use indexmap::IndexMap;
use refile_core::panel::Rule;
use refile_core::policy::{Budget, ContinueFrom, OnExhausted, Policy};
use refile_core::prompt::Carry;
use refile_core::verdict::Format;
use serde::{Deserialize, Serialize};

use crate::duration::Span;
use crate::inputs::{Input, Require};
use crate::prices::Prices;
use crate::threshold::Threshold;

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The store's URL: `sqlite:PATH`, `redis://…`, `rediss://…` or `redis+cluster://HOST:PORT,HOST:PORT`.
    pub store: String,
    /// Where logs, diffs and replies are kept: `file:PATH`.
    pub artifacts: String,
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
    /// How an approved change comes to the base branch.
    pub land: Land,
    /// The folder that relative paths start from: that of the file.
    #[serde(skip)]
    pub dir: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: "sqlite:.refile/fleet.db".to_owned(),
            artifacts: "file:.refile/artifacts".to_owned(),
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
            land: Land::default(),
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

/// The rules by which the fleet decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySection {
    /// Attempts that a phase has.
    pub max_attempts: u32,
    /// A confidence must be strictly greater than this to count.
    pub confidence: f64,
    /// `escalate`, `accept` or `reject` when a reviewer rejects the last attempt.
    pub on_exhausted: OnExhausted,
    /// Opinions of low confidence on one attempt, after which a person decides.
    pub max_reviews: u32,
    /// Failed reviews of one attempt, after which a person is asked.
    pub max_review_failures: u32,
    /// Failed runs of one attempt's agent, after which a person is asked.
    pub max_infra_failures: u32,
    /// Failed landings of one attempt, after which a person is asked.
    pub max_land_failures: u32,
    /// Deliveries of one job, after which it is taken for a poison job.
    pub max_deliveries: u32,
    /// The first wait before a failed job is tried again; it doubles each time.
    pub backoff: Span,
    /// The longest wait before a failed job is tried again.
    pub max_backoff: Span,
    /// `previous` or `base`: where the next attempt starts.
    pub continue_from: ContinueFrom,
    /// Agents by attempt; empty for the first of `[agents]` always.
    pub ladder: Vec<String>,
    /// Run every gate even when one has failed.
    pub keep_going: bool,
    /// What a task may use up before a person is asked.
    pub budget: BudgetSection,
    /// What is carried from one attempt into the next.
    pub carry: CarrySection,
}

impl Default for PolicySection {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            max_attempts: policy.max_attempts,
            confidence: policy.confidence,
            on_exhausted: policy.on_exhausted,
            max_reviews: policy.max_reviews,
            max_review_failures: policy.max_review_failures,
            max_infra_failures: policy.max_infra_failures,
            max_land_failures: policy.max_land_failures,
            max_deliveries: policy.max_deliveries,
            backoff: Span(std::time::Duration::from_millis(policy.backoff_ms)),
            max_backoff: Span(std::time::Duration::from_millis(policy.max_backoff_ms)),
            continue_from: policy.continue_from,
            ladder: Vec::new(),
            keep_going: false,
            budget: BudgetSection::default(),
            carry: CarrySection::default(),
        }
    }
}

/// What a task may use up; a key that is absent is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSection {
    /// Tokens in and out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Working time of agents and reviewers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall: Option<Span>,
}

/// What is carried from one attempt into the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CarrySection {
    /// Characters of the critique.
    pub critique_chars: usize,
    /// How many demands of still earlier attempts are repeated.
    pub still_required: usize,
}

impl Default for CarrySection {
    fn default() -> Self {
        let Carry { critique_chars, still_required } = Carry::default();
        Self { critique_chars, still_required }
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
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            coders: 2,
            reviewers: 2,
            lease: Span::seconds(60),
            grace: Span::seconds(20),
            dir: ".refile/work".to_owned(),
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
}

/// The kinds of agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentType {
    /// Any program.
    #[default]
    Command,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// What it is.
    #[serde(rename = "type", default)]
    pub kind: AgentType,
    /// The program and its arguments; `{prompt_file}` stands for the file that holds the prompt.
    pub command: Vec<String>,
    /// How it is given its prompt.
    #[serde(default)]
    pub prompt: PromptDelivery,
    /// How long one run may take.
    #[serde(default = "half_an_hour")]
    pub timeout: Span,
    /// Names of environment variables that it gets from the worker's environment.
    #[serde(default)]
    pub env: Vec<String>,
    /// The model that it works with, for reviewers with `other_model_than_coder`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// The kinds of reviewers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReviewerType {
    /// Any program.
    #[default]
    Command,
    /// A model.
    Llm,
    /// A person: a review is an escalation.
    Human,
    /// Several reviewers, whose opinions are made into one.
    Panel,
}

/// A reviewer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reviewer {
    /// What it is.
    #[serde(rename = "type", default)]
    pub kind: ReviewerType,
    /// Of a `command`: the program and its arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// How it replies: `text` by default for a command, `json` for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Of an `llm`: the name of its provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Of an `llm`: the model. A `command` may tell which one it calls, for `other_model_than_coder`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Of an `llm`: the model that is asked where the first one refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_model: Option<String>,
    /// Of an `llm`: what it should look at, beside the rules that every judge is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Of an `llm`: the longest reply, in tokens.
    #[serde(default = "reply_tokens")]
    pub max_tokens: u32,
    /// What it is given to judge by.
    #[serde(default = "Input::default_list")]
    pub inputs: Vec<Input>,
    /// The largest packet that it is given, in bytes.
    #[serde(default = "packet_bytes")]
    pub max_input_bytes: usize,
    /// What must hold for its word to count.
    #[serde(default, skip_serializing_if = "Require::is_usual")]
    pub require: Require,
    /// The name under which its verdict is kept as an artifact of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Where it fails, in whatever way, the next reviewer is asked. A failed review approves nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub continue_on_error: bool,
    /// How long one review may take.
    #[serde(default = "two_minutes")]
    pub timeout: Span,
    /// Of a `command`: names of environment variables that it gets from the worker's environment.
    #[serde(default)]
    pub env: Vec<String>,
    /// Of a `panel`: the reviewers that are asked, each a `command` or an `llm` with keys of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Of a `panel`: how many members must approve: `any`, `majority` or `unanimous`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rule: Rule,
    /// Its own threshold, where it is asked on its own: a number, or `"q20"` for one at which the lowest 20 % of its own recent confidences do not pass;
    /// `policy.confidence` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Threshold>,
    /// It does not judge a change that was made by its own model, while there is another reviewer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub other_model_than_coder: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Reviewer {
    /// The smallest packet that can be asked for, in bytes: below it the markers leave no room for what is judged.
    pub const MIN_INPUT_BYTES: usize = 4_000;

    /// How it replies.
    pub fn format(&self) -> Format {
        self.format.unwrap_or(match self.kind {
            ReviewerType::Llm => Format::Json,
            ReviewerType::Command | ReviewerType::Human | ReviewerType::Panel => Format::Text,
        })
    }
}

fn half_an_hour() -> Span {
    Span::seconds(1_800)
}

fn two_minutes() -> Span {
    Span::seconds(120)
}

fn ten_minutes() -> Span {
    Span::seconds(600)
}

fn reply_tokens() -> u32 {
    2_000
}

fn packet_bytes() -> usize {
    200_000
}

/// The wire formats of providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    /// Anthropic Messages.
    Anthropic,
    /// `OpenAI` chat completions, and everything that speaks them.
    Openai,
    /// `OpenAI` responses.
    OpenaiResponses,
    /// Google's `generateContent`.
    Gemini,
    /// Chat completions as Ollama speaks them.
    Ollama,
}

impl ProviderKind {
    /// Every kind, for tables and tests.
    pub const ALL: [Self; 5] = [Self::Anthropic, Self::Openai, Self::OpenaiResponses, Self::Gemini, Self::Ollama];
}

/// A provider of models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// Its wire format.
    pub kind: ProviderKind,
    /// Where it is; the provider's own address by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The environment variable that holds the key; none for a server that asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Whether its models can be held to a JSON schema; by default where the server is known to be able to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<bool>,
    /// How many calls the whole fleet may make in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// How many tokens the whole fleet may use up in a minute, by an estimate: a quarter of the bytes that are sent, and
    /// the longest answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u32>,
}

impl Provider {
    /// Where it is.
    pub fn base_url(&self) -> &str {
        self.base_url.as_deref().unwrap_or(match self.kind {
            ProviderKind::Anthropic => "https://api.anthropic.com/",
            ProviderKind::Openai | ProviderKind::OpenaiResponses => "https://api.openai.com/",
            ProviderKind::Gemini => "https://generativelanguage.googleapis.com/",
            ProviderKind::Ollama => "http://127.0.0.1:11434/",
        })
    }

    /// Whether its models can be held to a JSON schema. Many a server that speaks chat completions or Messages at an
    /// address of its own refuses a field that it does not know; such a one is asked for plain JSON unless told so.
    pub fn structured(&self) -> bool {
        let copied = matches!(self.kind, ProviderKind::Anthropic | ProviderKind::Openai);
        self.structured.unwrap_or(self.base_url.is_none() || !copied)
    }
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
    /// The imperative that its failure turns into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_change: Option<String>,
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
}

/// How an approved change comes to the base branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Land {
    /// As what.
    pub strategy: Strategy,
    /// Changes for one base branch that are tried together: the gates run once for all of them.
    pub batch: u32,
}

impl Default for Land {
    fn default() -> Self {
        Self { strategy: Strategy::default(), batch: 1 }
    }
}

impl Config {
    /// The rules for [`refile_core::decide()`].
    pub fn policy(&self) -> Policy {
        let p = &self.policy;
        let first = |names: Option<&String>| vec![names.cloned().unwrap_or_else(|| "default".to_owned())];
        let reviewers = self.reviewers_in_turn();
        Policy {
            max_attempts: p.max_attempts,
            confidence: p.confidence,
            on_exhausted: p.on_exhausted,
            max_reviews: p.max_reviews,
            max_review_failures: p.max_review_failures,
            max_infra_failures: p.max_infra_failures,
            max_land_failures: p.max_land_failures,
            max_deliveries: p.max_deliveries,
            backoff_ms: p.backoff.as_millis(),
            max_backoff_ms: p.max_backoff.as_millis(),
            continue_from: p.continue_from,
            budget: Budget {
                tokens: p.budget.tokens,
                cost_micros: p.budget.cost_usd.map(|usd| (usd * 1e6) as u64),
                wall_ms: p.budget.wall.map(Span::as_millis),
            },
            ladder: if p.ladder.is_empty() { first(self.agents.keys().next()) } else { p.ladder.clone() },
            models: self.agents.iter().filter_map(|(name, a)| Some((name.clone(), a.model.clone()?))).collect(),
            reviewers: if reviewers.is_empty() { Policy::default().reviewers } else { reviewers },
            ..Policy::default()
        }
    }

    /// What is carried from one attempt into the next.
    pub fn carry(&self) -> Carry {
        let c = self.policy.carry;
        Carry { critique_chars: c.critique_chars, still_required: c.still_required }
    }

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
