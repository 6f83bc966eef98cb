//! What coders and reviewers do with a job: run agents, gates and judges, and bring approved changes to the base branch.
//!
//! # Layout
//!
//! Read in this order; what is listed here takes values and returns values, and knows no store:
//! - [`process`]: one command, in a process group of its own
//! - [`git`]: mirrors, trees, snapshots and merges; the only place that runs git
//! - `disk`: what is free on a disk
//! - `spares`: trees that are checked out ahead
//! - [`secrets`]: what must not show in what is kept
//! - [`workspace`]: where mirrors and the attempts' trees lie
//! - [`agent`]: runs a coder's agent on its prompt
//! - [`gates`]: checks that need no model
//! - [`code`](mod@code): a `code` job from its tree to its outcome
//! - [`judge`]: what a reviewer is given, and how a command or a model is asked
//! - [`llm`]: the providers' wire formats
//! - [`review`](mod@review): a `review` job from the change to its outcome
//! - [`land`](mod@land): a `land` job: approved changes come to the base branch, or to a pull request
//!
//! And what runs them:
//! - [`backpressure`]: what the whole fleet knows of its providers
//! - [`worker`]: what a worker is made of
//! - `landings`: land jobs that were claimed together
//! - `leftovers`: attempt branches of tasks that are over
//! - [`executor`]: a claimed job, made into values for the parts above
//! - [`pool`]: the claim loop: leases, heartbeats, shutdown
//! - [`service`]: a worker as a process

pub mod process;
pub mod git;
mod disk;
mod spares;
pub mod secrets;
pub mod workspace;
pub mod agent;
pub mod gates;
pub mod code;
pub mod judge;
pub mod llm;
pub mod review;
pub mod land;
pub mod backpressure;
pub mod worker;
mod landings;
mod leftovers;
pub mod executor;
pub mod pool;
pub mod service;
