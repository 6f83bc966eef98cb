//! The diff policy: paths and sizes that no change may hold.

use refile_config::bounds::DiffPolicy;
use refile_core::gate::{DIFF_POLICY, GateReport};

use super::built_in;
use crate::git::entries::{Entry, Kind, is_modules};
use crate::git::{Leak, Refused, Why, names};

/// How many complaints the output lists.
const LISTED: usize = 50;

/// What the attempt left that git did not take, or that is not in git at all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Aside<'a> {
    /// What git was not given or did not take.
    pub refused: &'a [Refused],
    /// Changed paths that are kept with Git LFS.
    pub lfs: &'a [String],
    /// Secrets that the change holds.
    pub leaks: &'a [Leak],
}

/// The bytes that a change adds.
pub fn bytes(entries: &[Entry]) -> u64 {
    entries.iter().map(of_file).fold(0, u64::saturating_add)
}

fn of_file(entry: &Entry) -> u64 {
    match entry.kind {
        Kind::File { bytes, .. } => bytes,
        _ => 0,
    }
}

/// Fails where a path or a size is not allowed, and names it.
pub fn diff_policy(policy: &DiffPolicy, entries: &[Entry], aside: Aside<'_>) -> GateReport {
    let mut complaints: Vec<String> = Vec::new();
    let total = bytes(entries);
    if total > policy.max_bytes
        && let Some(largest) = entries.iter().max_by_key(|entry| of_file(entry))
    {
        complaints.push(format!(
            "Make the change smaller: its files hold {total} bytes together, {} alone {}, and at most {} are allowed",
            shown(&largest.path),
            of_file(largest),
            policy.max_bytes
        ));
    }
    if entries.len() > policy.max_files {
        let (files, most) = (entries.len(), policy.max_files);
        let are = if most == 1 { "is" } else { "are" };
        complaints.push(format!("Change fewer files: {files} are touched, and at most {most} {are} allowed"));
    }
    let leaked = |leak: &Leak| format!("Take the value of ${} out of {}: it is a secret", leak.name, shown(&leak.path));
    complaints.extend(aside.leaks.iter().map(leaked));
    complaints.extend(aside.refused.iter().map(left_out));
    complaints.extend(entries.iter().filter_map(|entry| complaint(policy, entry, aside.lfs)));
    let Some(first) = complaints.first().cloned() else { return built_in(DIFF_POLICY, None) };
    let more = complaints.len().saturating_sub(LISTED);
    let mut output = complaints.iter().take(LISTED).map(|line| format!("- {line}")).collect::<Vec<_>>().join("\n");
    if more > 0 {
        output = format!("{output}\n- and {more} more");
    }
    let first = first.lines().next().unwrap_or_default().to_owned();
    GateReport { required_change: Some(first), ..built_in(DIFF_POLICY, Some(output)) }
}

/// The report on a change whose diff cannot be read whole.
pub fn diff_too_large(limit: usize) -> GateReport {
    let words = format!("Make the change smaller: its diff holds more than {limit} bytes, with what it takes away");
    GateReport { required_change: Some(words.clone()), ..built_in(DIFF_POLICY, Some(words)) }
}

/// What is to be done about something that git was not given or did not take.
fn left_out(refused: &Refused) -> String {
    let path = shown(&refused.path);
    match &refused.why {
        Why::LikeGit => format!("Remove {path}: git keeps such names for itself"),
        Why::Special => format!("Remove {path}: it is a pipe, a socket or a device, and no file"),
        Why::TooLong => format!("Remove {path}: its path is too long to be checked out"),
        Why::Unreadable => format!("Remove {path} or make it readable: it cannot be looked into"),
        Why::InSubmodule => {
            format!("Empty the folder {path}: a submodule belongs there, and what lies in it is no part of the change")
        }
        Why::NotTaken(words) => {
            let lines: Vec<&str> = words.lines().filter(|line| !line.starts_with("hint: ")).collect();
            let first = lines.iter().find(|l| l.starts_with("error: ") || l.starts_with("fatal: ")).or(lines.first());
            let first = first.map_or("", |line| line.trim_start_matches("error: ").trim_start_matches("fatal: "));
            let rest: Vec<String> = lines.iter().take(LISTED).map(|line| format!("\n  {}", plain(line))).collect();
            format!("Remove or correct what git does not take: {}{}", plain(first), rest.concat())
        }
    }
}

/// What is wrong with one entry.
fn complaint(policy: &DiffPolicy, entry: &Entry, lfs: &[String]) -> Option<String> {
    let path = shown(&entry.path);
    if let Some(glob) = policy.forbidden.iter().find(|glob| matches(glob, &entry.path)) {
        return Some(format!("Leave {path} as it was: the policy forbids changes to `{glob}`"));
    }
    if entry.kind == Kind::Gone {
        return None;
    }
    if entry.path.split('/').any(names::is_like_git) {
        return Some(format!("Remove {path}: git keeps such names for itself"));
    }
    match &entry.kind {
        Kind::Submodule => Some(format!("Leave the submodule {path} as it was: a task cannot add or change one")),
        Kind::Link(target) if leads_out(&entry.path, target) => {
            Some(format!("Remove the link {path}: it leads out of the repository, to {}", shown(target)))
        }
        _ if lfs.contains(&entry.path) => {
            Some(format!("Leave {path} as it was: it is kept with Git LFS, which a task cannot change"))
        }
        Kind::File { bytes, is_binary: true } if *bytes > policy.binaries => {
            let most = policy.binaries;
            Some(format!(
                "Remove {path} or make it smaller: it is binary and has {bytes} bytes, and at most {most} are allowed"
            ))
        }
        _ if is_modules(&entry.path) => odd_module(entry.text.as_deref()).map(|what| {
            format!("Correct {path}: {what}; only https, ssh, git and relative addresses and plain paths are allowed")
        }),
        _ => None,
    }
}

/// Whether a link leads out of the tree or into `.git`. A `..` behind a name counts as one that does: the name may be a link.
fn leads_out(path: &str, target: &str) -> bool {
    let mut depth = path.split('/').count() - 1;
    let mut is_inside_name = false;
    for part in target.split('/') {
        match part {
            // A slash at the beginning.
            "" if !is_inside_name => return true,
            "" | "." => {}
            ".." if is_inside_name || depth == 0 => return true,
            ".." => depth -= 1,
            name if names::is_like_git(name) => return true,
            _ => is_inside_name = true,
        }
    }
    target.contains('\0')
}

/// What in a `.gitmodules` is not plain.
fn odd_module(text: Option<&str>) -> Option<String> {
    let Some(text) = text else { return Some("it is too long".to_owned()) };
    for line in text.lines().map(str::trim) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim().to_lowercase(), value.trim().trim_matches('"'));
        let is_plain_path =
            || !value.starts_with(['/', '-']) && !value.split('/').any(|p| p == ".." || names::is_like_git(p));
        let is_odd = match key.rsplit(' ').next().unwrap_or_default() {
            "url" => !is_plain_address(value),
            "path" => !is_plain_path(),
            "update" => value.starts_with('!'),
            "branch" => value.starts_with('-'),
            _ => false,
        };
        if is_odd || value.ends_with('\\') {
            return Some(format!("`{} = {}`", key, shown(value)));
        }
    }
    None
}

fn is_plain_address(url: &str) -> bool {
    let is_relative = url.starts_with("./") || url.starts_with("../");
    let is_of = ["https://", "http://", "ssh://", "git://"]
        .iter()
        .any(|p| url.strip_prefix(p).is_some_and(|r| !r.starts_with('-')));
    let is_short = url.split_once(':').is_some_and(|(host, path)| {
        host.contains('@') && !host.contains('/') && !host.starts_with('-') && !path.starts_with([':', '-'])
    });
    names::address(url).is_ok() && !url.contains(char::is_whitespace) && (is_relative || is_of || is_short)
}

/// A path in one line that is not too long.
fn shown(path: &str) -> String {
    format!("`{}`", plain(path))
}

/// A text in one line that is not too long.
fn plain(text: &str) -> String {
    text.chars().take(200).flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Whether a path matches a glob: `*` and `?` within a name, `**` for any folders. A folder's name stands for all in it.
fn matches(glob: &str, path: &str) -> bool {
    let (glob, path): (Vec<&str>, Vec<&str>) =
        (glob.trim_end_matches('/').split('/').collect(), path.split('/').collect());
    // Which beginnings of the path the glob's parts so far can stand for.
    let mut ends = vec![false; path.len() + 1];
    ends[0] = true;
    for part in glob {
        let mut next = vec![false; path.len() + 1];
        for (at, _) in ends.iter().enumerate().filter(|(_, can)| **can) {
            if part == "**" {
                next[at..].fill(true);
            } else if at < path.len() && name_matches(part, path[at]) {
                next[at + 1] = true;
            }
        }
        ends = next;
    }
    ends[1..].iter().any(|can| *can)
}

/// `*` and `?` within one name.
fn name_matches(glob: &str, name: &str) -> bool {
    let (glob, name): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
    let (mut g, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, n));
                g += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (g, n) = (g + 1, n + 1),
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                (g, n) = (at + 1, from + 1);
            }
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, kind: Kind) -> Entry {
        Entry { path: path.to_owned(), kind, text: None }
    }

    fn file(path: &str, bytes: u64, is_binary: bool) -> Entry {
        of(path, Kind::File { bytes, is_binary })
    }

    fn modules(text: &str) -> Entry {
        Entry { text: Some(text.to_owned()), ..file(".gitmodules", 10, false) }
    }

    /// The required change that entries lead to.
    fn said(policy: &DiffPolicy, entries: &[Entry]) -> Option<String> {
        diff_policy(policy, entries, Aside::default()).required_change
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        let policy = DiffPolicy { max_bytes: 1_000, max_files: 3, binaries: 100, forbidden: vec!["ci/**".to_owned()] };
        let link = |path: &str, target: &str| of(path, Kind::Link(target.to_owned()));
        let url = |url: &str| modules(&format!("[submodule \"x\"]\n\tpath = x\n\turl = {url}\n"));
        for (entry, says) in [
            (file("big.txt", 1_001, false), "`big.txt` alone 1001, and at most 1000"),
            (file("a.png", 101, true), "`a.png` or make it smaller: it is binary and has 101 bytes"),
            (file("ci/x/y.yml", 1, false), "Leave `ci/x/y.yml` as it was"),
            (of("ci/gone", Kind::Gone), "Leave `ci/gone`"),
            (file("sub/.GIT/config", 1, false), "Remove `sub/.GIT/config`"),
            (file("git~1", 1, false), "Remove `git~1`"),
            (file(".git\u{200c}/x", 1, false), "git keeps such names"),
            (of("lib", Kind::Submodule), "Leave the submodule `lib`"),
            (link("a", "/etc/passwd"), "Remove the link `a`"),
            (link("d/a", "../../x"), "to `../../x`"),
            (link("a", "d/../../x"), "Remove the link"),
            (link("a", "d/.."), "Remove the link"),
            (link("a", ".git/config"), "Remove the link"),
            (link("new\nline", "/x"), "`new\\nline`"),
            (url("ext::sh -c touch"), "`url = "),
            (url("--upload-pack=x"), "`url = "),
            (url("file:///etc"), "`url = "),
            (url("/srv/x"), "`url = "),
            (modules("[submodule \"x\"]\n\tupdate = !touch x\n"), "`update = `!touch x``"),
            (modules("[submodule \"x\"]\n\tpath = ../x\n"), "`path = "),
            (modules("[submodule \"x\"] path = ../x\n"), "path = "),
        ] {
            let told = said(&policy, std::slice::from_ref(&entry)).unwrap_or_default();
            assert!(told.contains(says), "{entry:?}: {told}");
            assert!(!told.contains('\n'));
        }
        let four: Vec<Entry> = (0..4).map(|n| file(&n.to_string(), 1, false)).collect();
        assert_eq!(said(&policy, &four).unwrap(), "Change fewer files: 4 are touched, and at most 3 are allowed");
    }

    #[test]
    fn what_is_allowed_passes() {
        let policy = DiffPolicy { forbidden: vec!["ci/**".to_owned()], ..DiffPolicy::default() };
        let link = |path: &str, target: &str| of(path, Kind::Link(target.to_owned()));
        let fine = [
            file("a.txt", 10, false),
            file("x.png", 1 << 20, true),
            file(".gitignore", 1, false),
            file(".github/x", 1, false),
            file("a..b/c", 1, false),
            of("old", Kind::Gone),
            of(".git", Kind::Gone),
            link("d/e/a", "../../x/y"),
            link("a", "./b//c"),
            modules("[submodule \"x\"]\n\tpath = x\n\turl = https://h/x.git\n"),
            modules("[submodule \"x\"]\n\turl = ../x.git\n"),
            modules("[submodule \"x\"]\n\turl = git@h:x/y.git\n"),
        ];
        assert_eq!(said(&policy, &fine), None);
        let refused = [Refused { path: "x/git~1".to_owned(), why: Why::LikeGit }];
        let aside = Aside { refused: &refused, lfs: &["x.png".to_owned()], leaks: &[] };
        let output = diff_policy(&policy, &fine, aside).output;
        assert!(
            output.contains("`x/git~1`") && output.contains("`x.png` as it was: it is kept with Git LFS"),
            "{output}"
        );
    }

    #[test]
    fn globs_stand_for_paths() {
        for (glob, path, is) in [
            ("*.lock", "a.lock", true),
            ("*.lock", "d/a.lock", false),
            ("**/*.lock", "a.lock", true),
            ("**/*.lock", "d/e/a.lock", true),
            ("ci", "ci/x/y", true),
            ("ci/", "ci/x", true),
            ("ci/**", "ci/x/y", true),
            ("ci/**", "cix", false),
            ("a?c/*", "abc/d", true),
            ("a?c", "ac", false),
            ("**", "x", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxaxxbxx", false),
        ] {
            assert_eq!(matches(glob, path), is, "{glob} {path}");
        }
    }
}
