//! A git server over HTTP.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use tokio::io::AsyncWriteExt;

/// A git server over HTTP that denies a service with a status.
#[derive(Clone)]
pub struct Server {
    root: PathBuf,
    denies: Arc<Mutex<Option<(u16, &'static str)>>>,
    asks: Arc<Mutex<Option<String>>>,
}

impl Server {
    /// Serves a bare repository; gives its address too.
    pub async fn start(repository: &Path) -> (Self, String) {
        let name = repository.file_name().unwrap().to_str().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/{name}", listener.local_addr().unwrap());
        let server =
            Self { root: repository.parent().unwrap().to_owned(), denies: Arc::default(), asks: Arc::default() };
        let allow = ["config", "http.receivepack", "true"];
        assert!(std::process::Command::new("git").args(allow).current_dir(repository).status().unwrap().success());
        let app = Router::new().fallback(serve).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (server, url)
    }

    /// Denies a service; an empty name is every one.
    pub fn deny(&self, status: u16, service: &'static str) {
        *self.denies.lock().unwrap() = Some((status, service));
    }

    /// Lets in only who has this login: the name, a colon and the password.
    pub fn ask_for(&self, login: &str) {
        *self.asks.lock().unwrap() = Some(format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(login)));
    }

    /// Denies nothing any more.
    pub fn let_in(&self) {
        *self.denies.lock().unwrap() = None;
    }
}

/// Hands a request to `git http-backend`, which speaks CGI.
async fn serve(State(server): State<Server>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let asked = server.asks.lock().unwrap().clone();
    let stranger = asked.is_some_and(|login| headers.get("authorization").is_none_or(|given| *given != *login));
    let denied = if stranger { Some((401, "")) } else { *server.denies.lock().unwrap() };
    if let Some((status, service)) = denied
        && uri.to_string().contains(service)
    {
        let status = StatusCode::from_u16(status).unwrap();
        return (status, [("www-authenticate", "Basic realm=\"git\"")], "no").into_response();
    }
    let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let mut child = tokio::process::Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &server.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", uri.path())
        .env("QUERY_STRING", uri.query().unwrap_or_default())
        .env("REQUEST_METHOD", method.as_str())
        .env("CONTENT_TYPE", header("content-type"))
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    tokio::spawn(async move { stdin.write_all(&body).await });
    let output = child.wait_with_output().await.unwrap().stdout;
    let end = output.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let mut response = Response::builder();
    for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
        response = match name {
            "Status" => response.status(value[..3].parse::<u16>().unwrap()),
            _ => response.header(name, value),
        };
    }
    response.body(axum::body::Body::from(output[end + 4..].to_vec())).unwrap()
}
