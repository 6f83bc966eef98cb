//! Finds the JSON objects in a reply, in one pass and without recursion.

/// What a reply holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// Objects in order, each a balanced text from `{` to `}` that may still not be JSON.
    Objects {
        /// The outermost ones.
        outermost: Vec<&'a str>,
        /// Those between braces of prose.
        within: Vec<&'a str>,
    },
    /// An object begins and the reply ends before it does.
    CutOff,
}

/// Finds the objects that are not part of another.
///
/// A brace begins an object where a quote or the closing brace follows; any other brace is prose (`fn main() {`). What
/// lies between a pair of prose braces is part of something else and told apart.
pub(super) fn objects(reply: &str) -> Found<'_> {
    let bytes = reply.as_bytes();
    let (mut found, mut within): (Vec<&str>, Vec<&str>) = Default::default();
    // For each prose brace that is still open: how many objects had been found before it.
    let mut prose: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'{' if begins_object(&bytes[at + 1..]) => match length(&bytes[at..]) {
                Some(length) => {
                    found.push(&reply[at..at + length]);
                    at += length;
                    continue;
                }
                None => return Found::CutOff,
            },
            b'{' => prose.push(found.len()),
            b'}' => within.extend(found.drain(prose.pop().unwrap_or(found.len())..)),
            _ => {}
        }
        at += 1;
    }
    Found::Objects { outermost: found, within }
}

fn begins_object(after_brace: &[u8]) -> bool {
    // Bounded: an object's first key is not a kilobyte of white space away, and unbounded look-ahead would not be linear.
    let next = after_brace.iter().take(1_024).find(|b| !b.is_ascii_whitespace());
    matches!(next, Some(b'"' | b'}'))
}

/// The length of the object that begins here, up to its matching brace; `None` where the text ends first.
fn length(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (i, byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => {
                depth -= 1;
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(reply: &str, expect: &[&str]) {
        check_all(reply, expect, &[]);
    }

    #[track_caller]
    fn check_all(reply: &str, outermost: &[&str], within: &[&str]) {
        assert_eq!(objects(reply), Found::Objects { outermost: outermost.to_vec(), within: within.to_vec() });
    }

    #[test]
    fn objects_are_found_in_prose() {
        check(r#"a {"b": 1} c"#, &[r#"{"b": 1}"#]);
        check(r#"fn main() { {"b": "}"}"#, &[r#"{"b": "}"}"#]);
        check(r#"{a, b} {"b": {"c": []}}"#, &[r#"{"b": {"c": []}}"#]);
        check("{} x", &["{}"]);
        check("no braces } at all", &[]);
    }

    #[test]
    fn what_lies_within_other_braces_is_told_apart() {
        check_all(r#"{ note: {"b": 1} } {"c": 2}"#, &[r#"{"c": 2}"#], &[r#"{"b": 1}"#]);
        check_all(r#"{ a { {"b": 1} } {"c": 2} } {"d": 3}"#, &[r#"{"d": 3}"#], &[r#"{"b": 1}"#, r#"{"c": 2}"#]);
    }

    #[test]
    fn an_unclosed_object_is_cut_off() {
        assert_eq!(objects(r#"{"a": {"b": 1}"#), Found::CutOff);
        assert_eq!(objects(r#"{"a": "unterminated"#), Found::CutOff);
    }
}
