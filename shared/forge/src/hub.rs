//! What GitHub and Gitea have in common: most of the wire format, and all calls but a few.

use std::fmt::Debug;
use std::marker::PhantomData;
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
/// The longest words of a status, in characters.
const MAX_STATUS: usize = 140;

/// A project on one of the two.
#[derive(Debug)]
pub(crate) struct Hub<D> {
    pub(crate) http: Arc<Http>,
    pub(crate) owner: String,
    /// Where the project's part of the API begins.
    pub(crate) path: String,
    dialect: PhantomData<D>,
}

/// What the two do not have in common.
#[async_trait]
pub(crate) trait Dialect: Debug + Sized + Send + Sync + 'static {
    /// How open issues are asked for: newest first, without their label.
    const ISSUES: &'static str;
    /// Whether comments come in pages, and not all at once.
    const PAGED_COMMENTS: bool;

    /// What comes after the project where a branch is removed.
    fn branch(branch: &str) -> String;

    /// See [`Forge::find`].
    async fn find(hub: &Hub<Self>, branch: &str) -> Result<Option<PullRequest>>;

    /// The person who closed a pull request.
    async fn closed_by(hub: &Hub<Self>, number: u64) -> Result<Option<String>>;

    /// Tells the forge to merge; gives the commit. The forge's no is an error here.
    async fn merge(hub: &Hub<Self>, number: u64, head: &str, message: &Message) -> Result<Option<String>>;
}

impl<D> Hub<D> {
    pub(crate) fn new(http: Arc<Http>, project: &str) -> Self {
        let (owner, name) = project.split_once('/').unwrap_or((project, ""));
        let path = format!("/repos/{}/{}", encoded(owner), encoded(name));
        Self { http, owner: owner.to_owned(), path, dialect: PhantomData }
    }

    fn comments_on(&self, on: Thread) -> String {
        let (Thread::PullRequest(number) | Thread::Issue(number)) = on;
        format!("{}/issues/{number}/comments", self.path)
    }
}

#[async_trait]
impl<D: Dialect> Forge for Hub<D> {
    async fn find(&self, branch: &str) -> Result<Option<PullRequest>> {
        D::find(self, branch).await
    }

    async fn create(&self, proposal: &Proposal) -> Result<PullRequest> {
        let Proposal { branch, base, title, body, .. } = proposal;
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
            *by = D::closed_by(self, number).await?;
        }
        Ok(read)
    }

    async fn head_of(&self, branch: &str) -> Result<String> {
        #[derive(Deserialize)]
        struct Branch {
            commit: Commit,
        }
        #[derive(Deserialize)]
        struct Commit {
            #[serde(alias = "id")]
            sha: String,
        }
        let found: Branch = self.http.get(&format!("{}/branches/{}", self.path, in_path(branch))).await?;
        Ok(found.commit.sha)
    }

    async fn changes_requested(&self, number: u64, known: &[String]) -> Result<Vec<HumanReview>> {
        let pull = format!("{}/pulls/{number}", self.path);
        let reviews = self.http.history(&format!("{pull}/reviews")).await?;
        with_words(&self.http, &pull, reviews, known).await
    }

    async fn comments(&self, on: Thread) -> Result<Vec<String>> {
        let path = self.comments_on(on);
        let found: Vec<Comment> =
            if D::PAGED_COMMENTS { self.http.history(&path).await? } else { self.http.get(&path).await? };
        Ok(found.into_iter().filter_map(|comment| comment.body).collect())
    }

    async fn comment(&self, on: Thread, text: &str) -> Result<()> {
        self.http.tell(Method::POST, &self.comments_on(on), Some(&json!({"body": text}))).await
    }

    async fn status(&self, commit: &str, verdict: Verdict, words: &str) -> Result<()> {
        let state = match verdict {
            Verdict::Pending => "pending",
            Verdict::Success => "success",
            Verdict::Failure => "failure",
        };
        let words: String = words.chars().take(MAX_STATUS).collect();
        let body = json!({"state": state, "context": "refile", "description": words});
        let path = format!("{}/statuses/{}", self.path, encoded(commit));
        self.http.tell(Method::POST, &path, Some(&body)).await
    }

    async fn merge(&self, number: u64, head: &str, message: &Message) -> Result<Merge> {
        match D::merge(self, number, head, message).await {
            Ok(Some(commit)) => Ok(Merge::Done { commit }),
            Ok(None) => Ok(Merge::NotYet { why: "it was told to merge and has not yet".to_owned() }),
            // Gitea also while it still looks for conflicts, right after a push.
            Err(error) if error.is(&[405, 422]) => Ok(Merge::NotYet { why: error.detail }),
            Err(error) if error.is(&[409]) => Ok(Merge::Moved),
            Err(error) => Err(error),
        }
    }

    async fn issues(&self, label: &str) -> Result<Vec<Issue>> {
        let path = format!("{}/issues?{}&labels={}", self.path, D::ISSUES, encoded(label));
        Ok(issues(self.http.pages(&path).await?))
    }

    async fn close(&self, on: Thread) -> Result<()> {
        let path = match on {
            Thread::PullRequest(number) => format!("{}/pulls/{number}", self.path),
            Thread::Issue(number) => format!("{}/issues/{number}", self.path),
        };
        self.http.tell(Method::PATCH, &path, Some(&json!({"state": "closed"}))).await
    }

    async fn delete_branch(&self, branch: &str) -> Result<()> {
        match self.http.tell(Method::DELETE, &format!("{}/{}", self.path, D::branch(branch)), None).await {
            // GitHub's word for one that is not there is 422.
            Err(error) if error.is(&[404, 422]) => Ok(()),
            result => result,
        }
    }
}

/// A branch as part of an address, where its slashes are part of the address too.
pub(crate) fn in_path(branch: &str) -> String {
    branch.split('/').map(encoded).collect::<Vec<_>>().join("/")
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
    /// On Gitea the branch's name alone, also where the branch itself is gone.
    #[serde(default)]
    label: String,
    /// Nothing where the project is gone.
    #[serde(default)]
    repo: Option<Repository>,
}

#[derive(Debug, Deserialize)]
struct Base {
    #[serde(default)]
    repo: Option<Repository>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Repository {
    full_name: String,
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
    base: Base,
}

impl Pull {
    /// Whether it brings in this branch of the project itself: a fork may have one of the same name.
    pub(crate) fn is_of(&self, branch: &str) -> bool {
        let is_it = self.head.branch == branch || self.head.label == branch;
        is_it && self.head.repo.is_some() && self.head.repo == self.base.repo
    }

    /// As it stands; who closed it is not told here.
    pub(crate) fn read(self) -> PullRequest {
        let state = if self.merged {
            let by = self.merged_by.and_then(User::person);
            State::Merged { commit: self.merge_commit_sha.unwrap_or_default(), by }
        } else if self.state == "closed" {
            State::Closed { by: None }
        } else {
            // Gitea has no such field, and calls one that it still looks at not mergeable, as it calls one that conflicts.
            let state = self.mergeable_state.as_deref();
            let blocked = state.filter(|state| ["blocked", "behind", "draft"].contains(state)).map(str::to_owned);
            State::Open { conflicts: state == Some("dirty"), blocked }
        };
        PullRequest { number: self.number, url: self.html_url, head: self.head.sha, state }
    }
}

#[derive(Debug, Deserialize)]
struct Review {
    id: u64,
    user: Option<User>,
    state: String,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    commit_id: Option<String>,
    /// Of Gitea alone; GitHub has a state for it.
    #[serde(default)]
    dismissed: bool,
    /// Of Gitea alone: whether the reviewer's word counts there.
    #[serde(default)]
    official: bool,
    /// Of GitHub alone: what the reviewer is to the project.
    #[serde(default)]
    author_association: String,
}

impl Review {
    /// Whether it is by a member or a collaborator: on a public project anybody may say something.
    fn counts(&self) -> bool {
        self.official || matches!(self.author_association.as_str(), "OWNER" | "MEMBER" | "COLLABORATOR")
    }
}

/// What is said of one place in the diff.
#[derive(Debug, Deserialize)]
struct Remark {
    body: String,
    #[serde(default)]
    path: Option<String>,
    #[serde(default, alias = "position")]
    line: Option<u64>,
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

/// The reviews that ask for changes and were not taken back: by members and collaborators, not dismissed, and no approval by the
/// same person after them.
fn standing(reviews: Vec<Review>) -> Vec<(Review, String)> {
    let mut standing: Vec<(Review, String)> = Vec::new();
    for mut review in reviews.into_iter().filter(Review::counts) {
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
async fn with_words(http: &Http, pull: &str, reviews: Vec<Review>, known: &[String]) -> Result<Vec<HumanReview>> {
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
struct Comment {
    #[serde(default)]
    body: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Label {
    name: String,
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
    pub(crate) closed_by: Option<User>,
}

/// The issues among what is listed, oldest first.
fn issues(tickets: Vec<Ticket>) -> Vec<Issue> {
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
