//! Open tasks beside those that are done: they are kept, indexed and counted, and not due for a week, so that nobody claims
//! them.

use std::sync::Arc;
use std::time::Duration;

use refile_config::Config;
use refile_coordinator::now;
use refile_core::decide::submission::{NewTask, submit as first_transition};
use refile_core::{Priority, TaskId};
use refile_store::commit::commit;
use refile_store::{Commit, JobChange, Store};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::crew::Crew;
use super::latency::now_us;
use super::load::Load;
use super::member::{Figures, Kind, Said};
use super::{Plan, progress};

/// Tasks that are submitted in one call.
const BATCH: u64 = 500;
/// When they are due: long after the run.
const DUE: Duration = Duration::from_hours(7 * 24);

/// Submits the plan's backlog, and waits until it is there.
pub(super) async fn fill(plan: &Plan, store: Option<Arc<dyn Store>>) -> anyhow::Result<()> {
    let bar = progress("backlog", plan.backlog);
    let mut crew = Crew::start(vec![plan.spec(Kind::Backlog, plan.backlog)], store).await?;
    crew.go(&[Kind::Backlog], &bar).await?;
    crew.stop().await?;
    bar.finish_and_clear();
    Ok(())
}

/// Submits every task of the load, none of them due.
pub(super) async fn submit(
    store: Arc<dyn Store>,
    load: Load,
    say: &mpsc::UnboundedSender<Said>,
    stop: &CancellationToken,
) -> anyhow::Result<Figures> {
    let config = Config::default();
    let policy = config.policy();
    let first_us = now_us();
    let mut from = 0;
    while from < load.tasks && !stop.is_cancelled() {
        let to = load.tasks.min(from + BATCH);
        let later = |number| {
            let new =
                NewTask { repository: "backlog".to_owned(), priority: Priority::Low, ..load.task(number, first_us) };
            let id = TaskId::from_bits(uuid::Uuid::new_v4().as_u128() as u64);
            put_off(commit(first_transition(id, new, &policy, now()), None, None))
        };
        store.submit(&(from..to).map(later).collect::<Vec<_>>()).await?;
        from = to;
        let _ = say.send(Said::Progress(from));
    }
    let _ = say.send(Said::Done);
    Ok(Figures { first_us, ..Figures::default() })
}

/// The same with jobs that are due much later.
fn put_off(mut commit: Commit) -> Commit {
    for job in &mut commit.jobs {
        if let JobChange::Put { delay_ms, .. } = job {
            *delay_ms = DUE.as_millis() as u64;
        }
    }
    commit
}
