//! Where a worker keeps its files: mirrors of repositories, and the trees of the jobs that are going on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use refile_config::Config;
use refile_core::{Task, TaskId};
use refile_forge::Forges;
use refile_store::artifacts::Shelf;

use crate::git::{self, GitError, Mirror, Tree, housekeeping, names, tree};
use crate::process::{self, Guard, Secrets};
use crate::spares::Spares;

/// How often the mirrors are looked at.
const HOUSEKEEPING: Duration = Duration::from_mins(10);

/// How long after a tree was made the next one is checked out.
const AFTER_A_TREE: Duration = Duration::from_secs(1);

/// Holds that a repository is there and has a branch, as the fleet of this configuration will see it.
pub async fn require_branch(config: &Arc<Config>, url: &str, branch: &str) -> Result<(), GitError> {
    git::require_branch(url, branch, Forges::new(config.clone()).login(url)).await
}

/// A worker's folder. Several processes may share one.
#[derive(Debug, Clone)]
pub struct Workspace {
    dir: PathBuf,
    forges: Option<Arc<Forges>>,
    guard: Option<Arc<Guard>>,
    /// How large all that lies in the folder may be, in bytes.
    max_bytes: u64,
    spares: Spares,
    secrets: Secrets,
    /// When the mirrors were looked at last.
    kept: Arc<Mutex<Option<Instant>>>,
}

/// Where a job is done and what it is about: what a job of every kind is given.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// Where mirrors and trees lie.
    pub workspace: &'a Workspace,
    /// Where this claim's artifacts go.
    pub shelf: &'a Shelf,
    /// The task.
    pub task: &'a Task,
    /// The phase's name.
    pub phase: &'a str,
    /// The attempt's number.
    pub attempt: u32,
    /// The claim's fence.
    pub fence: u64,
    /// Where the configuration's relative paths start.
    pub config_dir: &'a Path,
}

impl<'a> Site<'a> {
    /// The claim that the job is done under.
    pub fn claim(&self) -> Claim<'a> {
        Claim { task: &self.task.id, phase: self.phase, attempt: self.attempt, fence: self.fence }
    }

    /// The mirror of the task's repository.
    pub async fn mirror(&self) -> Result<Mirror, GitError> {
        self.workspace.mirror(&repository(self.config_dir, &self.task.repository)).await
    }
}

/// What one claim of a job is about; names its tree and its branch.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// The phase.
    pub phase: &'a str,
    /// The attempt.
    pub attempt: u32,
    /// The claim's fence.
    pub fence: u64,
}

impl Claim<'_> {
    /// The environment of a command that works on this claim: what every command gets, what was asked for, and what
    /// tells it which attempt it works on.
    pub fn environment(&self, base: &str, asked: &[String]) -> Vec<(OsString, OsString)> {
        let mut env = process::environment(asked);
        let mut set = |name: &str, value: String| env.push((name.into(), value.into()));
        set("REFILE_TASK_ID", self.task.to_string());
        set("REFILE_PHASE", self.phase.to_owned());
        set("REFILE_ATTEMPT", self.attempt.to_string());
        set("REFILE_BASE", base.to_owned());
        env
    }

    /// The attempt branch of this claim.
    pub fn branch(&self) -> Result<String, GitError> {
        names::attempt_branch(self.task, self.phase, self.attempt, self.fence)
    }
}

/// A repository's address as git can reach it from anywhere: a relative path is one from the configuration's folder.
pub(crate) fn repository(config_dir: &Path, url: &str) -> String {
    if !names::is_local(url) || url.starts_with("file://") || url.starts_with('-') {
        return url.to_owned();
    }
    let path = config_dir.join(url);
    path.canonicalize().or_else(|_| std::path::absolute(&path)).unwrap_or(path).to_string_lossy().into_owned()
}

impl Workspace {
    /// A worker's folder; it is made where it is missing. What workers left there that died is removed.
    pub fn open(dir: &Path) -> Result<Self, GitError> {
        refile_store::folder::make(dir).map_err(GitError::folder("make", dir))?;
        let dir = dir.canonicalize().map_err(GitError::folder("find", dir))?;
        tree::sweep(&dir.join("trees"));
        let spares = Spares::open(dir.join("spares"));
        Ok(Self {
            dir,
            forges: None,
            guard: None,
            max_bytes: u64::MAX,
            spares,
            secrets: Secrets::default(),
            kept: Arc::default(),
        })
    }

    /// The same folder, where git gets in as the fleet of this configuration does.
    #[must_use]
    pub fn with_config(self, config: &Arc<Config>) -> Self {
        self.with_forges(Arc::new(Forges::new(config.clone())))
    }

    /// The same folder, where git gets in with the forges' tokens.
    #[must_use]
    pub fn with_forges(self, forges: Arc<Forges>) -> Self {
        Self { forges: Some(forges), ..self }
    }

    /// The same folder, for work in which these secrets must not show.
    #[must_use]
    pub fn keeping(self, secrets: Secrets) -> Self {
        Self { secrets, ..self }
    }

    /// The secrets that must not show in what is kept.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// The same folder, whose trees' commands are confined and whose mirrors are bounded.
    #[must_use]
    pub fn guarded(self, guard: Arc<Guard>, max_bytes: u64) -> Self {
        Self { guard: Some(guard), max_bytes, ..self }
    }

    /// The same folder, for so many jobs at a time.
    #[must_use]
    pub fn for_jobs(self, jobs: usize) -> Self {
        Self { spares: self.spares.of_each(jobs.max(1)), ..self }
    }

    /// How the commands of its trees are confined, as a text that differs where a command may end differently.
    pub(crate) fn terms(&self) -> String {
        self.guard.as_ref().map(|guard| guard.terms()).unwrap_or_default()
    }

    /// Brings the folder below its bound and tidies each mirror up.
    pub async fn keep_house(&self) {
        self.spares.tidy();
        let spares = self.spares.clone();
        housekeeping::keep(&self.dir, self.max_bytes, move |room| spares.allow(room)).await;
    }

    /// Lets go of what can be done without, and tidies up soon.
    pub(crate) fn make_room(&self) {
        self.spares.allow(false);
        self.look_after(HOUSEKEEPING / 10);
    }

    /// Does so in the background where it was so long ago.
    fn look_after(&self, every: Duration) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if self.guard.is_some() && kept.is_none_or(|at| at.elapsed() > every) {
            *kept = Some(Instant::now());
            let workspace = self.clone();
            tokio::spawn(async move { workspace.keep_house().await });
        }
    }

    /// Holds that there is room on its disk for a job to begin.
    pub fn has_room(&self) -> Result<(), String> {
        self.guard.as_ref().map_or(Ok(()), |guard| guard.has_room(&self.dir))
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn mirrors(&self) -> PathBuf {
        self.dir.join("mirrors")
    }

    /// The mirror of a repository.
    pub async fn mirror(&self, url: &str) -> Result<Mirror, GitError> {
        let login = self.forges.as_ref().and_then(|forges| forges.login(url));
        let mirror = Mirror::open(&self.mirrors(), url).await.map(|mirror| mirror.with_login(login));
        self.look_after(HOUSEKEEPING);
        mirror
    }

    /// Whether a repository lies on this machine, or a mirror of it does.
    pub fn reaches(&self, url: &str) -> bool {
        names::is_local(url) || Mirror::is_in(&self.mirrors(), url)
    }

    /// A new tree for a claim.
    pub async fn tree(
        &self,
        mirror: &Mirror,
        claim: Claim<'_>,
        branch: &str,
        base: &str,
        start: &str,
    ) -> Result<Tree, GitError> {
        self.tree_of(None, mirror, claim, branch, base, start).await
    }

    /// A new tree for one of several that work on a claim at the same time.
    pub async fn tree_of(
        &self,
        part: Option<&str>,
        mirror: &Mirror,
        claim: Claim<'_>,
        branch: &str,
        base: &str,
        start: &str,
    ) -> Result<Tree, GitError> {
        let Claim { task, phase, attempt, fence } = claim;
        // A phase's name may hold a slash; a folder's may not.
        let mut name = format!("{task}-{}-{attempt}-{fence}", phase.replace(['/', '\\'], "-"));
        if let Some(part) = part {
            name = format!("{name}-{part}");
        }
        let dir = self.dir.join("trees").join(name);
        let tree = match self.spares.take(mirror) {
            Some(spare) => match spare.turn_into(mirror, &dir, branch, base, start).await {
                Ok(tree) => tree,
                Err(error) => {
                    tracing::debug!(%error, "a tree that was checked out ahead cannot be used");
                    Tree::check_out(mirror, &dir, branch, base, start).await?
                }
            },
            None => Tree::check_out(mirror, &dir, branch, base, start).await?,
        };
        let (mirror, base) = (mirror.clone(), base.to_owned());
        self.ahead(|workspace| async move {
            // Those that begin together come first: they need the disk as well.
            tokio::time::sleep(AFTER_A_TREE).await;
            workspace.prepare(&mirror, &base).await
        });
        Ok(tree.guarded(self.guard.clone()))
    }

    /// Checks out ahead what the first jobs after a start will need, in the repository that was worked on last.
    pub fn look_ahead(&self) {
        self.ahead(|workspace| async move {
            match Mirror::last_used(&workspace.mirrors()).await? {
                Some((mirror, commit)) => workspace.prepare(&mirror, &commit).await,
                None => Ok(()),
            }
        });
    }

    /// Does so in the background, where a fleet is at work.
    fn ahead<F>(&self, prepare: impl FnOnce(Self) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), GitError>> + Send,
    {
        if self.guard.is_none() {
            return;
        }
        let workspace = self.clone();
        tokio::spawn(async move {
            if let Err(error) = prepare(workspace).await {
                tracing::debug!(%error, "no tree was checked out ahead");
            }
        });
    }

    /// Checks the files of a commit out ahead, for the next trees of the repository.
    pub async fn prepare(&self, mirror: &Mirror, commit: &str) -> Result<(), GitError> {
        let has_room = || self.guard.as_ref().is_none_or(|guard| guard.has_room_ahead(&self.dir));
        self.spares.prepare(mirror, commit, has_room).await
    }
}
