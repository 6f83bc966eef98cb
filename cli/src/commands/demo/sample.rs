//! The sample repository, its scripted agents and its tasks.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use refile_coordinator::submission::TaskRequest;

/// The repository's folder within the demo's.
pub(super) const REPOSITORY: &str = "sample";

/// The files of the repository.
const FILES: &[(&str, &str)] = &[
    ("README.md", include_str!("../../../demo/sample/README.md")),
    (".gitignore", include_str!("../../../demo/sample/gitignore")),
    ("bin/upper", include_str!("../../../demo/sample/bin/upper")),
    ("bin/greet", include_str!("../../../demo/sample/bin/greet")),
    ("tests/upper.sh", include_str!("../../../demo/sample/tests/upper.sh")),
    ("tests/greet.sh", include_str!("../../../demo/sample/tests/greet.sh")),
    ("run-tests.sh", include_str!("../../../demo/sample/run-tests.sh")),
    ("lint.sh", include_str!("../../../demo/sample/lint.sh")),
];

/// Makes the repository, the scripts and the configuration in the demo's folder.
pub(super) fn make(dir: &Path) -> anyhow::Result<()> {
    let repository = dir.join(REPOSITORY);
    for (name, content) in FILES {
        let path = repository.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&path, content)?;
        if name.starts_with("bin/") {
            make_executable(&path)?;
        }
    }
    // Scripts see nothing of the worker's environment, so their common folder is written into them.
    let stage = dir.join("stage");
    std::fs::create_dir_all(&stage)?;
    let set = format!("STAGE='{}'\n", stage.display().to_string().replace('\'', r"'\''"));
    for (name, script) in
        [("agent.sh", include_str!("../../../demo/agent.sh")), ("review.sh", include_str!("../../../demo/review.sh"))]
    {
        std::fs::write(dir.join(name), script.replacen("set -eu\n", &format!("set -eu\n{set}"), 1))?;
    }
    std::fs::write(dir.join(refile_config::FILE_NAME), include_str!("../../../demo/refile.toml"))?;
    git(&repository, &["init", "--quiet", "--initial-branch=main"])?;
    git(&repository, &["add", "--all"])?;
    git(&repository, &["commit", "--quiet", "--message=A small program with tests"])?;
    Ok(())
}

#[cfg(unix)]
fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

/// The tasks, in order.
pub(super) fn tasks() -> anyhow::Result<Vec<TaskRequest>> {
    Ok(serde_saphyr::from_str(include_str!("../../../demo/tasks.yaml"))?)
}

/// Runs the sample's own tests on a fresh clone of the base branch, and gives their last line.
pub(super) fn run_tests_on_base(dir: &Path) -> anyhow::Result<String> {
    let clone = tempfile::tempdir()?;
    let (from, to) = (dir.join(REPOSITORY), clone.path().join("clone"));
    git(dir, &["clone", "--quiet", "--branch=main", &from.to_string_lossy(), &to.to_string_lossy()])?;
    let ran = Command::new("sh").arg("run-tests.sh").current_dir(&to).output().context("cannot run sh")?;
    let said = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    if !ran.status.success() {
        bail!("the sample's tests fail on its base branch:\n{said}");
    }
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

/// The commits on the base branch, newest first.
pub(super) fn log(dir: &Path) -> anyhow::Result<String> {
    git(&dir.join(REPOSITORY), &["log", "--format=%h %s", "main"])
}

/// Runs git with a name of its own and without the user's configuration.
fn git(dir: &Path, args: &[&str]) -> anyhow::Result<String> {
    let ran = Command::new("git")
        .args(["-c", "user.name=Refile demo", "-c", "user.email=demo@localhost", "-c", "core.hooksPath=/dev/null"])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .output()
        .context("cannot run git; is it installed?")?;
    if !ran.status.success() {
        bail!("git {} failed: {}", args.first().unwrap_or(&""), String::from_utf8_lossy(&ran.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}
