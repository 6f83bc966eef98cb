//! The gates that a repository's files suggest. What the files do not say is not guessed.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A gate that is suggested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Guess {
    /// The file that suggests it.
    pub(super) file: &'static str,
    /// The gate's name.
    pub(super) gate: &'static str,
    /// What it runs.
    pub(super) run: String,
    /// It fetches something.
    pub(super) network: bool,
}

impl Guess {
    /// Whether it checks nothing itself: it brings what the gates after it need.
    pub(super) fn is_setup(&self) -> bool {
        !CHECKS.contains(&self.gate)
    }

    fn with_network(self) -> Self {
        Self { network: true, ..self }
    }
}

/// The gates that check something, in their order.
const CHECKS: [&str; 3] = ["lint", "build", "test"];

/// The gates that the files of a folder suggest, each name once: what must be fetched, then lint, build and test.
pub(super) fn guesses(dir: &Path) -> Vec<Guess> {
    let all = [rust, go, node, python, java, make].map(|language| language(dir));
    let first = |gate: &str| {
        let found = |(at, guesses): (usize, &Vec<Guess>)| Some((at, guesses.iter().find(|g| g.gate == gate)?.clone()));
        all.iter().enumerate().find_map(found)
    };
    let checks: Vec<(usize, Guess)> = CHECKS.into_iter().filter_map(first).collect();
    let is_used = |language: usize| checks.iter().any(|(at, _)| *at == language);
    let used = all.iter().enumerate().filter(|(at, _)| is_used(*at)).flat_map(|(_, guesses)| guesses);
    used.filter(|guess| guess.is_setup()).cloned().chain(checks.iter().map(|(_, check)| check.clone())).collect()
}

fn guess(file: &'static str, gate: &'static str, run: impl Into<String>) -> Guess {
    Guess { file, gate, run: run.into(), network: false }
}

fn text(dir: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(dir.join(file)).ok()
}

/// Whether a file is there and git does not ignore it: a gate sees what is in the repository. Where git cannot say, as in a
/// folder that is no repository, it counts as kept.
fn is_kept(dir: &Path, file: &str) -> bool {
    let is_ignored = || {
        let asked = Command::new("git").args(["check-ignore", "--quiet", file]).current_dir(dir).output();
        asked.is_ok_and(|asked| asked.status.success())
    };
    dir.join(file).exists() && !is_ignored()
}

fn rust(dir: &Path) -> Vec<Guess> {
    const FILE: &str = "Cargo.toml";
    const LOCK: &str = "Cargo.lock";
    let Some(manifest) = text(dir, FILE) else { return Vec::new() };
    let is_workspace = manifest.contains("[workspace]");
    let all = if is_workspace { " --workspace" } else { "" };
    let fetch = if is_kept(dir, LOCK) {
        text(dir, LOCK).filter(|lock| lock.contains("\nsource = ")).map(|_| "cargo fetch --locked")
    } else {
        (is_workspace || manifest.contains("dependencies")).then_some("cargo fetch")
    };
    let mut found: Vec<Guess> = fetch.map(|run| guess(FILE, "fetch", run).with_network()).into_iter().collect();
    found.extend([
        guess(FILE, "lint", format!("cargo clippy{all} --all-targets -- -D warnings")),
        guess(FILE, "test", format!("cargo test{all}")),
    ]);
    found
}

fn go(dir: &Path) -> Vec<Guess> {
    const FILE: &str = "go.mod";
    if !dir.join(FILE).exists() {
        return Vec::new();
    }
    vec![
        guess(FILE, "lint", "go vet ./..."),
        guess(FILE, "build", "go build ./..."),
        guess(FILE, "test", "go test ./..."),
    ]
}

/// The scripts that there are; a new package has a test that only fails.
fn node(dir: &Path) -> Vec<Guess> {
    const FILE: &str = "package.json";
    let Some(package) = text(dir, FILE).and_then(|t| serde_json::from_str::<Value>(&t).ok()) else { return Vec::new() };
    let managers = [("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lock", "bun"), ("bun.lockb", "bun")];
    let lock = managers.iter().find(|(lock, _)| dir.join(lock).exists());
    let manager = lock.map_or("npm", |(_, manager)| *manager);
    let is_locked = lock.is_some_and(|(lock, _)| is_kept(dir, lock));
    let needs = |kind: &str| match package.get(kind) {
        Some(Value::Object(needed)) => !needed.is_empty(),
        Some(Value::Array(needed)) => !needed.is_empty(),
        _ => false,
    };
    let install = match manager {
        "pnpm" | "bun" | "yarn" if !is_locked => format!("{manager} install"),
        "pnpm" | "bun" => format!("{manager} install --frozen-lockfile"),
        // The first version knows the option by another name.
        "yarn" if text(dir, "yarn.lock").is_some_and(|lock| lock.contains("# yarn lockfile v1")) => {
            "yarn install --frozen-lockfile".to_owned()
        }
        "yarn" => "yarn install --immutable".to_owned(),
        _ if ["package-lock.json", "npm-shrinkwrap.json"].iter().any(|lock| is_kept(dir, lock)) => "npm ci".to_owned(),
        _ => "npm install".to_owned(),
    };
    let is_there = |name: &&str| {
        let script = package.pointer(&format!("/scripts/{name}")).and_then(Value::as_str);
        script.is_some_and(|script| !script.trim().is_empty() && !script.contains("no test specified"))
    };
    let has_needs = ["dependencies", "devDependencies", "optionalDependencies", "workspaces"].into_iter().any(needs);
    let setup = has_needs.then(|| guess(FILE, "install", install).with_network());
    let scripts = CHECKS.into_iter().filter(is_there).map(|name| guess(FILE, name, format!("{manager} run {name}")));
    setup.into_iter().chain(scripts).collect()
}

/// What has dependencies gets a virtual environment in its tree, which the gates use.
fn python(dir: &Path) -> Vec<Guess> {
    const PROJECTS: [&str; 5] = ["pyproject.toml", "setup.cfg", "tox.ini", "setup.py", "requirements.txt"];
    let Some(file) = PROJECTS.into_iter().chain(["pytest.ini"]).find(|file| dir.join(file).exists()) else {
        return Vec::new();
    };
    let says = |word: &str| PROJECTS.iter().any(|file| text(dir, file).is_some_and(|t| t.contains(word)));
    let linter = if dir.join("ruff.toml").exists() || says("[tool.ruff") {
        Some("ruff")
    } else {
        (dir.join(".flake8").exists() || says("[flake8]")).then_some("flake8")
    };
    let is_pytest = dir.join("pytest.ini").exists() || dir.join("conftest.py").exists() || says("pytest");
    let tools: Vec<&str> = linter.into_iter().chain(is_pytest.then_some("pytest")).collect();
    let setup = python_install(dir, &tools).map(|run| guess(file, "venv", run).with_network());
    let python = if setup.is_some() { ".venv/bin/python" } else { "python3" };
    let lint = linter.map(|linter| match (linter, &setup) {
        ("ruff", None) => "ruff check .".to_owned(),
        ("ruff", Some(_)) => format!("{python} -m ruff check ."),
        (_, None) => format!("{python} -m flake8"),
        (_, Some(_)) => format!("{python} -m flake8 --extend-exclude .venv"),
    });
    let tests = ["tests", "test"].into_iter().find(|tests| dir.join(tests).is_dir());
    let test = match tests {
        _ if is_pytest => Some(format!("{python} -m pytest")),
        tests => tests.map(|tests| format!("{python} -m unittest discover -s {tests}")),
    };
    let checks = lint.map(|run| guess(file, "lint", run)).into_iter().chain(test.map(|run| guess(file, "test", run)));
    setup.into_iter().chain(checks).collect()
}

/// What makes the virtual environment with these tools in it, where there is something else to install.
fn python_install(dir: &Path, tools: &[&str]) -> Option<String> {
    const REQUIREMENTS: [&str; 5] = [
        "requirements.txt",
        "requirements-dev.txt",
        "requirements-test.txt",
        "dev-requirements.txt",
        "test-requirements.txt",
    ];
    if is_kept(dir, "uv.lock") {
        let lock = text(dir, "uv.lock").unwrap_or_default();
        let missing: Vec<&str> =
            tools.iter().filter(|tool| !lock.contains(&format!("name = \"{tool}\""))).copied().collect();
        let more = if missing.is_empty() { String::new() } else { format!(" && uv pip install {}", missing.join(" ")) };
        return Some(format!("uv sync --locked --all-extras --all-groups{more}"));
    }
    let names_some = |t: String| t.lines().any(|line| !line.trim().is_empty() && !line.trim().starts_with('#'));
    let mut wanted: Vec<String> = REQUIREMENTS
        .iter()
        .filter(|file| text(dir, file).is_some_and(names_some))
        .map(|file| format!("-r {file}"))
        .collect();
    let project = text(dir, "pyproject.toml").and_then(|t| t.parse::<toml::Table>().ok()).unwrap_or_default();
    let at = |keys: &[&str]| {
        let (first, rest) = keys.split_first()?;
        rest.iter().try_fold(project.get(*first)?, |value, key| value.get(key))
    };
    let is_some = |value: Option<&toml::Value>| match value {
        Some(toml::Value::Array(all)) => !all.is_empty(),
        Some(toml::Value::Table(all)) => all.keys().any(|name| name != "python"),
        _ => false,
    };
    let extras: Vec<&str> = ["dev", "test", "tests", "testing"]
        .into_iter()
        .filter(|extra| is_some(at(&["project", "optional-dependencies", extra])))
        .collect();
    let is_project = is_some(at(&["project", "dependencies"]))
        || is_some(at(&["tool", "poetry", "dependencies"]))
        || ["setup.py", "setup.cfg"].iter().any(|file| text(dir, file).is_some_and(|t| t.contains("install_requires")));
    if !extras.is_empty() {
        wanted.push(format!("-e '.[{}]'", extras.join(",")));
    } else if is_project {
        wanted.push("-e .".to_owned());
    }
    if wanted.is_empty() {
        return None;
    }
    wanted.extend(tools.iter().map(|tool| (*tool).to_owned()));
    Some(format!("python3 -m venv --clear .venv && .venv/bin/pip install --quiet {}", wanted.join(" ")))
}

/// Build tools that fetch what they need while they build.
fn java(dir: &Path) -> Vec<Guess> {
    for (file, wrapper, program, arguments) in [
        // Of its own: the machine's may lie there and can only be read.
        ("pom.xml", "mvnw", "mvn", "--batch-mode --quiet -Dmaven.repo.local=\"$HOME/.m2/own\" test"),
        ("build.gradle", "gradlew", "gradle", "test"),
        ("build.gradle.kts", "gradlew", "gradle", "test"),
    ] {
        if dir.join(file).exists() {
            let own = format!("./{wrapper}");
            let program = if dir.join(wrapper).exists() { own.as_str() } else { program };
            return vec![guess(file, "test", format!("{program} {arguments}")).with_network()];
        }
    }
    Vec::new()
}

/// The targets that there are.
fn make(dir: &Path) -> Vec<Guess> {
    let Some(file) = ["GNUmakefile", "makefile", "Makefile"].into_iter().find(|file| dir.join(file).exists()) else {
        return Vec::new();
    };
    let text = text(dir, file).unwrap_or_default();
    let is_target = |line: &str, name: &str| {
        let Some((targets, rest)) = line.split_once(':') else { return false };
        !rest.starts_with('=')
            && !line.starts_with(['\t', ' ', '#', '.'])
            && targets.split_whitespace().any(|t| t == name)
    };
    ["lint", "build", "test", "check"]
        .into_iter()
        .filter(|name| text.lines().any(|line| is_target(line, name)))
        .map(|name| guess(file, if name == "check" { "test" } else { name }, format!("make {name}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[(&str, &str)]) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        if files.iter().any(|(name, _)| *name == ".gitignore") {
            assert!(Command::new("git").args(["init", "--quiet"]).current_dir(dir.path()).status().unwrap().success());
        }
        let found = guesses(dir.path());
        let found: Vec<(&str, &str)> = found.iter().map(|g| (g.gate, g.run.as_str())).collect();
        assert_eq!(found, expected, "{files:?}");
    }

    #[test]
    fn gates_are_guessed_from_what_the_files_say() {
        let clippy = "cargo clippy --all-targets -- -D warnings";
        check(&[("Cargo.toml", "[package]")], &[("lint", clippy), ("test", "cargo test")]);
        let whole = "cargo clippy --workspace --all-targets -- -D warnings";
        let workspace = [("fetch", "cargo fetch"), ("lint", whole), ("test", "cargo test --workspace")];
        check(&[("Cargo.toml", "[workspace]")], &workspace);
        let fetched = "[[package]]\nname = \"a\"\nsource = \"registry+x\"\n";
        let locked = [("fetch", "cargo fetch --locked"), ("lint", clippy), ("test", "cargo test")];
        check(&[("Cargo.toml", "[package]"), ("Cargo.lock", fetched)], &locked);
        let unlocked = [("fetch", "cargo fetch"), ("lint", clippy), ("test", "cargo test")];
        let ignored = [("Cargo.toml", "[dependencies]"), ("Cargo.lock", fetched), (".gitignore", "*.lock\n")];
        check(&ignored, &unlocked);
        check(&[("Cargo.toml", "[package]"), ("Cargo.lock", "[[package]]\nname = \"a\"\n")], &locked[1..]);
        let go = [("lint", "go vet ./..."), ("build", "go build ./..."), ("test", "go test ./...")];
        check(&[("go.mod", "module x")], &go);
        let scripts = r#"{"scripts": {"lint": "eslint .", "test": "vitest", "start": "x"}}"#;
        check(&[("package.json", scripts)], &[("lint", "npm run lint"), ("test", "npm run test")]);
        check(
            &[("package.json", scripts), ("pnpm-lock.yaml", "")],
            &[("lint", "pnpm run lint"), ("test", "pnpm run test")],
        );
        let needing = r#"{"scripts": {"test": "vitest"}, "devDependencies": {"vitest": "3"}}"#;
        for (lock, text, install) in [
            ("package-lock.json", "", "npm ci"),
            ("pnpm-lock.yaml", "", "pnpm install --frozen-lockfile"),
            ("yarn.lock", "# yarn lockfile v1\n", "yarn install --frozen-lockfile"),
            ("yarn.lock", "__metadata:\n", "yarn install --immutable"),
            ("bun.lock", "", "bun install --frozen-lockfile"),
            ("no.lock", "", "npm install"),
        ] {
            let test = format!("{} run test", install.split(' ').next().unwrap());
            check(&[("package.json", needing), (lock, text)], &[("install", install), ("test", &test)]);
        }
        let ignored = [("package.json", needing), ("pnpm-lock.yaml", ""), (".gitignore", "pnpm-*\n")];
        check(&ignored, &[("install", "pnpm install"), ("test", "pnpm run test")]);
        check(
            &[("pyproject.toml", "[tool.ruff]\n[tool.pytest.ini_options]\n")],
            &[("lint", "ruff check ."), ("test", "python3 -m pytest")],
        );
        check(&[("setup.py", ""), ("tests/test_x.py", "")], &[("test", "python3 -m unittest discover -s tests")]);
        let pip = "python3 -m venv --clear .venv && .venv/bin/pip install --quiet";
        check(
            &[("requirements.txt", "pytest==8\n")],
            &[("venv", &format!("{pip} -r requirements.txt pytest")), ("test", ".venv/bin/python -m pytest")],
        );
        let project =
            "[project]\nname = \"x\"\ndependencies = [\"a\"]\noptional-dependencies.test = [\"pytest\"]\n[tool.ruff]\n";
        check(
            &[("pyproject.toml", project)],
            &[
                ("venv", &format!("{pip} -e '.[test]' ruff pytest")),
                ("lint", ".venv/bin/python -m ruff check ."),
                ("test", ".venv/bin/python -m pytest"),
            ],
        );
        check(
            &[("pyproject.toml", project), ("uv.lock", "name = \"pytest\"\nname = \"ruff\"\n")],
            &[
                ("venv", "uv sync --locked --all-extras --all-groups"),
                ("lint", ".venv/bin/python -m ruff check ."),
                ("test", ".venv/bin/python -m pytest"),
            ],
        );
        check(
            &[("setup.py", "install_requires=['a']"), (".flake8", ""), ("tests/test_x.py", "")],
            &[
                ("venv", &format!("{pip} -e . flake8")),
                ("lint", ".venv/bin/python -m flake8 --extend-exclude .venv"),
                ("test", ".venv/bin/python -m unittest discover -s tests"),
            ],
        );
        check(&[("pom.xml", "")], &[("test", "mvn --batch-mode --quiet -Dmaven.repo.local=\"$HOME/.m2/own\" test")]);
        check(
            &[("pom.xml", ""), ("mvnw", "")],
            &[("test", "./mvnw --batch-mode --quiet -Dmaven.repo.local=\"$HOME/.m2/own\" test")],
        );
        check(&[("build.gradle.kts", ""), ("gradlew", "")], &[("test", "./gradlew test")]);
        check(&[("build.gradle", "")], &[("test", "gradle test")]);
        check(
            &[("Makefile", ".PHONY: test\nall lint: x\n\tcc\ntest: all\n")],
            &[("lint", "make lint"), ("test", "make test")],
        );
        check(&[("Makefile", "check:\n\ttrue\n")], &[("test", "make check")]);
        // A language's own tools go before its Makefile; the Makefile adds what they lack.
        let both = [("lint", clippy), ("build", "make build"), ("test", "cargo test")];
        check(&[("Cargo.toml", ""), ("Makefile", "build:\n\tx\ntest:\n\ty\n")], &both);
        // What a language needs is fetched only where one of its checks is taken.
        let beside = [("Cargo.toml", ""), ("package.json", needing)];
        check(&beside, &[("lint", clippy), ("test", "cargo test")]);
    }

    #[test]
    fn nothing_is_guessed_where_nothing_is_known() {
        check(&[], &[]);
        check(&[("README.md", "make test\n")], &[]);
        check(&[("Makefile", "all:\n\tcc x.c\n# test: later\ntest := x\n\ttest: y\n")], &[]);
        check(&[("package.json", r#"{"name": "x"}"#)], &[]);
        check(&[("package.json", "{ broken")], &[]);
        let new = r#"{"scripts": {"test": "echo \"Error: no test specified\" && exit 1"}}"#;
        check(&[("package.json", new)], &[]);
        check(&[("pyproject.toml", "[project]\nname = \"x\"\n")], &[]);
    }
}
