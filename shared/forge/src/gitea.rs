//! Gitea's and Forgejo's wire format, where it is not GitHub's.

use std::sync::Arc;

use async_trait::async_trait;
use refile_core::event::HumanReview;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use crate::github::{Comment, Pull, User, issues, status_body, with_words};
use crate::http::{Http, encoded};
use crate::{Forge, Issue, Merge, Message, Proposal, PullRequest, Result, State, Thread, Verdict};

/// A project on Gitea or Forgejo.
#[derive(Debug)]
pub(crate) struct Gitea {
    http: Arc<Http>,
    path: String,
}

impl Gitea {
    pub(crate) fn new(http: Arc<Http>, project: &str) -> Self {
        let (owner, name) = project.split_once('/').unwrap_or((project, ""));
        Self { http, path: format!("/repos/{}/{}", encoded(owner), encoded(name)) }
    }

    /// The person who closed it last; the history of the issue alone tells.
    async fn closed_by(&self, number: u64) -> Result<Option<String>> {
        #[derive(Deserialize)]
        struct Entry {
            #[serde(rename = "type", default)]
            kind: String,
            user: Option<User>,
        }
        let history: Vec<Entry> = self.http.pages(&format!("{}/issues/{number}/timeline", self.path)).await?;
        let last = history.into_iter().rev().find(|entry| entry.kind == "close");
        Ok(last.and_then(|entry| entry.user).and_then(User::person))
    }
}

#[async_trait]
impl Forge for Gitea {
    async fn find(&self, branch: &str) -> Result<Option<PullRequest>> {
        let open: Vec<Pull> = self.http.pages(&format!("{}/pulls?state=open", self.path)).await?;
        Ok(open.into_iter().find(|pull| pull.head.branch == branch).map(Pull::read))
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
            *by = self.closed_by(number).await?;
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
        // Not in pages: all of them come at once.
        let found: Vec<Comment> = self.http.get(&format!("{}/issues/{number}/comments", self.path)).await?;
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
        let body = json!({
            "Do": "squash",
            "head_commit_id": head,
            "MergeTitleField": message.title,
            "MergeMessageField": message.body,
        });
        match self.http.tell(Method::POST, &format!("{}/pulls/{number}/merge", self.path), Some(&body)).await {
            // The answer is empty: the commit is told by the pull request.
            Ok(()) => match self.pull_request(number).await?.state {
                State::Merged { commit, .. } => Ok(Merge::Done { commit }),
                _ => Ok(Merge::NotYet { why: "it was told to merge and has not yet".to_owned() }),
            },
            // Also while the server still looks for conflicts, right after a push.
            Err(error) if error.is(&[405, 422]) => Ok(Merge::NotYet { why: error.detail }),
            Err(error) if error.is(&[409]) => Ok(Merge::Moved),
            Err(error) => Err(error),
        }
    }

    async fn issues(&self, label: &str) -> Result<Vec<Issue>> {
        let path = format!("{}/issues?state=open&type=issues&labels={}", self.path, encoded(label));
        Ok(issues(self.http.pages(&path).await?))
    }

    async fn close_issue(&self, number: u64) -> Result<()> {
        let path = format!("{}/issues/{number}", self.path);
        self.http.tell(Method::PATCH, &path, Some(&json!({"state": "closed"}))).await
    }

    async fn delete_branch(&self, branch: &str) -> Result<()> {
        let path = format!("{}/branches/{}", self.path, encoded(branch));
        match self.http.tell(Method::DELETE, &path, None).await {
            Err(error) if error.is(&[404]) => Ok(()),
            result => result,
        }
    }
}
