//! Names of tasks and points in time, as plain values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of a task: 1 to 64 of `a-z`, `0-9` and `-`, starting with a letter or a digit.
///
/// It becomes part of branch names, file names and keys, so nothing else is let in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct TaskId(String);

/// A text that is not the name of a task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a task id: 1 to 64 of a-z, 0-9 and `-`, starting with a letter or a digit")]
pub struct InvalidTaskId(String);

impl TaskId {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<Self, InvalidTaskId> {
        Self::try_from(text.to_owned())
    }

    /// Makes a name of 12 characters (60 bits, Crockford's base 32) from bits that the caller drew at random.
    pub fn from_bits(bits: u64) -> Self {
        const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        Self((0..12).rev().map(|i| char::from(ALPHABET[(bits >> (5 * i)) as usize & 31])).collect())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for TaskId {
    type Error = InvalidTaskId;
    fn try_from(text: String) -> Result<Self, InvalidTaskId> {
        let fits = (1..=64).contains(&text.len())
            && !text.starts_with('-')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if fits { Ok(Self(text)) } else { Err(InvalidTaskId(text.chars().take(80).collect())) }
    }
}

impl Serialize for TaskId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A point in time: milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Milliseconds from `earlier` to here; 0 where `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_safe_in_a_branch_are_ids() {
        for good in ["a", "0", "fix-parser", &"x".repeat(64)] {
            assert!(TaskId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a/b", "a..b", "é", "a b", "--upload-pack=x", &"x".repeat(65)] {
            assert!(TaskId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bits_make_distinct_valid_names() {
        assert_eq!(TaskId::from_bits(0).as_str(), "000000000000");
        assert_eq!(TaskId::from_bits((1 << 60) - 1).as_str(), "zzzzzzzzzzzz");
        assert!(TaskId::parse(TaskId::from_bits(0x0123_4567_89ab_cdef).as_str()).is_ok());
    }
}
