//! What a worker is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use refile_config::Config;
use refile_config::schema::ReviewerType;
use refile_core::Queue;
use refile_forge::Forges;
use refile_store::artifacts::{Artifacts, Shelf};
use refile_store::{Claim, Limits, Store};
use refile_telemetry::{Health, Metrics};

use crate::backpressure::Backpressure;
use crate::executor::AtWork;
use crate::landings::Landings;
use crate::leftovers::Leftovers;
use crate::llm::Client;
use crate::pool::Pool;
use crate::secrets;
use crate::workspace::{Site, Workspace};

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Makes attempts and lands approved changes.
    Coder,
    /// Judges attempts.
    Reviewer,
}

impl Role {
    /// The name in metrics and presence.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Coder => "coder",
            Self::Reviewer => "reviewer",
        }
    }

    /// The queues that it serves where nothing else is said, first things first.
    pub fn queues(self) -> Vec<Queue> {
        match self {
            // An approved change is nearly done: it goes before a new attempt.
            Self::Coder => vec![Queue::Land, Queue::Code],
            Self::Reviewer => vec![Queue::Review],
        }
    }
}

/// A worker that can be run; it keeps nothing that a job needs later.
#[derive(Debug)]
pub struct Worker {
    /// Where jobs come from.
    pub store: Arc<dyn Store>,
    /// What the fleet is told to do.
    pub config: Arc<Config>,
    /// Where logs, diffs and replies go.
    pub artifacts: Artifacts,
    /// Where mirrors and trees lie.
    pub workspace: Workspace,
    /// The client for models.
    pub client: Client,
    /// What this process counts.
    pub metrics: Metrics,
    /// Whether it is alive and ready.
    pub health: Health,
    /// Its name, unique per start.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// The queues that it serves, first things first.
    pub queues: Vec<Queue>,
    /// Jobs at once.
    pub concurrency: usize,
}

impl Worker {
    /// Where the artifacts of a claim go.
    pub(crate) fn shelf(&self, Claim { lease, attempt, .. }: &Claim) -> Shelf {
        self.artifacts.shelf(&lease.task, &lease.phase, *attempt, lease.fence)
    }

    /// Where the job of a claim is done and what it is about.
    pub(crate) fn site<'a>(&'a self, claim: &'a Claim, artifacts: &'a Shelf) -> Site<'a> {
        Site {
            workspace: &self.workspace,
            shelf: artifacts,
            task: &claim.task,
            phase: &claim.lease.phase,
            attempt: claim.attempt,
            fence: claim.lease.fence,
            config_dir: &self.config.dir,
        }
    }

    /// The claim loop that does this worker's jobs.
    pub fn pool(self) -> Pool {
        let limits = Arc::new(limits(&self.config, &self.queues));
        let backpressure = Arc::new(Backpressure::new(self.store.clone(), self.config.clone(), limits));
        let forges = Arc::new(Forges::new(self.config.clone()));
        let workspace = self
            .workspace
            .clone()
            .with_forges(forges.clone())
            .keeping(secrets::of(&self.config).keys())
            .for_jobs(self.concurrency);
        if self.role == Role::Coder {
            workspace.look_ahead();
        }
        let worker = Arc::new(Self { client: self.client.behind(backpressure.clone()), workspace, ..self });
        Pool {
            store: worker.store.clone(),
            metrics: worker.metrics.clone(),
            health: worker.health.clone(),
            name: worker.name.clone(),
            role: worker.role,
            queues: worker.queues.clone(),
            concurrency: worker.concurrency,
            lease: worker.config.workers.lease.0,
            grace: worker.config.workers.grace.0,
            agent: Arc::new(AtWork {
                worker,
                backpressure,
                forges,
                landings: Landings::default(),
                leftovers: Leftovers::default(),
            }),
        }
    }
}

/// The configuration's limits as the store knows them.
fn limits(config: &Config, queues: &[Queue]) -> Limits {
    let section = &config.limits;
    let mut named: BTreeMap<String, u32> = section
        .repositories
        .iter()
        .map(|(url, most)| (format!("repository:{}", config.repository_url(url)), *most))
        .collect();
    for (kind, of_kind) in [
        ("workflow", &section.workflows),
        ("agent", &section.agents),
        ("reviewer", &section.reviewers),
        ("provider", &section.providers),
    ] {
        named.extend(of_kind.iter().map(|(name, most)| (format!("{kind}:{name}"), *most)));
    }
    // A panel counts once against each provider that its members call.
    let providers = |name: &String| {
        let models = config.asked_by(name).filter(|(_, reviewer)| reviewer.kind == ReviewerType::Llm);
        let called: BTreeSet<String> =
            models.filter_map(|(_, r)| r.provider.as_ref()).map(|provider| format!("provider:{provider}")).collect();
        (!called.is_empty()).then(|| (format!("reviewer:{name}"), called.into_iter().collect()))
    };
    let of_agents = config.agents.iter();
    let of_agents = of_agents.filter_map(|(name, agent)| {
        Some((format!("agent:{name}"), vec![format!("provider:{}", agent.provider.as_ref()?)]))
    });
    let providers = config.reviewers.keys().filter_map(providers).chain(of_agents).collect();
    // Whoever has one takes the rest of its batch to it; nobody else begins one on that branch meanwhile.
    let each_landing = queues.contains(&Queue::Land).then_some(1);
    Limits { named, each_repository: section.repository, each_landing, providers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_knows_limits_by_what_jobs_are_done_on_and_with() {
        let dir = tempfile::tempdir().unwrap();
        let text = "[limits]\nrepository = 4\nrepositories = { \"https://h/a.git\" = 2, sub = 1 }\n\
                    workflows = { change = 20 }\nagents = { a = 8 }\nreviewers = { r = 3 }\nproviders = { p = 5 }\n\
                    [agents.a]\ncommand = [\"x\"]\n[reviewers.r]\ncommand = [\"x\"]\n\
                    [agents.l]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m\"\n\
                    [reviewers.m]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m\"\n[providers.p]\nkind = \"openai\"\n";
        std::fs::write(dir.path().join("refile.toml"), text).unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let (config, _) = refile_config::load(Some(&dir.path().join("refile.toml")), [], &[]).unwrap();
        assert_eq!(limits(&config, &Role::Coder.queues()).each_landing, Some(1));
        let limits = limits(&config, &Role::Reviewer.queues());
        assert_eq!(limits.each_landing, None);
        assert_eq!(limits.each_repository, Some(4));
        let calls = ["agent:l", "reviewer:m"].map(|who| (who.to_owned(), vec!["provider:p".to_owned()]));
        assert_eq!(limits.providers, calls.into());
        let sub = dir.path().canonicalize().unwrap().join("sub");
        let sub = format!("repository:{}", sub.display());
        let expected = [
            ("repository:https://h/a.git", 2),
            (sub.as_str(), 1),
            ("workflow:change", 20),
            ("agent:a", 8),
            ("reviewer:r", 3),
            ("provider:p", 5),
        ];
        assert_eq!(limits.named, expected.map(|(name, most)| (name.to_owned(), most)).into());
    }
}
