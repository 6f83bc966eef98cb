//! Replies damaged at random from fixed seeds, as many as `REFILE_MUTATIONS` says (`make fuzz`: a million): nothing
//! panics, and no damage makes a judgement that the text does not hold.

#[path = "verdicts/replies.rs"]
mod replies;
#[path = "verdicts/strict.rs"]
mod strict;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use refile_core::verdict::{VerdictKind, read};
use replies::{Case, cases, expecting, is_judgement, really_says};

/// What a run does where nothing else is said: seconds in a debug build.
const FEW: u64 = 20_000;

/// Pieces that mean something to a reader.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ":",
    ",",
    "\n",
    "```",
    "```json\n",
    "{}",
    "{\"",
    "\"verdict\": ",
    "\"approved\"",
    "approve",
    "needs_changes",
    "pass",
    "fail",
    "\"conf\": 0.9",
    "1.5",
    "NaN",
    "-0",
    "1e999",
    "90%",
    "null",
    "true",
    " | ",
    "<text>",
    "APPROVE",
    "RETRY: ",
    "FAIL ",
    "PASS",
    "\u{feff}",
    "\u{0}",
    "\u{202e}",
    "ä",
    "\\u0041",
    "\\ud800",
    "{ x }",
    "</think>",
    "\"required_change\": \"\"",
];

/// `SplitMix64`: the same numbers everywhere, for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap_or_default()
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// A reply with one to six acts of damage.
fn damaged(reply: &str, others: &[Case], random: &mut Random) -> String {
    let acts = 1 + random.below(6);
    damaged_so_often(acts, reply, others, random)
}

fn damaged_so_often(acts: usize, reply: &str, others: &[Case], random: &mut Random) -> String {
    let mut bytes = reply.as_bytes().to_vec();
    for _ in 0..acts {
        let at = random.below(bytes.len() + 1);
        let end = (at + 1 + random.below(24)).min(bytes.len());
        match random.below(10) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.insert(at, random.next().to_le_bytes()[0]),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at),
            4 => drop(bytes.splice(at..at, random.pick(PIECES).bytes())),
            5 => drop(bytes.splice(at..end, random.pick(PIECES).bytes())),
            6 => bytes.extend_from_slice(random.pick(others).reply.as_bytes()),
            7 => drop(bytes.splice(at..at, random.pick(others).reply.bytes())),
            8 => bytes.extend_from_within(at..end),
            _ => {
                let from = random.below(bytes.len() + 1);
                let (from, to) = (from.min(at), from.max(at));
                bytes[from..to].reverse();
            }
        }
        // Damage upon damage must not grow for ever.
        bytes.truncate(20_000);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn damaged_replies_hold_no_false_judgement() {
    let runs = runs();
    let (cases, garbage) = (cases(), expecting("retry"));
    let mut became: BTreeMap<&str, u64> = BTreeMap::new();
    let mut reading_took = Duration::ZERO;
    let (mut wrong, mut from_garbage, mut from_garbage_judged) = (Vec::new(), 0_u64, 0_u64);
    for seed in 0..runs {
        let mut random = Random(seed);
        let case = random.pick(&cases);
        // Garbage is mixed with garbage alone: what is a judgement then was not put there whole.
        let is_garbage = case.expect.verdict == "retry";
        let text = damaged(&case.reply, if is_garbage { &garbage } else { &cases }, &mut random);
        let started = Instant::now();
        let reading = read(case.format, &text);
        reading_took += started.elapsed();
        let kind = reading.verdict.verdict;
        *became.entry(kind.as_str()).or_default() += 1;
        let is_false = is_judgement(&reading) && !really_says(case.format, &text, kind);
        let is_odd = !(0.0..=1.0).contains(&reading.verdict.conf)
            || (kind == VerdictKind::NeedsChanges && reading.verdict.required_change.trim().is_empty())
            || (reading.failure.is_some() && kind != VerdictKind::Retry);
        from_garbage += u64::from(is_garbage);
        from_garbage_judged += u64::from(is_garbage && is_judgement(&reading));
        if is_false || is_odd {
            wrong.push(format!("seed {seed}: {kind} out of {text:?}"));
        }
    }
    println!("{runs} damaged replies, read at {:.0} a second; {became:?}", runs as f64 / reading_took.as_secs_f64());
    println!(
        "false judgements: {} ({:.7} of all); of {from_garbage} out of garbage {from_garbage_judged} were mended by the damage \
         into texts that do hold one",
        wrong.len(),
        wrong.len() as f64 / runs as f64,
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let judged = became.get("approved").unwrap_or(&0) + became.get("needs_changes").unwrap_or(&0);
    assert!(judged > runs / 50, "the reading is strict, not dead: {became:?}");
}

/// How often the tests run: as `REFILE_MUTATIONS` says.
fn runs() -> u64 {
    std::env::var("REFILE_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(FEW)
}

#[test]
fn the_strict_reader_reads_what_the_cases_say() {
    for case in cases() {
        let said = strict::read(case.format, &case.reply);
        let reading = read(case.format, &case.reply);
        if reading.failure.is_none() && reading.verdict.verdict != VerdictKind::Retry {
            assert!(said.as_ref().is_some_and(|said| said.is_what(&reading)), "{}: {said:?}, {reading:?}", case.name);
        }
    }
}

#[test]
fn a_valid_reply_that_is_damaged_in_one_place_says_what_a_strict_reader_reads_or_nothing() {
    let valid: Vec<Case> = cases()
        .into_iter()
        .filter(|case| {
            let reading = read(case.format, &case.reply);
            reading.failure.is_none() && reading.verdict.verdict != VerdictKind::Retry
        })
        .collect();
    let (mut wrong, mut same, mut another, mut nothing) = (Vec::new(), 0_u64, 0_u64, 0_u64);
    for seed in 0..runs() {
        let mut random = Random(seed ^ 0x005e_ed0f_57c1);
        let case = random.pick(&valid);
        let text = damaged_so_often(1, &case.reply, &valid, &mut random);
        let reading = read(case.format, &text);
        if reading.failure.is_some() || reading.verdict.verdict == VerdictKind::Retry {
            nothing += 1;
            continue;
        }
        // What the damage itself made of the reply, such as another confidence, is what it says now.
        let before = read(case.format, &case.reply);
        *if reading.verdict.verdict == before.verdict.verdict { &mut same } else { &mut another } += 1;
        let said = strict::read(case.format, &text);
        if !said.as_ref().is_some_and(|said| said.is_what(&reading)) {
            wrong.push(format!("seed {seed}, {}: {said:?} is not {:?} out of {text:?}", case.name, reading.verdict));
        }
    }
    println!("damaged in one place: {same} say the same kind, {another} another, {nothing} nothing");
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), runs(), wrong[..wrong.len().min(20)].join("\n"));
    assert!(same > runs() / 10 && nothing > runs() / 10, "the damage is neither harmless nor deadly");
}
