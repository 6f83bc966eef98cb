//! stub
use super::{Job, Ran};
use refile_core::failure::{Failure, FailureKind};
pub(super) async fn run(_job: &Job<'_>) -> Ran {
    Ran::not_started(Failure::new(FailureKind::Configuration, "todo"))
}
