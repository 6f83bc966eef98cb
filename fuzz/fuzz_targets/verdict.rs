//! Any text, read in every format: nothing panics, and what comes out keeps the reader's promises.

#![no_main]

use libfuzzer_sys::fuzz_target;
use refile_core::verdict::{Format, VerdictKind, read};

fuzz_target!(|reply: &str| {
    for format in [Format::Json, Format::Text, Format::Judge] {
        let reading = read(format, reply);
        let verdict = &reading.verdict;
        assert!((0.0..=1.0).contains(&verdict.conf));
        assert!(reading.failure.is_none() || verdict.verdict == VerdictKind::Retry);
        let demands = matches!(verdict.verdict, VerdictKind::NeedsChanges | VerdictKind::RetryPredecessor);
        assert!(!demands || !verdict.required_change.trim().is_empty());
        assert!(!verdict.required_change.contains(['\n', '\r']));
        // Without these words nothing is approved, whatever else the text says.
        let lower = reply.to_lowercase();
        let may_approve = ["approve", "pass", "\\u"].iter().any(|word| lower.contains(word));
        assert!(may_approve || verdict.verdict != VerdictKind::Approved);
    }
});
