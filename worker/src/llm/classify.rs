//! One table from what a provider says to the kind of failure.

use std::time::Duration;

use refile_core::failure::{Failure, FailureKind};
use serde_json::Value;

/// The longest wait that is believed.
const LONGEST_WAIT_MS: f64 = 24.0 * 3_600_000.0;

/// What a provider said when it gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The HTTP status.
    pub status: u16,
    /// The error's type and code, in small letters.
    pub code: String,
    /// Its words.
    pub message: String,
}

impl Trouble {
    /// Reads the body of a failed reply. Both providers wrap their error in an object `error`; proxies may not.
    pub fn of(status: u16, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let object: Value = serde_json::from_str(&text).unwrap_or_default();
        let error = object.get("error").unwrap_or(&object);
        let field = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
        let code = match error.get("code") {
            Some(Value::Number(number)) => number.to_string(),
            _ => field("code").to_owned(),
        };
        let message = match error.as_str().unwrap_or(field("message")) {
            "" => text.trim().chars().take(500).collect(),
            words => words.to_owned(),
        };
        Self { status, code: format!("{} {code}", field("type")).trim().to_lowercase(), message }
    }

    /// The kind of failure. The first row that fits decides: what is said in words stands before bare numbers.
    pub fn kind(&self) -> FailureKind {
        let code = |names: &[&str]| self.code.split(' ').any(|word| names.contains(&word));
        let message = self.message.to_lowercase();
        let says = |phrases: &[&str]| phrases.iter().any(|p| message.contains(p));
        let status = |numbers: &[u16]| numbers.contains(&self.status);
        let table: &[(bool, FailureKind)] = &[
            (
                status(&[402])
                    || code(&["insufficient_quota", "billing_error", "billing_hard_limit_reached"])
                    || says(&["credit balance", "exceeded your current quota", "insufficient_quota"]),
                FailureKind::Quota,
            ),
            (
                status(&[413])
                    || code(&["context_length_exceeded", "request_too_large"])
                    || says(&["prompt is too long", "maximum context length", "context window", "input is too long"]),
                FailureKind::ContextTooLong,
            ),
            (code(&["content_filter", "content_policy_violation"]), FailureKind::Filtered),
            (
                status(&[429]) || code(&["rate_limit_error", "rate_limit_exceeded", "requests", "tokens", "429"]),
                FailureKind::RateLimit,
            ),
            (status(&[503, 529]) || code(&["overloaded_error", "503", "529"]), FailureKind::Overloaded),
            (
                status(&[401, 403]) || code(&["authentication_error", "permission_error", "invalid_api_key"]),
                FailureKind::Auth,
            ),
            (status(&[408, 504]) || code(&["timeout_error"]), FailureKind::Timeout),
            (
                (300..500).contains(&self.status)
                    || code(&["model_not_found", "not_found_error", "invalid_request_error"]),
                FailureKind::Configuration,
            ),
            (status(&[502]), FailureKind::Network),
            (self.status >= 500 || code(&["api_error", "server_error"]), FailureKind::Overloaded),
        ];
        table.iter().find(|(fits, _)| *fits).map_or(FailureKind::Malformed, |(_, kind)| *kind)
    }

    /// The failure that a record keeps.
    pub fn failure(&self, retry_after_ms: Option<u64>) -> Failure {
        let Self { status, code, message } = self;
        let failure = Failure::new(self.kind(), format!("HTTP {status} {code}: {message}"));
        let waits = matches!(failure.kind, FailureKind::RateLimit | FailureKind::Overloaded | FailureKind::Quota);
        Failure { retry_after_ms: retry_after_ms.filter(|_| waits), ..failure }
    }
}

/// The header `retry-after`: seconds, or a date. `now` is the time since 1970.
pub fn retry_after(text: &str, now: Duration) -> Option<u64> {
    if let Ok(seconds) = text.trim().parse::<f64>() {
        return wait_ms(seconds * 1_000.0);
    }
    let date = jiff::fmt::rfc2822::parse(text.trim()).ok()?;
    wait_ms(date.timestamp().as_millisecond() as f64 - now.as_millis() as f64)
}

/// A wait in whole milliseconds; nothing where it makes no sense.
pub(super) fn wait_ms(ms: f64) -> Option<u64> {
    (ms.is_finite() && ms >= 0.0).then(|| ms.min(LONGEST_WAIT_MS).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u16, body: &str, kind: FailureKind) {
        assert_eq!(Trouble::of(status, body.as_bytes()).kind(), kind, "{status} {body}");
    }

    #[test]
    fn every_known_trouble_has_its_kind() {
        use FailureKind::{
            Auth, Configuration, ContextTooLong, Filtered, Malformed, Network, Overloaded, Quota, RateLimit, Timeout,
        };
        check(429, r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}"#, RateLimit);
        check(429, r#"{"error":{"message":"x","type":"insufficient_quota","code":"insufficient_quota"}}"#, Quota);
        check(429, "not json", RateLimit);
        check(400, r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}"#, Quota);
        check(402, "", Quota);
        check(
            400,
            r#"{"error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}"#,
            ContextTooLong,
        );
        check(400, r#"{"error":{"code":"context_length_exceeded","message":"x"}}"#, ContextTooLong);
        check(413, r#"{"error":{"type":"request_too_large"}}"#, ContextTooLong);
        check(400, r#"{"error":{"code":"content_filter","message":"x"}}"#, Filtered);
        check(400, r#"{"error":{"type":"invalid_request_error","message":"max_tokens"}}"#, Configuration);
        check(404, r#"{"error":{"code":"model_not_found","message":"x"}}"#, Configuration);
        check(401, r#"{"error":{"type":"authentication_error"}}"#, Auth);
        check(403, "", Auth);
        check(529, r#"{"error":{"type":"overloaded_error"}}"#, Overloaded);
        check(503, "<html>", Overloaded);
        check(500, r#"{"error":{"type":"api_error"}}"#, Overloaded);
        check(502, "", Network);
        check(504, "", Timeout);
        check(302, "", Configuration);
        // A reply of status 200 goes by its content alone.
        check(200, r#"{"error":{"type":"overloaded_error","message":"x"}}"#, Overloaded);
        check(200, r#"{"error":{"message":"x","code":429}}"#, RateLimit);
        check(200, r#"{"error":"something"}"#, Malformed);
    }

    #[test]
    fn the_wait_is_seconds_or_a_date() {
        let now = Duration::from_secs(1_445_412_400);
        assert_eq!(retry_after("7", now), Some(7_000));
        assert_eq!(retry_after("0.5", now), Some(500));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now), Some(80_000));
        for nonsense in ["-1", "soon", "NaN", "Wed, 21 Oct 2009 07:28:00 GMT"] {
            assert_eq!(retry_after(nonsense, now), None, "{nonsense}");
        }
        assert_eq!(retry_after("1e30", now), Some(86_400_000));
    }
}
