//! The gates that a repository's files suggest. What the files do not say is not guessed.

use std::path::Path;

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
}

/// The gates that the files of a folder suggest, each name once: lint, then build, then test.
pub(super) fn guesses(dir: &Path) -> Vec<Guess> {
    let all = [rust, go, node, python, java, make].into_iter().flat_map(|language| language(dir)).collect::<Vec<_>>();
    let first = |gate: &str| all.iter().find(|guess| guess.gate == gate).cloned();
    ["lint", "build", "test"].into_iter().filter_map(first).collect()
}

fn guess(file: &'static str, gate: &'static str, run: impl Into<String>) -> Guess {
    Guess { file, gate, run: run.into() }
}

fn text(dir: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(dir.join(file)).ok()
}

fn rust(dir: &Path) -> Vec<Guess> {
    const FILE: &str = "Cargo.toml";
    if !dir.join(FILE).exists() {
        return Vec::new();
    }
    let all = if text(dir, FILE).is_some_and(|t| t.contains("[workspace]")) { " --workspace" } else { "" };
    vec![
        guess(FILE, "lint", format!("cargo clippy{all} --all-targets -- -D warnings")),
        guess(FILE, "test", format!("cargo test{all}")),
    ]
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
    let manager = managers.iter().find(|(lock, _)| dir.join(lock).exists()).map_or("npm", |(_, manager)| *manager);
    let is_there = |name: &&str| {
        let script = package.pointer(&format!("/scripts/{name}")).and_then(Value::as_str);
        script.is_some_and(|script| !script.trim().is_empty() && !script.contains("no test specified"))
    };
    ["lint", "build", "test"]
        .into_iter()
        .filter(is_there)
        .map(|name| guess(FILE, name, format!("{manager} run {name}")))
        .collect()
}

fn python(dir: &Path) -> Vec<Guess> {
    const PROJECTS: [&str; 5] = ["pyproject.toml", "setup.cfg", "tox.ini", "setup.py", "requirements.txt"];
    let Some(file) = PROJECTS.into_iter().chain(["pytest.ini"]).find(|file| dir.join(file).exists()) else {
        return Vec::new();
    };
    let says = |word: &str| PROJECTS.iter().any(|file| text(dir, file).is_some_and(|t| t.contains(word)));
    let mut found = Vec::new();
    if dir.join("ruff.toml").exists() || says("[tool.ruff") {
        found.push(guess(file, "lint", "ruff check ."));
    } else if dir.join(".flake8").exists() || says("[flake8]") {
        found.push(guess(file, "lint", "python3 -m flake8"));
    }
    if dir.join("pytest.ini").exists() || dir.join("conftest.py").exists() || says("pytest") {
        found.push(guess(file, "test", "python3 -m pytest"));
    } else if let Some(tests) = ["tests", "test"].into_iter().find(|tests| dir.join(tests).is_dir()) {
        found.push(guess(file, "test", format!("python3 -m unittest discover -s {tests}")));
    }
    found
}

fn java(dir: &Path) -> Vec<Guess> {
    for (file, wrapper, program, arguments) in [
        ("pom.xml", "mvnw", "mvn", "--batch-mode --quiet test"),
        ("build.gradle", "gradlew", "gradle", "test"),
        ("build.gradle.kts", "gradlew", "gradle", "test"),
    ] {
        if dir.join(file).exists() {
            let own = format!("./{wrapper}");
            let program = if dir.join(wrapper).exists() { own.as_str() } else { program };
            return vec![guess(file, "test", format!("{program} {arguments}"))];
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
        let found = guesses(dir.path());
        let found: Vec<(&str, &str)> = found.iter().map(|g| (g.gate, g.run.as_str())).collect();
        assert_eq!(found, expected, "{files:?}");
    }

    #[test]
    fn gates_are_guessed_from_what_the_files_say() {
        let clippy = "cargo clippy --all-targets -- -D warnings";
        check(&[("Cargo.toml", "[package]")], &[("lint", clippy), ("test", "cargo test")]);
        let whole = "cargo clippy --workspace --all-targets -- -D warnings";
        check(&[("Cargo.toml", "[workspace]")], &[("lint", whole), ("test", "cargo test --workspace")]);
        let go = [("lint", "go vet ./..."), ("build", "go build ./..."), ("test", "go test ./...")];
        check(&[("go.mod", "module x")], &go);
        let scripts = r#"{"scripts": {"lint": "eslint .", "test": "vitest", "start": "x"}}"#;
        check(&[("package.json", scripts)], &[("lint", "npm run lint"), ("test", "npm run test")]);
        check(
            &[("package.json", scripts), ("pnpm-lock.yaml", "")],
            &[("lint", "pnpm run lint"), ("test", "pnpm run test")],
        );
        check(
            &[("pyproject.toml", "[tool.ruff]\n[tool.pytest.ini_options]\n")],
            &[("lint", "ruff check ."), ("test", "python3 -m pytest")],
        );
        check(&[("setup.py", ""), ("tests/test_x.py", "")], &[("test", "python3 -m unittest discover -s tests")]);
        check(&[("requirements.txt", "pytest==8\n")], &[("test", "python3 -m pytest")]);
        check(&[("pom.xml", "")], &[("test", "mvn --batch-mode --quiet test")]);
        check(&[("pom.xml", ""), ("mvnw", "")], &[("test", "./mvnw --batch-mode --quiet test")]);
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
