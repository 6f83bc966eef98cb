//! A `review` job from the change to its outcome.

use std::time::Instant;

use futures::future::join_all;
use indexmap::IndexMap;
use refile_config::schema::ReviewerType;
use refile_config::{Answer, Input, Provider, Reviewer, Span};
use refile_core::Outcome;
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;
use refile_core::panel::{combine, telling};
use refile_core::task::{Call, Change, Review, Usage};
use refile_core::verdict::{Verdict, VerdictKind};
use serde_json::json;

use crate::agent::digest;
use crate::code::{artifact, git};
use crate::git::{Mirror, names};
use crate::judge::packet::{self, Inputs, Packet};
use crate::judge::{Opinion, command, llm};
use crate::llm::Client;
use crate::process::Secrets;
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
    prompt: Option<String>,
    output: Option<String>,
    calls: Vec<Call>,
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
    let Asked { reply, prompt_digest, prompt, output, calls, usage } = asked;
    let review = Review::new(reviewer, job.change.head.clone(), verdict);
    Review { failure, reply, prompt_digest, prompt, output, calls, usage, ..review }
}

/// Asks all members at once and makes one verdict of theirs. Where too few gave an opinion it is a failed review, for which
/// the failure speaks that tells most.
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
    let failed = telling(members.iter().filter_map(|m| m.failure.as_ref()));
    let verdict = match failed {
        Some(failure) if verdict.verdict == VerdictKind::Retry => {
            let whose = members.iter().find(|m| m.failure.as_ref().is_some_and(|f| std::ptr::eq(f, failure)));
            let name = whose.map_or("", |member| member.reviewer.as_str());
            let detail = format!("{}; {name}: {}", verdict.critique, failure.detail);
            Err(Failure { detail: Failure::new(failure.kind, detail).detail, ..failure.clone() })
        }
        _ => Ok(verdict),
    };
    let mut asked = Asked::default();
    for member in &members {
        asked.usage += member.usage;
    }
    let seat = Seat { name: job.name, reviewer: job.reviewer, member: None };
    let verdict = kept(job, seat, verdict, &mut asked).await;
    Review { members, ..about(job, job.name, verdict, asked) }
}

/// One reviewer's review.
async fn judged(job: &ReviewJob<'_>, material: &Material<'_>, seat: Seat<'_>) -> Review {
    let mut asked = Asked::default();
    let verdict = judge(job, material, seat, &mut asked).await;
    let verdict = kept(job, seat, verdict, &mut asked).await;
    let review = about(job, seat.name, verdict, asked);
    say(job, &review);
    review
}

/// Keeps a verdict under the name that the reviewer's `output` gives it.
async fn kept(
    job: &ReviewJob<'_>,
    seat: Seat<'_>,
    verdict: Result<Verdict, Failure>,
    asked: &mut Asked,
) -> Result<Verdict, Failure> {
    let (Some(name), Ok(verdict)) = (&seat.reviewer.output, &verdict) else { return verdict };
    let content = json!({"reviewer": seat.name, "head": job.change.head, "verdict": verdict.verdict,
        "required_change": verdict.required_change, "critique": verdict.critique, "conf": verdict.conf,
        "phase": verdict.phase});
    let content = serde_json::to_vec_pretty(&content).unwrap_or_default();
    // Two members of a panel may use one name.
    let name = if seat.member.is_some() { format!("{name}-{}", seat.name) } else { name.clone() };
    asked.output = Some(job.site.shelf.put(&format!("output-{name}.json"), content).await.map_err(artifact)?);
    Ok(verdict.clone())
}

/// Leaves a line about a review, whatever comes of it afterwards: a job that is put back has no other trace.
fn say(job: &ReviewJob<'_>, review: &Review) {
    let last = review.calls.last();
    let cost: Option<u64> = review.calls.iter().filter_map(|call| call.cost_micros).reduce(u64::saturating_add);
    tracing::info!(
        task = %job.site.task.id,
        phase = job.site.phase,
        attempt = job.site.attempt,
        reviewer = review.reviewer,
        result = review.failure.as_ref().map_or(review.verdict.verdict.as_str(), |f| f.kind.as_str()),
        provider = last.map(|call| call.provider.as_str()),
        model = last.map(|call| call.model.as_str()),
        calls = review.calls.len(),
        input_tokens = review.usage.input_tokens,
        output_tokens = review.usage.output_tokens,
        cost_usd = cost.map(|micros| micros as f64 / 1e6),
        ms = review.usage.wall_ms,
        "a reviewer was asked"
    );
}

/// What a verdict is worth where the reviewer had to say the opposite: a `fail` lets the change go on, and what stops it
/// is for a person, since a `pass` names nothing that could be changed.
fn turned(verdict: Verdict) -> Verdict {
    match verdict.verdict {
        VerdictKind::NeedsChanges => {
            let critique = format!("{}\n\n{}", verdict.required_change, verdict.critique).trim().to_owned();
            Verdict { verdict: VerdictKind::Approved, required_change: String::new(), critique, ..verdict }
        }
        VerdictKind::Approved => {
            let critique = format!("the judge must say `fail`, and said `pass`: {}", verdict.critique);
            Verdict { verdict: VerdictKind::Escalate, critique, ..verdict }
        }
        _ => verdict,
    }
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
    let changed = if reviewer.inputs.contains(&Input::Files) {
        mirror.contents(base, head).await.map_err(git)?
    } else {
        Vec::new()
    };
    let packet = packet::build(&Inputs {
        wanted: &reviewer.inputs,
        title: &task.title,
        description: &task.description,
        previous_required_change: job.previous_required_change,
        summary: &job.change.summary,
        gates: job.gates,
        changed: &changed,
        diff,
        files: *files,
        max_bytes: reviewer.max_input_bytes,
        nonce: &nonce,
    });
    packet.check(&reviewer.require.inputs)?;
    let before = task.phase(site.phase).map(|p| p.after.as_slice()).unwrap_or_default();
    let is_model = reviewer.kind == ReviewerType::Llm;
    let system = if is_model { llm::system_prompt(reviewer, before) } else { String::new() };
    let prompt = if is_model { format!("{system}\n\n{}", packet.text) } else { packet.text.clone() };
    let of = if seat.member.is_some() { format!("{}-{}", job.name, seat.name) } else { job.name.to_owned() };
    let of = format!("review-{of}-{}", site.fence);
    asked.prompt_digest = Some(digest(&prompt));
    asked.prompt = Some(site.shelf.put(&format!("{of}-prompt.txt"), prompt).await.map_err(artifact)?);
    let claim = site.claim();
    let opinion = match reviewer.kind {
        ReviewerType::Command => {
            let place = seat.member.map(|at| format!("member{at}"));
            let workspace = site.workspace;
            let tree = workspace.tree_of(place.as_deref(), mirror, claim, &task.base, base, head).await.map_err(git)?;
            command::ask(reviewer, site.config_dir, &packet, diff, &tree, claim).await
        }
        ReviewerType::Llm => by_model(job, seat, (&system, before), &packet).await?,
        ReviewerType::Human | ReviewerType::Panel => {
            let detail = format!("[reviewers.{}] is not one that a worker can ask", seat.name);
            return Err(Failure::new(FailureKind::Configuration, detail));
        }
    };
    let Opinion { verdict, reply, calls, usage } = hidden(opinion, site.workspace.secrets());
    (asked.usage, asked.calls) = (usage, calls);
    if let Some(reply) = reply {
        asked.reply = Some(site.shelf.put(&format!("{of}.txt"), reply).await.map_err(artifact)?);
    }
    if reviewer.require.verdict == Answer::Fail { verdict.map(turned) } else { verdict }
}

/// An opinion without the secrets that a reviewer may have come across.
fn hidden(opinion: Opinion, secrets: &Secrets) -> Opinion {
    let verdict = match opinion.verdict {
        Ok(verdict) => Ok(Verdict {
            required_change: secrets.hide(&verdict.required_change),
            critique: secrets.hide(&verdict.critique),
            ..verdict
        }),
        Err(failure) => Err(Failure { detail: secrets.hide(&failure.detail), ..failure }),
    };
    Opinion { verdict, reply: opinion.reply.map(|reply| secrets.hide(&reply)), ..opinion }
}

/// Asks a model; where it refuses, the reviewer's other model. Both share the review's time.
async fn by_model(
    job: &ReviewJob<'_>,
    seat: Seat<'_>,
    (system, before): (&str, &[String]),
    packet: &Packet,
) -> Result<Opinion, Failure> {
    let Seat { name, reviewer, .. } = seat;
    let provider = reviewer.provider.as_ref().and_then(|name| job.providers.get(name)).ok_or_else(|| {
        let detail = format!("the provider of the reviewer `{name}` is missing from [providers]");
        Failure::new(FailureKind::Configuration, detail)
    })?;
    let started = Instant::now();
    let first = llm::ask(job.client, provider, reviewer, system, before, packet).await;
    let refused = |f: &Failure| matches!(f.kind, FailureKind::Refused | FailureKind::Filtered);
    let Some(fallback) = reviewer.fallback_model.as_ref().filter(|_| first.verdict.as_ref().is_err_and(refused)) else {
        return Ok(first);
    };
    let left = Span(reviewer.timeout.0.saturating_sub(started.elapsed()));
    if left.0.is_zero() {
        // Its refusal stands: the next reviewer is asked, where running out of time would ask this one again.
        return Ok(first);
    }
    let other = Reviewer { model: Some(fallback.clone()), timeout: left, ..reviewer.clone() };
    let mut second = llm::ask(job.client, provider, &other, system, before, packet).await;
    second.usage += first.usage;
    second.calls.splice(..0, first.calls);
    let replies = [first.reply, second.reply].into_iter().flatten().collect::<Vec<_>>();
    second.reply = Some(replies.join(&format!("\n\n--- refused; asked {fallback} ---\n\n"))).filter(|r| !r.is_empty());
    Ok(second)
}
