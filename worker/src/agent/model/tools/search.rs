//! `glob` and `grep`: a walk through the tree that follows no link, leaves out what git ignores, and ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobMatcher};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use regex::RegexBuilder;
use serde::Deserialize;

use super::Said;
use crate::agent::confined::{Confined, FileError, is_gits};
use crate::process::Secrets;

/// How many files a walk looks at.
const MOST_FILES: usize = 200_000;
/// How long a walk may take.
const LONGEST: Duration = Duration::from_secs(20);
/// How many files or lines are told.
const MOST_FOUND: usize = 500;
/// The longest line that is told, in bytes.
const LONGEST_LINE: usize = 400;
/// The largest file of rules that is heeded, in bytes. Each rule costs more than its text.
const LARGEST_RULES: u64 = 256 << 10;

#[derive(Deserialize)]
pub(super) struct GlobArguments {
    pattern: String,
}

#[derive(Deserialize)]
pub(super) struct GrepArguments {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
}

pub(super) fn glob(files: &Confined, arguments: &GlobArguments) -> Said {
    let matcher = matcher(&arguments.pattern)?;
    let mut found = Vec::new();
    let cut = walk(files, Path::new("."), &mut |path| {
        if matcher.is_match(path) {
            found.push(path.to_string_lossy().into_owned());
        }
        found.len() < MOST_FOUND
    })
    .map_err(|error| error.to_string())?;
    Ok(told(found, cut, "no file fits"))
}

pub(super) fn grep(files: &Confined, arguments: &GrepArguments, secrets: &Secrets) -> Said {
    let line = RegexBuilder::new(&arguments.pattern)
        .size_limit(4 << 20)
        .build()
        .map_err(|error| format!("the pattern cannot be read: {error}"))?;
    let matcher = arguments.glob.as_deref().map(matcher).transpose()?;
    let from = files.existing(arguments.path.as_deref().unwrap_or(".")).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    let mut look = |path: &Path| {
        if matcher.as_ref().is_none_or(|matcher| matcher.is_match(path)) {
            let name = path.to_string_lossy();
            // What cannot be read as text holds no line.
            let text = files.read(&name).unwrap_or_default();
            let lines = text.lines().enumerate().filter(|(_, text)| line.is_match(text));
            found.extend(lines.take(MOST_FOUND - found.len()).map(|(at, text)| {
                let text = secrets.hide(text);
                let text = &text[..text.floor_char_boundary(LONGEST_LINE)];
                format!("{name}:{}:{text}", at + 1)
            }));
        }
        found.len() < MOST_FOUND
    };
    let cut = walk(files, &from, &mut look).map_err(|error| error.to_string())?;
    Ok(told(found, cut, "no line fits"))
}

fn told(mut found: Vec<String>, cut: Option<&str>, nothing: &str) -> String {
    if found.is_empty() {
        found.push(format!("({nothing})"));
    }
    found.extend(cut.map(|why| format!("[{why}: there may be more; ask for less]")));
    found.join("\n")
}

/// A pattern; one without a slash fits files in every folder, as people mean it.
fn matcher(pattern: &str) -> Result<GlobMatcher, String> {
    let pattern = pattern.trim().trim_start_matches("./");
    let anywhere = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    let glob = GlobBuilder::new(&anywhere).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| format!("the pattern cannot be read: {error}"))
}

/// Shows each file below a place to `look`, in the order of their names, until that has seen enough. Gives why it ended
/// early, if it did.
fn walk(files: &Confined, from: &Path, look: &mut dyn FnMut(&Path) -> bool) -> Result<Option<&'static str>, FileError> {
    let top = from.strip_prefix(".").unwrap_or(from);
    let error = |source| FileError::Io { path: from.display().to_string(), source };
    let from_here = if top.as_os_str().is_empty() { Path::new(".") } else { top };
    if files.dir().metadata(from_here).map_err(error)?.is_file() {
        look(top);
        return Ok(None);
    }
    let (started, mut seen) = (Instant::now(), 0);
    let mut rules: Vec<(PathBuf, Gitignore)> = Vec::new();
    for folder in top.ancestors().collect::<Vec<_>>().into_iter().rev() {
        rules.extend(rules_of(files, folder));
    }
    // Folders that are still to be looked into, the next one last.
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        let name = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
        // A folder that went away meanwhile, or may not be read.
        let Ok(listed) = files.dir().read_dir(name) else { continue };
        rules.retain(|(of, _)| folder.starts_with(of));
        if folder != top {
            rules.extend(rules_of(files, &folder));
        }
        let mut entries: Vec<(PathBuf, bool)> = listed
            .flatten()
            .filter_map(|entry| Some((entry.file_name(), entry.file_type().ok()?)))
            .filter(|(_, kind)| kind.is_file() || kind.is_dir())
            .map(|(name, kind)| (folder.join(name), kind.is_dir()))
            .filter(|(path, is_dir)| !is_gits(path) && !is_ignored(&rules, path, *is_dir))
            .collect();
        entries.sort();
        for (path, _) in entries.iter().filter(|(_, is_dir)| !is_dir) {
            seen += 1;
            if !look(path) {
                return Ok(Some("there are many"));
            }
            if seen >= MOST_FILES || started.elapsed() > LONGEST {
                return Ok(Some("the repository is large"));
            }
        }
        folders.extend(entries.into_iter().rev().filter(|(_, is_dir)| *is_dir).map(|(path, _)| path));
    }
    Ok(None)
}

/// What a folder's own `.gitignore` leaves out.
fn rules_of(files: &Confined, folder: &Path) -> Option<(PathBuf, Gitignore)> {
    let file = folder.join(".gitignore");
    files.dir().metadata(&file).ok().filter(|found| found.len() <= LARGEST_RULES)?;
    let text = files.read(&file.to_string_lossy()).ok()?;
    let mut builder = GitignoreBuilder::new(folder);
    for line in text.lines() {
        // A line that cannot be read leaves nothing out.
        let _ = builder.add_line(None, line);
    }
    Some((folder.to_owned(), builder.build().ok()?))
}

/// Whether git would leave it out: the rule that is nearest decides.
fn is_ignored(rules: &[(PathBuf, Gitignore)], path: &Path, is_dir: bool) -> bool {
    let decided = rules.iter().rev().map(|(_, rules)| rules.matched(path, is_dir)).find(|found| !found.is_none());
    decided.is_some_and(|found| found.is_ignore())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn place() -> (tempfile::TempDir, Confined) {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("tree");
        for folder in ["src/deep", "target", ".git", "../outside"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for (file, text) in [
            ("a.py", "def one():\n    return 1\n"),
            ("src/b.py", "one()\n"),
            ("src/deep/c.rs", "fn one() {}\n"),
            ("src/deep/kept.log", "one\n"),
            ("target/d.py", "one()\n"),
            (".git/e.py", "one()\n"),
            ("x.log", "one\n"),
            (".gitignore", "/target\n*.log\n"),
            ("src/deep/.gitignore", "!kept.log\n"),
            ("../outside/f.py", "one()\n"),
        ] {
            std::fs::write(root.join(file), text).unwrap();
        }
        std::fs::write(root.join("g.py"), b"one\0()\n").unwrap();
        symlink("../outside", root.join("link")).unwrap();
        symlink("../outside/f.py", root.join("h.py")).unwrap();
        let files = Confined::open(&root).unwrap();
        (place, files)
    }

    #[test]
    fn files_are_found_by_their_names() {
        let (_place, files) = place();
        for (pattern, expected) in [
            ("**/*.py", "a.py\ng.py\nsrc/b.py"),
            ("*.py", "a.py\ng.py\nsrc/b.py"),
            ("./src/*", "src/b.py"),
            ("src/**", "src/b.py\nsrc/deep/.gitignore\nsrc/deep/c.rs\nsrc/deep/kept.log"),
            ("*.log", "src/deep/kept.log"),
            ("*.{rs,go}", "src/deep/c.rs"),
            ("link/*", "(no file fits)"),
            (".git/*", "(no file fits)"),
        ] {
            let found = glob(&files, &GlobArguments { pattern: pattern.to_owned() }).unwrap();
            assert_eq!(found, expected, "{pattern}");
        }
        assert!(glob(&files, &GlobArguments { pattern: "{a".to_owned() }).is_err());
    }

    #[test]
    fn lines_are_found_by_what_is_in_them() {
        let (_place, files) = place();
        let found = |pattern: &str, path: Option<&str>, only: Option<&str>| {
            let arguments =
                GrepArguments { pattern: pattern.to_owned(), path: path.map(Into::into), glob: only.map(Into::into) };
            grep(&files, &arguments, &Secrets::default())
        };
        assert_eq!(found(r"one\(", None, Some("*.py")).unwrap(), "a.py:1:def one():\nsrc/b.py:1:one()");
        assert_eq!(
            found("one", Some("src/deep"), None).unwrap(),
            "src/deep/c.rs:1:fn one() {}\nsrc/deep/kept.log:1:one"
        );
        assert_eq!(found("ONE|return", Some("a.py"), None).unwrap(), "a.py:2:    return 1");
        assert_eq!(found("nothing", None, None).unwrap(), "(no line fits)");
        for (pattern, path) in
            [("(", None), ("x", Some("../outside")), ("x", Some("link")), ("x", Some(".git")), ("x", Some("no"))]
        {
            assert!(found(pattern, path, None).is_err(), "{pattern} {path:?}");
        }
    }

    #[test]
    fn a_file_of_too_many_rules_is_not_heeded() {
        let (place, files) = place();
        let path = place.path().join("tree/.gitignore");
        let all = || glob(&files, &GlobArguments { pattern: "*.log".to_owned() }).unwrap();
        for (bytes, found) in [(LARGEST_RULES, "src/deep/kept.log"), (LARGEST_RULES + 1, "x.log\nsrc/deep/kept.log")] {
            let rules = format!("*.log\n#{}", "x".repeat(bytes as usize - 7));
            assert_eq!(rules.len() as u64, bytes);
            std::fs::write(&path, rules).unwrap();
            assert_eq!(all(), found, "{bytes}");
        }
    }

    #[test]
    fn many_findings_are_cut_and_said_to_be() {
        let (place, files) = place();
        let many = "needle\n".repeat(2 * MOST_FOUND);
        std::fs::write(place.path().join("tree/many.txt"), many + &"needle".repeat(1_000)).unwrap();
        let arguments = GrepArguments { pattern: "needle".to_owned(), path: None, glob: None };
        let found = grep(&files, &arguments, &Secrets::default()).unwrap();
        assert_eq!(found.lines().count(), MOST_FOUND + 1);
        assert!(found.ends_with("[there are many: there may be more; ask for less]"), "{found}");
    }
}
