//! The beginning and the end of an output that may be of any length.

use std::collections::VecDeque;

/// How much of an output is kept, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From its beginning.
    pub head: usize,
    /// From its end.
    pub tail: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head: 1 << 20, tail: 4 << 20 }
    }
}

/// Keeps the beginning and the end of what it is given.
pub(super) struct Capture {
    limits: Limits,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: usize,
}

impl Capture {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, head: Vec::new(), tail: VecDeque::new(), left_out: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = self.limits.head.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.limits.tail);
        self.tail.drain(..over);
        self.left_out += over;
    }

    pub(super) fn is_cut(&self) -> bool {
        self.left_out > 0
    }

    /// What was kept, with a line that says how much was not.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let mut kept = std::mem::take(&mut self.head);
        if self.left_out > 0 {
            kept.extend_from_slice(format!("\n[... {} bytes left out ...]\n", self.left_out).as_bytes());
        }
        kept.extend(std::mem::take(&mut self.tail));
        kept
    }
}
