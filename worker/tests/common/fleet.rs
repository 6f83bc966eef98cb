//! A task in a [`Place`], and what code and land jobs make of it.

use std::time::Duration;

use indexmap::IndexMap;
use refile_config::bounds::DiffPolicy;
use refile_config::{Agent, Baseline, Gate, Provider, Span, Strategy};
use refile_core::decide::submission::{NewTask, Workflow, submit};
use refile_core::event::Actor;
use refile_core::task::{Approval, Change};
use refile_core::{Outcome, Policy, Priority, Task, TaskId, Timestamp};
use refile_store::artifacts::{Artifacts, Shelf};
use refile_worker::agent::LONG_RUN;
use refile_worker::code::{CodeJob, code};
use refile_worker::land::{LandJob, Leases, land, land_together};
use refile_worker::llm::Client;

use refile_worker::workspace::Site;

use super::Place;

/// An agent that runs a shell script.
pub fn agent(script: &str) -> Agent {
    Agent {
        command: vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
        timeout: Span::seconds(60),
        ..Agent::default()
    }
}

/// The client for models.
pub fn client() -> Client {
    refile_telemetry::process::install_tls();
    Client::new().unwrap()
}

pub fn gate(name: &str, run: &str) -> Gate {
    Gate {
        setup: false,
        name: name.to_owned(),
        run: run.to_owned(),
        timeout: Span::seconds(60),
        network: None,
        required_change: None,
        retries: 0,
        baseline: Baseline::Fail,
    }
}

/// What is submitted of the task of this name.
pub fn wanted(place: &Place, id: &str) -> NewTask {
    NewTask {
        title: format!("Do {id}"),
        description: "Do it well.".to_owned(),
        repository: place.url(),
        base: "main".to_owned(),
        priority: Priority::Normal,
        key: None,
        labels: Vec::new(),
        workflow: Workflow::default(),
    }
}

pub fn task(place: &Place, id: &str) -> Task {
    submit(TaskId::parse(id).unwrap(), wanted(place, id), &Policy::default(), Timestamp(1)).task
}

pub fn artifacts(place: &Place) -> Artifacts {
    Artifacts::open("file:artifacts", place.root.path()).unwrap()
}

pub fn shelf_of(place: &Place, task: &Task, fence: u64) -> Shelf {
    artifacts(place).shelf(&task.id, "change", 1, fence)
}

/// One attempt.
pub struct Try<'a> {
    pub attempt: u32,
    pub continue_from: Option<&'a Change>,
    pub kept: Option<&'a Change>,
    /// How long a run lasts that must have done work.
    pub long_run: Duration,
    pub agent: Agent,
    pub gates: Vec<Gate>,
    pub keep_going: bool,
    pub providers: IndexMap<String, Provider>,
    pub diff_policy: DiffPolicy,
}

impl Try<'_> {
    pub fn script(script: &str) -> Self {
        Self {
            attempt: 1,
            continue_from: None,
            kept: None,
            long_run: LONG_RUN,
            agent: agent(script),
            gates: Vec::new(),
            keep_going: false,
            providers: IndexMap::new(),
            diff_policy: DiffPolicy::default(),
        }
    }

    pub async fn run(&self, place: &Place, task: &Task) -> Outcome {
        let fence = u64::from(self.attempt) * 10;
        let kept = shelf_of(place, task, fence);
        code(&CodeJob {
            site: site(place, &kept, task, self.attempt, fence),
            prompt: "Do it well.",
            continue_from: self.continue_from,
            kept: self.kept,
            long_run: self.long_run,
            name: "scripted",
            agent: &self.agent,
            providers: &self.providers,
            client: &client(),
            gates: &self.gates,
            keep_going: self.keep_going,
            diff_policy: &self.diff_policy,
        })
        .await
    }

    /// The change of an attempt that must leave one, with every gate passed.
    pub async fn change(&self, place: &Place, task: &Task) -> Change {
        match self.run(place, task).await {
            Outcome::Coded { change, gates, .. } => {
                assert!(gates.iter().all(|g| g.passed), "{gates:?}");
                change
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn approval(change: &Change) -> Approval {
    Approval {
        by: Actor::Reviewer("strict".to_owned()),
        attempt: 1,
        head: change.head.clone(),
        patch_id: change.patch_id.clone(),
        overrides_gates: false,
        landed: None,
        called_off: None,
    }
}

pub async fn land_with(place: &Place, task: &Task, change: &Change, approval: &Approval, gates: &[Gate]) -> Outcome {
    land_as(Strategy::Squash, place, task, change, approval, gates).await
}

pub async fn land_as(
    strategy: Strategy,
    place: &Place,
    task: &Task,
    change: &Change,
    approval: &Approval,
    gates: &[Gate],
) -> Outcome {
    let shelf = shelf_of(place, task, 90);
    land(&LandJob { site: site(place, &shelf, task, 1, 90), approval, change, gates, strategy }).await
}

/// An approved change.
pub struct Approved {
    pub task: Task,
    pub change: Change,
    pub approval: Approval,
}

impl Approved {
    /// What a script makes of the base as it is now.
    pub async fn new(place: &Place, id: &str, script: &str) -> Self {
        let task = task(place, id);
        let change = Try::script(script).change(place, &task).await;
        let approval = approval(&change);
        Self { task, change, approval }
    }
}

/// Lands several in one batch.
pub async fn land_all(
    strategy: Strategy,
    place: &Place,
    approved: &[Approved],
    gates: &[Gate],
    leases: &dyn Leases,
) -> Vec<Outcome> {
    let shelves: Vec<Shelf> = approved.iter().map(|a| shelf_of(place, &a.task, 90)).collect();
    let jobs: Vec<LandJob<'_>> = approved
        .iter()
        .zip(&shelves)
        .map(|(Approved { task, change, approval }, shelf)| {
            let site = site(place, shelf, task, 1, 90);
            LandJob { site, approval, change, gates, strategy }
        })
        .collect();
    land_together(&jobs, leases).await
}

pub async fn land_change(place: &Place, task: &Task, change: &Change) -> Outcome {
    land_with(place, task, change, &approval(change), &[]).await
}

pub fn site<'a>(place: &'a Place, shelf: &'a Shelf, task: &'a Task, attempt: u32, fence: u64) -> Site<'a> {
    let (workspace, config_dir) = (&place.workspace, place.root.path());
    Site { workspace, shelf, task, phase: "change", attempt, fence, config_dir }
}

/// The commit that landed.
#[track_caller]
pub fn landed(outcome: Outcome) -> String {
    match outcome {
        Outcome::Landed { commit } => commit,
        other => panic!("{other:?}"),
    }
}
