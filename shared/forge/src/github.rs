//! GitHub's wire format, which Gitea's follows for the most part.

use std::sync::Arc;

use async_trait::async_trait;
use refile_core::event::HumanReview;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use crate::http::{Http, encoded};
use crate::{Forge, Issue, Merge, Message, Proposal, PullRequest, Result, State, Thread, Verdict};

/// How many reviews are looked into at a time; more have to wait for the next look.
const MAX_REVIEWS: usize = 20;

/// A project on GitHub.
#[derive(Debug)]
pub(crate) struct GitHub {
    http: Arc<Http>,
    owner: String,
    path: String,
}

impl GitHub {
    pub(crate) fn new(http: Arc<Http>, project: &str) -> Self {
        let (owner, name) = project.split_once('/').unwrap_or((project, ""));
        Self { http, owner: owner.to_owned(), path: format!("/repos/{}/{}", encoded(owner), encoded(name)) }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct User {
    pub(crate) login: String,
    #[serde(rename = "type", default)]
    kind: String,
}

impl User {
    /// The name, where it is a person's.
    pub(crate) fn person(self) -> Option<String> {
        let is_program = self.kind == "Bot" || self.login.ends_with("[bot]") || self.login.is_empty();
        (!is_program).then_some(self.login)
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Head {
    pub(crate) sha: String,
    #[serde(rename = "ref", default)]
    pub(crate) branch: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pull {
    pub(crate) number: u64,
    pub(crate) html_url: String,
    pub(crate) state: String,
    #[serde(default)]
    merged: bool,
    merge_commit_sha: Option<String>,
    merged_by: Option<User>,
    #[serde(default)]
    mergeable_state: Option<String>,
    pub(crate) head: Head,
}

impl Pull {
    /// As it stands; who closed it is not told here.
    pub(crate) fn read(self) -> PullRequest {
        let state = if self.merged {
            let by = self.merged_by.and_then(User::person);
            State::Merged { commit: self.merge_commit_sha.unwrap_or_default(), by }
        } else if self.state == "closed" {
            State::Closed { by: None }
        } else {
            // Gitea has no such field, and calls one that it still looks at not mergeable, as it calls one that conflicts.
            State::Open { conflicts: self.mergeable_state.as_deref() == Some("dirty") }
        };
        PullRequest { number: self.number, url: self.html_url, head: self.head.sha, state }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Review {
    pub(crate) id: u64,
    pub(crate) user: Option<User>,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) body: Option<String>,
    #[serde(default)]
    pub(crate) commit_id: Option<String>,
    /// Of Gitea alone; GitHub has a state for it.
    #[serde(default)]
    pub(crate) dismissed: bool,
}

/// What is said of one place in the diff.
#[derive(Debug, Deserialize)]
pub(crate) struct Remark {
    pub(crate) body: String,
    #[serde(default)]
    pub(crate) path: Option<String>,
    #[serde(default, alias = "position")]
    pub(crate) line: Option<u64>,
}

impl Remark {
    fn words(&self) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        match &self.path {
            Some(path) => format!("{path}{line}: {}", self.body.trim()),
            None => self.body.trim().to_owned(),
        }
    }
}

/// The reviews that ask for changes and were not taken back: not dismissed, and no approval by the same person after them.
pub(crate) fn standing(reviews: Vec<Review>) -> Vec<(Review, String)> {
    let mut standing: Vec<(Review, String)> = Vec::new();
    for mut review in reviews {
        let Some(by) = review.user.take().and_then(User::person) else { continue };
        match review.state.as_str() {
            "APPROVED" if !review.dismissed => standing.retain(|(_, other)| *other != by),
            "CHANGES_REQUESTED" | "REQUEST_CHANGES" if !review.dismissed => standing.push((review, by)),
            _ => {}
        }
    }
    standing
}

/// The reviews with their words; those in single places of the diff are asked for.
pub(crate) async fn with_words(
    http: &Http,
    pull: &str,
    reviews: Vec<Review>,
    known: &[String],
) -> Result<Vec<HumanReview>> {
    let fresh = standing(reviews).into_iter().filter(|(review, _)| !known.contains(&review.id.to_string()));
    let mut read = Vec::new();
    for (review, by) in fresh.take(MAX_REVIEWS) {
        let remarks: Vec<Remark> = http.pages(&format!("{pull}/reviews/{}/comments", review.id)).await?;
        let mut words = vec![review.body.unwrap_or_default().trim().to_owned()];
        words.extend(remarks.iter().map(Remark::words));
        words.retain(|part| !part.is_empty());
        let head = review.commit_id.unwrap_or_default();
        read.push(HumanReview { id: review.id.to_string(), by, head, words: words.join("\n\n") });
    }
    Ok(read)
}

#[derive(Debug, Deserialize)]
pub(crate) struct Comment {
    #[serde(default)]
    pub(crate) body: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Label {
    pub(crate) name: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Ticket {
    number: u64,
    #[serde(default)]
    title: String,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    labels: Vec<Label>,
    /// There where it is a pull request.
    #[serde(default)]
    pull_request: Option<serde_json::Value>,
    #[serde(default)]
    closed_by: Option<User>,
}

/// The issues among what is listed, oldest first.
pub(crate) fn issues(tickets: Vec<Ticket>) -> Vec<Issue> {
    let mut issues: Vec<Issue> = tickets
        .into_iter()
        .filter(|ticket| ticket.pull_request.is_none())
        .map(|ticket| Issue {
            number: ticket.number,
            title: ticket.title,
            body: ticket.body.unwrap_or_default(),
            labels: ticket.labels.into_iter().map(|label| label.name).collect(),
        })
        .collect();
    issues.sort_by_key(|issue| issue.number);
    issues
}

/// The longest words of a status, in characters.
const MAX_STATUS: usize = 140;

/// A status as GitHub and Gitea want it.
pub(crate) fn status_body(verdict: Verdict, words: &str) -> serde_json::Value {
    let Verdict::Success = verdict;
    let words: String = words.chars().take(MAX_STATUS).collect();
    json!({"state": "success", "context": "refile", "description": words})
}

#[async_trait]
impl Forge for GitHub {
    async fn find(&self, branch: &str) -> Result<Option<PullRequest>> {
        let head = format!("{}:{branch}", self.owner);
        let path = format!("{}/pulls?state=open&head={}", self.path, encoded(&head));
        let found: Vec<Pull> = self.http.get(&path).await?;
        // A server that does not know the filter lists all.
        Ok(found.into_iter().find(|pull| pull.head.branch == branch).map(Pull::read))
    }

    async fn create(&self, proposal: &Proposal) -> Result<PullRequest> {
        let Proposal { branch, base, title, body } = proposal;
        let body = json!({"title": title, "body": body, "head": branch, "base": base});
        let made: Pull = self.http.send(Method::POST, &format!("{}/pulls", self.path), &body).await?;
        Ok(made.read())
    }

    async fn update(&self, number: u64, proposal: &Proposal) -> Result<()> {
        let body = json!({"title": proposal.title, "body": proposal.body});
        self.http.tell(Method::PATCH, &format!("{}/pulls/{number}", self.path), Some(&body)).await
    }

    async fn pull_request(&self, number: u64) -> Result<PullRequest> {
        let pull: Pull = self.http.get(&format!("{}/pulls/{number}", self.path)).await?;
        let mut read = pull.read();
        if let State::Closed { by } = &mut read.state {
            let ticket: Ticket = self.http.get(&format!("{}/issues/{number}", self.path)).await?;
            *by = ticket.closed_by.and_then(User::person);
        }
        Ok(read)
    }

    async fn changes_requested(&self, number: u64, known: &[String]) -> Result<Vec<HumanReview>> {
        let pull = format!("{}/pulls/{number}", self.path);
        let reviews = self.http.pages(&format!("{pull}/reviews")).await?;
        with_words(&self.http, &pull, reviews, known).await
    }

    async fn comments(&self, on: Thread) -> Result<Vec<String>> {
        let (Thread::PullRequest(number) | Thread::Issue(number)) = on;
        let found: Vec<Comment> = self.http.pages(&format!("{}/issues/{number}/comments", self.path)).await?;
        Ok(found.into_iter().filter_map(|comment| comment.body).collect())
    }

    async fn comment(&self, on: Thread, text: &str) -> Result<()> {
        let (Thread::PullRequest(number) | Thread::Issue(number)) = on;
        let path = format!("{}/issues/{number}/comments", self.path);
        self.http.tell(Method::POST, &path, Some(&json!({"body": text}))).await
    }

    async fn status(&self, commit: &str, verdict: Verdict, words: &str) -> Result<()> {
        let path = format!("{}/statuses/{}", self.path, encoded(commit));
        self.http.tell(Method::POST, &path, Some(&status_body(verdict, words))).await
    }

    async fn merge(&self, number: u64, head: &str, message: &Message) -> Result<Merge> {
        #[derive(Deserialize)]
        struct Merged {
            sha: String,
        }
        let body = json!({
            "merge_method": "squash",
            "sha": head,
            "commit_title": message.title,
            "commit_message": message.body,
        });
        match self.http.send::<Merged>(Method::PUT, &format!("{}/pulls/{number}/merge", self.path), &body).await {
            Ok(merged) => Ok(Merge::Done { commit: merged.sha }),
            Err(error) if error.is(&[405, 422]) => Ok(Merge::NotYet { why: error.detail }),
            Err(error) if error.is(&[409]) => Ok(Merge::Moved),
            Err(error) => Err(error),
        }
    }

    async fn issues(&self, label: &str) -> Result<Vec<Issue>> {
        let path = format!("{}/issues?state=open&sort=created&direction=asc&labels={}", self.path, encoded(label));
        Ok(issues(self.http.pages(&path).await?))
    }

    async fn close_issue(&self, number: u64) -> Result<()> {
        let path = format!("{}/issues/{number}", self.path);
        self.http.tell(Method::PATCH, &path, Some(&json!({"state": "closed"}))).await
    }

    async fn delete_branch(&self, branch: &str) -> Result<()> {
        // The slashes of a branch are part of the address here.
        let branch = branch.split('/').map(encoded).collect::<Vec<_>>().join("/");
        match self.http.tell(Method::DELETE, &format!("{}/git/refs/heads/{branch}", self.path), None).await {
            Err(error) if error.is(&[404, 422]) => Ok(()),
            result => result,
        }
    }
}
