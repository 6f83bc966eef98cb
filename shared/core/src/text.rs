//! Small operations on text that several modules need: cutting, folding, first sentences.

/// What a cut text ends with.
pub(crate) const CUT_MARK: &str = " […]";

/// The first `max` characters, ending in [`CUT_MARK`] where something was cut off.
pub(crate) fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}{CUT_MARK}", &text[..end]),
    }
}

/// At most `max` bytes with [`CUT_MARK`] included, cut on a character boundary.
pub(crate) fn cut_bytes(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max.saturating_sub(CUT_MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT_MARK}", &text[..end])
}

/// The last `max` characters, beginning at the start of a line where one lies within them.
pub(crate) fn tail(text: &str, max: usize) -> String {
    let text = text.trim_end();
    let Some((start, _)) = text.char_indices().rev().nth(max.saturating_sub(1)) else { return text.to_owned() };
    let kept = &text[start..];
    if start == 0 || text[..start].ends_with('\n') {
        return kept.to_owned();
    }
    kept.split_once('\n').map_or(kept, |(_, rest)| rest).to_owned()
}

/// One line: every run of white space becomes one space.
pub(crate) fn fold(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

/// So many of something: `1 file`, `2 files`.
pub fn counted<N: Copy + std::fmt::Display + PartialEq + From<u8>>(number: N, what: &str) -> String {
    let s = if number == N::from(1) { "" } else { "s" };
    format!("{number} {what}{s}")
}

/// A folded, lower-case text without closing punctuation: equal for two wordings of one demand.
pub(crate) fn normalised(text: &str) -> String {
    fold(text).trim_end_matches(['.', '!', '?']).to_lowercase()
}

/// The longest imperative, in bytes; what is beyond it counts as left over.
pub(crate) const IMPERATIVE_BYTES: usize = 1_000;

/// One line without characters that cannot be seen or that steer a terminal or the direction of text.
pub(crate) fn plain_line(text: &str) -> String {
    let invisible = |c: char| {
        (c.is_control() && !c.is_whitespace())
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    fold(&text.chars().filter(|c| !invisible(*c)).collect::<String>())
}

/// One imperative sentence out of what a reviewer wrote, and what was left over.
///
/// Headings, fences and list markers at the start go, newlines are folded, and the sentence ends at `.`, `!` or `?` before
/// white space and a capital letter. A text without a letter or a digit is none.
pub(crate) fn imperative(text: &str) -> (String, String) {
    let (sentence, rest) = first_sentence(text);
    if !sentence.contains(char::is_alphanumeric) {
        return (String::new(), rest);
    }
    if sentence.len() <= IMPERATIVE_BYTES {
        return (sentence, rest);
    }
    let whole = format!("{sentence} {rest}");
    (cut_bytes(&sentence, IMPERATIVE_BYTES), whole)
}

fn first_sentence(text: &str) -> (String, String) {
    let line = plain_line(without_heading_or_fence(text));
    let mut chars = line.char_indices().peekable();
    while let Some((_, c)) = chars.next() {
        if !matches!(c, '.' | '!' | '?') {
            continue;
        }
        let Some(&(end, ' ')) = chars.peek() else { continue };
        if line[end + 1..].starts_with(char::is_uppercase) {
            return (line[..end].to_owned(), line[end + 1..].to_owned());
        }
    }
    (line, String::new())
}

/// The longest name of a language behind a fence, in bytes.
const LANGUAGE_BYTES: usize = 60;

/// What stands behind headings and fences at the start.
fn without_heading_or_fence(text: &str) -> &str {
    // The end is trimmed once: white space there is not looked through again for each mark at the start.
    let mut rest = text.trim();
    loop {
        let shorter = if rest.starts_with("```") || rest.starts_with("~~~") {
            let inner = rest.trim_start_matches(['`', '~']);
            // The word behind an opening fence names a language; the demand is on the lines below it.
            // Looked for near by only: a line that is not ended soon would be searched again at each fence on it.
            let line_end = inner.as_bytes().iter().take(LANGUAGE_BYTES).position(|b| *b == b'\n');
            match line_end.map(|at| (&inner[..at], &inner[at + 1..])) {
                Some((info, below)) if !info.trim().contains(char::is_whitespace) && !below.is_empty() => below,
                _ => inner,
            }
        } else {
            let unmarked = ["- ", "* ", "> "].iter().find_map(|marker| rest.strip_prefix(marker));
            unmarked.unwrap_or_else(|| rest.trim_start_matches('#'))
        }
        .trim_start();
        if shorter.len() == rest.len() {
            return rest;
        }
        rest = shorter;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one() {
        assert_eq!([0_u32, 1, 2].map(|n| counted(n, "file")), ["0 files", "1 file", "2 files"]);
    }

    #[test]
    fn a_cut_keeps_whole_characters() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöü", 2), "äö […]");
        assert_eq!(cut_bytes("äöüäöü", 12), "äöüäöü");
        assert_eq!(cut_bytes("äöüäöü", 11), "äö […]");
        assert!(cut_bytes("日本語日本語", 11).len() <= 11);
    }

    #[test]
    fn a_tail_begins_with_a_line() {
        assert_eq!(tail("one\ntwo\nthree\n", 9), "two\nthree");
        assert_eq!(tail("one\ntwo\nthree\n", 7), "three");
        assert_eq!(tail("abcdef", 3), "def");
        assert_eq!(tail("short", 100), "short");
        assert_eq!(tail("", 10), "");
    }

    #[track_caller]
    fn check(text: &str, sentence: &str, rest: &str) {
        assert_eq!(imperative(text), (sentence.to_owned(), rest.to_owned()));
    }

    #[test]
    fn the_first_sentence_is_the_imperative() {
        check("Add a test. Also rename it.", "Add a test.", "Also rename it.");
        check("Handle v1.2 of e.g. config.toml.", "Handle v1.2 of e.g. config.toml.", "");
        check("Rebase onto main\nand resolve.", "Rebase onto main and resolve.", "");
        check("Why not? Do it! Now", "Why not?", "Do it! Now");
        check("Add it. Été", "Add it.", "Été");
    }

    #[test]
    fn no_heading_or_fence_survives_at_the_start() {
        check("## Fix the parser", "Fix the parser", "");
        check("```rust\nUse `?` here.\n```", "Use `?` here. ```", "");
        check("```Add a test```", "Add a test```", "");
        check("# ```\n## Do it", "Do it", "");
        check("```", "", "");
        check("- ```sh\nmake it", "make it", "");
        check("> ## Fix it", "Fix it", "");
    }

    #[test]
    fn an_imperative_can_be_seen_and_is_bounded() {
        check("\u{1b}[2JFix\u{0} it\u{202e}", "[2JFix it", "");
        check("\u{200b}", "", "");
        check("...", "", "");
        let long = "é".repeat(2_000);
        let (sentence, rest) = imperative(&long);
        assert!(sentence.len() <= IMPERATIVE_BYTES && sentence.ends_with(CUT_MARK) && rest.starts_with(&long));
    }
}
