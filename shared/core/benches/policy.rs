//! What the policy costs: a decision, the text of an attempt, the reading of a reply. Time and allocations of each.

#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fmt;

use common::{World, submitted};
use divan::counter::BytesCount;
use divan::{AllocProfiler, Bencher, black_box};
use refile_core::decide::submission::Workflow;
use refile_core::prompt::{Carry, prompt};
use refile_core::verdict::{Format, VerdictKind, read};
use refile_core::{Policy, Timestamp, decide};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// A task whose description has 1 KiB, in its first attempt or in a later one; each earlier one was refused in review.
fn world(attempts: u32) -> World {
    let mut world = World::new(Policy { max_attempts: 4, ..Policy::default() });
    world.task.description = "Handle the responses that it passes over. ".repeat(25);
    world.task.description.truncate(1_024);
    for attempt in 1..attempts {
        world.run(&format!("coded; needs_changes 0.9 Handle the responses with status {attempt}."));
    }
    assert_eq!(world.task.attempt_number(), attempts);
    world
}

#[divan::bench]
fn decide_submit(bencher: Bencher<'_, '_>) {
    let policy = Policy::default();
    bencher.bench(|| submitted(black_box(&policy), Workflow::default()));
}

/// Decides on `step`, on a task of which `before` is done in its last attempt.
fn decide_on(bencher: Bencher<'_, '_>, attempts: u32, before: &str, step: &str) {
    let mut world = world(attempts);
    world.run(before);
    let event = world.event(step);
    let World { task, policy, .. } = world;
    bencher.bench(|| decide(black_box(&task), black_box(&event), &policy, Timestamp(2_000)).unwrap());
}

#[divan::bench(args = [1, 3])]
fn decide_coded(bencher: Bencher<'_, '_>, attempts: u32) {
    decide_on(bencher, attempts, "", "coded");
}

#[divan::bench(args = [1, 3])]
fn decide_approved(bencher: Bencher<'_, '_>, attempts: u32) {
    decide_on(bencher, attempts, "coded", "approved 0.9");
}

#[divan::bench(args = [1, 3])]
fn decide_needs_changes(bencher: Bencher<'_, '_>, attempts: u32) {
    decide_on(bencher, attempts, "coded", "needs_changes 0.9 Handle what is left.");
}

/// What the counters change by.
#[divan::bench(args = [1, 3])]
fn deltas_of_approved(bencher: Bencher<'_, '_>, attempts: u32) {
    let mut world = world(attempts);
    world.run("coded");
    let before = world.task.clone();
    let transition = world.must("approved 0.9");
    bencher.bench(|| black_box(&transition).deltas(Some(black_box(&before))));
}

/// From the second attempt on, this is the refile text.
#[divan::bench(args = [1, 2, 3])]
fn prompt_of_attempt(bencher: Bencher<'_, '_>, attempts: u32) {
    let task = world(attempts).task;
    bencher.bench(|| prompt(black_box(&task), &task.phases[0], Carry::default()));
}

/// A reply and what it must be read as.
struct Reply {
    name: &'static str,
    format: Format,
    text: String,
    verdict: VerdictKind,
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

fn replies() -> Vec<Reply> {
    let short = r#"{"verdict": "needs_changes", "required_change": "Add a test.", "critique": "None.", "conf": 0.9}"#;
    let prose = "The client (see `fn fetch() {`) passes over what it should handle.\n".repeat(20);
    let in_prose = format!("{prose}\n```json\n{short}\n```\n\nThat is all.\n");
    let judge = r#"{"verdict": "fail", "summary": "It panics.", "findings": [], "required_fixes": ["Add a test."]}"#;
    let reply = |name, format, text: &str, verdict| Reply { name, format, text: text.to_owned(), verdict };
    vec![
        reply("json, short", Format::Json, short, VerdictKind::NeedsChanges),
        reply("json, in prose and fences", Format::Json, &in_prose, VerdictKind::NeedsChanges),
        reply("json, 20,000 brackets", Format::Json, &"{".repeat(20_000), VerdictKind::Retry),
        reply("judge", Format::Judge, judge, VerdictKind::NeedsChanges),
        reply("text", Format::Text, "FAIL: Add a test. The client passes over 429.", VerdictKind::NeedsChanges),
    ]
}

#[divan::bench(args = replies())]
fn read_reply(bencher: Bencher<'_, '_>, reply: &Reply) {
    assert_eq!(read(reply.format, &reply.text).verdict.verdict, reply.verdict, "{reply}");
    bencher.counter(BytesCount::of_str(&reply.text)).bench(|| read(reply.format, black_box(&reply.text)));
}
