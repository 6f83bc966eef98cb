//! Whether a task's changes grow from attempt to attempt: a coder that piles up code instead of mending what was asked for.

use crate::task::Phase;

/// Attempts in a row that must have grown; with fewer it may be chance.
pub const LEAST: usize = 3;

/// How many lines a diff adds and removes. Headers and what stands around the changes are not counted, and of binary
/// files nothing is.
pub fn changed_lines(diff: &[u8]) -> u32 {
    let (mut old, mut new) = (0_u64, 0_u64);
    let mut changed = 0_u32;
    for line in diff.split(|byte| *byte == b'\n') {
        if old == 0 && new == 0 {
            (old, new) = hunk(line).unwrap_or_default();
            continue;
        }
        match line.first() {
            Some(b'+') => new = new.saturating_sub(1),
            Some(b'-') => old = old.saturating_sub(1),
            // `\ No newline at end of file` belongs to the line before it.
            Some(b'\\') => continue,
            _ => {
                (old, new) = (old.saturating_sub(1), new.saturating_sub(1));
                continue;
            }
        }
        changed = changed.saturating_add(1);
    }
    changed
}

/// The lengths in `@@ -1,2 +3,4 @@`; a length that is left out is 1.
fn hunk(line: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(line.strip_prefix(b"@@ -")?.split(|b| *b == b'@').next()?).ok()?;
    let (old, new) = text.trim_end().split_once(" +")?;
    let length = |range: &str| range.split_once(',').map_or(Some(1), |(_, length)| length.parse().ok());
    Some((length(old)?, length(new)?))
}

/// The lines of each attempt of a phase, where the last [`LEAST`] or more attempts that left a change each changed more
/// lines than the one before, and where these attempts belong together.
pub fn growth(phase: &Phase) -> Option<Vec<u32>> {
    let lines: Vec<u32> = phase.round().iter().filter_map(|a| a.change.as_ref()).map(|c| c.lines).collect();
    growing(&lines).map(<[u32]>::to_vec)
}

/// The longest end of a list that grows with every number, where it is long enough. Nothing is known of a 0.
pub fn growing(lines: &[u32]) -> Option<&[u32]> {
    let falls = |at: &usize| lines[*at] <= lines[*at - 1] || lines[*at - 1] == 0;
    let start = (1..lines.len()).rev().find(falls).unwrap_or(0);
    Some(&lines[start..]).filter(|end| end.len() >= LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_with_every_attempt_is_seen() {
        for (lines, grown) in [
            (&[][..], None),
            (&[5], None),
            (&[5, 9], None),
            (&[5, 9, 12], Some(&[5, 9, 12][..])),
            (&[5, 9, 9], None),
            (&[5, 9, 8], None),
            (&[30, 5, 9, 12], Some(&[5, 9, 12])),
            (&[5, 9, 12, 3], None),
            (&[5, 5, 6, 7], Some(&[5, 6, 7])),
            (&[0, 5, 9], None),
            (&[0, 5, 9, 10], Some(&[5, 9, 10])),
            (&[1, 2, 3, 4, 5], Some(&[1, 2, 3, 4, 5])),
        ] {
            assert_eq!(growing(lines), grown, "{lines:?}");
        }
    }

    #[test]
    fn changed_lines_are_those_of_hunks() {
        for (diff, lines) in [
            ("", 0),
            ("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", 2),
            ("--- a/x\n+++ b/x\n@@ -1,3 +1,2 @@ fn x()\n a\n--- dropped\n b\n", 1),
            ("@@ -0,0 +1,2 @@\n+++ added\n+x\n\\ No newline at end of file\n", 2),
            ("@@ -1,2 +1,2 @@\n a\n-b\n+c\n@@ -9 +9,2 @@\n d\n+e\ndiff --git a/y b/y\n--- a/y\n", 3),
            ("Binary files a/x and b/x differ\n", 0),
            ("@@ nonsense @@\n+x\n", 0),
            ("@@ -1,99999999999999999999 +1 @@\n+x\n", 0),
        ] {
            assert_eq!(changed_lines(diff.as_bytes()), lines, "{diff:?}");
        }
    }
}
