//! The policy of Refile, and nothing else: what a task is, what may happen to it, and what follows.
//!
//! Everything here is a value or a pure function. This crate does no input or output, reads no clock, draws no random
//! number and knows no runtime; `tests/purity.rs` holds it to that.
//!
//! # Layout
//!
//! Read in this order:
//! - [`id`]: names of tasks and points in time
//! - [`task`]: the record: a task, its phases, their attempts, and what people decided
//! - [`person`]: what people can decide
//! - [`verdict`]: what a reviewer says, and [`verdict::read`], which reads it out of a reply
//! - [`gate`]: deterministic checks and the imperative that each failure turns into
//! - [`failure`]: why a model, an agent or a forge did not do its part; never charged to the coder
//! - [`event`]: everything that can happen to a task
//! - [`policy`]: the limits that a fleet sets
//! - [`mod@decide`]: `decide(task, event, policy, now) -> Transition`, the heart of the product
//! - [`prompt`]: the text that an attempt starts with; a rejection leads it
//! - [`growth`]: whether changes grow from attempt to attempt
//! - [`panel`]: several opinions made into one
//! - [`calibration`]: reviewers' verdicts against what became of them
//! - [`count`]: what is counted, as durable counters and gauges

pub mod id;
pub mod task;
pub mod person;
pub mod verdict;
pub mod gate;
pub mod failure;
pub mod event;
pub mod policy;
pub mod decide;
pub mod prompt;
pub mod growth;
pub mod panel;
pub mod calibration;
pub mod count;
mod names;
mod text;

pub use decide::{Effect, Refusal, Transition, decide, possible};
pub use event::{Event, Outcome};
pub use id::{TaskId, Timestamp};
pub use policy::Policy;
pub use task::{Job, Phase, PhaseState, Priority, Queue, Task, TaskState};
pub use text::counted;
