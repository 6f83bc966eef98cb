//! A transition of the core as one atomic step of the store.

use refile_core::{Effect, Task, Transition};

use crate::model::{Commit, Guard, JobChange, Lane};

/// Makes the step. `before` is the record that was decided on and its version; nothing for a new task.
pub fn commit(transition: Transition, before: Option<(&Task, u64)>, guard: Option<Guard>) -> Commit {
    let deltas = transition.deltas(before.map(|(task, _)| task));
    let notices = transition.notices().cloned().collect();
    let jobs = transition
        .effects
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Enqueue { phase, queue, attempt, delay_ms } => {
                let lane = Lane::of(&transition.task, &phase);
                Some(JobChange::Put { phase, queue, attempt, delay_ms, lane })
            }
            Effect::Drop { phase } => Some(JobChange::Drop { phase }),
            Effect::Notify(_) | Effect::Count(_) => None,
        })
        .collect();
    Commit { task: transition.task, version: before.map_or(0, |(_, version)| version), guard, jobs, notices, deltas }
}
