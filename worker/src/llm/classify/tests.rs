//! The table, row by row, against what providers and gateways really send.

use super::*;

/// 2026-11-22 07:00:00 UTC.
const NOW: Duration = Duration::from_hours(498_703);

/// A case: what comes back, and what must become of it. `ms` is the wait.
struct Case {
    name: &'static str,
    status: u16,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    kind: FailureKind,
    scope: Scope,
    ms: Option<u64>,
}

const fn case(name: &'static str, status: u16, body: &'static str, kind: FailureKind, scope: Scope) -> Case {
    Case { name, status, headers: &[], body, kind, scope, ms: None }
}

impl Case {
    const fn with(mut self, headers: &'static [(&'static str, &'static str)]) -> Self {
        self.headers = headers;
        self
    }

    const fn wait(mut self, ms: u64) -> Self {
        self.ms = Some(ms);
        self
    }
}

const ANTHROPIC_LIMIT: &str = r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of 50 requests per minute."},"request_id":"req_011"}"#;
const OPENAI_LIMIT: &str = r#"{"error":{"message":"Rate limit reached for gpt-5 in organization org-1 on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s. Visit https://platform.openai.com/account/rate-limits to learn more.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#;
const GEMINI_MINUTE: &str = r#"{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaMetric":"generativelanguage.googleapis.com/generate_content_free_tier_requests","quotaId":"GenerateRequestsPerMinutePerProjectPerModel-FreeTier"}]},{"@type":"type.googleapis.com/google.rpc.Help","links":[]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.074824224s"}]}}"#;
const GEMINI_DAY: &str = r#"{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerMinutePerProjectPerModel-FreeTier"},{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"12s"}]}}"#;
const IN_FLIGHT: &str = r#"{"error":{"message":"This request would exceed your available credits given your current in-flight requests. Retry after in-flight requests settle, or add credits.","code":402,"metadata":{"reason":"in_flight_budget_exhausted","limit_source":"openrouter_in_flight_budget","headers":{"Retry-After":"120"}}}}"#;

use FailureKind::{
    Auth, Configuration, ContextTooLong, Filtered, Malformed, Network, Overloaded, Quota, RateLimit, Timeout,
};
use Scope::{Call, Key, Model};

const CASES: &[Case] = &[
    // Limits that clear.
    case("anthropic, seconds", 429, ANTHROPIC_LIMIT, RateLimit, Model).with(&[("retry-after", "7")]).wait(7_000),
    case("anthropic, reset", 429, ANTHROPIC_LIMIT, RateLimit, Model)
        .with(&[
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", "2026-11-22T07:00:42Z"),
            ("anthropic-ratelimit-tokens-remaining", "1000"),
            ("anthropic-ratelimit-tokens-reset", "2026-11-22T07:01:30Z"),
        ])
        .wait(42_000),
    case("anthropic, nothing said", 429, ANTHROPIC_LIMIT, RateLimit, Model),
    case("openai, milliseconds", 429, OPENAI_LIMIT, RateLimit, Model)
        .with(&[("retry-after-ms", "547"), ("retry-after", "1")])
        .wait(547),
    case("openai, words", 429, OPENAI_LIMIT, RateLimit, Model).wait(2_000),
    case("openai, reset", 429, r#"{"error":{"message":"Slow down","type":"rate_limit_error","code":"slow_down"}}"#, RateLimit, Model)
        .with(&[
            ("x-ratelimit-remaining-requests", "9"),
            ("x-ratelimit-reset-requests", "547ms"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ])
        .wait(360_000),
    case("azure", 429, r#"{"error":{"code":"429","message":"Requests to the ChatCompletions_Create Operation have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 6 seconds."}}"#, RateLimit, Model)
        .wait(6_000),
    case("a date", 429, "slow down", RateLimit, Model).with(&[("Retry-After", "Sun, 22 Nov 2026 07:02:00 GMT")]).wait(120_000),
    case("gemini, by the minute", 429, GEMINI_MINUTE, RateLimit, Model).wait(34_075),
    case("gemini, short", 429, r#"[{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}]"#, RateLimit, Model),
    case("gemini through a gateway", 429, r#"{"error":{"message":"litellm.RateLimitError: geminiException - {\"error\":{\"status\":\"RESOURCE_EXHAUSTED\",\"message\":\"You exceeded your current quota. Please retry in 45.5s.\"}}","type":null,"code":"429"}}"#, RateLimit, Model)
        .wait(45_500),
    case("litellm", 429, r#"{"error":{"message":"litellm.RateLimitError: this is a mock rate limit error","type":"throttling_error","param":null,"code":"429"}}"#, RateLimit, Model),
    case("openrouter, upstream", 429, r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"m is temporarily rate-limited upstream","headers":{"X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1795330860000"}}}}"#, RateLimit, Model)
        .wait(60_000),
    case("openrouter, in flight", 402, IN_FLIGHT, RateLimit, Key).wait(120_000),
    case("openrouter, in flight, by header", 402, IN_FLIGHT, RateLimit, Key).with(&[("retry-after", "9")]).wait(9_000),
    // Quotas and money.
    case("gemini, by the day", 429, GEMINI_DAY, Quota, Model).wait(3_600_000),
    case("openai, money", 429, r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#, Quota, Key)
        .with(&[("retry-after", "1"), ("x-ratelimit-reset-requests", "1s")]),
    case("openai, limit on spending", 429, r#"{"error":{"message":"Limit reached.","type":"insufficient_quota","code":"project_spend_limit_exceeded"}}"#, Quota, Key),
    case("anthropic, money", 400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}"#, Quota, Key),
    case("anthropic, billing", 402, r#"{"type":"error","error":{"type":"billing_error","message":"x"}}"#, Quota, Key),
    case("anthropic, own limit on spending", 400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-11-22 at 09:00 UTC."}}"#, Quota, Key)
        .wait(7_200_000),
    case("anthropic, the tier's limit on spending", 429, r#"{"type":"error","error":{"type":"rate_limit_error","message":"You have reached your API usage limits: your organization has crossed its monthly API usage threshold. You will regain access on 2026-12-01 at 00:00 UTC.","details":{"error_code":"enforced_spend_limit_reached"}}}"#, Quota, Key)
        .wait(86_400_000),
    case("openrouter, money", 402, r#"{"error":{"message":"This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, but can only afford 30104.","code":402}}"#, Quota, Key),
    case("litellm, budget", 429, r#"{"error":{"message":"ExceededBudget: over budget","type":"budget_exceeded","param":null,"code":"429"}}"#, Quota, Key),
    case("deepseek, money", 402, r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","code":"invalid_request_error"}}"#, Quota, Key),
    // Too long.
    case("anthropic, long", 400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 214512 tokens > 200000 maximum"}}"#, ContextTooLong, Call),
    case("anthropic, large", 413, r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#, ContextTooLong, Call),
    case("anthropic, long costs extra", 429, r#"{"type":"error","error":{"type":"rate_limit_error","message":"Extra usage is required for long context requests."}}"#, ContextTooLong, Call),
    case("openai, long", 400, r#"{"error":{"message":"This model's maximum context length is 128000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#, ContextTooLong, Call),
    case("openai, more than a minute's", 429, r#"{"error":{"message":"Request too large for gpt-5 in organization org-1 on tokens per min (TPM): Limit 30000, Requested 40000.","type":"tokens","code":"rate_limit_exceeded"}}"#, ContextTooLong, Call),
    case("gemini, long", 400, r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#, ContextTooLong, Call),
    case("vllm, long", 400, r#"{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.","type":"BadRequestError","code":400}"#, ContextTooLong, Call),
    case("llama.cpp, long", 400, r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error"}}"#, ContextTooLong, Call),
    // Filtered.
    case("azure, filtered", 400, r#"{"error":{"message":"The response was filtered due to the prompt triggering Azure OpenAI's content management policy.","type":null,"param":"prompt","code":"content_filter","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation"}}}"#, Filtered, Call),
    case("anthropic, filtered", 400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"Output blocked by content filtering policy"}}"#, Filtered, Call),
    case("openrouter, flagged", 403, r#"{"error":{"code":403,"message":"m requires moderation. Your input was flagged for \"violence\".","metadata":{"reasons":["violence"]}}}"#, Filtered, Call),
    // Overloaded, broken, slow.
    case("anthropic, overloaded", 529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Overloaded, Model),
    case("gemini, overloaded", 503, r#"{"error":{"code":503,"message":"The model is overloaded. Please try again later.","status":"UNAVAILABLE"}}"#, Overloaded, Model),
    case("a gateway without a server", 503, "<html>no healthy upstream</html>", Overloaded, Model).with(&[("retry-after", "30")]).wait(30_000),
    case("anthropic, broken", 500, r#"{"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#, Network, Call),
    case("openai, broken", 500, r#"{"error":{"message":"The server had an error","type":"server_error","code":null}}"#, Network, Call),
    case("a gateway, broken", 502, "<html>", Network, Call).with(&[("retry-after", "30")]),
    case("anthropic, conflict", 409, r#"{"type":"error","error":{"type":"conflict_error","message":"x"}}"#, Network, Call),
    case("gemini, slow", 504, r#"{"error":{"code":504,"message":"Deadline expired","status":"DEADLINE_EXCEEDED"}}"#, Timeout, Call),
    case("openrouter, slow", 408, r#"{"error":{"code":408,"message":"Timed out"}}"#, Timeout, Call),
    // The key.
    case("anthropic, key", 401, r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#, Auth, Key),
    case("anthropic, permission", 403, r#"{"type":"error","error":{"type":"permission_error","message":"x"}}"#, Auth, Key),
    case("openai, key", 401, r#"{"error":{"message":"Incorrect API key provided: sk-x.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#, Auth, Key),
    case("gemini, key", 400, r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}]}}"#, Auth, Key),
    case("gemini, permission", 403, r#"{"error":{"code":403,"message":"x","status":"PERMISSION_DENIED"}}"#, Auth, Key),
    case("a firewall", 403, "<html><body>Request blocked.</body></html>", Auth, Call),
    // The model, the request, the address.
    case("anthropic, model", 404, r#"{"type":"error","error":{"type":"not_found_error","message":"model: claude-x"}}"#, Configuration, Model),
    case("openai, model", 404, r#"{"error":{"message":"The model `gpt-x` does not exist or you do not have access to it.","type":"invalid_request_error","code":"model_not_found"}}"#, Configuration, Model),
    case("azure, model", 404, r#"{"error":{"code":"DeploymentNotFound","message":"The API deployment for this resource does not exist."}}"#, Configuration, Model),
    case("ollama, model", 404, r#"{"error":"model 'm' not found"}"#, Configuration, Model),
    case("openai, field", 400, r#"{"error":{"message":"Unsupported parameter: 'max_tokens'","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}"#, Configuration, Call),
    case("openrouter, model", 400, r#"{"error":{"message":"m/x is not a valid model ID","code":400}}"#, Configuration, Model),
    case("litellm, model", 400, r#"{"error":{"message":"/chat/completions: Invalid model name passed in model=m. Call `/v1/models` to view available models for your key.","type":"invalid_request_error","param":"None","code":"400"}}"#, Configuration, Model),
    case("elsewhere", 302, "", Configuration, Model),
    // A good status that holds an error goes by its content alone.
    case("openrouter, 200 with 429", 200, r#"{"error":{"message":"Rate limited","code":429}}"#, RateLimit, Model),
    case("openrouter, 200 with 502", 200, r#"{"id":"gen-1","error":{"message":"Provider returned error","code":502}}"#, Network, Call),
    case("openrouter, 200 with a broken choice", 200, r#"{"id":"gen-1","choices":[{"finish_reason":"error","message":{"content":"{\"verd"},"error":{"code":502,"message":"upstream"}}]}"#, Network, Call),
    case("anthropic, 200 with overload", 200, r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, Overloaded, Model),
    case("responses, 200 with failure", 200, r#"{"object":"response","status":"failed","error":{"code":"server_error","message":"x"},"output":[]}"#, Network, Call),
    case("responses, 200 with limit", 200, r#"{"object":"response","status":"failed","error":{"code":"rate_limit_exceeded","message":"x"},"output":[]}"#, RateLimit, Model),
    case("200 with anything", 200, r#"{"error":"something"}"#, Malformed, Call),
    case("200 with nothing", 200, "", Malformed, Call),
];

#[test]
fn every_reply_becomes_its_failure() {
    let mut wrong = Vec::new();
    for case in CASES {
        let failure = Trouble::of(case.status, case.headers.iter().copied(), case.body.as_bytes()).failure(NOW);
        if (failure.kind, failure.scope, failure.retry_after_ms) != (case.kind, case.scope, case.ms) {
            wrong.push(format!("{}: {:?} {:?} {failure}", case.name, failure.scope, failure.retry_after_ms));
        }
        assert!(failure.detail.contains(&format!("HTTP {}", case.status)), "{failure}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_row_of_the_table_decides_some_case() {
    let troubles = CASES.iter().map(|c| Trouble::of(c.status, c.headers.iter().copied(), c.body.as_bytes()));
    let deciding: Vec<_> = troubles.filter_map(|t| t.row().map(std::ptr::from_ref)).collect();
    for (at, row) in TABLE.iter().enumerate() {
        assert!(deciding.contains(&std::ptr::from_ref(row)), "row {at} ({})", row.kind.as_str());
        // Small letters, or they would never be found.
        assert!(row.codes.iter().chain(row.says).all(|text| *text == text.to_lowercase()), "row {at}");
    }
}

#[test]
fn a_failure_that_pauses_is_about_more_than_one_call() {
    use refile_core::failure::Behaviour::{PauseProvider, StopPool};
    for row in TABLE {
        match row.kind.behaviour() {
            PauseProvider => assert_ne!(row.scope, Call, "{}", row.kind.as_str()),
            StopPool => {}
            _ => assert_eq!(row.scope, Call, "{}", row.kind.as_str()),
        }
        assert!(matches!(row.wait, Wait::No) || row.kind.behaviour() == PauseProvider, "{}", row.kind.as_str());
    }
}

#[test]
fn every_reason_to_stop_has_its_kind() {
    use FailureKind::{Refused, Truncated};
    for (reasons, kind) in [
        ("end_turn stop_sequence stop STOP completed", None),
        ("max_tokens length MAX_TOKENS max_output_tokens", Some(Truncated)),
        ("model_context_window_exceeded model_length", Some(ContextTooLong)),
        ("refusal", Some(Refused)),
        ("content_filter SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII", Some(Filtered)),
        ("error", Some(Network)),
        ("tool_use tool_calls pause_turn OTHER MALFORMED_FUNCTION_CALL in_progress queued", Some(Malformed)),
    ] {
        for reason in reasons.split(' ') {
            assert_eq!(stopped(reason).map(|f| f.kind), kind, "{reason}");
        }
    }
    assert_eq!(stopped("").map(|f| f.kind), Some(Malformed));
}
