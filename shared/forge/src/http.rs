//! One forge's API over HTTP: requests, errors, and the forge's own limits.
//!
//! # Layout
//! - `kept`: answers that are kept for the question whether anything has changed
//! - `listing`: pages

mod kept;
mod listing;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use refile_config::ForgeKind;
use refile_core::failure::FailureKind;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ForgeError;
use kept::Kept;
use listing::last_page;

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer that is read, in bytes.
const MAX_BODY: usize = 8 << 20;
/// The wait where the forge names none: GitHub asks for a minute at least.
const SHORTEST: Duration = Duration::from_mins(1);
/// The longest wait that is believed.
const LONGEST: Duration = Duration::from_hours(1);

/// A token; it is never shown.
#[derive(Clone)]
pub(crate) struct Token(pub(crate) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The API of one forge, with one token.
#[derive(Debug)]
pub(crate) struct Http {
    client: reqwest::Client,
    kind: ForgeKind,
    api: String,
    token_env: String,
    token: Option<Token>,
    /// Until when the forge wants to be left alone.
    until: Mutex<Option<Instant>>,
    kept: Mutex<Kept>,
}

/// What a forge answered.
#[derive(Debug, Clone)]
struct Answer {
    body: Vec<u8>,
    /// The last page of the listing that it is a page of, where there are more.
    last: Option<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Http {
    pub(crate) fn new(
        client: reqwest::Client,
        kind: ForgeKind,
        api: &str,
        token_env: &str,
        token: Option<String>,
    ) -> Self {
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()).map(Token);
        let (api, token_env) = (api.to_owned(), token_env.to_owned());
        Self { client, kind, api, token_env, token, until: Mutex::default(), kept: Mutex::default() }
    }

    /// Reads one thing. What has not changed since the last time is not sent again, and does not count on GitHub.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ForgeError> {
        let answer = self.call(Method::GET, path, None).await?;
        self.read(path, &answer.body)
    }

    /// Sends something and reads what came of it.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> Result<T, ForgeError> {
        let answer = self.call(method, path, Some(body)).await?;
        self.read(path, &answer.body)
    }

    /// Sends something of which nothing comes back that matters.
    pub(crate) async fn tell(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(), ForgeError> {
        self.call(method, path, body).await.map(drop)
    }

    fn read<T: DeserializeOwned>(&self, path: &str, body: &[u8]) -> Result<T, ForgeError> {
        serde_json::from_slice(body).map_err(|error| {
            let what = format!("{}{path} answered what cannot be read: {error}; is {} its API?", self.api, self.api);
            ForgeError::new(FailureKind::Malformed, what)
        })
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, ForgeError> {
        self.may_ask()?;
        let url = format!("{}{path}", self.api);
        let mut request = self.client.request(method.clone(), &url).timeout(TIMEOUT);
        if let Some(body) = body {
            request = request.json(body);
        }
        request = self.authorized(request)?;
        let kept = (method == Method::GET).then(|| lock(&self.kept).get(&url)).flatten();
        if let Some((tag, _)) = &kept {
            request = request.header("if-none-match", tag);
        }
        let mut response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if answer.len() + chunk.len() > MAX_BODY {
                let what = format!("{url} answered more than {MAX_BODY} bytes");
                return Err(ForgeError::new(FailureKind::Malformed, what));
            }
            answer.extend_from_slice(&chunk);
        }
        if text(&headers, "x-ratelimit-remaining").or(text(&headers, "ratelimit-remaining")) == Some("0") {
            self.leave_alone(wait(&headers).unwrap_or(SHORTEST));
        }
        match kept {
            Some((_, kept)) if status == StatusCode::NOT_MODIFIED => return Ok(kept),
            _ if !status.is_success() => return Err(self.refused(&method, path, status, &headers, &answer)),
            _ => {}
        }
        let answer = Answer { body: answer, last: text(&headers, "link").and_then(last_page) };
        if let Some(tag) = headers.get("etag").filter(|_| method == Method::GET) {
            lock(&self.kept).keep(url, tag.clone(), answer.clone());
        }
        Ok(answer)
    }

    /// Nothing is asked while the forge wants to be left alone.
    fn may_ask(&self) -> Result<(), ForgeError> {
        let left = lock(&self.until).and_then(|until| until.checked_duration_since(Instant::now()));
        match left {
            Some(left) if !left.is_zero() => Err(self.limited(left, None)),
            _ => Ok(()),
        }
    }

    fn leave_alone(&self, wait: Duration) {
        let until = Instant::now() + wait.min(LONGEST);
        let mut now = lock(&self.until);
        *now = Some(now.map_or(until, |old| old.max(until)));
    }

    fn limited(&self, wait: Duration, status: Option<u16>) -> ForgeError {
        let detail =
            format!("{} asks to be left alone for {} s: its rate limit is used up", self.api, wait.as_secs() + 1);
        let retry_after_ms = Some(wait.as_millis() as u64);
        ForgeError { kind: FailureKind::RateLimit, status, detail, retry_after_ms }
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> Result<reqwest::RequestBuilder, ForgeError> {
        let request = match self.kind {
            ForgeKind::Github => {
                request.header("accept", "application/vnd.github+json").header("x-github-api-version", "2022-11-28")
            }
            ForgeKind::Gitea | ForgeKind::Gitlab => request.header("accept", "application/json"),
        };
        let Some(Token(token)) = &self.token else {
            let what = format!("{} needs a token, and ${} is not set; put one there", self.api, self.token_env);
            return Err(ForgeError::new(FailureKind::Auth, what));
        };
        let (name, value) = match self.kind {
            ForgeKind::Github => ("authorization", format!("Bearer {token}")),
            ForgeKind::Gitea => ("authorization", format!("token {token}")),
            ForgeKind::Gitlab => ("private-token", token.clone()),
        };
        let mut value = HeaderValue::from_str(&value).map_err(|_| {
            ForgeError::new(FailureKind::Auth, format!("${} holds a character that no token has", self.token_env))
        })?;
        value.set_sensitive(true);
        Ok(request.header(name, value))
    }

    fn unreachable(&self, error: &reqwest::Error) -> ForgeError {
        let kind = if error.is_timeout() { FailureKind::Timeout } else { FailureKind::Network };
        let mut why = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(next) = cause {
            why = format!("{why}: {next}");
            cause = next.source();
        }
        ForgeError::new(kind, self.redacted(format!("{} cannot be reached: {why}", self.api)))
    }

    /// What an answer that is no success means.
    fn refused(&self, method: &Method, path: &str, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ForgeError {
        let said = said(body);
        let code = status.as_u16();
        // GitHub says 403 both for limits and for what a token may not do.
        let is_limit = code == 429
            || (code == 403
                && (headers.contains_key("retry-after")
                    || text(headers, "x-ratelimit-remaining") == Some("0")
                    || said.to_lowercase().contains("rate limit")));
        if is_limit {
            let wait = wait(headers).unwrap_or(SHORTEST);
            self.leave_alone(wait);
            return self.limited(wait.min(LONGEST), Some(code));
        }
        let (kind, advice) = match code {
            401 => (
                FailureKind::Auth,
                format!("; the token in ${} is wrong or has expired: put a new one there", self.token_env),
            ),
            403 => {
                (FailureKind::Auth, format!("; the token in ${} may not do that: give it the rights", self.token_env))
            }
            404 => (
                FailureKind::Repository,
                format!("; it is not there, or the token in ${} may not see it", self.token_env),
            ),
            300..=399 => (FailureKind::Configuration, "; it has moved: correct the repository's address".to_owned()),
            408 | 504 => (FailureKind::Timeout, String::new()),
            503 => (FailureKind::Overloaded, String::new()),
            500..=599 => (FailureKind::Network, String::new()),
            _ => (FailureKind::Repository, String::new()),
        };
        let colon = if said.is_empty() { "" } else { ": " };
        let detail = self.redacted(format!("{method} {}{path} was answered {status}{colon}{said}{advice}", self.api));
        let retry_after_ms = (code >= 500).then(|| wait(headers)).flatten().map(|wait| wait.as_millis() as u64);
        ForgeError { kind, status: Some(code), detail, retry_after_ms }
    }

    /// The text without the token, should somebody send it back.
    fn redacted(&self, text: String) -> String {
        match &self.token {
            Some(Token(token)) if token.len() >= 4 => text.replace(token.as_str(), "[redacted]"),
            _ => text,
        }
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

/// How long the forge wants to be left alone: `retry-after` (seconds, or a date), else when its limit is reset.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let asked = text(headers, "retry-after").and_then(|text| {
        if let Ok(seconds) = text.parse::<u64>() {
            return Some(Duration::from_secs(seconds));
        }
        let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp().as_second();
        Some(Duration::from_secs(u64::try_from(date).ok()?).saturating_sub(now))
    });
    asked.map(|wait| wait.min(LONGEST)).or_else(|| {
        let reset = text(headers, "x-ratelimit-reset").or(text(headers, "ratelimit-reset"))?;
        let at = Duration::from_secs(reset.parse::<u64>().ok()?);
        // A second more: clocks differ.
        Some((at.saturating_sub(now) + Duration::from_secs(1)).min(LONGEST))
    })
}

/// What an error's body says, as one line.
fn said(body: &[u8]) -> String {
    let plain = || String::from_utf8_lossy(&body[..body.len().min(400)]).into_owned();
    let words = match serde_json::from_slice::<Value>(body) {
        Ok(value) => {
            let of = |value: &Value| match value {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let first = [&value["message"], &value["error"]].into_iter().find(|v| !v.is_null()).map(of);
            let more = of(&value["errors"]);
            [first.unwrap_or_default(), more].join(" ")
        }
        Err(_) => plain(),
    };
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|c| !c.is_control()).take(300).collect()
}

/// A part of a path or of a query, so that nothing in it has a meaning of its own.
pub(crate) fn encoded(part: &str) -> String {
    let mut text = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, String)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn waits_are_read_in_each_form_and_bounded() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(wait(&headers(&[("retry-after", "7".into())])), Some(Duration::from_secs(7)));
        assert_eq!(wait(&headers(&[("retry-after", "99999".into())])), Some(LONGEST));
        for name in ["x-ratelimit-reset", "ratelimit-reset"] {
            let wait = wait(&headers(&[(name, (now + 100).to_string())])).unwrap();
            assert!((90..=101).contains(&wait.as_secs()), "{wait:?}");
        }
        assert_eq!(wait(&headers(&[("retry-after", "soon".into())])), None);
    }

    #[test]
    fn what_an_error_says_is_one_line() {
        assert_eq!(
            said(br#"{"message":"Validation\nFailed","errors":[{"code":"x"}]}"#),
            r#"Validation Failed [{"code":"x"}]"#
        );
        assert_eq!(said(br#"{"error":"invalid_token"}"#), "invalid_token");
        assert_eq!(said(b"<html>\x1b[2J"), "<html>[2J");
        assert_eq!(said(b""), "");
    }

    #[test]
    fn a_part_has_no_meaning_of_its_own() {
        assert_eq!(encoded("a/b c&d=e?f#g%"), "a%2Fb%20c%26d%3De%3Ff%23g%25");
        assert_eq!(encoded("ä"), "%C3%A4");
    }
}
