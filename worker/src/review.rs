//! A `review` job from the change to its outcome.

use indexmap::IndexMap;
use refile_config::schema::ReviewerType;
use refile_config::{Provider, Reviewer};
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;
use refile_core::task::{Change, Review, Usage};
use refile_core::verdict::Verdict;
use refile_core::{Outcome, Timestamp};

use crate::agent::digest;
use crate::code::{artifact, git};
use crate::git::names;
use crate::judge::packet::{self, Inputs};
use crate::judge::{Opinion, command, llm};
use crate::llm::Client;
use crate::workspace::Site;

/// All that a review needs.
#[derive(Debug, Clone, Copy)]
pub struct ReviewJob<'a> {
    /// Where it is done and what it is about.
    pub site: Site<'a>,
    /// What is judged.
    pub change: &'a Change,
    /// What the gates said of it.
    pub gates: &'a [GateReport],
    /// What the attempt had to do, where an earlier one was rejected.
    pub previous_required_change: Option<&'a str>,
    /// The reviewer's name.
    pub name: &'a str,
    /// The reviewer.
    pub reviewer: &'a Reviewer,
    /// The providers of models.
    pub providers: &'a IndexMap<String, Provider>,
    /// The client for models.
    pub client: &'a Client,
}

/// What is known of the review so far, whatever comes of it.
#[derive(Default)]
struct Asked {
    reply: Option<String>,
    prompt_digest: Option<String>,
    usage: Usage,
}

/// Judges a change. Whatever goes wrong is a failed review, never a verdict.
pub async fn review(job: &ReviewJob<'_>) -> Outcome {
    let mut asked = Asked::default();
    let (verdict, failure) = match judge(job, &mut asked).await {
        Ok(verdict) => (verdict, None),
        Err(failure) => (Verdict::retry(failure.to_string()), Some(failure)),
    };
    Outcome::Reviewed(Review {
        reviewer: job.name.to_owned(),
        at: Timestamp::default(),
        head: job.change.head.clone(),
        verdict,
        failure,
        reply: asked.reply,
        prompt_digest: asked.prompt_digest,
        usage: asked.usage,
        members: Vec::new(),
    })
}

async fn judge(job: &ReviewJob<'_>, asked: &mut Asked) -> Result<Verdict, Failure> {
    let ReviewJob { site, change, reviewer, .. } = *job;
    let task = site.task;
    let mirror = site.mirror().await.map_err(git)?;
    let found = mirror.fetch(&change.branch).await.map_err(git)?;
    let (base, head) = (names::commit(&change.base_commit).map_err(git)?, names::commit(&change.head).map_err(git)?);
    if found != head {
        let detail = format!("`{}` is at {found}, and the change to judge is {head}", change.branch);
        return Err(Failure::new(FailureKind::Repository, detail));
    }
    let diff = mirror.diff(base, head).await.map_err(git)?;
    if diff.is_empty() {
        return Err(Failure::new(FailureKind::Empty, "there is no diff to judge"));
    }
    // Drawn here and not by the caller: it must be new for each packet.
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let packet = packet::build(&Inputs {
        title: &task.title,
        description: &task.description,
        previous_required_change: job.previous_required_change,
        gates: job.gates,
        diff: &diff,
        files: mirror.files(base, head).await.map_err(git)?.len(),
        max_bytes: reviewer.max_input_bytes,
        nonce: &nonce,
    });
    if !packet.shows_diff {
        let detail = "no part of the diff fits into the packet: raise the reviewer's max_input_bytes";
        return Err(Failure::new(FailureKind::ContextTooLong, detail));
    }
    asked.prompt_digest = Some(digest(&packet.text));
    let claim = site.claim();
    let opinion = match reviewer.kind {
        ReviewerType::Command => {
            let tree = job.site.workspace.tree(&mirror, claim, &task.base, base, head).await.map_err(git)?;
            command::ask(reviewer, job.site.config_dir, &packet, &diff, &tree, claim).await
        }
        ReviewerType::Llm => {
            let provider = reviewer.provider.as_ref().and_then(|name| job.providers.get(name)).ok_or_else(|| {
                let detail = format!("the provider of the reviewer `{}` is missing from [providers]", job.name);
                Failure::new(FailureKind::Configuration, detail)
            })?;
            let before = task.phase(job.site.phase).map(|p| p.after.as_slice()).unwrap_or_default();
            llm::ask(job.client, provider, reviewer, before, &packet).await
        }
    };
    let Opinion { verdict, reply, usage } = opinion;
    asked.usage = usage;
    if let Some(reply) = reply {
        let name = format!("review-{}-{}.txt", job.name, job.site.fence);
        asked.reply = Some(job.site.shelf.put(&name, reply).await.map_err(artifact)?);
    }
    verdict
}
