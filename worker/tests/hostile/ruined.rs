//! What an agent may do to its own repository that runs nothing, and that must change nothing of what the host makes of the
//! files. Each row has a control: git in that tree is misled, or waits for ever.

use std::path::Path;
use std::process::Command;

use super::common::Place;
use super::{host, sh, tree};

/// What is done, and what shows that it was.
const RUINED: &[(&str, &str, &str)] = &[
    (
        "a replaced commit",
        "git replace HEAD $(git commit-tree HEAD^{tree} -m replaced)",
        "git log -1 --format=%s | grep -q replaced",
    ),
    (
        "a replaced file",
        "git replace $(git rev-parse HEAD:a.txt) $(echo replaced | git hash-object -w --stdin)",
        "git show HEAD:a.txt | grep -q replaced",
    ),
    ("a graft", "git rev-parse HEAD > .git/info/grafts", "[ $(git log --oneline 2> /dev/null | wc -l) = 1 ]"),
    ("a shallow end", "git rev-parse HEAD > .git/shallow", "[ $(git log --oneline | wc -l) = 1 ]"),
    (
        "attributes of its own",
        "echo '* text eol=crlf filter=evil -diff' > .git/info/attributes",
        "git check-attr filter b.txt | grep -q evil",
    ),
    ("files that it excludes", "echo '*' > .git/info/exclude", "git check-ignore -q new.txt"),
    ("a damaged index", "echo garbage > .git/index", "! git status 2> /dev/null"),
    ("a lock", "touch .git/index.lock .git/HEAD.lock", "! git add -A 2> /dev/null"),
    ("a pipe for its index", "rm .git/index; mkfifo .git/index", "timeout 2 git status; [ $? = 124 ]"),
    ("a pipe for its configuration", "rm .git/config; mkfifo .git/config", "timeout 2 git status; [ $? = 124 ]"),
    (
        "a pipe among its objects",
        "rm .git/objects/info/alternates; mkfifo .git/objects/info/alternates",
        "timeout 2 git log; [ $? = 124 ]",
    ),
    ("no repository at all", "rm -rf .git", "! git -c safe.directory='*' rev-parse --git-dir 2> /dev/null"),
];

#[tokio::test]
async fn what_an_agent_does_to_its_own_repository_changes_nothing_of_what_the_host_makes() {
    for (name, script, control) in RUINED {
        let place = Place::bare();
        // So that there is a history to be cut off.
        place.commit(&[("c.txt", "c\n")]);
        let mirror = place.mirror().await;
        let base = mirror.fetch("main").await.unwrap();
        let attempt = tree(&place, &mirror, 1, &base, &base).await;
        std::fs::create_dir_all(attempt.dir().join(".git/info")).unwrap();
        sh(attempt.dir(), script, Path::new("/dev/null"));
        std::fs::write(attempt.dir().join("b.txt"), "changed\n").unwrap();
        std::fs::write(attempt.dir().join("new.txt"), "new\n").unwrap();
        let shown = Command::new("sh").args(["-c", control]).current_dir(attempt.dir()).output().unwrap();
        assert!(shown.status.success(), "{name}: git is not misled: {shown:?}");
        let head = host(&place, &mirror, &attempt, &base, 1).await;
        let mut files = mirror.files(&base, &head).await.unwrap();
        files.sort();
        assert_eq!(files, ["b.txt", "new.txt"], "{name}");
        let diff = String::from_utf8(mirror.diff(&base, &head).await.unwrap()).unwrap();
        assert!(diff.contains("-b\n+changed\n") && diff.contains("+new\n"), "{name}: {diff}");
    }
}
