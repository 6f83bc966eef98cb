//! Gitea's and Forgejo's wire format, where it is not GitHub's.

use std::sync::Arc;

use async_trait::async_trait;
use refile_core::event::HumanReview;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use crate::http::{Http, encoded};
use crate::hub::{Comment, Hub, Pull, User, issues};
use crate::{Forge, Issue, Merge, Message, Proposal, PullRequest, Result, State, Thread, Verdict};

/// A project on Gitea or Forgejo.
#[derive(Debug)]
pub(crate) struct Gitea(Hub);

impl Gitea {
    pub(crate) fn new(http: Arc<Http>, project: &str) -> Self {
        Self(Hub::new(http, project))
    }

    /// The person who closed it last; the history of the issue alone tells.
    async fn closed_by(&self, number: u64) -> Result<Option<String>> {
        #[derive(Deserialize)]
        struct Entry {
            #[serde(rename = "type", default)]
            kind: String,
            user: Option<User>,
        }
        let history: Vec<Entry> = self.0.http.history(&format!("{}/issues/{number}/timeline", self.0.path)).await?;
        let last = history.into_iter().rev().find(|entry| entry.kind == "close");
        Ok(last.and_then(|entry| entry.user).and_then(User::person))
    }
}

#[async_trait]
impl Forge for Gitea {
    async fn find(&self, branch: &str) -> Result<Option<PullRequest>> {
        let Hub { http, path, .. } = &self.0;
        let open: Vec<Pull> = http.pages(&format!("{path}/pulls?state=open")).await?;
        if let Some(ours) = open.into_iter().find(|pull| pull.is_of(branch)) {
            return Ok(Some(ours.read()));
        }
        // There is no listing by branch. One that was merged or closed while nobody looked was so not long ago.
        let closed: Vec<Pull> = http.get(&format!("{path}/pulls?state=closed&sort=recentupdate&limit=50")).await?;
        let newest = closed.iter().filter(|pull| pull.is_of(branch)).map(|pull| pull.number).max();
        match newest {
            Some(number) => self.pull_request(number).await.map(Some),
            None => Ok(None),
        }
    }

    async fn create(&self, proposal: &Proposal) -> Result<PullRequest> {
        self.0.create(proposal).await
    }

    async fn update(&self, number: u64, proposal: &Proposal) -> Result<()> {
        self.0.update(number, proposal).await
    }

    async fn close(&self, on: Thread) -> Result<()> {
        self.0.close(on).await
    }

    async fn changes_requested(&self, number: u64, known: &[String]) -> Result<Vec<HumanReview>> {
        self.0.changes_requested(number, known).await
    }

    async fn comment(&self, on: Thread, text: &str) -> Result<()> {
        self.0.comment(on, text).await
    }

    async fn status(&self, commit: &str, verdict: Verdict, words: &str) -> Result<()> {
        self.0.status(commit, verdict, words).await
    }

    async fn head_of(&self, branch: &str) -> Result<String> {
        self.0.head_of(branch).await
    }

    async fn pull_request(&self, number: u64) -> Result<PullRequest> {
        let pull: Pull = self.0.http.get(&format!("{}/pulls/{number}", self.0.path)).await?;
        let mut read = pull.read();
        if let State::Closed { by } = &mut read.state {
            *by = self.closed_by(number).await?;
        }
        Ok(read)
    }

    async fn comments(&self, on: Thread) -> Result<Vec<String>> {
        let (Thread::PullRequest(number) | Thread::Issue(number)) = on;
        // Not in pages: all of them come at once.
        let found: Vec<Comment> = self.0.http.get(&format!("{}/issues/{number}/comments", self.0.path)).await?;
        Ok(found.into_iter().filter_map(|comment| comment.body).collect())
    }

    async fn merge(&self, number: u64, head: &str, message: &Message) -> Result<Merge> {
        let body = json!({
            "Do": "squash",
            "head_commit_id": head,
            "MergeTitleField": message.title,
            "MergeMessageField": message.body,
        });
        match self.0.http.tell(Method::POST, &format!("{}/pulls/{number}/merge", self.0.path), Some(&body)).await {
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
        // Newest first.
        let path = format!("{}/issues?state=open&type=issues&labels={}", self.0.path, encoded(label));
        Ok(issues(self.0.http.pages(&path).await?))
    }

    async fn delete_branch(&self, branch: &str) -> Result<()> {
        let path = format!("{}/branches/{}", self.0.path, encoded(branch));
        match self.0.http.tell(Method::DELETE, &path, None).await {
            Err(error) if error.is(&[404]) => Ok(()),
            result => result,
        }
    }
}
