//! Reading of reviewers' replies: the cases of `verdicts/replies.jsonl`, hostile input, and what no damage to a reply
//! can do.

#[path = "verdicts/replies.rs"]
mod replies;

use std::fmt::Write as _;

use proptest::prelude::*;
use refile_core::verdict::{Format, Reading, VerdictKind, read};
use replies::{Case, cases, expecting, is_judgement, really_says};

#[test]
fn every_case_of_the_list_reads_as_it_says() {
    let cases = cases();
    assert!(cases.len() >= 73, "the list has shrunk to {}", cases.len());
    let mut wrong = String::new();
    for case in cases {
        let Reading { verdict, failure, .. } = read(case.format, &case.reply);
        let expect = &case.expect;
        let fits = expect.verdict.split('|').any(|v| v == verdict.verdict.as_str())
            && expect.conf.is_none_or(|conf| (conf - verdict.conf).abs() < 1e-9)
            && expect.required_change.as_ref().is_none_or(|change| *change == verdict.required_change)
            && (expect.phase.is_none() || expect.phase == verdict.phase)
            // Whoever reads `retry` learns why; only a reviewer who said so has no failure.
            && (verdict.verdict == VerdictKind::Retry || failure.is_none())
            && (failure.is_none() || !verdict.critique.is_empty());
        if !fits {
            let _ = writeln!(wrong, "{}: expected {expect:?}, read {verdict:?} {failure:?}", case.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn hostile_input_of_any_size_is_read_in_one_pass_as_retry() {
    let deep = 20_000;
    let megabyte = 1 << 20;
    let demand = |text: &str| format!("{{\"verdict\":\"needs_changes\",\"conf\":1,\"required_change\":\"{text}\"}}");
    let objects_within = format!("{}1{}", "{\"a\":".repeat(deep), "}".repeat(deep));
    let hostile = [
        "[".repeat(deep),
        "]".repeat(deep),
        "{".repeat(deep),
        "}".repeat(deep),
        "[]".repeat(deep),
        "{}".repeat(deep),
        format!("{}{}", "[".repeat(deep), "]".repeat(deep)),
        format!("{}{}", "{".repeat(deep), "}".repeat(deep)),
        objects_within.clone(),
        format!("{{\"verdict\":\"approved\",\"conf\":1,\"critique\":{objects_within}}}"),
        format!("{{\"verdict\":\"approved\",\"conf\":1,\"x\":{}{}}}", "[".repeat(deep), "]".repeat(deep)),
        "{\"a\":".repeat(megabyte / 5),
        "{\"verdict\":".repeat(megabyte / 11),
        "{\"".repeat(megabyte / 2),
        "\\\"".repeat(megabyte / 2),
        format!("{{\"verdict\": \"approved\", \"conf\": 1, \"critique\": \"{}", "x".repeat(8 * megabyte)),
        format!("{{\"verdict\": \"{}\", \"conf\": 1}}", "approved".repeat(megabyte)),
        format!("{{\"verdict\": \"approved\", \"conf\": {}}}", "9".repeat(megabyte)),
        format!("{{{}", " ".repeat(megabyte)),
        "{ ".repeat(megabyte / 2),
        "#".repeat(megabyte),
        // Marks before a demand that never comes: each of them is passed over once.
        demand(&format!("{}{}", "```\\n".repeat(megabyte / 5), " ".repeat(megabyte))),
        demand(&"``` ".repeat(megabyte / 4)),
        demand(&"```#".repeat(megabyte / 4)),
        demand(&"- * > ".repeat(megabyte / 6)),
        "RETRY".repeat(megabyte / 5),
        "APPROVE\n".repeat(megabyte / 8),
        "\u{0}".repeat(megabyte),
    ];
    for format in [Format::Json, Format::Judge, Format::Text] {
        for reply in &hostile {
            let reading = read(format, reply);
            let start: String = reply.chars().take(40).collect();
            assert_eq!(reading.verdict.verdict, VerdictKind::Retry, "{format:?} {start}");
            assert!(reading.failure.is_some(), "{format:?} {start}");
        }
    }
}

#[test]
fn a_huge_but_whole_answer_is_read_and_cut_for_the_record() {
    let said = "ä".repeat(1 << 20);
    let reply = format!("{said} {{\"verdict\": \"approved\", \"critique\": \"{said}\", \"conf\": 1}} {said}");
    let reading = read(Format::Json, &reply);
    assert_eq!(reading.verdict.verdict, VerdictKind::Approved);
    assert!(reading.verdict.critique.chars().count() < 9_000);
}

#[test]
fn every_truncation_before_the_last_brace_is_retry() {
    let mut cut = 0;
    for case in cases().iter().filter(|c| c.format != Format::Text && c.reply.contains('}')) {
        // The answer that is repeated is whole before the last brace, and `retry` is right for neither.
        if case.name == "same-twice" || case.name == "conflicting-objects" {
            continue;
        }
        let last = case.reply.rfind('}').unwrap_or_default();
        for end in (0..=last).filter(|end| case.reply.is_char_boundary(*end)) {
            let reading = read(case.format, &case.reply[..end]);
            assert_eq!(reading.verdict.verdict, VerdictKind::Retry, "{} cut at {end}", case.name);
            cut += 1;
        }
    }
    assert!(cut > 3_000, "{cut}");
}

#[test]
fn no_cut_of_any_range_turns_one_judgement_into_the_other() {
    let kinds = [("approved", VerdictKind::NeedsChanges), ("needs_changes", VerdictKind::Approved)];
    let mut read_at_all = 0;
    for (kind, other) in kinds {
        for case in expecting(kind) {
            let ends: Vec<usize> = (0..=case.reply.len()).filter(|i| case.reply.is_char_boundary(*i)).collect();
            for (i, &start) in ends.iter().enumerate() {
                // Every short range, and every tail.
                for &end in ends[i..].iter().take(12).chain(ends.last()) {
                    let damaged = format!("{}{}", &case.reply[..start], &case.reply[end..]);
                    let verdict = read(case.format, &damaged).verdict.verdict;
                    assert_ne!(verdict, other, "{}: {damaged}", case.name);
                    read_at_all += u32::from(verdict.as_str() == kind);
                }
            }
        }
    }
    assert!(read_at_all > 100, "the reading is strict, not dead: {read_at_all}");
}

#[test]
fn the_oracle_of_the_property_below_knows_garbage_from_answers() {
    for case in expecting("approved") {
        assert!(really_says(case.format, &case.reply, VerdictKind::Approved), "{}", case.name);
    }
    for case in expecting("needs_changes") {
        assert!(really_says(case.format, &case.reply, VerdictKind::NeedsChanges), "{}", case.name);
    }
    assert!(!really_says(Format::Json, "This looks great, {approved}!", VerdictKind::Approved));
    assert!(!really_says(Format::Text, "APPROVED", VerdictKind::Approved));
}

/// One act of damage.
#[derive(Debug, Clone)]
enum Damage {
    Flip(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Delete(prop::sample::Index, usize),
    Truncate(prop::sample::Index),
    Append(prop::sample::Index),
    Prepend(prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    // Bytes that mean something to a reader come often.
    let byte = || prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\":,\\ \n0.19%aAp".to_vec())];
    prop_oneof![
        (at(), byte()).prop_map(|(i, b)| Damage::Flip(i, b)),
        (at(), byte()).prop_map(|(i, b)| Damage::Insert(i, b)),
        (at(), 1_usize..40).prop_map(|(i, n)| Damage::Delete(i, n)),
        at().prop_map(Damage::Truncate),
        at().prop_map(Damage::Append),
        at().prop_map(Damage::Prepend),
    ]
}

fn damaged(reply: &str, acts: &[Damage], others: &[Case]) -> String {
    let mut bytes = reply.as_bytes().to_vec();
    for act in acts {
        let place = |i: &prop::sample::Index| i.index(bytes.len() + 1);
        match act {
            Damage::Flip(i, b) => {
                let at = place(i);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *b;
                }
            }
            Damage::Insert(i, b) => bytes.insert(place(i), *b),
            Damage::Delete(i, n) => {
                let at = place(i);
                bytes.drain(at..(at + n).min(bytes.len()));
            }
            Damage::Truncate(i) => bytes.truncate(place(i)),
            Damage::Append(i) => bytes.extend_from_slice(i.get(others).reply.as_bytes()),
            Damage::Prepend(i) => bytes = [i.get(others).reply.as_bytes(), &bytes].concat(),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Garbage, damaged however and mixed with other garbage, is a judgement only where the text really holds one.
    #[test]
    fn garbage_never_becomes_a_judgement(
        pick in any::<prop::sample::Index>(),
        acts in prop::collection::vec(damage(), 0..5),
    ) {
        let garbage = expecting("retry");
        let case = pick.get(&garbage);
        let text = damaged(&case.reply, &acts, &garbage);
        let reading = read(case.format, &text);
        if is_judgement(&reading) {
            prop_assert!(really_says(case.format, &text, reading.verdict.verdict), "{text} became {reading:?}");
        }
    }

    /// The same for answers, damaged however and mixed with anything.
    #[test]
    fn damage_makes_no_judgement_that_is_not_there(
        pick in any::<prop::sample::Index>(),
        acts in prop::collection::vec(damage(), 0..5),
    ) {
        let cases = cases();
        let case = pick.get(&cases);
        let text = damaged(&case.reply, &acts, &cases);
        let reading = read(case.format, &text);
        prop_assert!((0.0..=1.0).contains(&reading.verdict.conf), "{reading:?}");
        if is_judgement(&reading) {
            prop_assert!(really_says(case.format, &text, reading.verdict.verdict), "{text} became {reading:?}");
        }
        if reading.verdict.verdict == VerdictKind::NeedsChanges {
            let demand = &reading.verdict.required_change;
            prop_assert!(!demand.is_empty() && !demand.contains('\n') && !demand.starts_with(['#', ' ']), "{demand}");
        }
    }

    /// Reading is a function of the reply, and never panics.
    #[test]
    fn reading_is_deterministic(reply in any::<String>()) {
        for format in [Format::Json, Format::Text, Format::Judge] {
            prop_assert_eq!(read(format, &reply), read(format, &reply));
        }
    }
}
