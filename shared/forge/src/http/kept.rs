//! Answers that are kept for the question whether anything has changed.

use std::collections::{BTreeMap, VecDeque};

use reqwest::header::HeaderValue;

use super::Answer;

/// How many are kept.
const MAX_KEPT: usize = 2_000;
/// What they may take up together, in bytes.
const MAX_KEPT_BYTES: usize = 32 << 20;

/// Answers by address, each with its tag. The one that was kept for longest goes first.
#[derive(Debug, Default)]
pub(super) struct Kept {
    answers: BTreeMap<String, (HeaderValue, Answer)>,
    order: VecDeque<String>,
    bytes: usize,
}

impl Kept {
    pub(super) fn get(&self, url: &str) -> Option<(HeaderValue, Answer)> {
        self.answers.get(url).cloned()
    }

    pub(super) fn keep(&mut self, url: String, tag: HeaderValue, answer: Answer) {
        self.bytes += answer.body.len();
        match self.answers.insert(url.clone(), (tag, answer)) {
            Some((_, old)) => self.bytes -= old.body.len(),
            None => self.order.push_back(url),
        }
        while self.order.len() > MAX_KEPT || self.bytes > MAX_KEPT_BYTES {
            let oldest = self.order.pop_front().and_then(|url| self.answers.remove(&url));
            let Some((_, old)) = oldest else { return };
            self.bytes -= old.body.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_for_longest_goes_first() {
        let mut kept = Kept::default();
        let tag = HeaderValue::from_static("t");
        let answer = |size: usize| Answer { body: vec![0; size], last: None };
        for n in 0..=MAX_KEPT {
            kept.keep(n.to_string(), tag.clone(), answer(1));
        }
        assert_eq!((kept.answers.len(), kept.bytes), (MAX_KEPT, MAX_KEPT));
        assert!(kept.get("0").is_none() && kept.get("1").is_some());
        kept.keep("1".to_owned(), tag.clone(), answer(MAX_KEPT_BYTES));
        assert!(kept.bytes <= MAX_KEPT_BYTES, "{}", kept.bytes);
        assert_eq!(kept.answers.len(), kept.order.len());
    }
}
