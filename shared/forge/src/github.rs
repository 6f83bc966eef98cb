//! GitHub's wire format, where it is not Gitea's too.

use std::sync::Arc;

use async_trait::async_trait;
use refile_core::event::HumanReview;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use crate::http::{Http, encoded};
use crate::hub::{Comment, Hub, Pull, Ticket, User, in_path, issues};
use crate::{Forge, Issue, Merge, Message, Proposal, PullRequest, Result, State, Thread, Verdict};

/// A project on GitHub.
#[derive(Debug)]
pub(crate) struct GitHub(Hub);

impl GitHub {
    pub(crate) fn new(http: Arc<Http>, project: &str) -> Self {
        Self(Hub::new(http, project))
    }
}

#[async_trait]
impl Forge for GitHub {
    async fn find(&self, branch: &str) -> Result<Option<PullRequest>> {
        let Hub { http, owner, path } = &self.0;
        // Newest first.
        let found: Vec<Pull> =
            http.get(&format!("{path}/pulls?state=all&head={}", encoded(&format!("{owner}:{branch}")))).await?;
        // A server that does not know the filter lists all.
        let ours = || found.iter().filter(|pull| pull.is_of(branch));
        let Some(pull) = ours().find(|pull| pull.state == "open").or_else(|| ours().next()) else { return Ok(None) };
        // A listing does not tell what became of it.
        self.pull_request(pull.number).await.map(Some)
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
            let ticket: Ticket = self.0.http.get(&format!("{}/issues/{number}", self.0.path)).await?;
            *by = ticket.closed_by.and_then(User::person);
        }
        Ok(read)
    }

    async fn comments(&self, on: Thread) -> Result<Vec<String>> {
        let (Thread::PullRequest(number) | Thread::Issue(number)) = on;
        let found: Vec<Comment> = self.0.http.history(&format!("{}/issues/{number}/comments", self.0.path)).await?;
        Ok(found.into_iter().filter_map(|comment| comment.body).collect())
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
        match self.0.http.send::<Merged>(Method::PUT, &format!("{}/pulls/{number}/merge", self.0.path), &body).await {
            Ok(merged) => Ok(Merge::Done { commit: merged.sha }),
            Err(error) if error.is(&[405, 422]) => Ok(Merge::NotYet { why: error.detail }),
            Err(error) if error.is(&[409]) => Ok(Merge::Moved),
            Err(error) => Err(error),
        }
    }

    async fn issues(&self, label: &str) -> Result<Vec<Issue>> {
        let path = format!("{}/issues?state=open&sort=updated&direction=desc&labels={}", self.0.path, encoded(label));
        Ok(issues(self.0.http.pages(&path).await?))
    }

    async fn delete_branch(&self, branch: &str) -> Result<()> {
        let path = format!("{}/git/refs/heads/{}", self.0.path, in_path(branch));
        match self.0.http.tell(Method::DELETE, &path, None).await {
            Err(error) if error.is(&[404, 422]) => Ok(()),
            result => result,
        }
    }
}
