//! What it costs to write a record and to read one: time per byte, and allocations.

#![allow(clippy::unwrap_used)]

#[path = "../tests/suite/kit.rs"]
#[allow(dead_code)]
mod kit;

use std::fmt;

use divan::counter::BytesCount;
use divan::{AllocProfiler, Bencher, black_box};
use kit::{coded, id, new_task, reviewed};
use refile_core::decide::submission::{NewTask, submit};
use refile_core::verdict::VerdictKind;
use refile_core::{Event, Outcome, Policy, Task, Timestamp, decide};
use refile_store::envelope::{decode, encode};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Something that is written, and its name.
struct Named<T>(&'static str, T);

impl<T> fmt::Display for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A task as it is after these outcomes. Its description has 1 KiB.
fn task(outcomes: &[Outcome]) -> Task {
    let mut description = "Handle the responses that it passes over. ".repeat(25);
    description.truncate(1_024);
    let new = NewTask { description, ..new_task("Handle 429") };
    let mut task = submit(id("0123456789ab"), new, &Policy::default(), Timestamp(1)).task;
    for outcome in outcomes {
        let phase = &task.phases[0];
        let (phase, attempt) = (phase.name.clone(), phase.attempt_number());
        let event = Event::Outcome { phase, attempt, outcome: outcome.clone() };
        task = decide(&task, &event, &Policy::default(), Timestamp(2)).unwrap().task;
    }
    task
}

fn tasks() -> Vec<Named<Task>> {
    let first = [coded("one"), reviewed(VerdictKind::NeedsChanges, "one")];
    let both = [first.clone(), [coded("two"), reviewed(VerdictKind::Approved, "two")]].concat();
    vec![
        Named("fresh", task(&[])),
        Named("refiled after a review", task(&first)),
        Named("accepted in the second attempt", task(&both)),
    ]
}

fn outcomes() -> Vec<Named<Outcome>> {
    vec![Named("coded", coded("one")), Named("reviewed", reviewed(VerdictKind::NeedsChanges, "one"))]
}

#[divan::bench(args = tasks())]
fn encode_task(bencher: Bencher<'_, '_>, Named(_, task): &Named<Task>) {
    let bytes = encode(task).unwrap().len();
    bencher.counter(BytesCount::new(bytes)).bench(|| encode(black_box(task)).unwrap());
}

#[divan::bench(args = tasks())]
fn decode_task(bencher: Bencher<'_, '_>, Named(_, task): &Named<Task>) {
    let bytes = encode(task).unwrap();
    bencher.counter(BytesCount::of_slice(&bytes)).bench(|| decode::<Task>(black_box(&bytes)).unwrap());
}

#[divan::bench(args = outcomes())]
fn encode_outcome(bencher: Bencher<'_, '_>, Named(_, outcome): &Named<Outcome>) {
    let bytes = encode(outcome).unwrap().len();
    bencher.counter(BytesCount::new(bytes)).bench(|| encode(black_box(outcome)).unwrap());
}

#[divan::bench(args = outcomes())]
fn decode_outcome(bencher: Bencher<'_, '_>, Named(_, outcome): &Named<Outcome>) {
    let bytes = encode(outcome).unwrap();
    bencher.counter(BytesCount::of_slice(&bytes)).bench(|| decode::<Outcome>(black_box(&bytes)).unwrap());
}
