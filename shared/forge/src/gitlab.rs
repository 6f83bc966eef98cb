//! GitLab's wire format: merge requests, notes, and reviews that only their notes tell of.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use refile_core::event::HumanReview;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use crate::http::{Http, encoded};
use crate::{Forge, Issue, Merge, Message, Proposal, PullRequest, Result, State, Thread, Verdict};

/// The access level from which on somebody may write.
const DEVELOPER: u32 = 30;
/// The longest words of a status, in characters.
const MAX_STATUS: usize = 255;

/// A project on GitLab.
#[derive(Debug)]
pub(crate) struct GitLab {
    http: Arc<Http>,
    path: String,
}

impl GitLab {
    pub(crate) fn new(http: Arc<Http>, project: &str) -> Self {
        Self { http, path: format!("/projects/{}", encoded(project)) }
    }

    /// The newest notes, oldest first.
    async fn notes(&self, on: Thread) -> Result<Vec<Note>> {
        let path = format!("{}/{}/notes?sort=desc&order_by=created_at", self.path, thread(on));
        let mut notes: Vec<Note> = self.http.pages(&path).await?;
        notes.reverse();
        Ok(notes)
    }

    /// Whether somebody may write: on a public project anybody may say something.
    async fn may_write(&self, user: u64) -> Result<bool> {
        #[derive(Deserialize)]
        struct Member {
            access_level: u32,
        }
        match self.http.get::<Member>(&format!("{}/members/all/{user}", self.path)).await {
            Ok(member) => Ok(member.access_level >= DEVELOPER),
            Err(error) if error.is(&[404]) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug, Deserialize)]
struct User {
    #[serde(default)]
    id: u64,
    username: String,
    #[serde(default)]
    bot: bool,
}

impl User {
    /// The name, where it is a person's. Access tokens of projects and groups have names of their own.
    fn person(self) -> Option<String> {
        let named = |prefix: &str| self.username.starts_with(prefix) && self.username.contains("_bot");
        (!self.bot && !named("project_") && !named("group_")).then_some(self.username)
    }
}

#[derive(Debug, Deserialize)]
struct MergeRequest {
    iid: u64,
    web_url: String,
    state: String,
    #[serde(default)]
    sha: Option<String>,
    merge_commit_sha: Option<String>,
    squash_commit_sha: Option<String>,
    #[serde(default, alias = "merged_by")]
    merge_user: Option<User>,
    #[serde(default)]
    closed_by: Option<User>,
    #[serde(default)]
    has_conflicts: bool,
    /// Of newer servers.
    #[serde(default)]
    detailed_merge_status: Option<String>,
    #[serde(default)]
    source_branch: String,
    #[serde(default)]
    source_project_id: Option<u64>,
    #[serde(default)]
    target_project_id: Option<u64>,
}

/// What GitLab says of one that can be merged, or that it has not looked at yet.
const NOT_BLOCKED: [&str; 5] = ["mergeable", "checking", "unchecked", "preparing", "approvals_syncing"];

impl MergeRequest {
    /// Whether it brings in this branch of the project itself: a fork may have one of the same name.
    fn is_of(&self, branch: &str) -> bool {
        self.source_branch == branch && self.source_project_id == self.target_project_id
    }

    fn read(self) -> PullRequest {
        let head = self.sha.unwrap_or_default();
        let state = match self.state.as_str() {
            "merged" => {
                // A merge without a commit of its own: what was squashed, or the head itself, is on the base branch.
                let commit = self.merge_commit_sha.or(self.squash_commit_sha).unwrap_or_else(|| head.clone());
                State::Merged { commit, by: self.merge_user.and_then(User::person) }
            }
            "closed" => State::Closed { by: self.closed_by.and_then(User::person) },
            // `locked` is on its way to be merged.
            _ => State::Open {
                conflicts: self.has_conflicts && self.state == "opened",
                blocked: self.detailed_merge_status.filter(|status| !NOT_BLOCKED.contains(&status.as_str())),
            },
        };
        PullRequest { number: self.iid, url: self.web_url, head, state }
    }
}

#[derive(Debug, Deserialize)]
struct Note {
    id: u64,
    #[serde(default)]
    body: String,
    #[serde(default)]
    system: bool,
    author: User,
    #[serde(default)]
    position: Option<Position>,
}

#[derive(Debug, Deserialize)]
struct Position {
    #[serde(default)]
    new_path: Option<String>,
    #[serde(default)]
    new_line: Option<u64>,
}

impl Note {
    fn words(&self) -> String {
        let line = |p: &Position| p.new_line.map(|line| format!(":{line}")).unwrap_or_default();
        match self.position.as_ref().and_then(|p| Some((p.new_path.as_ref()?, line(p)))) {
            Some((path, line)) => format!("{path}{line}: {}", self.body.trim()),
            None => self.body.trim().to_owned(),
        }
    }
}

/// Reads reviews out of the notes, in their order. "Request changes" leaves a system note; its words are the notes that the
/// same person wrote since their last such note. An approval takes back what they asked for before.
fn reviews(notes: Vec<Note>) -> Vec<HumanReview> {
    let mut standing: Vec<HumanReview> = Vec::new();
    let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for note in notes {
        let words = note.words();
        let (id, system) = (note.id, note.system);
        let Some(by) = note.author.person() else { continue };
        if !system {
            // A comment of the fleet's own, should a person's token be used.
            if !words.starts_with(crate::text::MARKER) {
                said.entry(by).or_default().push(words);
            }
        } else if words.starts_with("requested changes") {
            let words = said.remove(&by).unwrap_or_default().join("\n\n");
            standing.push(HumanReview { id: id.to_string(), by, head: String::new(), words });
        } else if words.starts_with("approved") {
            said.remove(&by);
            standing.retain(|review| review.by != by);
        }
    }
    standing
}

#[derive(Debug, Deserialize)]
struct Ticket {
    iid: u64,
    #[serde(default)]
    title: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    labels: Vec<String>,
}

#[async_trait]
impl Forge for GitLab {
    async fn find(&self, branch: &str) -> Result<Option<PullRequest>> {
        // Newest first.
        let path = format!("{}/merge_requests?state=all&source_branch={}", self.path, encoded(branch));
        let found: Vec<MergeRequest> = self.http.get(&path).await?;
        let ours = || found.iter().filter(|request| request.is_of(branch));
        let Some(request) = ours().find(|request| request.state == "opened").or_else(|| ours().next()) else {
            return Ok(None);
        };
        self.pull_request(request.iid).await.map(Some)
    }

    async fn create(&self, proposal: &Proposal) -> Result<PullRequest> {
        let Proposal { branch, base, title, body, .. } = proposal;
        let body = json!({"title": title, "description": body, "source_branch": branch, "target_branch": base});
        let path = format!("{}/merge_requests", self.path);
        let made: MergeRequest = self.http.send(Method::POST, &path, &body).await?;
        Ok(made.read())
    }

    async fn update(&self, number: u64, proposal: &Proposal) -> Result<()> {
        let body = json!({"title": proposal.title, "description": proposal.body});
        self.http.tell(Method::PUT, &format!("{}/merge_requests/{number}", self.path), Some(&body)).await
    }

    async fn pull_request(&self, number: u64) -> Result<PullRequest> {
        let found: MergeRequest = self.http.get(&format!("{}/merge_requests/{number}", self.path)).await?;
        Ok(found.read())
    }

    async fn changes_requested(&self, number: u64, known: &[String]) -> Result<Vec<HumanReview>> {
        let notes = self.notes(Thread::PullRequest(number)).await?;
        let ids: BTreeMap<String, u64> =
            notes.iter().map(|note| (note.author.username.clone(), note.author.id)).collect();
        let (mut counted, mut may_write) = (Vec::new(), BTreeMap::new());
        for review in reviews(notes).into_iter().filter(|review| !known.contains(&review.id)) {
            if !may_write.contains_key(&review.by) {
                let may = self.may_write(ids.get(&review.by).copied().unwrap_or_default()).await?;
                may_write.insert(review.by.clone(), may);
            }
            if may_write.get(&review.by) == Some(&true) {
                counted.push(review);
            }
        }
        Ok(counted)
    }

    async fn comments(&self, on: Thread) -> Result<Vec<String>> {
        let found = self.notes(on).await?;
        Ok(found.into_iter().filter(|note| !note.system).map(|note| note.body).collect())
    }

    async fn comment(&self, on: Thread, text: &str) -> Result<()> {
        let path = format!("{}/{}/notes", self.path, thread(on));
        self.http.tell(Method::POST, &path, Some(&json!({"body": text}))).await
    }

    async fn status(&self, commit: &str, verdict: Verdict, words: &str) -> Result<()> {
        let state = match verdict {
            Verdict::Pending => "pending",
            Verdict::Success => "success",
            Verdict::Failure => "failed",
        };
        let words: String = words.chars().take(MAX_STATUS).collect();
        let path = format!("{}/statuses/{}", self.path, encoded(commit));
        let body = json!({"state": state, "name": "refile", "description": words});
        match self.http.tell(Method::POST, &path, Some(&body)).await {
            // It says so where the commit has that status already.
            Err(error) if error.is(&[400]) && error.detail.contains("Cannot transition status") => Ok(()),
            result => result,
        }
    }

    async fn merge(&self, number: u64, head: &str, message: &Message) -> Result<Merge> {
        let words = format!("{}\n\n{}", message.title, message.body);
        let body = json!({
            "sha": head,
            "squash": true,
            "squash_commit_message": words,
            "merge_commit_message": words,
        });
        let path = format!("{}/merge_requests/{number}/merge", self.path);
        match self.http.send::<MergeRequest>(Method::PUT, &path, &body).await {
            Ok(request) => match request.read().state {
                State::Merged { commit, .. } => Ok(Merge::Done { commit }),
                _ => Ok(Merge::NotYet { why: "it was told to merge and has not yet".to_owned() }),
            },
            Err(error) if error.is(&[405, 406, 422]) => Ok(Merge::NotYet { why: error.detail }),
            Err(error) if error.is(&[409]) => Ok(Merge::Moved),
            Err(error) => Err(error),
        }
    }

    async fn issues(&self, label: &str) -> Result<Vec<Issue>> {
        // What was touched last first, so that nothing new is beyond the end.
        let path = format!("{}/issues?state=opened&order_by=updated_at&sort=desc&labels={}", self.path, encoded(label));
        let found: Vec<Ticket> = self.http.pages(&path).await?;
        let issue = |ticket: Ticket| Issue {
            number: ticket.iid,
            title: ticket.title,
            body: ticket.description.unwrap_or_default(),
            labels: ticket.labels,
        };
        let mut issues: Vec<Issue> = found.into_iter().map(issue).collect();
        issues.sort_by_key(|issue| issue.number);
        Ok(issues)
    }

    async fn head_of(&self, branch: &str) -> Result<String> {
        #[derive(Deserialize)]
        struct Branch {
            commit: Commit,
        }
        #[derive(Deserialize)]
        struct Commit {
            id: String,
        }
        let path = format!("{}/repository/branches/{}", self.path, encoded(branch));
        self.http.get::<Branch>(&path).await.map(|found| found.commit.id)
    }

    async fn close(&self, on: Thread) -> Result<()> {
        let path = format!("{}/{}", self.path, thread(on));
        self.http.tell(Method::PUT, &path, Some(&json!({"state_event": "close"}))).await
    }

    async fn delete_branch(&self, branch: &str) -> Result<()> {
        let path = format!("{}/repository/branches/{}", self.path, encoded(branch));
        match self.http.tell(Method::DELETE, &path, None).await {
            Err(error) if error.is(&[404]) => Ok(()),
            result => result,
        }
    }
}

fn thread(on: Thread) -> String {
    match on {
        Thread::PullRequest(number) => format!("merge_requests/{number}"),
        Thread::Issue(number) => format!("issues/{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(id: u64, by: &str, system: bool, body: &str) -> Note {
        serde_json::from_value(json!({"id": id, "author": {"username": by}, "system": system, "body": body})).unwrap()
    }

    #[test]
    fn notes_tell_of_reviews() {
        let found = reviews(vec![
            note(1, "bob", false, "Nice."),
            note(2, "ann", false, "Name the port."),
            note(3, "ann", false, "And the host."),
            note(4, "ann", true, "requested changes"),
            note(5, "bob", true, "requested changes"),
            note(6, "bob", true, "approved this merge request"),
            note(7, "ann", false, "Say why."),
            note(8, "ann", true, "requested changes"),
            note(9, "project_7_bot_ab", true, "requested changes"),
        ]);
        let found: Vec<(&str, &str, &str)> =
            found.iter().map(|r| (r.id.as_str(), r.by.as_str(), r.words.as_str())).collect();
        assert_eq!(found, [("4", "ann", "Name the port.\n\nAnd the host."), ("8", "ann", "Say why.")]);
    }
}
