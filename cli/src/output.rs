//! Tables, colours, JSON. Colours only on a terminal; what scripts read goes to standard output, all else to standard
//! error.

use anstyle::{AnsiColor, Style};
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use refile_core::{TaskState, Timestamp};
use serde::Serialize;

/// Emphasis.
pub(crate) const BOLD: Style = Style::new().bold();
/// What is not the point.
pub(crate) const DIM: Style = Style::new().dimmed();
/// What went well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What went wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// What waits for a person.
pub(crate) const WAITS: Style = AnsiColor::Yellow.on_default();

/// A text in a style; the stream takes the colours out where they do not belong.
pub(crate) fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// The style of a state.
pub(crate) fn state_style(state: TaskState) -> Style {
    match state {
        TaskState::Merged | TaskState::Accepted => GOOD,
        TaskState::Rejected | TaskState::Cancelled => BAD,
        TaskState::Escalated => WAITS,
        TaskState::Open => Style::new(),
    }
}

/// Prints a value as JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints a line for people or scripts. A reader that has gone away (`| head`) is no failure.
pub(crate) fn line(text: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// Prints text as it is.
pub(crate) fn raw(bytes: &[u8]) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(bytes);
}

/// Prints a line beside the results.
pub(crate) fn note(text: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// Prints an error with its causes. Many errors tell their cause themselves; it is not told twice.
pub(crate) fn error(error: &anyhow::Error) {
    let said = refile_telemetry::process::explained(error.as_ref());
    note(format!("{} {said}", styled(BAD.bold(), "error:")));
}

/// A table without lines, as wide as the terminal.
pub(crate) fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(head.iter().map(|h| h.to_uppercase()));
    table
}

/// Prints a table, or a sentence where it has no rows.
pub(crate) fn print_table(table: &Table, if_empty: &str) {
    if table.is_empty() {
        line(if_empty);
    } else {
        for row in table.to_string().lines() {
            line(row.trim_end());
        }
    }
}

/// How long ago something was: `42s`, `3m`, `5h`, `2d`.
pub(crate) fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.since(at) / 1_000;
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A point in time as people write it, in UTC.
pub(crate) fn time(at: Timestamp) -> String {
    i64::try_from(at.0)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| at.0.to_string(), |t| t.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Millionths of a US dollar as people write them: `$1.24`, and small ones as `$0.000105`.
pub(crate) fn usd(micros: u64) -> String {
    let exact = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let cents = exact.len() - 4;
    format!("${}{}", &exact[..cents], exact[cents..].trim_end_matches('0'))
}

/// Text with every control character made visible, so that what a model or a repository wrote cannot steer a terminal.
/// Newlines and tabs stay.
pub(crate) fn untrusted(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() || is_bidi(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Characters that turn the direction of the text around them.
fn is_bidi(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_cannot_steer_the_terminal() {
        assert_eq!(untrusted("a\u{1b}[2Jb\r\u{202e}c\nd\te"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c\nd\te");
    }

    #[test]
    fn ages_are_short() {
        let at = |s: u64| age(Timestamp(0), Timestamp(s * 1_000));
        assert_eq!([at(5), at(119), at(120), at(7_200), at(172_800)], ["5s", "119s", "2m", "2h", "2d"]);
        assert_eq!(time(Timestamp(1_700_000_000_000)), "2023-11-14 22:13:20");
    }
}
