//! Mirrors, trees, snapshots and merges on real repositories.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};

use common::{Place, git};
use refile_core::TaskId;
use refile_worker::git::{Expected, GitError, Push, Refused, Tree, Why};
use refile_worker::workspace::Claim;

async fn tree(place: &Place, fence: u64, base: &str, start: &str) -> Tree {
    let task = TaskId::parse("t1").unwrap();
    let claim = Claim { task: &task, phase: "change", attempt: 1, fence };
    place.workspace.tree(&place.mirror().await, claim, "main", base, start).await.unwrap()
}

#[tokio::test]
async fn every_kind_of_file_makes_the_round_trip() {
    let place = Place::new();
    place.commit(&[(".gitignore", "ignored/\n*.log\n"), ("gone.txt", "x\n"), ("run.sh", "#!/bin/sh\n")]);
    symlink("b.txt", place.origin.join("link")).unwrap();
    let base = place.commit(&[("c.txt", "c\n")]);
    let mirror = place.mirror().await;
    assert_eq!(mirror.fetch("main").await.unwrap(), base);
    let tree = tree(&place, 1, &base, &base).await;
    let dir = tree.dir();
    assert_eq!(std::fs::read_link(dir.join("link")).unwrap().to_str(), Some("b.txt"));
    // What an agent sees: a repository with its history, and nothing changed.
    assert_eq!(git(dir, &["status", "--porcelain"]), "");
    assert_eq!(git(dir, &["rev-parse", "HEAD"]), base);
    assert_eq!(git(dir, &["log", "--format=%s", "-1"]), "change by hand");
    assert_eq!(tree.write().await.unwrap(), mirror.tree_of(&base).await.unwrap());

    let odd = "odd \"name\"\n\t-- é ;$(x).txt";
    std::fs::write(dir.join("new.txt"), "new\n").unwrap();
    std::fs::write(dir.join(odd), "odd\n").unwrap();
    std::fs::write(dir.join("--upload-pack=x"), "dash\n").unwrap();
    std::fs::write(dir.join("data.bin"), [0_u8, 1, 2, 255]).unwrap();
    std::fs::remove_file(dir.join("gone.txt")).unwrap();
    std::fs::set_permissions(dir.join("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::remove_file(dir.join("link")).unwrap();
    symlink("/etc/passwd", dir.join("link")).unwrap();
    std::fs::create_dir(dir.join("ignored")).unwrap();
    std::fs::write(dir.join("ignored/x"), "x").unwrap();
    std::fs::write(dir.join("x.log"), "x").unwrap();
    // A commit of the agent's own changes nothing about what counts: the files.
    git(dir, &["commit", "-q", "-a", "-m", "by the agent"]);

    let written = tree.write().await.unwrap();
    let head = mirror.commit(&written, &base, "A title").await.unwrap();
    let mut files = mirror.files(&base, &head).await.unwrap();
    files.sort();
    assert_eq!(files, ["--upload-pack=x", "data.bin", "gone.txt", "link", "new.txt", odd, "run.sh"]);
    assert_eq!(mirror.patch_id(&base, &head).await.unwrap().len(), 40);
    assert_eq!(mirror.patch_id(&base, &base).await.unwrap(), "");
    let diff = String::from_utf8(mirror.diff(&base, &head).await.unwrap()).unwrap();
    assert!(diff.contains("new mode 100755") && diff.contains("+/etc/passwd") && diff.contains("deleted file"));

    let branch = "refile/t1/change/1-1";
    assert_eq!(mirror.push(&head, branch, Expected::Absent).await.unwrap(), Push::Done);
    assert_eq!(mirror.push(&head, branch, Expected::Absent).await.unwrap(), Push::Done);
    assert_eq!(mirror.push(&base, branch, Expected::Absent).await.unwrap(), Push::Moved);
    assert_eq!(mirror.fetch(branch).await.unwrap(), head);
    assert_eq!(place.show(&format!("{branch}:new.txt")), "new");
    assert_eq!(
        git(&place.origin, &["log", "-1", "--format=%an <%ae>|%s|%P", branch]),
        format!("Refile <refile@localhost>|A title|{base}")
    );
    let (dir, parent) = (dir.to_owned(), dir.parent().unwrap().to_owned());
    drop(tree);
    assert!(!dir.exists());
    assert_eq!(std::fs::read_dir(parent).unwrap().count(), 0);
}

#[tokio::test]
async fn a_change_of_white_space_has_a_patch_id_of_its_own() {
    let place = Place::new();
    let base = place.head("main");
    let mirror = place.mirror().await;
    mirror.fetch("main").await.unwrap();
    let mut ids = std::collections::BTreeSet::new();
    for content in ["def f():\nreturn 1\n", "def f():\n    return 1\n", "def f():\n    return 1"] {
        let tree = tree(&place, 1, &base, &base).await;
        std::fs::write(tree.dir().join("f.py"), content).unwrap();
        ids.insert(mirror.patch_id(&base, &tree.write().await.unwrap()).await.unwrap());
    }
    assert_eq!(ids.len(), 3, "{ids:?}");
}

#[tokio::test]
async fn a_binary_change_has_a_patch_id_of_its_own() {
    let place = Place::new();
    let base = place.head("main");
    let mirror = place.mirror().await;
    mirror.fetch("main").await.unwrap();
    let mut ids = Vec::new();
    for content in [[0_u8, 1], [0_u8, 2]] {
        let tree = tree(&place, 1, &base, &base).await;
        std::fs::write(tree.dir().join("x.bin"), content).unwrap();
        ids.push(mirror.patch_id(&base, &tree.write().await.unwrap()).await.unwrap());
    }
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_conflict_leaves_markers_and_names_the_files() {
    let place = Place::new();
    let base = place.head("main");
    let mirror = place.mirror().await;
    mirror.fetch("main").await.unwrap();
    let attempt = tree(&place, 1, &base, &base).await;
    std::fs::write(attempt.dir().join("b.txt"), "mine\n").unwrap();
    std::fs::write(attempt.dir().join("n.txt"), "n\n").unwrap();
    let head = mirror.commit(&attempt.write().await.unwrap(), &base, "mine").await.unwrap();

    place.commit(&[("a.txt", "zero\n")]);
    let moved = mirror.fetch("main").await.unwrap();
    let clean = mirror.merge(&moved, &head).await.unwrap();
    assert!(clean.conflicts.is_empty());
    assert_eq!(mirror.patch_id(&moved, &clean.tree).await.unwrap(), mirror.patch_id(&base, &head).await.unwrap());

    place.commit(&[("b.txt", "theirs\n")]);
    let moved = mirror.fetch("main").await.unwrap();
    let merge = mirror.merge(&moved, &head).await.unwrap();
    assert_eq!(merge.conflicts, ["b.txt"]);
    let next = tree(&place, 2, &moved, &merge.tree).await;
    let text = std::fs::read_to_string(next.dir().join("b.txt")).unwrap();
    assert!(text.starts_with("<<<<<<< ") && text.contains("theirs\n=======\nmine\n>>>>>>> "), "{text}");
    assert_eq!(std::fs::read_to_string(next.dir().join("n.txt")).unwrap(), "n\n");
    let conflicts = merge.conflicts;
    assert_eq!(mirror.with_markers(&next.write().await.unwrap(), &conflicts).await.unwrap(), ["b.txt"]);
    std::fs::write(next.dir().join("b.txt"), "both\n").unwrap();
    assert!(mirror.with_markers(&next.write().await.unwrap(), &conflicts).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_an_agent_writes_into_git_folders_runs_nothing_on_the_host() {
    let place = Place::new();
    let base = place.head("main");
    let mirror = place.mirror().await;
    mirror.fetch("main").await.unwrap();
    let tree = tree(&place, 1, &base, &base).await;
    let dir = tree.dir();
    let proof = place.root.path().join("ran");
    let evil = format!("touch {}", proof.display());
    let hooks = place.root.path().join("hooks");
    std::fs::create_dir_all(&hooks).unwrap();
    std::fs::create_dir_all(dir.join(".git/hooks")).unwrap();
    for hook in ["pre-commit", "post-index-change", "reference-transaction", "pre-push", "post-checkout"] {
        for folder in [hooks.clone(), dir.join(".git/hooks")] {
            std::fs::write(folder.join(hook), format!("#!/bin/sh\n{evil}\n")).unwrap();
            std::fs::set_permissions(folder.join(hook), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    // A repository inside the tree, with the same settings.
    git(dir, &["init", "-q", "vendor/lib"]);
    std::fs::write(dir.join("vendor/lib/x.txt"), "x\n").unwrap();
    git(&dir.join("vendor/lib"), &["add", "-A"]);
    git(&dir.join("vendor/lib"), &["commit", "-q", "-m", "x"]);
    std::fs::write(dir.join("vendor/lib/x.txt"), "y\n").unwrap();
    for repository in [dir.to_owned(), dir.join("vendor/lib")] {
        for (key, value) in [
            ("core.hooksPath", hooks.to_str().unwrap()),
            ("core.fsmonitor", &evil),
            ("core.sshCommand", &evil),
            ("diff.external", &evil),
            ("diff.evil.textconv", &evil),
            ("filter.evil.clean", &evil),
            ("filter.evil.smudge", &evil),
            ("merge.evil.driver", &evil),
        ] {
            git(&repository, &["config", key, value]);
        }
        std::fs::write(repository.join(".gitattributes"), "* filter=evil diff=evil merge=evil\n").unwrap();
    }
    let written = tree.write().await.unwrap();
    let head = mirror.commit(&written, &base, "evil").await.unwrap();
    mirror.diff(&base, &head).await.unwrap();
    mirror.patch_id(&base, &head).await.unwrap();
    mirror.merge(&base, &head).await.unwrap();
    mirror.push(&head, "refile/t1/change/1-1", Expected::Absent).await.unwrap();
    assert!(!proof.exists(), "something that the agent wrote was run");
    // The nested repository's files are plain files of the change.
    assert!(mirror.files(&base, &head).await.unwrap().contains(&"vendor/lib/x.txt".to_owned()));
    // The traps are real: git without the host's care runs into them.
    let _ = std::process::Command::new("git").args(["status"]).current_dir(dir).output().unwrap();
    assert!(proof.exists(), "the test's traps do not work");
}

#[tokio::test]
async fn a_submodule_stays_what_it_was() {
    let place = Place::new();
    let pinned = place.head("main");
    git(&place.origin, &["update-index", "--add", "--cacheinfo", &format!("160000,{pinned},sub")]);
    git(&place.origin, &["commit", "-q", "-m", "a submodule"]);
    let base = place.head("main");
    let mirror = place.mirror().await;
    mirror.fetch("main").await.unwrap();
    let tree = tree(&place, 1, &base, &base).await;
    git(tree.dir(), &["init", "-q", "sub"]);
    std::fs::write(tree.dir().join("sub/x"), "x").unwrap();
    assert_eq!(tree.write().await.unwrap(), mirror.tree_of(&base).await.unwrap());
    // What is no part of the change is named.
    assert_eq!(tree.refused(), [Refused { path: "sub".to_owned(), why: Why::InSubmodule }]);
    std::fs::remove_dir_all(tree.dir().join("sub")).unwrap();
    assert_eq!(tree.write().await.unwrap(), mirror.tree_of(&base).await.unwrap());
    assert!(tree.refused().is_empty());
}

#[tokio::test]
async fn locks_that_a_crash_left_in_a_mirror_are_removed_and_young_ones_are_not() {
    let place = Place::new();
    let mirror = place.mirror().await;
    mirror.fetch("main").await.unwrap();
    let dir = mirror.git().dir();
    let age = |name: &str, seconds: u64| {
        let file = std::fs::File::create(dir.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(seconds)).unwrap();
    };
    place.commit(&[("a.txt", "more\n")]);
    age("refs/refile/main.lock", 60);
    assert_eq!(mirror.fetch("main").await.unwrap(), place.head("main"));
    // Housekeeping takes attempt branches away, for which it writes `packed-refs`.
    git(&place.origin, &["branch", "refile/t1/change/1-1"]);
    mirror.fetch("refile/t1/change/1-1").await.unwrap();
    git(dir, &["pack-refs", "--all"]);
    age("packed-refs.lock", 60);
    place.workspace.keep_house().await;
    assert_eq!(git(dir, &["for-each-ref", "--format=%(refname)"]), "refs/refile/main");
    place.commit(&[("a.txt", "again\n")]);
    age("refs/refile/main.lock", 0);
    let error = mirror.fetch("main").await.unwrap_err();
    assert!(error.to_string().contains("main.lock': File exists"), "{error}");
}

#[tokio::test]
async fn errors_name_the_repository_and_the_next_step() {
    let place = Place::new();
    let mirror = place.mirror().await;
    let error = mirror.fetch("trunk").await.unwrap_err();
    assert!(matches!(&error, GitError::NoBranch { branches, .. } if branches == &["main"]), "{error}");
    assert!(error.to_string().contains("has no branch `trunk`; it has main"), "{error}");
    for bad in ["--upload-pack=x", "-x", "a..b"] {
        assert!(matches!(mirror.fetch(bad).await, Err(GitError::Branch(_))), "{bad}");
        let pushed = mirror.push(&place.head("main"), bad, Expected::Absent).await;
        assert!(matches!(pushed, Err(GitError::Branch(_))), "{bad}");
    }
    let missing = place.workspace.mirror("/no/such/repository").await.unwrap();
    let error = missing.fetch("main").await.unwrap_err();
    assert!(matches!(error, GitError::NoRepository { .. }), "{error}");
    for bad in ["--upload-pack=x", "ext::sh -c true"] {
        assert!(matches!(place.workspace.mirror(bad).await, Err(GitError::Address(_))), "{bad}");
    }
}

#[tokio::test]
async fn mirrors_are_shared_and_branches_that_replace_folders_are_fetched() {
    let place = Place::bare();
    let mirrors = futures::future::join_all((0..4).map(|_| async {
        let mirror = place.mirror().await;
        mirror.fetch("main").await.unwrap()
    }))
    .await;
    assert!(mirrors.iter().all(|head| *head == place.head("main")));
    let mirror = place.mirror().await;
    let head = place.head("main");
    git(&place.origin, &["branch", "a", "main"]);
    assert_eq!(mirror.fetch("a").await.unwrap(), head);
    git(&place.origin, &["branch", "-D", "a"]);
    git(&place.origin, &["branch", "a/b", "main"]);
    assert_eq!(mirror.fetch("a/b").await.unwrap(), head);
    let by_url = place.workspace.mirror(&format!("file://{}", place.url())).await.unwrap();
    assert_eq!(by_url.fetch("main").await.unwrap(), head);
}

#[tokio::test]
async fn a_trailer_is_found_and_a_mention_is_not() {
    let place = Place::new();
    let start = place.head("main");
    let mirror = place.mirror().await;
    let found = async || {
        let head = mirror.fetch("main").await.unwrap();
        mirror.with_trailer(&head, &[&start], "Refile-Task", "t1").await.unwrap()
    };
    git(&place.origin, &["commit", "-q", "--allow-empty", "-m", "Refile-Task: t1 is a mention\n\nmore text"]);
    git(&place.origin, &["commit", "-q", "--allow-empty", "-m", "x\n\nRefile-Task: t10"]);
    assert_eq!(found().await, None);
    git(&place.origin, &["commit", "-q", "--allow-empty", "-m", "x\n\nRefile-Task: t1\nRefile-Attempt: 1"]);
    let landed = place.head("main");
    git(&place.origin, &["commit", "-q", "--allow-empty", "-m", "later"]);
    assert_eq!(found().await, Some(landed));
}

#[tokio::test]
async fn what_was_taken_back_is_known_by_its_trailer() {
    let place = Place::new();
    let mirror = place.mirror().await;
    let commit = |name: &str, message: &str| {
        std::fs::write(place.origin.join(name), name).unwrap();
        git(&place.origin, &["add", "-A"]);
        git(&place.origin, &["commit", "-q", "-m", message]);
        place.head("main")
    };
    let revert = |commit: &str| {
        git(&place.origin, &["revert", "--no-edit", commit]);
        place.head("main")
    };
    let found = async || {
        let head = mirror.fetch("main").await.unwrap();
        mirror.reverted(&head, "Refile-Task").await.unwrap().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(found().await, Vec::<String>::new());
    let landed: Vec<String> =
        ["t1", "t2", "t3"].iter().map(|t| commit(t, &format!("{t}\n\nRefile-Task: {t}\nRefile-Attempt: 1"))).collect();
    let by_hand = commit("by-hand", "by hand");
    revert(&by_hand);
    commit("mention", &format!("x\n\nwe say: This reverts commit {}.", landed[2]));
    commit("unknown", &format!("x\n\nThis reverts commit {}.\nThis reverts commit abc.", "e".repeat(40)));
    assert_eq!(found().await, Vec::<String>::new(), "a mention, or a commit that no task landed");
    revert(&landed[0]);
    let again = revert(&landed[1]);
    assert_eq!(found().await, ["t1", "t2"]);
    let back = revert(&again);
    assert_eq!(found().await, ["t1"], "it was brought again");
    revert(&back);
    assert_eq!(found().await, ["t1", "t2"], "and taken back again");
}

#[tokio::test]
async fn trees_of_dead_workers_are_swept_and_those_in_use_are_not() {
    let place = Place::new();
    let base = place.head("main");
    place.mirror().await.fetch("main").await.unwrap();
    let (used, left) = (tree(&place, 1, &base, &base).await, tree(&place, 2, &base, &base).await);
    let old = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
    let side = |tree: &Tree| tree.dir().with_extension("side");
    // What is left of a killed worker: the folders, and a lock that nobody holds.
    std::fs::remove_file(side(&left).join("lock")).unwrap();
    std::fs::write(side(&left).join("lock"), "").unwrap();
    for tree in [&used, &left] {
        std::fs::File::open(side(tree)).unwrap().set_modified(old).unwrap();
    }
    refile_worker::workspace::Workspace::open(place.workspace.dir()).unwrap();
    assert!(used.dir().exists() && side(&used).exists());
    assert!(!left.dir().exists() && !side(&left).exists());
}

#[tokio::test]
async fn a_tree_that_was_replaced_is_not_followed() {
    let place = Place::new();
    let base = place.head("main");
    place.mirror().await.fetch("main").await.unwrap();
    let tree = tree(&place, 1, &base, &base).await;
    std::fs::remove_dir_all(tree.dir()).unwrap();
    symlink(place.root.path(), tree.dir()).unwrap();
    let error = tree.write().await.unwrap_err();
    assert!(error.to_string().contains("removed or replaced"), "{error}");
}
