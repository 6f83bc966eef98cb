//! Keeps a conversation within a model's window: what tools said long ago goes first, the task and the last turns stay.
//!
//! A conversation is one message of ours, then turns of two: the model's, and ours with what came of its calls.

use crate::llm::Message;

/// About how many bytes a token is; less than of most texts, so that an estimate is rather too high.
const TOKEN_BYTES: u64 = 3;
/// The messages at the end that are not shortened while there is anything else: two turns.
const LAST: usize = 4;
/// A result that is not longer than this stays: the line in its place would be no shorter.
const SHORT: usize = 200;
/// What stands where earlier turns were left out.
const TURNS_LEFT_OUT: &str = "[earlier steps were left out: they did not fit into the window]";

/// How many bytes of conversation there is room for.
pub fn room(context_tokens: u64, answer_tokens: u32, fixed_bytes: usize) -> usize {
    let tokens = context_tokens.saturating_sub(u64::from(answer_tokens));
    (tokens.saturating_mul(TOKEN_BYTES) as usize).saturating_sub(fixed_bytes)
}

/// The bytes of a conversation.
pub fn bytes(messages: &[Message]) -> usize {
    messages.iter().map(Message::bytes).sum()
}

/// Shortens a conversation that is longer than this many bytes; to three quarters of them, so that what a provider
/// remembers of its beginning holds for some steps. Gives whether anything was left out.
pub fn fit(messages: &mut Vec<Message>, room: usize) -> bool {
    let before = bytes(messages);
    if before <= room {
        return false;
    }
    let target = room / 4 * 3;
    let mut total = before;
    let first_of_last = messages.len().saturating_sub(LAST).max(1);
    for message in messages.iter_mut().take(first_of_last).skip(1) {
        for result in &mut message.results {
            if total <= target {
                return true;
            }
            if result.text.len() > SHORT {
                let line = format!(
                    "[left out to fit into the window: {} bytes that `{}` said]",
                    result.text.len(),
                    result.name
                );
                total -= result.text.len() - line.len();
                result.text = line;
            }
        }
    }
    while total > target && messages.len() > LAST + 1 {
        messages.drain(1..3);
        if let Some(ours) = messages.get_mut(2).filter(|ours| !ours.text.starts_with(TURNS_LEFT_OUT)) {
            let words = std::mem::take(&mut ours.text);
            ours.text = if words.is_empty() { TURNS_LEFT_OUT.to_owned() } else { format!("{TURNS_LEFT_OUT}\n{words}") };
        }
        total = bytes(messages);
    }
    // Nothing is left but the last turns: each of their results gets its share.
    let results = messages.iter().map(|message| message.results.len()).sum::<usize>().max(1);
    let share = target / 2 / results;
    for result in messages.iter_mut().flat_map(|message| &mut message.results) {
        if total <= target {
            break;
        }
        let shorter = bounded(&result.text, share);
        total = (total + shorter.len()).saturating_sub(result.text.len());
        result.text = shorter;
    }
    bytes(messages) < before
}

/// The beginning and the end of a text that is longer than this many bytes, with a line that says how much is not there.
pub fn bounded(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(max / 2);
    let tail = text.ceil_char_boundary(text.len() - (max - max / 2));
    format!("{}\n[... {} bytes left out ...]\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::llm::{Role, ToolCall};

    /// A conversation of as many turns, each with two results of this length.
    fn talk(turns: usize, length: usize) -> Vec<Message> {
        let mut messages = vec![Message::user("The task.")];
        for turn in 0..turns {
            let call = |n| ToolCall { id: format!("{turn}-{n}"), name: "read".into(), arguments: json!({"path": "a"}) };
            let calls = vec![call(0), call(1)];
            let results = calls.iter().map(|call| call.result("x".repeat(length), false)).collect();
            messages.push(Message { calls, ..Message::assistant("") });
            messages.push(Message::results(results));
        }
        messages
    }

    /// What every conversation must be, whatever was left out.
    #[track_caller]
    fn check(messages: &[Message]) {
        assert_eq!(messages[0], Message::user("The task."));
        for pair in messages[1..].chunks(2) {
            assert_eq!((pair[0].role, pair[1].role), (Role::Assistant, Role::User));
            let ids = |m: &Message| m.results.iter().map(|r| r.id.clone()).collect::<Vec<_>>();
            assert_eq!(pair[0].calls.iter().map(|c| c.id.clone()).collect::<Vec<_>>(), ids(&pair[1]));
        }
    }

    #[test]
    fn what_fits_stays_as_it_is() {
        let mut messages = talk(3, 1_000);
        let before = messages.clone();
        let whole = bytes(&before);
        assert!(!fit(&mut messages, whole) && messages == before);
        assert!(fit(&mut messages, whole - 1) && messages != before);
    }

    #[test]
    fn the_oldest_results_go_first_and_the_last_turns_stay() {
        let mut messages = talk(10, 1_000);
        assert!(fit(&mut messages, 19_000));
        check(&messages);
        let is_cut = |m: &Message| m.results.iter().map(|r| r.text.starts_with("[left out")).collect::<Vec<_>>();
        let cut: Vec<bool> = messages.iter().flat_map(is_cut).collect();
        let number = cut.iter().filter(|cut| **cut).count();
        assert!(cut[..number].iter().all(|cut| *cut) && (5..10).contains(&number), "{cut:?}");
        assert!(messages[2].results[0].text.contains("1000 bytes that `read` said"));
        assert!(bytes(&messages) <= 19_000 / 4 * 3);
        // Nothing more is left out before the room is used up again.
        assert!(!fit(&mut messages, 19_000));
    }

    #[test]
    fn then_whole_turns_go_and_at_last_the_last_results_are_cut() {
        let mut messages = talk(200, 1_000);
        assert!(fit(&mut messages, 8_000));
        check(&messages);
        assert!(messages.len() < 100 && messages[2].text.starts_with(TURNS_LEFT_OUT), "{}", messages.len());
        assert_eq!(messages.last().unwrap().results[1].text.len(), 1_000);
        let mut huge = talk(3, 1_000_000);
        assert!(fit(&mut huge, 60_000));
        check(&huge);
        assert_eq!(huge.len(), 5);
        assert!(bytes(&huge) <= 60_000, "{}", bytes(&huge));
        let mut one = talk(1, 1_000_000);
        assert!(fit(&mut one, 60_000) && bytes(&one) <= 60_000);
        assert!(one[2].results[0].text.contains("bytes left out ...]"));
    }

    #[test]
    fn nothing_to_leave_out_is_told() {
        let mut messages = vec![Message::user("x".repeat(1_000))];
        assert!(!fit(&mut messages, 10));
    }

    #[test]
    fn a_cut_keeps_both_ends_and_whole_characters() {
        let text = "ä".repeat(500);
        let cut = bounded(&text, 101);
        assert!(cut.starts_with('ä') && cut.ends_with('ä') && cut.contains("bytes left out"), "{cut}");
        assert_eq!(bounded("short", 5), "short");
        assert_eq!(room(10_000, 1_000, 500), 26_500);
        assert_eq!(room(10, 1_000, 500), 0);
    }
}
