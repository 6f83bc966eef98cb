//! A `review` job from the change to its outcome.

use std::time::Instant;

use futures::future::join_all;
use indexmap::IndexMap;
use refile_config::schema::ReviewerType;
use refile_config::{Provider, Reviewer, Span};
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;
use refile_core::panel::combine;
use refile_core::task::{Change, Review, Usage};
use refile_core::verdict::{Verdict, VerdictKind};
use refile_core::{Outcome, Timestamp};

use crate::agent::digest;
use crate::code::{artifact, git};
use crate::git::{Mirror, names};
use crate::judge::packet::{self, Inputs, Packet};
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
    /// All reviewers, for the members of a panel.
    pub reviewers: &'a IndexMap<String, Reviewer>,
    /// The providers of models.
    pub providers: &'a IndexMap<String, Provider>,
    /// The client for models.
    pub client: &'a Client,
}

/// What every reviewer of a change judges by.
struct Material<'a> {
    mirror: Mirror,
    base: &'a str,
    head: &'a str,
    diff: Vec<u8>,
    files: usize,
}

/// One reviewer that is asked: the job's own, or a member of its panel.
#[derive(Clone, Copy)]
struct Seat<'a> {
    name: &'a str,
    reviewer: &'a Reviewer,
    /// Its number in the panel.
    member: Option<usize>,
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
    let seat = Seat { name: job.name, reviewer: job.reviewer, member: None };
    let review = match gather(job).await {
        Err(failure) => about(job, job.name, Err(failure), Asked::default()),
        Ok(material) if job.reviewer.kind == ReviewerType::Panel => panel(job, &material).await,
        Ok(material) => judged(job, &material, seat).await,
    };
    Outcome::Reviewed(review)
}

/// The record of a review.
fn about(job: &ReviewJob<'_>, reviewer: &str, verdict: Result<Verdict, Failure>, asked: Asked) -> Review {
    let (verdict, failure) = match verdict {
        Ok(verdict) => (verdict, None),
        Err(failure) => (Verdict::retry(failure.to_string()), Some(failure)),
    };
    Review {
        reviewer: reviewer.to_owned(),
        at: Timestamp::default(),
        head: job.change.head.clone(),
        verdict,
        failure,
        reply: asked.reply,
        prompt_digest: asked.prompt_digest,
        usage: asked.usage,
        members: Vec::new(),
    }
}

/// Asks all members at once and makes one verdict of theirs. Where too few gave an opinion it is a failed review, of the
/// kind of the first member's failure.
async fn panel(job: &ReviewJob<'_>, material: &Material<'_>) -> Review {
    let seats = job.reviewer.members.iter().enumerate().map(async |(at, name)| {
        if let Some(reviewer) = job.reviewers.get(name) {
            return judged(job, material, Seat { name, reviewer, member: Some(at) }).await;
        }
        let detail = format!("this worker's configuration has no [reviewers.{name}]");
        about(job, name, Err(Failure::new(FailureKind::Configuration, detail)), Asked::default())
    });
    let members: Vec<Review> = join_all(seats).await;
    let verdicts: Vec<Verdict> = members.iter().map(|m| m.verdict.clone()).collect();
    let verdict = combine(job.reviewer.rule, &verdicts);
    let failed = members.iter().find_map(|m| Some((&m.reviewer, m.failure.as_ref()?)));
    let verdict = match failed {
        Some((name, failure)) if verdict.verdict == VerdictKind::Retry => {
            let detail = format!("{}; {name}: {}", verdict.critique, failure.detail);
            Err(Failure { detail: Failure::new(failure.kind, detail).detail, ..failure.clone() })
        }
        _ => Ok(verdict),
    };
    let mut asked = Asked::default();
    for member in &members {
        asked.usage += member.usage;
    }
    Review { members, ..about(job, job.name, verdict, asked) }
}

/// One reviewer's review.
async fn judged(job: &ReviewJob<'_>, material: &Material<'_>, seat: Seat<'_>) -> Review {
    let mut asked = Asked::default();
    let verdict = judge(job, material, seat, &mut asked).await;
    about(job, seat.name, verdict, asked)
}

/// Holds that the change is the one that was reported, and reads its diff.
async fn gather<'a>(job: &ReviewJob<'a>) -> Result<Material<'a>, Failure> {
    let change = job.change;
    let mirror = job.site.mirror().await.map_err(git)?;
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
    let files = mirror.files(base, head).await.map_err(git)?.len();
    Ok(Material { mirror, base, head, diff, files })
}

async fn judge(
    job: &ReviewJob<'_>,
    material: &Material<'_>,
    seat: Seat<'_>,
    asked: &mut Asked,
) -> Result<Verdict, Failure> {
    let (site, reviewer, task) = (job.site, seat.reviewer, job.site.task);
    let Material { mirror, base, head, diff, files } = material;
    // Drawn here and not by the caller: it must be new for each packet.
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let packet = packet::build(&Inputs {
        title: &task.title,
        description: &task.description,
        previous_required_change: job.previous_required_change,
        gates: job.gates,
        diff,
        files: *files,
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
            let place = seat.member.map(|at| format!("member{at}"));
            let workspace = site.workspace;
            let tree = workspace.tree_of(place.as_deref(), mirror, claim, &task.base, base, head).await.map_err(git)?;
            command::ask(reviewer, site.config_dir, &packet, diff, &tree, claim).await
        }
        ReviewerType::Llm => by_model(job, seat, &packet).await?,
        ReviewerType::Human | ReviewerType::Panel => {
            let detail = format!("[reviewers.{}] is not one that a worker can ask", seat.name);
            return Err(Failure::new(FailureKind::Configuration, detail));
        }
    };
    let Opinion { verdict, reply, usage } = opinion;
    asked.usage = usage;
    if let Some(reply) = reply {
        let of = if seat.member.is_some() { format!("{}-{}", job.name, seat.name) } else { job.name.to_owned() };
        let name = format!("review-{of}-{}.txt", site.fence);
        asked.reply = Some(site.shelf.put(&name, reply).await.map_err(artifact)?);
    }
    verdict
}

/// Asks a model; where it refuses, the reviewer's other model. Both share the review's time.
async fn by_model(job: &ReviewJob<'_>, seat: Seat<'_>, packet: &Packet) -> Result<Opinion, Failure> {
    let Seat { name, reviewer, .. } = seat;
    let provider = reviewer.provider.as_ref().and_then(|name| job.providers.get(name)).ok_or_else(|| {
        let detail = format!("the provider of the reviewer `{name}` is missing from [providers]");
        Failure::new(FailureKind::Configuration, detail)
    })?;
    let before = job.site.task.phase(job.site.phase).map(|p| p.after.as_slice()).unwrap_or_default();
    let started = Instant::now();
    let first = llm::ask(job.client, provider, reviewer, before, packet).await;
    let refused = |f: &Failure| matches!(f.kind, FailureKind::Refused | FailureKind::Filtered);
    let Some(fallback) = reviewer.fallback_model.as_ref().filter(|_| first.verdict.as_ref().is_err_and(refused)) else {
        return Ok(first);
    };
    let left = Span(reviewer.timeout.0.saturating_sub(started.elapsed()));
    let other = Reviewer { model: Some(fallback.clone()), timeout: left, ..reviewer.clone() };
    let mut second = llm::ask(job.client, provider, &other, before, packet).await;
    second.usage += first.usage;
    let replies = [first.reply, second.reply].into_iter().flatten().collect::<Vec<_>>();
    second.reply = Some(replies.join(&format!("\n\n--- refused; asked {fallback} ---\n\n"))).filter(|r| !r.is_empty());
    Ok(second)
}
