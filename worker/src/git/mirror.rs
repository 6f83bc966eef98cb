//! The worker's own bare copy of a repository. Several processes share it.
//!
//! Creation and fetches hold a file lock; everything else only adds objects and is safe at any time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use refile_forge::Login;
use sha2::{Digest, Sha256};

use super::GitError;
use super::names;
use super::run::Git;

/// How old a lock in a mirror must be to be one that was left behind.
const LOCKED_FOR: Duration = Duration::from_secs(10);

/// What the name of the file ends with that those hold who use a mirror.
pub(super) const USED: &str = "used";

/// A repository, and the bare copy of it that the worker keeps.
#[derive(Debug, Clone)]
pub struct Mirror {
    /// The address as git is given it: without a login.
    pub(super) url: String,
    pub(super) git: Git,
    lock: PathBuf,
    /// Held by all that use the mirror, so that it is not removed under them. Its time tells when it was used last.
    _used: Arc<std::fs::File>,
}

/// For how long it is known when a branch was fetched: who waits for the lock waits no longer than a fetch may take.
const REMEMBERED: Duration = Duration::from_hours(1);

/// What the names of attempt branches begin with in a mirror.
const ATTEMPTS: &str = "refs/refile/refile%2F";

/// What git and ssh say where a token or a key is not accepted.
const REFUSED_CREDENTIALS: &[&str] = &[
    "Authentication failed",
    "could not read Username",
    "could not read Password",
    "terminal prompts disabled",
    "Permission denied (",
    "error: 401",
    "error: 403",
];

/// When this process began the last fetch that went well, by the mirror and the branch in it.
fn fetched() -> MutexGuard<'static, BTreeMap<(PathBuf, String), Instant>> {
    static FETCHED: Mutex<BTreeMap<(PathBuf, String), Instant>> = Mutex::new(BTreeMap::new());
    FETCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remember(key: (PathBuf, String), began: Instant) {
    let mut fetched = fetched();
    fetched.retain(|_, began| began.elapsed() < REMEMBERED);
    fetched.insert(key, began);
}

/// The first 12 bytes of the SHA-256, in hex.
fn short_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(12).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Holds that a repository is there and has a branch. Nothing of it is copied.
pub async fn require_branch(url: &str, branch: &str, login: Option<Login>) -> Result<(), GitError> {
    names::branch(branch)?;
    let folder = tempfile::tempdir().map_err(GitError::folder("make", &std::env::temp_dir()))?;
    let mirror = Mirror::open(folder.path(), url).await?.with_login(login);
    let branches = match mirror.branches("").await {
        Ok(branches) => branches,
        Err(error) => return Err(mirror.explain(error, branch).await),
    };
    if branches.iter().any(|b| b == branch) {
        return Ok(());
    }
    Err(GitError::NoBranch { url: mirror.shown(), branch: branch.to_owned(), branches })
}

impl Mirror {
    /// The mirror of a repository in this folder; it is made where it is missing. Nothing is fetched yet.
    pub async fn open(folder: &Path, url: &str) -> Result<Self, GitError> {
        names::address(url)?;
        std::fs::create_dir_all(folder).map_err(GitError::folder("make", folder))?;
        let hash = short_hash(url);
        let mirror = Self::held(folder, &hash, url, Some(SystemTime::now())).await?;
        let dir = mirror.git.dir();
        if dir.join("HEAD").exists() {
            return Ok(mirror);
        }
        let _lock = mirror.locked().await?;
        if !dir.join("HEAD").exists() {
            // A folder without HEAD is what a crash left.
            let _ = std::fs::remove_dir_all(dir);
            let new = folder.join(format!("{hash}.new"));
            let _ = std::fs::remove_dir_all(&new);
            let git = Git::new(&new, url);
            git.ok(&["init", "--quiet", "--bare", "--template=", "--initial-branch=refile"]).await?;
            std::fs::rename(&new, dir).map_err(GitError::folder("make", dir))?;
        }
        Ok(mirror)
    }

    /// The mirror in this folder that was used last, and the newest of its commits that the remote had.
    ///
    /// Its address is not known: it serves what needs no remote.
    pub(crate) async fn last_used(folder: &Path) -> Result<Option<(Self, String)>, GitError> {
        let used = |entry: std::fs::DirEntry| {
            let path = entry.path();
            let hash = path.file_stem()?.to_str()?.to_owned();
            let is_it = path.extension().is_some_and(|e| e == USED) && path.with_extension("git").join("HEAD").exists();
            Some((entry.metadata().ok()?.modified().ok()?, hash)).filter(|_| is_it)
        };
        let found = std::fs::read_dir(folder).into_iter().flatten().flatten().filter_map(used).max();
        let Some((_, hash)) = found else { return Ok(None) };
        let mirror = Self::held(folder, &hash, "a mirror", None).await?;
        if !mirror.git.dir().join("HEAD").exists() {
            return Ok(None);
        }
        let newest = ["for-each-ref", "--sort=-committerdate", "--format=%(objectname) %(refname)", "refs/refile/"];
        let listed = String::from_utf8_lossy(&mirror.git.ok(&newest).await?.stdout).into_owned();
        let is_base = |(_, name): &(&str, &str)| !name.starts_with(ATTEMPTS);
        let base = listed.lines().filter_map(|line| line.split_once(' ')).find(is_base);
        Ok(base.map(|(commit, _)| (mirror, commit.to_owned())))
    }

    /// One that is not removed while it is held. `at` is when it is used, where that is to be remembered.
    async fn held(folder: &Path, hash: &str, url: &str, at: Option<SystemTime>) -> Result<Self, GitError> {
        let named = |end: &str| folder.join(format!("{hash}.{end}"));
        let used = named(USED);
        let file = tokio::task::spawn_blocking({
            let used = used.clone();
            move || {
                let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(used)?;
                file.lock_shared()?;
                at.map_or(Ok(()), |at| file.set_modified(at)).map(|()| file)
            }
        })
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(GitError::folder("lock", &used))?;
        let (url, login) = match Login::of_address(url) {
            Some((without, login)) => (without, Some(login)),
            None => (url.to_owned(), None),
        };
        let git = Git::new(&named("git"), &url).with_login(login);
        Ok(Self { url, git, lock: named("lock"), _used: Arc::new(file) })
    }

    /// The same mirror, with a login for its server where there is one.
    #[must_use]
    pub fn with_login(self, login: Option<Login>) -> Self {
        if login.is_some() { Self { git: self.git.with_login(login), ..self } } else { self }
    }

    /// Whether a folder holds the mirror of a repository already.
    pub fn is_in(folder: &Path, url: &str) -> bool {
        folder.join(format!("{}.git", short_hash(url))).join("HEAD").exists()
    }

    /// The repository's address as people may see it.
    pub fn shown(&self) -> String {
        names::shown(&self.url)
    }

    /// Git on the bare copy.
    pub fn git(&self) -> &Git {
        &self.git
    }

    /// Fetches a branch and tells the commit that it is at.
    pub async fn fetch(&self, branch: &str) -> Result<String, GitError> {
        names::branch(branch)?;
        let asked = Instant::now();
        let _lock = self.locked().await?;
        // Flat, so that a branch `a` that is gone does not stand in the way of a branch `a/b`.
        let local = format!("refs/refile/{}", branch.replace('%', "%25").replace('/', "%2F"));
        let at = ["rev-parse", "--verify", "--end-of-options", &format!("{local}^{{commit}}")];
        let key = (self.git.dir().to_owned(), local.clone());
        // Of those that wait for each other, the one that goes first fetches for all.
        let last = fetched().get(&key).copied();
        if last.is_some_and(|began| began > asked)
            && let Ok(found) = self.git.ok(&at).await
        {
            return Ok(found.line());
        }
        let began = Instant::now();
        let refspec = format!("+refs/heads/{branch}:{local}");
        let fetch = [
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--no-recurse-submodules",
            "--end-of-options",
            &self.url,
            &refspec,
        ];
        let mut done = self.git.ok(&fetch).await;
        if done.as_ref().is_err_and(says_locked) && forget_locks(self.git.dir()) {
            done = self.git.ok(&fetch).await;
        }
        if let Err(error) = done {
            return Err(self.explain(error, branch).await);
        }
        remember(key, began);
        Ok(self.git.ok(&at).await?.line())
    }

    /// Makes what git says of a fetch or a push a sentence that tells what to do.
    pub(super) async fn explain(&self, error: GitError, branch: &str) -> GitError {
        let GitError::Failed { stderr, .. } = &error else { return error };
        if REFUSED_CREDENTIALS.iter().any(|said| stderr.contains(said)) {
            let advice = match self.git.login_variable() {
                Some(variable) => format!("put a new one into ${variable}, with the right to read and to write there"),
                None => "renew the one in the repository's address, or the key that the ssh agent holds".to_owned(),
            };
            return GitError::Denied { url: names::shown(&self.url), stderr: stderr.clone(), advice };
        }
        if stderr.contains("couldn't find remote ref") {
            return match self.branches("").await {
                Ok(branches) => {
                    GitError::NoBranch { url: names::shown(&self.url), branch: branch.to_owned(), branches }
                }
                Err(error) => error,
            };
        }
        if ["does not appear to be a git repository", "does not exist", "not found"].iter().any(|s| stderr.contains(s))
        {
            // A server says the same of what may not be seen.
            let advice = match self.git.login_variable() {
                _ if names::is_local(&self.url) => "`git init` there".to_owned(),
                Some(variable) => format!("let the token in ${variable} see it: servers hide what it may not"),
                None => "let this worker's token or key see it: servers hide what it may not".to_owned(),
            };
            return GitError::NoRepository { url: names::shown(&self.url), stderr: stderr.clone(), advice };
        }
        error
    }

    /// The remote's branches that begin with a prefix. Attempt branches are left out where it is empty.
    pub async fn branches(&self, prefix: &str) -> Result<Vec<String>, GitError> {
        let listed = self.git.ok(&["ls-remote", "--heads", "--end-of-options", &self.url]).await?;
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = text.lines().filter_map(|l| l.split_once("\trefs/heads/")).map(|(_, name)| name);
        let wanted = |name: &&str| {
            if prefix.is_empty() { !name.starts_with("refile/") } else { name.starts_with(prefix) }
        };
        Ok(names.filter(wanted).map(str::to_owned).collect())
    }

    /// Whether the bare copy holds a commit.
    pub async fn has(&self, commit: &str) -> Result<bool, GitError> {
        names::commit(commit)?;
        let object = format!("{commit}^{{commit}}");
        let asked = self.git.with_input(&["cat-file", "-e", &object], Vec::new(), &[0, 1, 128]).await?;
        Ok(asked.code == 0)
    }

    /// Whether a commit has a file or folder of that path.
    pub async fn holds(&self, commit: &str, path: &str) -> Result<bool, GitError> {
        let object = format!("{}:{path}", names::commit(commit)?);
        let asked = self.git.with_input(&["cat-file", "-e", &object], Vec::new(), &[0, 1, 128]).await?;
        Ok(asked.code == 0)
    }

    /// Waits for the file lock that all processes share; it is given back when the file is dropped.
    async fn locked(&self) -> Result<std::fs::File, GitError> {
        locked(self.lock.clone()).await
    }
}

/// Whether git found a lock of its own in the way.
fn says_locked(error: &GitError) -> bool {
    matches!(error, GitError::Failed { stderr, .. } if stderr.contains(".lock': File exists"))
}

/// Removes the locks that a git left in a mirror which was killed, or whose machine went down; says whether there was one.
/// Whoever calls this holds the mirror's own lock: nobody fetches, and the locks of a `git gc` are there for a moment only.
pub(super) fn forget_locks(mirror: &Path) -> bool {
    let mut locks = ["packed-refs.lock", "shallow.lock"].map(|name| mirror.join(name)).to_vec();
    let mut folders = vec![mirror.join("refs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) if entry.path().extension().is_some_and(|e| e == "lock") => locks.push(entry.path()),
                _ => {}
            }
        }
    }
    let is_old = |lock: &Path| lock.metadata().and_then(|m| m.modified()).is_ok_and(|at| !is_younger(at, LOCKED_FOR));
    let mut is_any = false;
    for lock in locks.iter().filter(|lock| is_old(lock)) {
        tracing::warn!(lock = %lock.display(), "removed a lock that a git left behind");
        is_any |= std::fs::remove_file(lock).is_ok();
    }
    is_any
}

/// Whether something is younger than this. What lies ahead of the clock is not.
fn is_younger(at: SystemTime, than: Duration) -> bool {
    at.elapsed().is_ok_and(|age| age < than)
}

/// Waits for the file lock of a mirror.
pub(super) async fn locked(path: PathBuf) -> Result<std::fs::File, GitError> {
    let file = path.clone();
    lock(move || std::fs::File::create(&file)).await.map_err(GitError::folder("lock", &path))
}

/// Opens a file or a folder and waits for its lock.
pub(super) async fn lock<F>(open: F) -> std::io::Result<std::fs::File>
where
    F: FnOnce() -> std::io::Result<std::fs::File> + Send + 'static,
{
    tokio::task::spawn_blocking(move || open().and_then(|file| file.lock().map(|()| file)))
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
