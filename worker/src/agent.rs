//! Runs a coder's agent on its prompt, in the attempt's tree.
//!
//! # Layout
//! - [`command`]: any program
//! - [`preset`]: what is known of well-known programs
//! - [`model`]: the built-in agent, a loop of a model and tools
//! - [`acp`]: a program that speaks the Agent Client Protocol
//! - `confined`: the tree's files, for those of them that read and write through us
//! - `transcript`: what is kept of what they do
//! - `shown`: how it is kept while they do it

pub mod command;
mod confined;
mod transcript;
mod shown;
pub mod model;
pub mod acp;
pub mod preset;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use refile_config::schema::AgentType;
use refile_config::{Agent, Provider};
use refile_core::failure::Failure;
use refile_core::task::Usage;
use refile_store::artifacts::Shelf;
use sha2::{Digest, Sha256};

pub(crate) use self::command::{failed, hidden, is_confined, misses, no_room, not_started, resolve};
pub use self::shown::TRANSCRIPT;
use crate::git::Tree;
use crate::llm::Client;
use crate::process::{Reach, Secrets};
use crate::workspace::Claim;

/// How long a run lasts that must have done work, and so have cost something, also where it failed and told nothing of its
/// cost, as most programs do. A program that is turned away at its first call ends sooner, also one that tries it again for
/// a minute by itself, as aider does.
pub const LONG_RUN: Duration = Duration::from_mins(2);

/// What every agent is given.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Who does it, by name.
    pub name: &'a str,
    /// And as configured.
    pub agent: &'a Agent,
    /// The providers of models.
    pub providers: &'a IndexMap<String, Provider>,
    /// The client for models.
    pub client: &'a Client,
    /// What must not show in what it leaves.
    pub secrets: &'a Secrets,
    /// Where the configuration's relative paths start.
    pub config_dir: &'a Path,
    /// What is to be done.
    pub prompt: &'a str,
    /// Where.
    pub tree: &'a Tree,
    /// Where what it says is kept while it works.
    pub shelf: &'a Shelf,
    /// The claim that it is done under.
    pub claim: Claim<'a>,
}

impl Job<'_> {
    /// Writes the prompt beside the tree. Gives its file, and the environment of whatever the agent runs.
    fn surroundings(&self) -> Result<(PathBuf, Environment), Failure> {
        let file = self.tree.put_beside("prompt.md", self.prompt.as_bytes()).map_err(|error| error.failure())?;
        let mut env = self.claim.environment(self.tree.base(), &self.agent.env);
        env.push(("REFILE_PROMPT_FILE".into(), file.clone().into()));
        Ok((file, env))
    }
}

/// The variables of a command, with their values.
type Environment = Vec<(OsString, OsString)>;

/// How an agent ended that ran to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// What lies in the tree is its work.
    Done,
    /// It says in passing that it will not, or cannot yet, do the work. Its words count where it changed nothing.
    Says(String),
    /// It declined or asked a question by the means that are there for it. What it changed does not count.
    Asks(String),
}

/// What a run of an agent left, beside the tree.
#[derive(Debug, Clone)]
pub struct Ran {
    /// How it ended, or why it failed.
    pub ended: Result<Ended, Failure>,
    /// The end of what it said, for people.
    pub summary: String,
    /// All that it said and did, as far as it is kept.
    pub transcript: String,
    /// What it used up; nothing where it could not be started.
    pub usage: Usage,
    /// The tokens read that came out of the provider's cache, as far as it says so.
    pub cached_input_tokens: u64,
}

impl Ran {
    /// Of an agent that could not be started.
    pub(crate) fn not_started(failure: Failure) -> Self {
        let (summary, transcript) = (String::new(), String::new());
        Self { ended: Err(failure), summary, transcript, usage: Usage::default(), cached_input_tokens: 0 }
    }

    /// With a price on its tokens, where it told those and no cost, and its model's price is known.
    fn priced(mut self, job: &Job<'_>) -> Self {
        let price = job.agent.model.as_deref().and_then(|model| job.client.list_price(model));
        let Usage { input_tokens, output_tokens, .. } = self.usage;
        if let Some(price) = price.filter(|_| self.usage.cost_unknown && (input_tokens > 0 || output_tokens > 0)) {
            self.usage.cost_micros = price.cost_micros(input_tokens, self.cached_input_tokens, output_tokens);
            self.usage.cost_unknown = false;
        }
        self
    }
}

/// Runs an agent to its end. Dropping the future ends everything that it started.
pub async fn run(job: &Job<'_>) -> Ran {
    match job.agent.kind {
        AgentType::Llm => model::run(job).await,
        AgentType::Command => watched(job, Box::pin(command::run(job))).await,
        AgentType::Acp => watched(job, Box::pin(acp::run(job))).await,
    }
}

/// Runs a program that calls models by itself: where it is turned away, the fleet leaves it alone for a while.
async fn watched(job: &Job<'_>, run: impl Future<Output = Ran>) -> Ran {
    let name = format!("agent:{}", job.name);
    let ran = job.client.run_program(&name, run, |ran| ran.ended.as_ref().err()).await;
    ran.unwrap_or_else(Ran::not_started).priced(job)
}

/// What of the machine an agent reaches from the sandbox.
fn reach(agent: &Agent) -> Reach<'_> {
    let network = agent.network.unwrap_or(true);
    Reach { network, readable: &agent.readable, writable: &agent.writable, ..Reach::default() }
}

/// SHA-256 of a text, in hex.
pub fn digest(text: impl AsRef<[u8]>) -> String {
    use std::fmt::Write as _;
    Sha256::digest(text.as_ref()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_sha_256_in_hex() {
        assert_eq!(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
