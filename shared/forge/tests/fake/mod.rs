//! A forge on loopback that speaks the wire formats of GitHub, Gitea and GitLab, with a real bare repository behind it. It
//! keeps what it is told, and can be told to fail.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, missing_docs)]

mod wire;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, Uri};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use refile_config::ForgeKind;
use serde_json::Value;

/// The token that the forge lets in.
pub const TOKEN: &str = "forge-token-that-must-stay-secret";
/// The project.
pub const PROJECT: &str = "acme/widgets";

/// A fault: the next requests that fit are answered so.
#[derive(Debug, Clone)]
pub struct Fault {
    pub method: Method,
    pub path: &'static str,
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
    pub times: usize,
}

#[derive(Debug, Clone)]
pub struct Review {
    pub id: u64,
    pub by: String,
    pub state: &'static str,
    pub words: String,
    pub remarks: Vec<(String, u64, String)>,
    pub head: String,
}

#[derive(Debug, Clone)]
pub struct Pull {
    pub number: u64,
    pub branch: String,
    pub base: String,
    pub title: String,
    pub body: String,
    /// `open`, `closed` or `merged`.
    pub state: &'static str,
    pub head: String,
    pub commit: Option<String>,
    pub by: Option<String>,
    pub reviews: Vec<Review>,
    /// It comes from another project.
    pub fork: bool,
}

/// What happens at the moment at which a request arrives, before it is answered: once.
pub struct Meanwhile {
    method: Method,
    path: &'static str,
    then: Box<dyn FnOnce(&mut World) + Send>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Meanwhile({} {})", self.method, self.path)
    }
}

#[derive(Debug, Clone)]
pub struct Issue {
    pub number: u64,
    pub title: String,
    pub body: String,
    pub labels: Vec<String>,
    pub open: bool,
}

#[derive(Debug, Clone)]
pub struct Comment {
    pub id: u64,
    pub number: u64,
    pub by: String,
    pub body: String,
    pub system: bool,
}

#[derive(Debug)]
pub struct World {
    pub kind: ForgeKind,
    pub repository: PathBuf,
    pub pulls: Vec<Pull>,
    pub issues: Vec<Issue>,
    pub comments: Vec<Comment>,
    pub statuses: Vec<(String, Value)>,
    pub faults: Vec<Fault>,
    pub meanwhile: Vec<Meanwhile>,
    /// Requests that are carried out and not answered while this stands.
    pub silent: Option<(Method, &'static str)>,
    /// After how many requests the next one is answered that the limit is used up, each time anew; and how many are left.
    pub quota: Option<(usize, usize)>,
    /// Those who may look and speak, and not write.
    pub strangers: Vec<String>,
    /// Method and path of every request, and the status that it got.
    pub requests: Vec<(Method, String, u16)>,
    next: u64,
}

/// Runs git on the repository behind the forge.
pub fn git(dir: &Path, args: &[&str]) -> Result<String, String> {
    let out = Command::new("git")
        .args(["-c", "user.name=Forge", "-c", "user.email=forge@example.com"])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
}

impl World {
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn git(&self, args: &[&str]) -> Result<String, String> {
        git(&self.repository, args)
    }

    /// Brings the heads of open pull requests up to date, as a push does.
    fn refresh(&mut self) {
        for at in 0..self.pulls.len() {
            if self.pulls[at].state == "open" {
                let branch = format!("refs/heads/{}", self.pulls[at].branch);
                if self.pulls[at].fork {
                    continue;
                }
                if let Ok(head) = self.git(&["rev-parse", "--verify", &branch]) {
                    self.pulls[at].head = head;
                }
            }
        }
    }

    pub fn pull(&mut self, number: u64) -> Option<&mut Pull> {
        self.pulls.iter_mut().find(|pull| pull.number == number)
    }

    pub fn open(&mut self, branch: &str, base: &str, title: &str, body: &str) -> Result<u64, String> {
        let head = self.git(&["rev-parse", "--verify", &format!("refs/heads/{branch}")])?;
        if self.pulls.iter().any(|pull| pull.state == "open" && pull.branch == branch && !pull.fork) {
            return Err("A pull request already exists".to_owned());
        }
        let number = self.id();
        let [branch, base, title, body] = [branch, base, title, body].map(str::to_owned);
        let (state, commit, by, reviews) = ("open", None, None, Vec::new());
        self.pulls.push(Pull { number, branch, base, title, body, state, head, commit, by, reviews, fork: false });
        Ok(number)
    }

    /// Somebody else's pull request, from a project of their own and a branch of the same name.
    pub fn open_from_fork(&mut self, branch: &str, base: &str) -> u64 {
        let head = self.git(&["rev-parse", base]).unwrap();
        let number = self.id();
        let [branch, base, title, body] = [branch, base, "theirs", ""].map(str::to_owned);
        let (state, commit, by, reviews) = ("open", None, None, Vec::new());
        self.pulls.push(Pull { number, branch, base, title, body, state, head, commit, by, reviews, fork: true });
        number
    }

    /// Squashes a pull request onto its base.
    pub fn merge(&mut self, number: u64, by: &str, message: &str) -> Result<String, String> {
        self.refresh();
        let pull = self.pull(number).ok_or("no such pull request")?.clone();
        if pull.state != "open" {
            return Err("it is not open".to_owned());
        }
        let base = format!("refs/heads/{}", pull.base);
        let old = self.git(&["rev-parse", "--verify", &base])?;
        let tree = self.git(&["merge-tree", "--write-tree", &old, &pull.head])?;
        let commit = self.git(&["commit-tree", &tree, "-p", &old, "-m", message])?;
        self.git(&["update-ref", &base, &commit, &old])?;
        let merged = self.pull(number).unwrap();
        (merged.state, merged.commit, merged.by) = ("merged", Some(commit.clone()), Some(by.to_owned()));
        Ok(commit)
    }

    /// Whether an open pull request does not go onto its base.
    pub fn conflicts(&self, pull: &Pull) -> bool {
        pull.state == "open" && self.git(&["merge-tree", "--write-tree", &pull.base, &pull.head]).is_err()
    }

    pub fn close(&mut self, number: u64, by: &str) {
        let pull = self.pull(number).unwrap();
        (pull.state, pull.by) = ("closed", Some(by.to_owned()));
        let kind = self.kind;
        if kind == ForgeKind::Gitea {
            self.note(number, by, "close", true);
        }
    }

    pub fn note(&mut self, number: u64, by: &str, body: &str, system: bool) {
        let id = self.id();
        self.comments.push(Comment { id, number, by: by.to_owned(), body: body.to_owned(), system });
    }

    /// A person reviews; GitLab keeps that as notes.
    pub fn review(&mut self, number: u64, by: &str, state: &'static str, words: &str, remarks: &[(&str, u64, &str)]) {
        self.refresh();
        if self.kind == ForgeKind::Gitlab {
            for words in [words.to_owned()].into_iter().chain(remarks.iter().map(|(p, l, w)| format!("{p}:{l}: {w}"))) {
                self.note(number, by, &words, false);
            }
            let what = if state == "APPROVED" { "approved this merge request" } else { "requested changes" };
            return self.note(number, by, what, true);
        }
        let id = self.id();
        let remarks =
            remarks.iter().map(|(path, line, words)| ((*path).to_owned(), *line, (*words).to_owned())).collect();
        let state = if state != "APPROVED" && self.kind == ForgeKind::Gitea { "REQUEST_CHANGES" } else { state };
        let pull = self.pull(number).unwrap();
        let (by, words, head) = (by.to_owned(), words.to_owned(), pull.head.clone());
        pull.reviews.push(Review { id, by, state, words, remarks, head });
    }

    pub fn issue(&mut self, title: &str, body: &str, labels: &[&str]) -> u64 {
        let number = self.id();
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.issues.push(Issue { number, title: title.to_owned(), body: body.to_owned(), labels, open: true });
        number
    }

    pub fn comments_on(&self, number: u64) -> Vec<String> {
        let of = self.comments.iter().filter(|comment| comment.number == number && !comment.system);
        of.map(|comment| comment.body.clone()).collect()
    }

    /// The statuses that a commit was given, oldest first, by the name that GitHub has for each.
    pub fn statuses_of(&self, commit: &str) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().replace("failed", "failure");
        let of = self.statuses.iter().filter(|(of, _)| of == commit);
        of.map(|(_, body)| (text(&body["state"]), body["description"].as_str().unwrap().to_owned())).collect()
    }

    /// The status that a commit has.
    pub fn status_of(&self, commit: &str) -> Option<(String, String)> {
        self.statuses_of(commit).pop()
    }

    pub fn asked(&self, method: &Method, path: &str) -> usize {
        self.requests.iter().filter(|(m, p, _)| m == method && p.contains(path)).count()
    }
}

/// A forge that serves.
#[derive(Clone)]
pub struct Fake {
    pub url: String,
    world: Arc<Mutex<World>>,
}

impl Fake {
    /// Starts one on a thread of its own; it ends with the process.
    pub fn start(kind: ForgeKind, repository: &Path) -> Self {
        let world = World {
            kind,
            repository: repository.to_owned(),
            pulls: Vec::new(),
            issues: Vec::new(),
            comments: Vec::new(),
            statuses: Vec::new(),
            faults: Vec::new(),
            meanwhile: Vec::new(),
            silent: None,
            quota: None,
            strangers: Vec::new(),
            requests: Vec::new(),
            next: 0,
        };
        let world = Arc::new(Mutex::new(world));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = world.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, Router::new().fallback(handle).with_state(state)).await.unwrap();
            });
        });
        Self { url, world }
    }

    /// A test that failed while it held the world shows why all the same.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something at the moment at which the next request of that kind arrives.
    pub fn meanwhile(&self, method: Method, path: &'static str, then: impl FnOnce(&mut World) + Send + 'static) {
        self.world().meanwhile.push(Meanwhile { method, path, then: Box::new(then) });
    }

    /// Answers the next `times` requests of that kind so.
    pub fn fault(&self, method: Method, path: &'static str, status: u16, times: usize) {
        self.fault_with(method, path, status, times, Vec::new(), r#"{"message":"scripted"}"#);
    }

    pub fn fault_with(
        &self,
        method: Method,
        path: &'static str,
        status: u16,
        times: usize,
        headers: Vec<(&'static str, String)>,
        body: &str,
    ) {
        self.world().faults.push(Fault { method, path, status, headers, body: body.to_owned(), times });
    }
}

/// Git over HTTP, by git's own program; let in with the token alone.
fn serve_git(repository: &Path, method: &Method, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Response<Body> {
    let text = |name: &str| headers.get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
    let given = text("authorization");
    let given = given.strip_prefix("Basic ").and_then(|basic| BASE64_STANDARD.decode(basic).ok()).unwrap_or_default();
    if !String::from_utf8_lossy(&given).ends_with(&format!(":{TOKEN}")) {
        let refused = Response::builder().status(401).header("www-authenticate", "Basic realm=\"forge\"");
        return refused.body(Body::empty()).unwrap();
    }
    let rest = uri.path().trim_start_matches("/acme/widgets.git");
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", repository.parent().unwrap())
        .env("PATH_INFO", format!("/{}{rest}", repository.file_name().unwrap().to_str().unwrap()))
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "fleet")
        .env("REQUEST_METHOD", method.as_str())
        .env("QUERY_STRING", uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", text("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", text("content-encoding"))
        .env("HTTP_GIT_PROTOCOL", text("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, body) = (child.stdin.take().unwrap(), body.clone());
    let writing = std::thread::spawn(move || stdin.write_all(&body));
    let out = child.wait_with_output().unwrap().stdout;
    let _ = writing.join();
    let end = out.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let mut response = Response::builder();
    for line in String::from_utf8_lossy(&out[..end]).lines() {
        let (name, value) = line.split_once(": ").unwrap();
        response = match name {
            "Status" => response.status(value.split(' ').next().unwrap().parse::<u16>().unwrap()),
            name => response.header(name, value),
        };
    }
    response.body(Body::from(out[end + 4..].to_vec())).unwrap()
}

async fn handle(
    State(world): State<Arc<Mutex<World>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    if uri.path().starts_with("/acme/widgets.git/") {
        let repository = world.lock().unwrap().repository.clone();
        let response = serve_git(&repository, &method, &uri, &headers, &body);
        let status = response.status().as_u16();
        world.lock().unwrap().requests.push((method, uri.to_string(), status));
        return response;
    }
    let path = uri.path_and_query().unwrap().to_string();
    let is_silent = {
        let world = world.lock().unwrap();
        world.silent.as_ref().is_some_and(|(m, p)| *m == method && path.contains(p))
    };
    let response = answer(&world, method, &uri, path, &headers, &body);
    if is_silent {
        std::future::pending::<()>().await;
    }
    response
}

fn answer(
    world: &Mutex<World>,
    method: Method,
    uri: &Uri,
    path: String,
    headers: &HeaderMap,
    body: &Bytes,
) -> Response<Body> {
    let mut world = world.lock().unwrap();
    if let Some(at) = world.meanwhile.iter().position(|m| m.method == method && path.contains(m.path)) {
        let Meanwhile { then, .. } = world.meanwhile.remove(at);
        then(&mut world);
    }
    let fault = world.faults.iter_mut().find(|f| f.times > 0 && f.method == method && path.contains(f.path));
    let (status, more, text) = if let Some(fault) = fault {
        fault.times -= 1;
        (fault.status, fault.headers.clone(), fault.body.clone())
    } else if let Some((of, 0)) = world.quota {
        world.quota = Some((of, of));
        (429, vec![("retry-after", "1".to_owned())], r#"{"message":"rate limit"}"#.to_owned())
    } else if wire::is_authorized(world.kind, headers) {
        world.refresh();
        let body = serde_json::from_slice(body).unwrap_or(Value::Null);
        let (status, answer) = wire::answer(&mut world, &method, uri, &body);
        (status, wire::links(uri), if answer.is_null() { String::new() } else { answer.to_string() })
    } else {
        (401, Vec::new(), format!(r#"{{"message":"Bad credentials: {headers:?}"}}"#))
    };
    let tag =
        format!("\"{:x}\"", text.bytes().fold(7_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())));
    if status != 429 {
        world.quota = world.quota.map(|(of, left)| (of, left.saturating_sub(1)));
    }
    let is_known = headers.get("if-none-match").is_some_and(|given| given.to_str().unwrap() == tag);
    let (status, text) = if status == 200 && is_known { (304, String::new()) } else { (status, text) };
    world.requests.push((method, path, status));
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    if status == 200 {
        response = response.header("etag", tag);
    }
    for (name, value) in more {
        response = response.header(name, value);
    }
    response.body(Body::from(text)).unwrap()
}
