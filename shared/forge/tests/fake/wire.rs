//! The three wire formats, as far as they are used.

use std::cell::Cell;
use std::collections::BTreeMap;

use axum::http::{HeaderMap, Method, Uri};
use refile_config::ForgeKind;
use serde_json::{Value, json};

use super::{Comment, Issue, Pull, TOKEN, World};

pub(super) fn is_authorized(kind: ForgeKind, headers: &HeaderMap) -> bool {
    let (name, value) = match kind {
        ForgeKind::Github => ("authorization", format!("Bearer {TOKEN}")),
        ForgeKind::Gitea => ("authorization", format!("token {TOKEN}")),
        ForgeKind::Gitlab => ("private-token", TOKEN.to_owned()),
    };
    headers.get(name).is_some_and(|given| given.to_str().unwrap() == value)
}

fn decoded(part: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex = [rest.next().unwrap(), rest.next().unwrap()];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn query(uri: &Uri) -> BTreeMap<String, String> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), decoded(value))).collect()
}

thread_local! {
    /// The last page of the listing that was just answered; 0 where it was none.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// The header that tells where a listing ends.
pub(super) fn links(uri: &Uri) -> Vec<(&'static str, String)> {
    let last = LAST.take();
    let query = query(uri);
    if last < 2 || query.get("page").is_some_and(|page| *page == last.to_string()) {
        return Vec::new();
    }
    let others: Vec<String> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.starts_with("page="))
        .map(str::to_owned)
        .collect();
    let others = others.join("&");
    let at =
        |page: usize, rel: &str| format!("<http://forge.example{}?{others}&page={page}>; rel=\"{rel}\"", uri.path());
    vec![("link", format!("{}, {}", at(2, "next"), at(last, "last")))]
}

fn page(mut all: Vec<Value>, query: &BTreeMap<String, String>) -> (u16, Value) {
    if query.get("direction").or(query.get("sort")).is_some_and(|order| order == "desc") {
        all.reverse();
    }
    let size = query.get("per_page").or(query.get("limit")).map_or(30, |n| n.parse::<usize>().unwrap().min(50));
    let page = query.get("page").map_or(1, |n| n.parse::<usize>().unwrap());
    LAST.set(all.len().div_ceil(size));
    (200, Value::Array(all.into_iter().skip(size * (page - 1)).take(size).collect()))
}

fn gone() -> (u16, Value) {
    (404, json!({"message": "Not Found"}))
}

fn text(body: &Value, name: &str) -> String {
    body[name].as_str().unwrap_or_default().to_owned()
}

pub(super) fn answer(world: &mut World, method: &Method, uri: &Uri, body: &Value) -> (u16, Value) {
    let parts: Vec<String> = uri.path().split('/').skip(1).map(decoded).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let query = query(uri);
    match (world.kind, parts.as_slice()) {
        (ForgeKind::Github, ["api", "v3", "repos", "acme", "widgets", rest @ ..])
        | (ForgeKind::Gitea, ["api", "v1", "repos", "acme", "widgets", rest @ ..]) => {
            of_github(world, method, rest, &query, body)
        }
        (ForgeKind::Gitlab, ["api", "v4", "projects", "acme/widgets", rest @ ..]) => {
            of_gitlab(world, method, rest, &query, body)
        }
        _ => gone(),
    }
}

fn person(name: &str) -> Value {
    let kind = if name.ends_with("[bot]") { "Bot" } else { "User" };
    json!({"login": name, "type": kind})
}

fn pull(world: &World, pull: &Pull) -> Value {
    let merged = pull.state == "merged";
    json!({
        "number": pull.number,
        "html_url": format!("http://forge.example/acme/widgets/pulls/{}", pull.number),
        "state": if pull.state == "open" { "open" } else { "closed" },
        "title": pull.title, "body": pull.body,
        "merged": merged,
        "mergeable_state": (world.kind == ForgeKind::Github).then(|| if world.conflicts(pull) { "dirty" } else { "clean" }),
        // An open one has the commit of a trial merge on GitHub.
        "merge_commit_sha": if merged { pull.commit.clone() } else { Some("f".repeat(40)) },
        "merged_by": pull.by.as_deref().filter(|_| merged).map(person),
        // A fork may have the same owner.
        "head": {
            "ref": pull.branch, "sha": pull.head, "label": format!("acme:{}", pull.branch),
            "repo": {"full_name": if pull.fork { "acme/copy" } else { "acme/widgets" }},
        },
        "base": {"ref": pull.base, "kind": world.kind.as_str(), "repo": {"full_name": "acme/widgets"}},
    })
}

fn issue(issue: &Issue) -> Value {
    let labels: Vec<Value> = issue.labels.iter().map(|label| json!({"name": label})).collect();
    let state = if issue.open { "open" } else { "closed" };
    json!({"number": issue.number, "title": issue.title, "body": issue.body, "labels": labels, "state": state})
}

fn with_label(world: &World, query: &BTreeMap<String, String>) -> Vec<Issue> {
    let label = &query["labels"];
    world.issues.iter().filter(|issue| issue.open && issue.labels.contains(label)).cloned().collect()
}

#[allow(clippy::too_many_lines)]
fn of_github(
    world: &mut World,
    method: &Method,
    path: &[&str],
    query: &BTreeMap<String, String>,
    body: &Value,
) -> (u16, Value) {
    let number = path.get(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    match (method.as_str(), path) {
        ("GET", ["pulls"]) => {
            let head = query.get("head").map(|head| head.trim_start_matches("acme:").to_owned());
            let state = query.get("state").map_or("open", String::as_str);
            let is_in = |p: &Pull| state == "all" || (state == "open") == (p.state == "open");
            let fits = |p: &&Pull| is_in(p) && head.as_ref().is_none_or(|head| *head == p.branch);
            let mut found: Vec<Value> = world.pulls.iter().rev().filter(fits).map(|p| pull(world, p)).collect();
            if world.kind == ForgeKind::Github {
                // A listing tells less.
                for one in &mut found {
                    let one = one.as_object_mut().unwrap();
                    one.retain(|name, _| !["merged", "merged_by", "mergeable_state"].contains(&name.as_str()));
                }
            }
            page(found, query)
        }
        ("POST", ["pulls"]) => {
            match world.open(&text(body, "head"), &text(body, "base"), &text(body, "title"), &text(body, "body")) {
                Ok(number) => {
                    let made = world.pull(number).unwrap().clone();
                    (201, pull(world, &made))
                }
                Err(why) => (if world.kind == ForgeKind::Gitea { 409 } else { 422 }, json!({"message": why})),
            }
        }
        ("PATCH", ["pulls", _]) => {
            if world.pull(number).is_none() {
                return gone();
            }
            if body["state"] == "closed" {
                world.close(number, "fleet[bot]");
            }
            let found = world.pull(number).unwrap();
            for (name, kept) in [("title", &mut found.title), ("body", &mut found.body)] {
                if body.get(name).is_some() {
                    *kept = text(body, name);
                }
            }
            let found = found.clone();
            (if world.kind == ForgeKind::Gitea { 201 } else { 200 }, pull(world, &found))
        }
        ("GET", ["pulls", _]) => world.pull(number).cloned().map_or_else(gone, |found| (200, pull(world, &found))),
        ("GET", ["pulls", _, "reviews"]) => {
            let Some(found) = world.pull(number) else { return gone() };
            let found = found.clone();
            let reviews = found.reviews.iter().map(|r| {
                let may_write = !world.strangers.contains(&r.by);
                json!({
                    "id": r.id, "user": person(&r.by), "state": r.state, "body": r.words, "commit_id": r.head,
                    "author_association": if may_write { "COLLABORATOR" } else { "NONE" }, "official": may_write,
                })
            });
            let reviews = reviews.collect();
            page(reviews, query)
        }
        ("GET", ["pulls", _, "reviews", id, "comments"]) => {
            let Some(found) = world.pull(number) else { return gone() };
            let review = found.reviews.iter().find(|r| r.id.to_string() == *id).unwrap().clone();
            let line = if world.kind == ForgeKind::Gitea { "position" } else { "line" };
            let remarks = review.remarks.iter().map(|(path, at, words)| json!({"path": path, line: at, "body": words}));
            page(remarks.collect(), query)
        }
        (_, ["pulls", _, "merge"]) => {
            let is_github = world.kind == ForgeKind::Github;
            let names = if is_github {
                ["sha", "commit_title", "commit_message"]
            } else {
                ["head_commit_id", "MergeTitleField", "MergeMessageField"]
            };
            let [head, title, words] = names.map(|name| text(body, name));
            let Some(found) = world.pull(number) else { return gone() };
            if found.head != head {
                return (409, json!({"message": "Head branch was modified. Review and try the merge again."}));
            }
            match world.merge(number, "fleet[bot]", &format!("{title}\n\n{words}")) {
                Ok(commit) if is_github => (200, json!({"sha": commit, "merged": true})),
                Ok(_) => (200, Value::Null),
                Err(why) => (405, json!({"message": why})),
            }
        }
        ("GET", ["issues"]) => {
            let mut found = with_label(world, query);
            if world.kind == ForgeKind::Gitea {
                found.reverse();
            }
            page(found.iter().map(issue).collect(), query)
        }
        ("GET", ["issues", _]) => match world.pull(number) {
            Some(found) => (200, json!({"number": number, "closed_by": found.by.as_deref().map(person)})),
            None => gone(),
        },
        ("GET", ["issues", _, "timeline"]) => {
            let events = world.comments.iter().filter(|c| c.number == number && c.system);
            page(events.map(|c| json!({"type": c.body, "user": person(&c.by)})).collect(), query)
        }
        ("GET", ["issues", _, "comments"]) => {
            let comments = world.comments_on(number).into_iter().map(|body| json!({"body": body})).collect();
            if world.kind == ForgeKind::Gitea { (200, Value::Array(comments)) } else { page(comments, query) }
        }
        ("POST", ["issues", _, "comments"]) => {
            world.note(number, "fleet[bot]", &text(body, "body"), false);
            (201, json!({"id": 1}))
        }
        ("PATCH", ["issues", _]) => {
            let Some(found) = world.issues.iter_mut().find(|issue| issue.number == number) else { return gone() };
            found.open = text(body, "state") != "closed";
            (201, issue(found))
        }
        ("GET", ["branches", branch @ ..]) => head_of(world, &branch.join("/")),
        ("POST", ["statuses", commit]) => status(world, commit, body),
        ("DELETE", ["git", "refs", "heads", branch @ ..]) => delete(world, &branch.join("/"), 422),
        ("DELETE", ["branches", branch]) => delete(world, branch, 404),
        _ => gone(),
    }
}

/// A branch and the commit that it is at; each forge has its own name for that.
fn head_of(world: &World, branch: &str) -> (u16, Value) {
    match world.git(&["rev-parse", "--verify", &format!("refs/heads/{branch}")]) {
        Ok(head) => {
            let name = if world.kind == ForgeKind::Github { "sha" } else { "id" };
            (200, json!({"name": branch, "commit": {name: head}}))
        }
        Err(_) => gone(),
    }
}

fn status(world: &mut World, commit: &str, body: &Value) -> (u16, Value) {
    if world.git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).is_err() {
        return (422, json!({"message": "No commit found for SHA"}));
    }
    let state = text(body, "state");
    let (known, name): (&[&str], _) = match world.kind {
        ForgeKind::Github | ForgeKind::Gitea => (&["error", "failure", "pending", "success"], "context"),
        ForgeKind::Gitlab => (&["pending", "running", "success", "failed", "canceled", "skipped"], "name"),
    };
    assert_eq!(body[name], "refile");
    if !known.contains(&state.as_str()) {
        return (422, json!({"message": "Validation Failed: state is not included in the list"}));
    }
    let is_pending = state == "pending" && world.status_of(commit).is_some_and(|(state, _)| state == "pending");
    if world.kind == ForgeKind::Gitlab && is_pending {
        return (400, json!({"message": "Cannot transition status via :enqueue from :pending"}));
    }
    world.statuses.push((commit.to_owned(), body.clone()));
    (201, json!({"id": 1}))
}

fn delete(world: &mut World, branch: &str, missing: u16) -> (u16, Value) {
    let name = format!("refs/heads/{branch}");
    if world.git(&["rev-parse", "--verify", "--quiet", &name]).is_err() {
        return (missing, json!({"message": "Reference does not exist"}));
    }
    world.git(&["update-ref", "-d", &name]).unwrap();
    (204, Value::Null)
}

fn request(world: &World, pull: &Pull) -> Value {
    let by = pull.by.as_ref().map(|by| json!({"username": by}));
    let is = |state| pull.state == state;
    json!({
        "iid": pull.number,
        "web_url": format!("http://forge.example/acme/widgets/-/merge_requests/{}", pull.number),
        "state": if is("open") { "opened" } else { pull.state },
        "title": pull.title, "description": pull.body,
        "sha": pull.head,
        "has_conflicts": world.conflicts(pull),
        "source_branch": pull.branch, "target_branch": pull.base,
        "source_project_id": if pull.fork { 8 } else { 7 }, "target_project_id": 7,
        "merge_commit_sha": Value::Null,
        "squash_commit_sha": pull.commit,
        "merge_user": by.clone().filter(|_| is("merged")),
        "closed_by": by.filter(|_| is("closed")),
    })
}

fn note(comment: &Comment) -> Value {
    let author = json!({"id": number_of(&comment.by), "username": comment.by});
    json!({"id": comment.id, "body": comment.body, "system": comment.system, "author": author})
}

/// GitLab knows people by numbers.
fn number_of(name: &str) -> u64 {
    name.bytes().fold(7, |number, byte| (number * 31 + u64::from(byte)) % 1_000_000)
}

fn of_gitlab(
    world: &mut World,
    method: &Method,
    path: &[&str],
    query: &BTreeMap<String, String>,
    body: &Value,
) -> (u16, Value) {
    let number = path.get(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    match (method.as_str(), path) {
        ("GET", ["merge_requests"]) => {
            let is_in = |p: &Pull| query["state"] == "all" || p.state == "open";
            let fits = |p: &&Pull| is_in(p) && p.branch == query["source_branch"];
            page(world.pulls.iter().rev().filter(fits).map(|p| request(world, p)).collect(), query)
        }
        ("POST", ["merge_requests"]) => {
            let [branch, base] = ["source_branch", "target_branch"].map(|name| text(body, name));
            match world.open(&branch, &base, &text(body, "title"), &text(body, "description")) {
                Ok(number) => {
                    let made = world.pull(number).unwrap().clone();
                    (201, request(world, &made))
                }
                Err(why) => (409, json!({"message": [why]})),
            }
        }
        ("PUT", ["merge_requests", _]) => {
            if world.pull(number).is_none() {
                return gone();
            }
            if body["state_event"] == "close" {
                world.close(number, "project_1_bot_ab");
            }
            let found = world.pull(number).unwrap();
            for (name, kept) in [("title", &mut found.title), ("description", &mut found.body)] {
                if body.get(name).is_some() {
                    *kept = text(body, name);
                }
            }
            let found = found.clone();
            (200, request(world, &found))
        }
        ("GET", ["merge_requests", _]) => {
            world.pull(number).cloned().map_or_else(gone, |found| (200, request(world, &found)))
        }
        ("PUT", ["merge_requests", _, "merge"]) => {
            let Some(found) = world.pull(number) else { return gone() };
            if found.head != text(body, "sha") {
                return (409, json!({"message": "SHA does not match HEAD of source branch"}));
            }
            match world.merge(number, "project_1_bot_ab", &text(body, "squash_commit_message")) {
                Ok(_) => {
                    let merged = world.pull(number).unwrap().clone();
                    (200, request(world, &merged))
                }
                Err(why) => (405, json!({"message": why})),
            }
        }
        ("GET", ["merge_requests" | "issues", _, "notes"]) => {
            page(world.comments.iter().filter(|c| c.number == number).map(note).collect(), query)
        }
        ("POST", ["merge_requests" | "issues", _, "notes"]) => {
            world.note(number, "project_1_bot_ab", &text(body, "body"), false);
            (201, json!({"id": 1}))
        }
        ("GET", ["issues"]) => {
            let found = with_label(world, query);
            let one = |i: &Issue| json!({"iid": i.number, "title": i.title, "description": i.body, "labels": i.labels});
            page(found.iter().map(one).collect(), query)
        }
        ("PUT", ["issues", _]) => {
            let Some(found) = world.issues.iter_mut().find(|issue| issue.number == number) else { return gone() };
            found.open = text(body, "state_event") != "close";
            (200, json!({"iid": number}))
        }
        ("POST", ["statuses", commit]) => status(world, commit, body),
        ("GET", ["members", "all", id]) => {
            if world.strangers.iter().any(|name| number_of(name).to_string() == *id) {
                return gone();
            }
            (200, json!({"id": id.parse::<u64>().unwrap(), "access_level": 30}))
        }
        ("GET", ["repository", "branches", branch]) => head_of(world, branch),
        ("DELETE", ["repository", "branches", branch]) => delete(world, branch, 404),
        _ => gone(),
    }
}
