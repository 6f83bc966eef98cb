//! One table from what a provider says to the kind of failure, its scope and how long to wait; one from the reason for
//! which a model stopped. What is done about a kind stands in [`FailureKind::behaviour`].
//!
//! # Layout
//! - [`waits`]: the times that providers name, in all the forms that they use

pub mod waits;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use refile_core::failure::{Failure, FailureKind, Scope};
use serde_json::Value;

/// The wait that a message asks for in words, in milliseconds.
pub(crate) fn wait_in_words(message: &str) -> Option<u64> {
    waits::in_words(message)
}

/// A row of the table. It fits where any of its conditions does; the first row that fits decides.
struct Row {
    /// The status of the HTTP reply.
    status: &'static [RangeInclusive<u16>],
    /// What the error calls itself, in small letters: types, codes, statuses, reasons.
    codes: &'static [&'static str],
    /// What its message says, in small letters.
    says: &'static [&'static str],
    kind: FailureKind,
    scope: Scope,
    wait: Wait,
}

/// Where the wait comes from.
enum Wait {
    /// There is none.
    No,
    /// What was asked for: `retry-after-ms`, `retry-after`, `RetryInfo`, or the message's `try again in …`.
    Asked,
    /// The same, else when the limit that is used up is reset, by the headers that tell of limits.
    Reset,
    /// The day at which the message says that access comes back.
    Regain,
    /// The next midnight in California.
    NextDay,
}

/// What a provider says in place of an answer. What is said in words stands before bare numbers.
static TABLE: &[Row] = &[
    // OpenRouter: other calls have reserved the rest of the balance. The only 402 that clears.
    Row {
        status: &[],
        codes: &["in_flight_budget_exhausted"],
        says: &["current in-flight requests"],
        kind: FailureKind::RateLimit,
        scope: Scope::Key,
        wait: Wait::Asked,
    },
    // Gemini: `RetryInfo` names seconds here too, and they are of no use.
    Row {
        status: &[],
        codes: &[PER_DAY],
        says: &[],
        kind: FailureKind::Quota,
        scope: Scope::Model,
        wait: Wait::NextDay,
    },
    // A 429 among them is for good: the request is larger than what a minute allows, or than what is paid for.
    Row {
        status: &[413..=413],
        codes: &[
            "context_length_exceeded",
            "request_too_large",
            "exceed_context_size_error",
            "string_above_max_length",
        ],
        says: &[
            "prompt is too long",
            "input is too long",
            "maximum context length",
            "context window",
            "contextwindowexceeded",
            "exceeds the maximum number of tokens",
            "exceeds the available context size",
            "required for long context requests",
            "request too large for",
        ],
        kind: FailureKind::ContextTooLong,
        scope: Scope::Call,
        wait: Wait::No,
    },
    // Gemini says `exceeded your current quota` of every limit, where OpenAI means money.
    Row {
        status: &[],
        codes: &["resource_exhausted"],
        says: &["resource_exhausted"],
        kind: FailureKind::RateLimit,
        scope: Scope::Model,
        wait: Wait::Reset,
    },
    // Money: no waiting settles it, but for a month that ends.
    Row {
        status: &[402..=402],
        codes: &[
            "402",
            "insufficient_quota",
            "credit_balance_exhausted",
            "organization_spend_limit_exceeded",
            "project_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
            "enforced_spend_limit_reached",
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
            "budget_exceeded",
        ],
        says: &[
            "credit balance is too low",
            "api usage limits",
            "exceeded your current quota",
            "requires more credits",
            "insufficient_quota",
            "insufficient balance",
        ],
        kind: FailureKind::Quota,
        scope: Scope::Key,
        wait: Wait::Regain,
    },
    Row {
        status: &[],
        codes: &["content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt"],
        says: &["content management policy", "content filtering policy", "contentpolicyviolation", "flagged"],
        kind: FailureKind::Filtered,
        scope: Scope::Call,
        wait: Wait::No,
    },
    Row {
        status: &[429..=429],
        codes: &["429", "rate_limit_error", "rate_limit_exceeded", "throttling_error", "throttlingexception"],
        says: &[],
        kind: FailureKind::RateLimit,
        scope: Scope::Model,
        wait: Wait::Reset,
    },
    Row {
        status: &[503..=503, 529..=529],
        codes: &["503", "529", "overloaded_error", "unavailable", "engine_overloaded_error"],
        says: &["overloaded"],
        kind: FailureKind::Overloaded,
        scope: Scope::Model,
        wait: Wait::Asked,
    },
    Row {
        status: &[401..=401],
        codes: &[
            "401",
            "authentication_error",
            "permission_error",
            "permission_denied",
            "unauthenticated",
            "invalid_api_key",
            "api_key_invalid",
        ],
        says: &["api key not valid", "incorrect api key"],
        kind: FailureKind::Auth,
        scope: Scope::Key,
        wait: Wait::No,
    },
    // A firewall on the way may forbid one call for what is in it; nothing says that the key is bad.
    Row {
        status: &[403..=403],
        codes: &["403"],
        says: &[],
        kind: FailureKind::Auth,
        scope: Scope::Call,
        wait: Wait::No,
    },
    Row {
        status: &[408..=408, 504..=504, 524..=524],
        codes: &["408", "504", "timeout_error", "deadline_exceeded"],
        says: &[],
        kind: FailureKind::Timeout,
        scope: Scope::Call,
        wait: Wait::No,
    },
    // Beside servers that break down, the statuses by which one says that the same request may go well.
    Row {
        status: &[409..=409, 425..=425, 499..=499, 500..=599],
        codes: &["500", "502", "api_error", "server_error", "internal", "internal_server_error"],
        says: &[],
        kind: FailureKind::Network,
        scope: Scope::Call,
        wait: Wait::No,
    },
    // A model that does not exist, an address that leads elsewhere.
    Row {
        status: &[300..=399, 404..=404],
        codes: &["404", "model_not_found", "not_found_error", "not_found", "deploymentnotfound"],
        says: &["is not a valid model", "invalid model name"],
        kind: FailureKind::Configuration,
        scope: Scope::Model,
        wait: Wait::No,
    },
    // A field that is not known, most often. It may also be for this packet alone, so nothing else is stopped for it.
    Row {
        status: &[400..=499],
        codes: &["400", "invalid_request_error", "invalid_argument"],
        says: &[],
        kind: FailureKind::Configuration,
        scope: Scope::Call,
        wait: Wait::No,
    },
];

/// The code that an error gets where one of its quotas is counted by the day.
const PER_DAY: &str = "quota_per_day";

/// Why a model stopped, in small letters; where it is none of these the reply is malformed. `None`: it had said all.
const STOPS: &[(&str, Option<FailureKind>)] = &[
    ("end_turn", None),
    ("stop_sequence", None),
    ("stop", None),
    ("completed", None),
    ("max_tokens", Some(FailureKind::Truncated)),
    ("max_output_tokens", Some(FailureKind::Truncated)),
    ("length", Some(FailureKind::Truncated)),
    ("model_context_window_exceeded", Some(FailureKind::ContextTooLong)),
    ("model_length", Some(FailureKind::ContextTooLong)),
    ("refusal", Some(FailureKind::Refused)),
    ("content_filter", Some(FailureKind::Filtered)),
    ("safety", Some(FailureKind::Filtered)),
    ("recitation", Some(FailureKind::Filtered)),
    ("blocklist", Some(FailureKind::Filtered)),
    ("prohibited_content", Some(FailureKind::Filtered)),
    ("spii", Some(FailureKind::Filtered)),
    ("error", Some(FailureKind::Network)),
];

/// The failure for which a model stopped before it had said all, if it did.
pub fn stopped(reason: &str) -> Option<Failure> {
    let lower = reason.to_lowercase();
    let known = STOPS.iter().find(|(name, _)| *name == lower);
    let kind = known.map_or(Some(FailureKind::Malformed), |(_, kind)| *kind)?;
    Some(Failure::new(kind, format!("the model stopped with `{reason}`")))
}

/// What a provider said when it gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The HTTP status.
    status: u16,
    /// What the error calls itself, in small letters.
    codes: Vec<String>,
    /// Its words.
    message: String,
    /// The reply's headers, by their names in small letters.
    headers: BTreeMap<String, String>,
    /// How long Google's `RetryInfo` asks to wait.
    retry_delay: Option<String>,
}

impl Trouble {
    /// Reads a reply that is no answer: its status, headers and body.
    pub fn of<'h>(status: u16, headers: impl IntoIterator<Item = (&'h str, &'h str)>, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let object: Value = serde_json::from_str(&text).unwrap_or_default();
        let error = error_in(&object).unwrap_or(&object);
        let mut trouble = Self {
            status,
            codes: Vec::new(),
            message: String::new(),
            headers: headers.into_iter().map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect(),
            retry_delay: None,
        };
        trouble.read(error);
        if trouble.message.is_empty() {
            trouble.message = text.trim().chars().take(500).collect();
        }
        trouble
    }

    /// Reads an error as the providers write it. Unknown fields are passed over.
    fn read(&mut self, error: &Value) {
        let (metadata, details) = (&error["metadata"], &error["details"]);
        for code in [
            &error["type"],
            &error["code"],
            &error["status"],
            &error["innererror"]["code"],
            &metadata["reason"],
            &details["error_code"],
        ] {
            self.code(code);
        }
        for detail in details.as_array().into_iter().flatten() {
            self.code(&detail["reason"]);
            if let Some(delay) = detail["retryDelay"].as_str() {
                self.retry_delay = Some(delay.to_owned());
            }
            let violations = detail["violations"].as_array().into_iter().flatten();
            if violations.filter_map(|v| v["quotaId"].as_str()).any(|id| id.contains("PerDay")) {
                self.codes.push(PER_DAY.to_owned());
            }
        }
        // OpenRouter repeats the headers of the provider behind it, and what that said.
        for (name, value) in metadata["headers"].as_object().into_iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            self.headers.entry(name.to_lowercase()).or_insert(value);
        }
        let words = [error, &error["message"], &metadata["raw"]];
        self.message = words.into_iter().filter_map(Value::as_str).collect::<Vec<_>>().join(": ");
    }

    fn code(&mut self, value: &Value) {
        match value {
            Value::String(code) => self.codes.push(code.to_lowercase()),
            Value::Number(code) => self.codes.push(code.to_string()),
            _ => {}
        }
    }

    fn row(&self) -> Option<&'static Row> {
        let message = self.message.to_lowercase();
        TABLE.iter().find(|row| {
            row.status.iter().any(|range| range.contains(&self.status))
                || row.codes.iter().any(|code| self.codes.iter().any(|own| own == code))
                || row.says.iter().any(|phrase| message.contains(phrase))
        })
    }

    /// The failure that a record keeps. `now` is the time since 1970.
    pub fn failure(&self, now: Duration) -> Failure {
        let Self { status, codes, message, .. } = self;
        let detail = format!("HTTP {status} {}: {message}", codes.join(" "));
        let Some(row) = self.row() else { return Failure::new(FailureKind::Malformed, detail) };
        let asked = || waits::asked(&self.headers, self.retry_delay.as_deref(), message, now);
        let retry_after_ms = match row.wait {
            Wait::No => None,
            Wait::Asked => asked(),
            Wait::Reset => asked().or_else(|| waits::reset(&self.headers, now)),
            Wait::Regain => waits::regain(message, now),
            Wait::NextDay => Some(waits::next_day(now)),
        };
        Failure { retry_after_ms, scope: row.scope, ..Failure::new(row.kind, detail) }
    }
}

/// For how long nothing is left of a limit, where a reply's headers say so; less than a second is not worth a pause. `now` is
/// the time since 1970.
pub fn used_up<'h>(headers: impl IntoIterator<Item = (&'h str, &'h str)>, now: Duration) -> Option<Duration> {
    let headers = headers.into_iter().map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    waits::used_up(&headers, now).map(Duration::from_millis).filter(|wait| *wait >= Duration::from_secs(1))
}

/// The error in a reply, whatever its status: on top, in a list as Google's compatible server sends it, or in a choice
/// where a gateway learnt of it too late.
pub fn error_in(reply: &Value) -> Option<&Value> {
    let places = [&reply["error"], &reply[0]["error"], &reply["choices"][0]["error"]];
    places.into_iter().find(|error| !error.is_null())
}

#[cfg(test)]
mod tests;
