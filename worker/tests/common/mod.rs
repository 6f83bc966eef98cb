//! Real repositories in temporary folders.
#![allow(dead_code, unreachable_pub)]

pub mod fleet;
mod git;
pub mod git_server;
pub mod model;
pub mod processes;
pub mod tools;

use std::path::PathBuf;

pub use git::git;
use refile_worker::git::Mirror;
use refile_worker::process::Guard;
use refile_worker::workspace::Workspace;

/// A repository on `main`, and a worker's folder.
pub struct Place {
    pub root: tempfile::TempDir,
    pub origin: PathBuf,
    pub workspace: Workspace,
}

impl Place {
    /// A repository with a work tree, whose `main` is checked out.
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let origin = root.path().join("origin");
        std::fs::create_dir(&origin).unwrap();
        git(&origin, &["init", "-q", "-b", "main"]);
        let workspace = Workspace::open(&root.path().join("work")).unwrap();
        let place = Self { root, origin, workspace };
        place.commit(&[("a.txt", "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n"), ("b.txt", "b\n")]);
        place
    }

    /// The same as a bare repository, beside the one that the test commits to.
    pub fn bare() -> Self {
        let mut place = Self::new();
        let bare = place.root.path().join("bare.git");
        git(place.root.path(), &["clone", "-q", "--bare", "origin", "bare.git"]);
        place.origin = bare;
        place
    }

    /// A place whose commands run in the sandbox, which must work: `.ci/tools` installs it. `more` goes on the configuration.
    pub async fn guarded(more: &str) -> Self {
        let mut place = Self::bare();
        place.workspace = place.workspace.clone().guarded(place.guard(more).await, u64::MAX);
        place
    }

    pub async fn guard(&self, more: &str) -> std::sync::Arc<Guard> {
        let file = self.root.path().join("refile.toml");
        std::fs::write(&file, format!("sandbox = \"required\"\n[workers]\ndir = \"work\"\n{more}")).unwrap();
        let (config, _) = refile_config::load(Some(&file), [], &[]).unwrap();
        Guard::start(&config).await.unwrap()
    }

    pub fn url(&self) -> String {
        self.origin.to_str().unwrap().to_owned()
    }

    pub async fn mirror(&self) -> Mirror {
        self.workspace.mirror(&self.url()).await.unwrap()
    }

    /// Commits files to `main`; an empty text removes a file.
    pub fn commit(&self, files: &[(&str, &str)]) -> String {
        let dir = self.root.path().join("origin");
        for (name, text) in files {
            if text.is_empty() {
                std::fs::remove_file(dir.join(name)).unwrap();
            } else {
                std::fs::write(dir.join(name), text).unwrap();
            }
        }
        git(&dir, &["add", "-A"]);
        git(&dir, &["commit", "-q", "-m", "change by hand"]);
        if self.origin != dir {
            git(&dir, &["push", "-q", self.origin.to_str().unwrap(), "main"]);
        }
        self.head("main")
    }

    /// A commit on `main` that changes nothing.
    pub fn commit_on_top(&self) {
        let dir = self.root.path().join("origin");
        git(&dir, &["pull", "-q", self.origin.to_str().unwrap(), "main"]);
        git(&dir, &["commit", "-q", "--allow-empty", "-m", "on top"]);
        git(&dir, &["push", "-q", self.origin.to_str().unwrap(), "main"]);
    }

    pub fn head(&self, branch: &str) -> String {
        git(&self.origin, &["rev-parse", "--verify", &format!("refs/heads/{branch}")])
    }

    pub fn show(&self, what: &str) -> String {
        git(&self.origin, &["show", what])
    }

    pub fn branches(&self) -> Vec<String> {
        let listed = git(&self.origin, &["for-each-ref", "--format=%(refname:short)", "refs/heads"]);
        listed.lines().map(str::to_owned).collect()
    }
}
