//! The worker's own bare copy of a repository. Several processes share it.
//!
//! Creation and fetches hold a file lock; everything else only adds objects and is safe at any time.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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
    url: String,
    git: Git,
    lock: std::path::PathBuf,
    /// Held by all that use the mirror, so that it is not removed under them. Its time tells when it was used last.
    _used: Arc<std::fs::File>,
}

/// What a branch must be for a push to change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected<'a> {
    /// Not there yet, or already as it shall be.
    Absent,
    /// At this commit.
    At(&'a str),
}

/// How a push ended that the remote did not refuse for a reason of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// The branch is at the commit.
    Done,
    /// The branch is not what was expected, and was left alone.
    Moved,
}

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
        let dir = folder.join(format!("{hash}.git"));
        let lock = folder.join(format!("{hash}.lock"));
        let used = folder.join(format!("{hash}.{USED}"));
        let used = tokio::task::spawn_blocking({
            let used = used.clone();
            move || {
                let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(used)?;
                file.lock_shared()?;
                file.set_modified(std::time::SystemTime::now()).map(|()| file)
            }
        })
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(GitError::folder("lock", &used))?;
        let mirror = Self { url: url.to_owned(), git: Git::new(&dir, url), lock, _used: Arc::new(used) };
        if dir.join("HEAD").exists() {
            return Ok(mirror);
        }
        let _lock = mirror.locked().await?;
        if !dir.join("HEAD").exists() {
            // A folder without HEAD is what a crash left.
            let _ = std::fs::remove_dir_all(&dir);
            let new = folder.join(format!("{hash}.new"));
            let _ = std::fs::remove_dir_all(&new);
            let git = Git::new(&new, url);
            git.ok(&["init", "--quiet", "--bare", "--template=", "--initial-branch=refile"]).await?;
            std::fs::rename(&new, &dir).map_err(GitError::folder("make", &dir))?;
        }
        Ok(mirror)
    }

    /// The same mirror, with a login for its server.
    #[must_use]
    pub fn with_login(self, login: Option<Login>) -> Self {
        Self { git: self.git.with_login(login), ..self }
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
        let _lock = self.locked().await?;
        // Flat, so that a branch `a` that is gone does not stand in the way of a branch `a/b`.
        let local = format!("refs/refile/{}", branch.replace('%', "%25").replace('/', "%2F"));
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
        let mut fetched = self.git.ok(&fetch).await;
        if fetched.as_ref().is_err_and(says_locked) && forget_locks(self.git.dir()) {
            fetched = self.git.ok(&fetch).await;
        }
        if let Err(error) = fetched {
            return Err(self.explain(error, branch).await);
        }
        Ok(self.git.ok(&["rev-parse", "--verify", "--end-of-options", &format!("{local}^{{commit}}")]).await?.line())
    }

    /// Makes what git says of a fetch or a push a sentence that tells what to do.
    async fn explain(&self, error: GitError, branch: &str) -> GitError {
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

    /// Puts a branch of the remote at a commit, if it is what is expected: compare and swap.
    pub async fn push(&self, commit: &str, branch: &str, expected: Expected<'_>) -> Result<Push, GitError> {
        names::commit(commit)?;
        names::branch(branch)?;
        let old = match expected {
            Expected::Absent => "",
            Expected::At(old) => names::commit(old)?,
        };
        let lease = format!("--force-with-lease=refs/heads/{branch}:{old}");
        let refspec = format!("{commit}:refs/heads/{branch}");
        let mut args = vec!["push", "--porcelain", "--no-verify", "--no-follow-tags", &lease];
        let mut _turn = None;
        if names::is_local(&self.url) {
            _turn = self.turn().await;
            // Brings a clean work tree along where the branch is checked out, and refuses where it is not clean.
            args.push("--receive-pack=git -c receive.denyCurrentBranch=updateInstead receive-pack");
        }
        args.extend(["--end-of-options", &self.url, &refspec]);
        let error = match self.git.with_input(&args, Vec::new(), &[0, 1]).await {
            Ok(output) if output.code == 0 => return Ok(Push::Done),
            Ok(output) => {
                let reason = rejection(&output.line());
                let moved =
                    ["stale info", "fetch first", "non-fast-forward", "failed to update ref", "cannot lock ref"];
                // A lock that somebody's crash left behind looks like a branch that moves, for ever.
                let is_locked = output.stderr.contains("File exists");
                let said = said(&output.stderr);
                if !is_locked && moved.iter().any(|m| reason.contains(m)) {
                    return Ok(Push::Moved);
                }
                GitError::Refused {
                    url: names::shown(&self.url),
                    branch: branch.to_owned(),
                    reason: advice(if reason.is_empty() || is_locked { output.stderr } else { reason + &said }),
                }
            }
            Err(error) => error,
        };
        Err(self.explain(error, branch).await)
    }

    /// Removes branches of the remote.
    pub async fn delete(&self, branches: &[String]) -> Result<(), GitError> {
        if branches.is_empty() {
            return Ok(());
        }
        let mut args = vec!["push".to_owned(), "--quiet".to_owned(), "--no-verify".to_owned()];
        args.extend(["--end-of-options".to_owned(), self.url.clone()]);
        for branch in branches {
            args.push(format!(":refs/heads/{}", names::branch(branch)?));
        }
        self.git.ok(&args).await.map(drop)
    }

    /// Waits for the file lock that all processes share; it is given back when the file is dropped.
    async fn locked(&self) -> Result<std::fs::File, GitError> {
        locked(self.lock.clone()).await
    }

    /// The turn to push to a repository of this machine, of all its workers: git brings a work tree along before it moves
    /// the branch, and of two that push at once the loser would leave its files there. The lock is on the folder, so that
    /// nothing is added to a repository of somebody else's. Where it cannot be had, the push tells why.
    async fn turn(&self) -> Option<std::fs::File> {
        let folder = Path::new(self.url.strip_prefix("file://").unwrap_or(&self.url));
        let git = folder.join(".git");
        let folder = if git.is_dir() { git } else { folder.to_path_buf() };
        lock(move || std::fs::File::open(folder)).await.ok()
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
fn is_younger(at: std::time::SystemTime, than: Duration) -> bool {
    at.elapsed().is_ok_and(|age| age < than)
}

/// Waits for the file lock of a mirror.
pub(super) async fn locked(path: std::path::PathBuf) -> Result<std::fs::File, GitError> {
    let file = path.clone();
    lock(move || std::fs::File::create(&file)).await.map_err(GitError::folder("lock", &path))
}

/// Opens a file or a folder and waits for its lock.
async fn lock<F>(open: F) -> std::io::Result<std::fs::File>
where
    F: FnOnce() -> std::io::Result<std::fs::File> + Send + 'static,
{
    tokio::task::spawn_blocking(move || open().and_then(|file| file.lock().map(|()| file)))
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// The words in brackets behind the `!` of `git push --porcelain`.
fn rejection(porcelain: &str) -> String {
    porcelain
        .lines()
        .filter_map(|line| line.strip_prefix("!\t"))
        .filter_map(|line| line.split('\t').nth(1))
        .collect::<Vec<_>>()
        .join("; ")
}

/// What the server's hooks said of a push, as the end of a sentence.
fn said(stderr: &str) -> String {
    const LINES: usize = 20;
    let lines = stderr.lines().filter_map(|line| line.trim_start().strip_prefix("remote:"));
    let words: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).take(LINES).collect();
    if words.is_empty() { String::new() } else { format!("; it says: {}", words.join("\n  ")) }
}

fn advice(reason: String) -> String {
    let is_dirty =
        ["unstaged changes", "staged changes", "Working directory", "untracked", "Could not update working tree"]
            .iter()
            .any(|words| reason.contains(words));
    if is_dirty {
        return format!(
            "{reason}\n  the branch is checked out there, and the files are not clean: commit or stash them there"
        );
    }
    if reason.contains("declined") || reason.contains("protected branch") {
        return format!("{reason}\n  a rule or a hook there turned the push down: let this worker push to the branch");
    }
    if reason.contains("File exists") {
        return format!(
            "{reason}\n  a git that crashed may have left the lock: where none runs there, remove the file"
        );
    }
    reason
}
