//! What commands may use up and reach, and what a change may hold.

use serde::{Deserialize, Serialize};

use crate::duration::Span;

/// Whether agents, gates and command reviewers run in a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// Where it works; where it does not, that is said at the start.
    #[default]
    Auto,
    /// Nothing starts where it does not work.
    Required,
    /// Never.
    Off,
}

/// What one command may use up; 0 is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessLimits {
    /// Processor time of each process.
    pub cpu: Span,
    /// Memory in bytes: of the whole command where there are control groups, else of each process.
    pub memory_bytes: u64,
    /// Processes and threads at once.
    pub processes: u64,
    /// Open files of each process.
    pub open_files: u64,
    /// The largest file that it may write, in bytes.
    pub file_bytes: u64,
    /// What is kept of its output, in bytes: a fifth from the beginning, the rest from the end.
    pub output_bytes: usize,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        Self {
            cpu: Span::seconds(3_600),
            memory_bytes: 8 << 30,
            processes: 2_048,
            open_files: 16_384,
            file_bytes: 4 << 30,
            output_bytes: 5 << 20,
        }
    }
}

/// What a change may hold, beside what none may: links out of the tree, `.git` paths, submodules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiffPolicy {
    /// How large the files that it adds or changes may be together, in bytes.
    pub max_bytes: u64,
    /// How many files it may touch.
    pub max_files: usize,
    /// The largest binary file that it may add or change, in bytes; 0 for none at all.
    pub binaries: u64,
    /// Paths that it must not touch: `*` stands for anything within a name, `**` for any folders, `?` for one character.
    pub forbidden: Vec<String>,
}

impl Default for DiffPolicy {
    fn default() -> Self {
        Self { max_bytes: 16 << 20, max_files: 2_000, binaries: 1 << 20, forbidden: Vec::new() }
    }
}

/// The copies of repositories that a worker keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkspaceSection {
    /// How large they may be together, in bytes; above it those that were not used for longest are removed.
    pub max_bytes: u64,
    /// With less than this free on the disk of the worker's folder no job begins, and with half of it what runs is stopped,
    /// in bytes: the store and the artifacts may lie on the same disk.
    pub min_free_bytes: u64,
}

impl Default for WorkspaceSection {
    fn default() -> Self {
        Self { max_bytes: 20 << 30, min_free_bytes: 512 << 20 }
    }
}

/// Holds that the limits let something run.
pub(crate) fn check(limits: &ProcessLimits, policy: &DiffPolicy) -> Result<(), String> {
    if limits.cpu < Span::seconds(1) && limits.cpu.as_millis() > 0 {
        return Err("limits.process.cpu must be at least 1s; 0s for no limit".to_owned());
    }
    if limits.output_bytes < 10_000 {
        return Err("limits.process.output_bytes must be at least 10000".to_owned());
    }
    // Below these a shell does not even start.
    for (key, value, least) in [
        ("memory_bytes", limits.memory_bytes, 16 << 20),
        ("processes", limits.processes, 8),
        ("open_files", limits.open_files, 16),
    ] {
        if value > 0 && value < least {
            return Err(format!("limits.process.{key} must be at least {least}; 0 for no limit"));
        }
    }
    if policy.max_files == 0 || policy.max_bytes == 0 {
        return Err("diff_policy.max_files and diff_policy.max_bytes must be at least 1".to_owned());
    }
    match policy.forbidden.iter().find(|glob| glob.trim().is_empty() || glob.starts_with('/')) {
        Some(glob) => {
            Err(format!("diff_policy.forbidden: `{glob}` matches nothing; paths start at the repository's top"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::Sandbox;
    use crate::load::tests::{check_error, load_text};

    #[test]
    fn limits_that_let_nothing_run_are_refused() {
        check_error("[limits.process]\ncpu = \"10ms\"\n", &["limits.process.cpu"]);
        check_error("[limits.process]\nprocesses = 1\n", &["limits.process.processes", "at least 8"]);
        check_error("[limits.process]\noutput_bytes = 1\n", &["output_bytes"]);
        check_error("[diff_policy]\nmax_files = 0\n", &["diff_policy.max_files"]);
        check_error("[diff_policy]\nforbidden = [\"/etc\"]\n", &["`/etc`"]);
        check_error("sandbox = \"on\"\n", &["on", "auto"]);
        let text = "sandbox = \"required\"\n[limits.process]\nprocesses = 0\n[workspace]\nmax_bytes = 5\n";
        let (config, _) = load_text(text, &[("REFILE_SANDBOX", "off")], &[]).unwrap();
        assert_eq!((config.sandbox, config.limits.process.processes), (Sandbox::Off, 0));
    }
}
