//! GitHub's wire format, where it is not Gitea's too.

use async_trait::async_trait;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use crate::http::encoded;
use crate::hub::{Dialect, Hub, Pull, Ticket, User, in_path};
use crate::{Forge, Message, PullRequest, Result};

/// A project on GitHub.
pub(crate) type GitHub = Hub<OfGitHub>;

/// What is GitHub's alone.
#[derive(Debug)]
pub(crate) struct OfGitHub;

#[async_trait]
impl Dialect for OfGitHub {
    const ISSUES: &'static str = "state=open&sort=updated&direction=desc";
    const PAGED_COMMENTS: bool = true;

    fn branch(branch: &str) -> String {
        format!("git/refs/heads/{}", in_path(branch))
    }

    async fn find(hub: &GitHub, branch: &str) -> Result<Option<PullRequest>> {
        let Hub { http, owner, path, .. } = hub;
        // Newest first.
        let found: Vec<Pull> =
            http.get(&format!("{path}/pulls?state=all&head={}", encoded(&format!("{owner}:{branch}")))).await?;
        // A server that does not know the filter lists all.
        let ours = || found.iter().filter(|pull| pull.is_of(branch));
        let Some(pull) = ours().find(|pull| pull.state == "open").or_else(|| ours().next()) else { return Ok(None) };
        // A listing does not tell what became of it.
        hub.pull_request(pull.number).await.map(Some)
    }

    async fn closed_by(hub: &GitHub, number: u64) -> Result<Option<String>> {
        let ticket: Ticket = hub.http.get(&format!("{}/issues/{number}", hub.path)).await?;
        Ok(ticket.closed_by.and_then(User::person))
    }

    async fn merge(hub: &GitHub, number: u64, head: &str, message: &Message) -> Result<Option<String>> {
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
        let merged: Merged = hub.http.send(Method::PUT, &format!("{}/pulls/{number}/merge", hub.path), &body).await?;
        Ok(Some(merged.sha))
    }
}
