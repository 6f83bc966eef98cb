//! Holds the crate to its promise: no input or output, no clock, no randomness, no runtime.

use std::path::{Path, PathBuf};

/// What must not appear in the sources; each is looked for in code, not in comments.
const FORBIDDEN: &[&str] = &[
    "tokio",
    "async",
    "await",
    "futures",
    "rand",
    "getrandom",
    "uuid",
    "std::fs",
    "std::net",
    "std::env",
    "std::time",
    "std::process",
    "std::thread",
    "std::io",
    "std::sync",
    "SystemTime",
    "Instant",
    "println!",
    "eprintln!",
    "print!",
    "eprint!",
    "dbg!",
    "thread",
    "static mut",
    "thread_local",
    "OnceLock",
    "LazyLock",
    "RefCell",
    "env!",
    "HashMap",
    "HashSet",
    "RandomState",
    "tracing",
    "extern",
];

/// What the crate may depend on, outside its tests.
const ALLOWED_DEPENDENCIES: &[&str] = &["schemars", "serde", "serde_json", "thiserror"];

/// The forbidden words of a source, each with its line. Comments are passed over: they may speak of the world.
fn impurities(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for word in FORBIDDEN.iter().filter(|word| holds(code, word)) {
            found.push(format!("line {}: `{word}` in `{}`", number + 1, line.trim()));
        }
        // `use std::{fs, io}` names no forbidden path in one piece.
        if code.contains("use std::{") || code.contains("use std::*") {
            found.push(format!("line {}: import from std one by one, so that this check can read it", number + 1));
        }
    }
    found
}

/// Whether the code holds the word as a word: `operand` does not hold `rand`.
fn holds(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(is_part);
        let after = code[at + word.len()..].chars().next().is_some_and(is_part);
        !before && (!after || word.ends_with('!'))
    })
}

/// The names below `[dependencies]` in a manifest.
fn dependencies(manifest: &str) -> Vec<&str> {
    let section = manifest.split("[dependencies]").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| line.split(['.', '=', ' ']).next()).filter(|name| !name.is_empty()).collect()
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn the_sources_do_nothing_but_compute() {
    let mut files = Vec::new();
    rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() >= 20, "only {} files were found", files.len());
    let mut found = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).expect("a readable source");
        assert!(source.starts_with("//!"), "{} does not begin by saying what lives in it", file.display());
        found.extend(impurities(&source).into_iter().map(|what| format!("{}: {what}", file.display())));
    }
    assert!(found.is_empty(), "refile-core must stay pure:\n{}", found.join("\n"));
}

#[test]
fn only_the_allowed_dependencies_are_there() {
    let manifest = include_str!("../Cargo.toml");
    assert_eq!(dependencies(manifest), ALLOWED_DEPENDENCIES, "a dependency of refile-core needs a reason");
    assert!(!manifest.contains("[build-dependencies]") && !manifest.contains("[target."), "{manifest}");
}

#[test]
fn the_check_finds_what_is_impure() {
    for bad in [
        "let t = std::time::SystemTime::now();",
        "async fn f() {}",
        "let x: u8 = rand::random();",
        "println!(\"{x}\");",
        "use std::{fs, io};",
        "let n = std::env::var(\"X\");",
        "tokio::spawn(f());",
        "std::thread::spawn(|| ());",
        "use std::time::Instant;",
        "std::fs::write(p, b)?; // fine",
        "let m: HashMap<u8, u8> = HashMap::default();",
    ] {
        assert!(!impurities(bad).is_empty(), "{bad}");
    }
    for good in ["// reads no std::time", "let operand = brand(threads_of);", "/// no tokio here", "asynchronous()"] {
        assert!(impurities(good).is_empty(), "{good}: {:?}", impurities(good));
    }
    let manifest = "[dependencies]\nserde.workspace = true\ntokio = \"1\"\n\n[dev-dependencies]\nproptest = \"1\"\n";
    assert_eq!(dependencies(manifest), ["serde", "tokio"]);
}
