//! How long a provider wants to be left alone, in all the forms in which it says so. `now` is the time since 1970; waits
//! are in milliseconds and never longer than a day.

use std::collections::BTreeMap;
use std::time::Duration;

/// The longest wait that is believed: after a day it does no harm to look again.
const LONGEST_MS: f64 = 24.0 * HOUR_MS;

const HOUR_MS: f64 = 3_600_000.0;

/// What was asked for in so many words.
pub(super) fn asked(
    headers: &BTreeMap<String, String>,
    retry_delay: Option<&str>,
    message: &str,
    now: Duration,
) -> Option<u64> {
    let header = |name: &str| headers.get(name).map(|text| text.trim());
    header("retry-after-ms")
        .and_then(|text| wait(text.parse().ok()?))
        .or_else(|| retry_after(header("retry-after")?, now))
        .or_else(|| wait(duration_ms(retry_delay?)?))
        .or_else(|| in_words(message))
}

/// The header `retry-after`: seconds, or a date.
pub fn retry_after(text: &str, now: Duration) -> Option<u64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return wait(seconds * 1_000.0);
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?;
    wait(date.timestamp().as_millisecond() as f64 - now.as_millis() as f64)
}

/// When the limit that is used up is reset: the last of those of which nothing remains, else the last of all, since
/// nothing says which it is.
pub(super) fn reset(headers: &BTreeMap<String, String>, now: Duration) -> Option<u64> {
    used_up(headers, now).or_else(|| resets(headers, now).map(|(wait, _)| wait).max())
}

/// When the last of the limits of which nothing remains is reset.
pub(super) fn used_up(headers: &BTreeMap<String, String>, now: Duration) -> Option<u64> {
    resets(headers, now).filter_map(|(wait, remaining)| remaining.filter(|left| *left == "0").map(|_| wait)).max()
}

/// In how long each limit is reset, and how much of it remains.
fn resets(headers: &BTreeMap<String, String>, now: Duration) -> impl Iterator<Item = (u64, Option<&str>)> {
    headers.iter().filter_map(move |(name, value)| {
        let remaining = headers.get(&remaining_beside(name)?).map(|text| text.trim());
        Some((moment(value.trim(), now)?, remaining))
    })
}

/// The header that says how much remains of what this header resets, where it is such a header:
/// `anthropic-ratelimit-requests-reset`, `x-ratelimit-reset-tokens`, `x-ratelimit-reset`.
fn remaining_beside(name: &str) -> Option<String> {
    if let Some(limit) = name.strip_prefix("anthropic-ratelimit-").and_then(|rest| rest.strip_suffix("-reset")) {
        return Some(format!("anthropic-ratelimit-{limit}-remaining"));
    }
    let limit = name.strip_prefix("x-ratelimit-reset")?;
    (limit.is_empty() || limit.starts_with('-')).then(|| format!("x-ratelimit-remaining{limit}"))
}

/// A moment as a header of limits names it: RFC 3339, a duration as Go writes it, seconds, or a time since 1970 in
/// seconds or milliseconds.
fn moment(text: &str, now: Duration) -> Option<u64> {
    let now_ms = now.as_millis() as f64;
    if let Ok(number) = text.parse::<f64>() {
        return match number {
            n if n > 1e11 => wait(n - now_ms),
            n if n > 1e8 => wait(n * 1_000.0 - now_ms),
            n => wait(n * 1_000.0),
        };
    }
    if let Ok(timestamp) = text.parse::<jiff::Timestamp>() {
        return wait(timestamp.as_millisecond() as f64 - now_ms);
    }
    wait(duration_ms(text)?)
}

/// A duration as Go and Google's protocols write it, in milliseconds: `6m0s`, `547ms`, `1h2m3.5s`.
fn duration_ms(text: &str) -> Option<f64> {
    let (mut rest, mut sum) = (text, 0.0);
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(unit_at);
        let unit_end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit_end);
        let in_ms = match unit {
            "d" => 24.0 * HOUR_MS,
            "h" => HOUR_MS,
            "m" => 60_000.0,
            "s" => 1_000.0,
            "ms" => 1.0,
            "us" | "µs" => 1e-3,
            "ns" => 1e-6,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * in_ms;
        rest = behind;
    }
    (!text.is_empty()).then_some(sum)
}

/// What a message says of it; gateways hand it on where they drop the headers.
pub(super) fn in_words(message: &str) -> Option<u64> {
    let lower = message.to_lowercase();
    let rest = ["try again in ", "retry in ", "retry after "].iter().find_map(|words| lower.split_once(words))?.1;
    let bare = |word: &str| {
        let end = word.find(|c: char| !c.is_alphanumeric() && c != '.').unwrap_or(word.len());
        word[..end].trim_end_matches('.').to_owned()
    };
    let mut words = rest.split_whitespace().map(bare);
    let (first, unit) = (words.next()?, words.next().unwrap_or_default());
    if unit == "second" || unit == "seconds" {
        return wait(first.parse::<f64>().ok()? * 1_000.0);
    }
    wait(duration_ms(&first)?)
}

/// The day that Anthropic names where a limit on spending is reached: `You will regain access on 2026-09-01 at 00:00 UTC.`
pub(super) fn regain(message: &str, now: Duration) -> Option<u64> {
    let (_, rest) = message.split_once("regain access on ")?;
    let (date, rest) = rest.split_once(" at ")?;
    let (time, _) = rest.split_once(" UTC")?;
    let at: jiff::Timestamp = format!("{date}T{time}:00Z").parse().ok()?;
    wait(at.as_millisecond() as f64 - now.as_millis() as f64)
}

/// Until the next midnight in California, where Google's days begin. It is taken for 08:00 UTC: an hour late in summer.
pub(super) fn next_day(now: Duration) -> u64 {
    const DAY_MS: u64 = 86_400_000;
    const MIDNIGHT_MS: u64 = 8 * 3_600_000;
    let of_day = now.as_millis() as u64 % DAY_MS;
    (MIDNIGHT_MS + DAY_MS - of_day - 1) % DAY_MS + 1
}

/// A wait in whole milliseconds; nothing where it makes no sense.
fn wait(ms: f64) -> Option<u64> {
    (ms.is_finite() && ms >= 0.0).then(|| ms.min(LONGEST_MS).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_445_412_400);

    fn headers(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after("7", NOW), Some(7_000));
        assert_eq!(retry_after("0.5", NOW), Some(500));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT", NOW), Some(80_000));
        for nonsense in ["-1", "soon", "NaN", "", "Wed, 21 Oct 2009 07:28:00 GMT"] {
            assert_eq!(retry_after(nonsense, NOW), None, "{nonsense}");
        }
        assert_eq!(retry_after("1e30", NOW), Some(86_400_000));
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, ms) in [
            ("6m0s", 360_000.0),
            ("547ms", 547.0),
            ("1h2m3.5s", 3_723_500.0),
            ("0s", 0.0),
            ("34.074824224s", 34_074.824_224),
            ("1.5µs", 0.001_5),
            ("1d", 86_400_000.0),
        ] {
            assert!(duration_ms(text).is_some_and(|read| (read - ms).abs() < 1e-6), "{text}");
        }
        for nonsense in ["", "s", "6", "6x", "m6", "6m0", "1.2.3s", "-6s", "6 s"] {
            assert_eq!(duration_ms(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn the_limit_that_is_used_up_counts_else_the_last() {
        let mut all = headers(&[
            ("anthropic-ratelimit-requests-remaining", "12"),
            ("anthropic-ratelimit-requests-reset", "2015-10-21T07:27:20Z"),
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            ("anthropic-ratelimit-input-tokens-reset", "2015-10-21T07:26:50Z"),
        ]);
        assert_eq!((reset(&all, NOW), used_up(&all, NOW)), (Some(10_000), Some(10_000)));
        all.insert("anthropic-ratelimit-input-tokens-remaining".to_owned(), "1".to_owned());
        assert_eq!((reset(&all, NOW), used_up(&all, NOW)), (Some(40_000), None));
        let of_openai = [
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "6m0s"),
            ("x-ratelimit-reset-tokens", "1h"),
            ("x-ratelimit-limit-tokens", "7"),
        ];
        assert_eq!(reset(&headers(&of_openai), NOW), Some(360_000));
        for (text, ms) in [("1445412430", 30_000), ("1445412430500", 30_500), ("12", 12_000), ("547ms", 547)] {
            assert_eq!(reset(&headers(&[("x-ratelimit-reset", text)]), NOW), Some(ms), "{text}");
        }
        assert_eq!(reset(&headers(&[("x-ratelimit-reset", "2009-01-01T00:00:00Z"), ("date", "12")]), NOW), None);
    }

    #[test]
    fn what_is_asked_for_first_counts() {
        let all = headers(&[("retry-after-ms", "250.4"), ("retry-after", "7")]);
        assert_eq!(asked(&all, Some("34s"), "", NOW), Some(251));
        assert_eq!(asked(&headers(&[("retry-after", "7")]), Some("34s"), "", NOW), Some(7_000));
        assert_eq!(asked(&headers(&[("retry-after", "soon")]), Some("34s"), "", NOW), Some(34_000));
        for (message, ms) in [
            ("Rate limit reached. Please try again in 6m0s. Visit …", Some(360_000)),
            ("Please try again in 20ms.", Some(20)),
            ("Please retry in 45.578569677s.", Some(45_579)),
            ("Please retry after 6 seconds.", Some(6_000)),
            ("Please try again in a moment", None),
            ("Please try again later", None),
        ] {
            assert_eq!(asked(&BTreeMap::new(), None, message, NOW), ms, "{message}");
        }
    }

    #[test]
    fn days_end_in_california_and_months_where_the_message_says() {
        let at = |text: &str| Duration::from_millis(text.parse::<jiff::Timestamp>().unwrap().as_millisecond() as u64);
        assert_eq!(next_day(at("2026-11-22T07:00:00Z")), 3_600_000);
        assert_eq!(next_day(at("2026-11-22T08:00:00Z")), 86_400_000);
        assert_eq!(next_day(at("2026-11-22T09:00:00Z")), 23 * 3_600_000);
        let message =
            "You have reached your specified API usage limits. You will regain access on 2026-04-01 at 00:00 UTC.";
        assert_eq!(regain(message, at("2026-03-31T23:00:00Z")), Some(3_600_000));
        assert_eq!(regain(message, at("2026-03-01T00:00:00Z")), Some(86_400_000));
        assert_eq!(regain(message, at("2026-05-01T00:00:00Z")), None);
        assert_eq!(regain("Your credit balance is too low", NOW), None);
    }
}
