//! Makes text harmless: nothing in it passes for a marker of the packet, and nothing hides from the eye.

use std::fmt::Write as _;

use super::MARKER;

/// The text with nothing in it that passes for a marker or hides from the eye. Lines stay lines.
pub(super) fn harmless(text: &str, nonce: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => visible.push(c),
            '\r' => visible.push_str("<CR>"),
            c if is_invisible(c) => {
                let _ = write!(visible, "<U+{:04X}>", c as u32);
            }
            c => visible.push(c),
        }
    }
    if !nonce.is_empty() {
        visible = visible.replace(nonce, "[nonce]");
    }
    without_markers(&visible)
}

/// The same of a name that must stay on its line.
pub(super) fn harmless_name(name: &str, nonce: &str) -> String {
    harmless(name, nonce).replace('\n', "<U+000A>").replace('\t', "<U+0009>")
}

/// Controls, directions, joiners, fillers, and the tags and selectors that carry text nobody sees: the general categories
/// Cc, Zl and Zp, what has the property `Default_Ignorable_Code_Point`, and the other format characters that show nothing.
pub(super) fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{70f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn without_markers(text: &str) -> String {
    let marker = &MARKER[..MARKER.len() - 1].to_lowercase();
    let lower = text.to_ascii_lowercase();
    let mut clean = String::with_capacity(text.len());
    let mut from = 0;
    for (at, _) in lower.match_indices(marker.as_str()) {
        clean.push_str(&text[from..at]);
        clean.push_str("<< <");
        from = at + 3;
    }
    clean.push_str(&text[from..]);
    clean
}
