//! What makes the next look at the forge come before its time.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use refile_core::TaskId;
use tokio::sync::Notify;

/// Wishes for a look, told by the parts of a coordinator that know of something new.
#[derive(Debug, Default)]
pub struct Look {
    wanted: Mutex<Wanted>,
    told: Notify,
}

/// What is to be looked at.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Everything.
    pub(super) all: bool,
    /// The pull requests of these.
    pub(super) tasks: BTreeSet<TaskId>,
}

impl Look {
    /// Something happened on the forge, and it is not known what.
    pub fn at_all(&self) {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).all = true;
        self.told.notify_one();
    }

    /// Something happened to these tasks that their pull requests want to know.
    pub fn at(&self, tasks: BTreeSet<TaskId>) {
        if !tasks.is_empty() {
            self.wanted.lock().unwrap_or_else(PoisonError::into_inner).tasks.extend(tasks);
            self.told.notify_one();
        }
    }

    /// Waits for a wish.
    pub(super) async fn asked(&self) {
        self.told.notified().await;
    }

    /// The wishes so far.
    pub(super) fn take(&self) -> Wanted {
        std::mem::take(&mut self.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
