//! What a reviewer is given, and how a command or a model is asked for its verdict.
//!
//! # Layout
//! - [`packet`]: the bounded, delimited text that every reviewer gets
//! - [`command`]: a program as a reviewer
//! - [`llm`]: a model as a reviewer

pub mod packet;
pub mod command;
pub mod llm;

use refile_core::failure::Failure;
use refile_core::task::{Call, Usage};
use refile_core::verdict::Verdict;

/// What came of asking a reviewer.
#[derive(Debug, Clone, PartialEq)]
pub struct Opinion {
    /// The verdict, or why there is none.
    pub verdict: Result<Verdict, Failure>,
    /// Everything that was replied, verbatim.
    pub reply: Option<String>,
    /// The calls of models that it took.
    pub calls: Vec<Call>,
    /// What it used up.
    pub usage: Usage,
}
