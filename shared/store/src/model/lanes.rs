//! What jobs take turns by, and what limits how many run at once.

use std::collections::BTreeMap;

use refile_core::Task;
use refile_core::task::Job;

/// What jobs share turns and limits by: repository, workflow, and the agent or the reviewer that does them; of land jobs
/// the base branch.
///
/// The lanes of one queue and priority take turns, so that a backlog in one does not hold up the others.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(String);

/// The last part of a lane of land jobs is this and the base branch.
const LAND: &str = "land:";

/// What the names of limits of landings begin with.
pub(crate) const LANDING: &str = "landing:";

/// Parts of a lane's name are joined by this; it is taken out of the parts.
pub(super) const UNIT: char = '\u{1f}';

impl Lane {
    /// The lane of a task's phase, by the job that the phase has.
    pub fn of(task: &Task, phase: &str) -> Self {
        let who = match task.phase(phase).and_then(|p| p.job.as_ref()) {
            Some(Job::Code { agent }) => format!("agent:{agent}"),
            Some(Job::Review { reviewer }) => format!("reviewer:{reviewer}"),
            Some(Job::Land) => format!("{LAND}{}", task.base),
            None => String::new(),
        };
        Self([&task.repository, &task.workflow, &who].map(|part| part.replace(UNIT, " ")).join("\u{1f}"))
    }

    /// The name under which an engine keeps it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads [`Lane::as_str`].
    pub fn parse(name: &str) -> Self {
        Self(name.to_owned())
    }
}

/// How many jobs may run at once in the whole fleet, by what they are done on and with. Empty for no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// By name: `repository:URL`, `workflow:NAME`, `agent:NAME`, `reviewer:NAME`, `provider:NAME`, and
    /// [`Limits::landing`].
    pub named: BTreeMap<String, u32>,
    /// Of each repository that is not named.
    pub each_repository: Option<u32>,
    /// Of landings on each base branch of each repository that is not named.
    pub each_landing: Option<u32>,
    /// Which providers (`provider:NAME`, each once) an agent (`agent:NAME`) or a reviewer (`reviewer:NAME`) calls. A job
    /// counts once against each.
    pub providers: BTreeMap<String, Vec<String>>,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.is_for_landings_alone() && self.each_landing.is_none()
    }

    /// Whether nothing but landings is limited.
    pub fn is_for_landings_alone(&self) -> bool {
        self.named.keys().all(|name| name.starts_with(LANDING)) && self.each_repository.is_none()
    }

    /// The name that landings on a base branch of a repository are limited by.
    pub fn landing(repository: &str, base: &str) -> String {
        format!("{LANDING}{} {base}", repository.replace(UNIT, " "))
    }

    /// The names whose limits a lane's jobs count against, with those limits.
    pub fn of(&self, lane: &Lane) -> Vec<(String, u32)> {
        let mut parts = lane.0.splitn(3, UNIT);
        let address = parts.next().unwrap_or_default();
        let repository = format!("repository:{address}");
        let workflow = format!("workflow:{}", parts.next().unwrap_or_default());
        let who = parts.next().unwrap_or_default().to_owned();
        let providers = self.providers.get(&who).cloned().unwrap_or_default();
        let most = |name: &String| {
            let each = self.each_repository.filter(|_| name.starts_with("repository:"));
            self.named.get(name).copied().or(each)
        };
        let landing = who.strip_prefix(LAND).map(|base| Self::landing(address, base));
        let landing = landing.and_then(|name| {
            let most = self.named.get(&name).copied().or(self.each_landing)?;
            Some((name, most))
        });
        let names = [repository, workflow, who].into_iter().chain(providers);
        names.filter_map(|n| most(&n).map(|most| (n, most))).chain(landing).collect()
    }
}
