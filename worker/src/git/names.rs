//! Branches, commits and addresses, checked before git sees them: none can be taken for an option.

use refile_core::TaskId;

use super::GitError;

/// The longest branch name; longer ones do not fit into file names.
const MAX_BRANCH: usize = 200;

/// A branch name that git accepts and that cannot be read as anything else.
pub fn branch(name: &str) -> Result<&str, GitError> {
    let part_is_fine = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && !part.ends_with('.')
            && !part.to_ascii_lowercase().ends_with(".lock")
    };
    let fits = (1..=MAX_BRANCH).contains(&name.len())
        && name.split('/').all(part_is_fine)
        && !name.contains("..")
        && !name.contains("@{")
        && !matches!(name, "@" | "HEAD")
        && !name.contains(|c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c));
    if fits { Ok(name) } else { Err(GitError::Branch(name.chars().take(80).collect())) }
}

/// The full id of a commit.
pub fn commit(id: &str) -> Result<&str, GitError> {
    let fits = matches!(id.len(), 40 | 64) && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if fits { Ok(id) } else { Err(GitError::Commit(id.chars().take(80).collect())) }
}

/// A repository's address: an absolute path, a URL of a protocol that is allowed, or `host:path`.
pub fn address(url: &str) -> Result<&str, GitError> {
    let wrong = || GitError::Address(shown(url).chars().take(200).collect());
    let is_odd = url.is_empty() || url.starts_with('-') || url.contains(char::is_control) || url.contains("::");
    if is_odd {
        return Err(wrong());
    }
    match url.split_once("://") {
        Some((protocol, _)) if !["file", "git", "http", "https", "ssh"].contains(&protocol) => Err(wrong()),
        _ => Ok(url),
    }
}

/// An address without the name and password that it may hold, for people to read.
pub fn shown(url: &str) -> String {
    match url.split_once("://") {
        Some((protocol, rest)) => {
            let host_end = rest.find('/').unwrap_or(rest.len());
            let start = rest[..host_end].rfind('@').map_or(0, |at| at + 1);
            format!("{protocol}://{}", &rest[start..])
        }
        None => url.to_owned(),
    }
}

/// The branch of one claim of an attempt: no two claims share it.
pub fn attempt_branch(task: &TaskId, phase: &str, attempt: u32, fence: u64) -> Result<String, GitError> {
    let name = format!("{}{phase}/{attempt}-{fence}", attempt_branches(task));
    branch(&name).map(str::to_owned)
}

/// What every attempt branch of a task begins with.
pub fn attempt_branches(task: &TaskId) -> String {
    format!("refile/{task}/")
}

/// Whether some system takes a file's name for `.git`: of another case, with trailing dots or spaces, as a short name or a
/// stream, or with characters in it that are not seen.
pub fn is_like_git(name: &str) -> bool {
    let unseen = |c: &char| matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let is_git = |part: &str| {
        let plain: String = part.split(':').next().unwrap_or_default().chars().filter(|c| !unseen(c)).collect();
        let plain = plain.trim_end_matches(['.', ' ']).to_lowercase();
        plain == ".git" || plain == "git~1"
    };
    // On Windows what lies behind a backslash is a name of its own.
    name.split('\\').any(is_git)
}

/// Whether the repository lies on this machine, so that its work tree can be brought along.
pub fn is_local(url: &str) -> bool {
    url.starts_with("file://") || (!url.contains("://") && !url.split('/').next().is_some_and(|p| p.contains(':')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_could_misread_is_no_branch() {
        for good in ["main", "feature/x", "release-1.2", "refile/t/change/1-2", "täst", "a%b"] {
            assert!(branch(good).is_ok(), "{good}");
        }
        let long = "x".repeat(201);
        for bad in [
            "",
            "--upload-pack=x",
            "-x",
            "a/-b",
            "/a",
            "a/",
            "a//b",
            ".a",
            "a/.b",
            "a..b",
            "a.lock",
            "a.LOCK/b",
            "a b",
            "a~1",
            "a^",
            "a:b",
            "a?",
            "a*",
            "a[",
            "a\\b",
            "a@{1}",
            "@",
            "HEAD",
            "a\nb",
            "a.",
            &long,
        ] {
            assert!(branch(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_whole_ids_are_commits_and_only_plain_addresses_repositories() {
        assert!(commit(&"a1".repeat(20)).is_ok());
        for bad in ["", "HEAD", "--all", &"A1".repeat(20), &"a".repeat(39)] {
            assert!(commit(bad).is_err(), "{bad}");
        }
        for good in ["/srv/x", "file:///srv/x", "https://h/x.git", "git@h:x/y.git", "ssh://h/x"] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in ["", "--upload-pack=touch x", "ext::sh -c x", "ftp://h/x", "a\nb"] {
            assert!(address(bad).is_err(), "{bad}");
        }
        assert_eq!(shown("https://me:secret@h/x@y"), "https://h/x@y");
        assert_eq!(shown("git@h:x"), "git@h:x");
        assert!(is_local("/srv/x") && is_local("file:///srv/x") && is_local("C/x"));
        assert!(!is_local("git@h:x") && !is_local("https://h/x"));
    }
}
