//! Whether an agent goes round in circles. A rule looks at the last steps alone and knows nothing of what they were for.

/// A use of a tool: what was done, what came of it, and whether it failed. Texts stand for themselves: whoever makes a step
/// may put digests in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The tool and its arguments.
    pub action: String,
    /// What came of it.
    pub result: String,
    /// Whether it failed.
    pub failed: bool,
}

/// How an agent is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stuck {
    /// The same action with the same result, four times.
    Repeating,
    /// The same action failed three times.
    Failing,
    /// Two actions in turn, with the same results each, over six.
    Alternating,
}

impl Stuck {
    /// What it did, in words that follow "stopped: it".
    pub fn words(self) -> &'static str {
        match self {
            Self::Repeating => "did the same four times, with the same result",
            Self::Failing => "did the same three times, and it failed each time",
            Self::Alternating => "went to and fro between two actions three times",
        }
    }
}

/// How an agent with these steps behind it is stuck, if it is.
pub fn stuck(steps: &[Step]) -> Option<Stuck> {
    let same = |a: &Step, b: &Step| a.action == b.action && a.result == b.result;
    let last = |n: usize| steps.len().checked_sub(n).map(|from| &steps[from..]);
    if last(3).is_some_and(|s| s.iter().all(|step| step.failed && step.action == s[0].action)) {
        return Some(Stuck::Failing);
    }
    if last(4).is_some_and(|s| s.iter().all(|step| same(step, &s[0]))) {
        return Some(Stuck::Repeating);
    }
    let alternates = |s: &[Step]| !same(&s[0], &s[1]) && s.windows(3).all(|w| same(&w[0], &w[2]));
    last(6).is_some_and(alternates).then_some(Stuck::Alternating)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps as words: action, then result where it matters, then `!` where it failed.
    fn steps(words: &str) -> Vec<Step> {
        let step = |word: &str| {
            let (word, failed) = word.strip_suffix('!').map_or((word, false), |word| (word, true));
            let (action, result) = word.split_once('=').unwrap_or((word, ""));
            Step { action: action.to_owned(), result: result.to_owned(), failed }
        };
        words.split_whitespace().map(step).collect()
    }

    #[test]
    fn each_rule_stops_at_its_number_and_no_earlier() {
        for (words, expected) in [
            ("", None),
            ("a a a", None),
            ("a a a a", Some(Stuck::Repeating)),
            ("x a a a a", Some(Stuck::Repeating)),
            ("a=1 a=1 a=1 a=2", None),
            ("a a b a a", None),
            ("a a a a b", None),
            ("a! a!", None),
            ("a! a! a!", Some(Stuck::Failing)),
            ("a=1! a=2! a=3!", Some(Stuck::Failing)),
            ("a! a! a", None),
            ("a! b! a!", None),
            ("a! a! b! a!", None),
            ("a b a b a", None),
            ("a b a b a b", Some(Stuck::Alternating)),
            ("x a b a b a b", Some(Stuck::Alternating)),
            ("a! b a! b a! b", Some(Stuck::Alternating)),
            ("a=1 b a=2 b a=3 b", None),
            ("a b a b a c", None),
            ("a b c a b c a b c", None),
            ("a b a b b a", None),
            // The same action with results in turn.
            ("a=1 a=2 a=1 a=2 a=1 a=2", Some(Stuck::Alternating)),
        ] {
            assert_eq!(stuck(&steps(words)), expected, "{words}");
        }
    }
}
