//! `refile.toml`: one file that tells every process of the fleet what to do.
//!
//! # Layout
//! - [`schema`]: the file's sections and keys, with their defaults
//! - [`load`](fn@load): flags over environment over file over defaults
//! - [`agents`]: what a coder may do and use up, and what it cannot be told
//! - `reviewers`: who is asked in whose turn, and what a reviewer cannot be told
//! - `fields`: which fields each type of reviewer uses
//! - `addresses`: whether addresses are some at all
//! - `nearest`: the known name that somebody may have meant
//! - `variables`: environment variables that nothing reads
//! - [`show`]: where each value comes from
//! - [`duration`]: `"30m"` as a value
//! - [`threshold`]: `0.7` or `"q20"` as a value
//! - [`bounds`]: what commands may use up and reach, and what a change may hold
//! - [`inputs`]: what a reviewer is given to judge by
//! - [`presets`]: the coding agents that are known by name
//! - [`prices`]: what models cost
//! - [`forge`]: GitHub, Gitea, Forgejo or GitLab

pub mod duration;
pub mod threshold;
pub mod bounds;
pub mod inputs;
pub mod presets;
pub mod prices;
pub mod forge;
pub mod agents;
pub mod schema;
mod load;
mod reviewers;
mod fields;
mod addresses;
mod nearest;
mod variables;
pub mod show;

pub use agents::{Bounds, Tool};
pub use duration::Span;
pub use forge::{ForgeKind, ForgeSection, Merging};
pub use inputs::{Answer, Input, Require};
pub use load::{ConfigError, FILE_NAME, Override, load};
pub use nearest::nearest;
pub use presets::Preset;
pub use prices::{Price, Prices};
pub use schema::{Agent, Baseline, Config, Gate, Land, Provider, Reviewer, Strategy};
pub use threshold::Threshold;
pub use variables::environment;
