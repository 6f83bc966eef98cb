//! `refile.toml`: one file that tells every process of the fleet what to do.
//!
//! # Layout
//! - [`schema`]: the file's sections and keys, with their defaults
//! - [`load`](fn@load): flags over environment over file over defaults
//! - `reviewers`: who is asked in whose turn, and what a reviewer cannot be told
//! - [`show`]: where each value comes from
//! - [`duration`]: `"30m"` as a value
//! - [`threshold`]: `0.7` or `"q20"` as a value
//! - [`inputs`]: what a reviewer is given to judge by
//! - [`prices`]: what models cost

pub mod duration;
pub mod threshold;
pub mod inputs;
pub mod prices;
pub mod schema;
mod load;
mod reviewers;
pub mod show;

pub use duration::Span;
pub use inputs::{Answer, Input, Require};
pub use load::{ConfigError, FILE_NAME, Override, load};
pub use prices::{Price, Prices};
pub use schema::{Agent, Config, Gate, Land, Provider, Reviewer, Strategy};
pub use threshold::Threshold;
