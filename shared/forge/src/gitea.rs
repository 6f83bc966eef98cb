//! Gitea's and Forgejo's wire format, where it is not GitHub's.

use async_trait::async_trait;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use crate::http::encoded;
use crate::hub::{Dialect, Hub, Pull, User};
use crate::{Forge, Message, PullRequest, Result, State};

/// A project on Gitea or Forgejo.
pub(crate) type Gitea = Hub<OfGitea>;

/// What is Gitea's alone.
#[derive(Debug)]
pub(crate) struct OfGitea;

#[async_trait]
impl Dialect for OfGitea {
    const ISSUES: &'static str = "state=open&type=issues";
    const PAGED_COMMENTS: bool = false;

    fn branch(branch: &str) -> String {
        format!("branches/{}", encoded(branch))
    }

    async fn find(hub: &Gitea, branch: &str) -> Result<Option<PullRequest>> {
        let Hub { http, path, .. } = hub;
        let open: Vec<Pull> = http.pages(&format!("{path}/pulls?state=open")).await?;
        if let Some(ours) = open.into_iter().find(|pull| pull.is_of(branch)) {
            return Ok(Some(ours.read()));
        }
        // There is no listing by branch. One that was merged or closed while nobody looked was so not long ago.
        let closed: Vec<Pull> = http.get(&format!("{path}/pulls?state=closed&sort=recentupdate&limit=50")).await?;
        let newest = closed.iter().filter(|pull| pull.is_of(branch)).map(|pull| pull.number).max();
        match newest {
            Some(number) => hub.pull_request(number).await.map(Some),
            None => Ok(None),
        }
    }

    /// The person who closed it last; the history of the issue alone tells.
    async fn closed_by(hub: &Gitea, number: u64) -> Result<Option<String>> {
        #[derive(Deserialize)]
        struct Entry {
            #[serde(rename = "type", default)]
            kind: String,
            user: Option<User>,
        }
        let history: Vec<Entry> = hub.http.history(&format!("{}/issues/{number}/timeline", hub.path)).await?;
        let last = history.into_iter().rev().find(|entry| entry.kind == "close");
        Ok(last.and_then(|entry| entry.user).and_then(User::person))
    }

    async fn merge(hub: &Gitea, number: u64, head: &str, message: &Message) -> Result<Option<String>> {
        let body = json!({
            "Do": "squash",
            "head_commit_id": head,
            "MergeTitleField": message.title,
            "MergeMessageField": message.body,
        });
        hub.http.tell(Method::POST, &format!("{}/pulls/{number}/merge", hub.path), Some(&body)).await?;
        // The answer is empty: the commit is told by the pull request.
        match hub.pull_request(number).await?.state {
            State::Merged { commit, .. } => Ok(Some(commit)),
            _ => Ok(None),
        }
    }
}
