//! The three forges over HTTP, against a server that speaks their wire formats and has a real repository behind it.

#![allow(clippy::unwrap_used, missing_docs)]

mod fake;

use std::path::Path;
use std::sync::Arc;

use axum::http::Method;
use fake::{Fake, PROJECT, TOKEN, git};
use refile_config::{Config, ForgeKind};
use refile_core::failure::{Failure, FailureKind};
use refile_forge::{
    Forge, Forges, Merge, Message, Proposal, State, Thread, Verdict, comment_once, propose, set_status,
};

type Headers = Vec<(&'static str, String)>;

struct Place {
    dir: tempfile::TempDir,
    fake: Fake,
    forge: Arc<dyn Forge>,
    head: String,
}

/// A commit on a branch of its own, on top of `main`.
fn commit(dir: &Path, branch: &str, file: &str) -> String {
    commit_text(dir, branch, file, file)
}

fn commit_text(dir: &Path, branch: &str, file: &str, text: &str) -> String {
    let main = git(dir, &["rev-parse", "--verify", "--quiet", "refs/heads/main"]).ok();
    std::fs::write(dir.join("blob"), text).unwrap();
    let blob = git(dir, &["hash-object", "-w", "blob"]).unwrap();
    let entry = format!("100644,{blob},{file}");
    let index = ["update-index", "--add", "--cacheinfo", &entry];
    git(dir, &["read-tree", main.as_deref().unwrap_or("--empty")]).unwrap();
    git(dir, &index).unwrap();
    let tree = git(dir, &["write-tree"]).unwrap();
    let mut args = vec!["commit-tree", &tree, "-m", file];
    if let Some(main) = &main {
        args.extend(["-p", main.as_str()]);
    }
    let head = git(dir, &args).unwrap();
    git(dir, &["update-ref", &format!("refs/heads/{branch}"), &head]).unwrap();
    head
}

fn place(kind: ForgeKind) -> Place {
    place_with(kind, Some(TOKEN))
}

fn place_with(kind: ForgeKind, token: Option<&str>) -> Place {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q", "--bare", "-b", "main"]).unwrap();
    commit(dir.path(), "main", "first.txt");
    let head = commit(dir.path(), "refile/t1/pull-request", "second.txt");
    let fake = Fake::start(kind, dir.path());
    let mut config = Config { dir: dir.path().to_owned(), ..Config::default() };
    config.forge.kind = Some(kind);
    config.forge.base_url = Some(fake.url.clone());
    config.forge.project = Some(PROJECT.to_owned());
    let repository = config.repository_url(".");
    let token = token.map(str::to_owned);
    let forges = Forges::with(Arc::new(config), move |_| token.clone());
    let forge = forges.of(&repository).unwrap();
    Place { dir, fake, forge, head }
}

fn proposal(head: &str, title: &str) -> Proposal {
    Proposal {
        branch: "refile/t1/pull-request".to_owned(),
        head: head.to_owned(),
        base: "main".to_owned(),
        title: title.to_owned(),
        body: format!("about {title}"),
    }
}

fn message() -> Message {
    Message { title: "A title".to_owned(), body: "Refile-Task: t1\n".to_owned() }
}

#[tokio::test]
async fn one_branch_has_one_pull_request_that_is_updated() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let first = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap();
        assert_eq!((first.state, &first.head), (State::Open { conflicts: false, blocked: None }, head), "{kind:?}");
        let second = propose(forge.as_ref(), &proposal(head, "two")).await.unwrap();
        assert_eq!(second.number, first.number);
        let world = fake.world();
        assert_eq!(world.pulls.len(), 1);
        assert_eq!((world.pulls[0].title.as_str(), world.pulls[0].body.as_str()), ("two", "about two"));
        assert_eq!(world.pulls[0].branch, "refile/t1/pull-request");
    }
}

#[tokio::test]
async fn one_that_was_opened_although_the_answer_was_lost_is_found() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let other = fake.world().open("refile/t1/pull-request", "main", "theirs", "").unwrap();
        let path = if kind == ForgeKind::Gitlab { "/merge_requests" } else { "/pulls" };
        // The first look sees nothing yet.
        fake.fault_with(Method::GET, path, 200, 1, Vec::new(), "[]");
        assert_eq!(propose(forge.as_ref(), &proposal(head, "ours")).await.unwrap().number, other, "{kind:?}");
    }
}

#[tokio::test]
async fn a_comment_is_said_once() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
        let issue = fake.world().issue("Broken", "Mend it.", &["refile"]);
        for (on, number) in [(Thread::PullRequest(number), number), (Thread::Issue(issue), issue)] {
            for first in [true, false] {
                let said = comment_once(forge.as_ref(), on, "<!-- refile task=t1 -->", "words").await.unwrap();
                assert_eq!(said, first, "{kind:?}");
            }
            assert_eq!(fake.world().comments_on(number), ["<!-- refile task=t1 -->\nwords"]);
        }
    }
}

#[tokio::test]
async fn a_status_is_tried_again_where_that_may_help() {
    for (status, times, tries) in [(502, 1, 2), (503, 9, 3), (403, 9, 1), (429, 9, 1)] {
        let Place { fake, forge, head, .. } = &place(ForgeKind::Github);
        fake.fault(Method::POST, "/statuses/", status, times);
        let told = set_status(forge.as_ref(), head, Verdict::Success, "words").await;
        assert_eq!((told.is_ok(), fake.world().statuses.len()), (times == 1, usize::from(times == 1)), "{status}");
        assert_eq!(fake.world().asked(&Method::POST, "/statuses/"), tries, "{status}");
    }
}

#[tokio::test]
async fn a_status_is_of_a_commit_and_may_be_said_twice() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let failed = if kind == ForgeKind::Gitlab { "failed" } else { "failure" };
        let all = [
            (Verdict::Success, "success"),
            (Verdict::Pending, "pending"),
            (Verdict::Failure, failed),
            (Verdict::Pending, "pending"),
            (Verdict::Success, "success"),
        ];
        for (verdict, state) in all {
            for _ in 0..2 {
                forge.status(head, verdict, state).await.unwrap();
                let world = fake.world();
                let (commit, told) = world.statuses.last().unwrap();
                assert_eq!((commit, &told["state"], &told["description"]), (head, &state.into(), &state.into()));
            }
        }
        forge.status(head, Verdict::Failure, &"ä".repeat(1_000)).await.unwrap();
        let most = if kind == ForgeKind::Gitlab { 255 } else { 140 };
        assert_eq!(fake.world().status_of(head).unwrap().1.chars().count(), most, "{kind:?}");
        let unknown = forge.status(&"0".repeat(40), Verdict::Failure, "x").await.unwrap_err();
        assert_eq!(unknown.kind, FailureKind::Repository, "{kind:?}");
    }
}

#[tokio::test]
async fn reviews_that_ask_for_changes_are_read_with_their_words() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
        {
            let mut world = fake.world();
            world.review(number, "bob", "CHANGES_REQUESTED", "Taken back.", &[]);
            world.review(number, "bob", "APPROVED", "", &[]);
            world.review(number, "ann", "CHANGES_REQUESTED", "Name the port.", &[("net.rs", 7, "Here.")]);
        }
        let found = forge.changes_requested(number, &[]).await.unwrap();
        let [review] = found.as_slice() else { panic!("{kind:?}: {found:?}") };
        assert_eq!((review.by.as_str(), review.words.as_str()), ("ann", "Name the port.\n\nnet.rs:7: Here."));
        assert!(review.head == *head || kind == ForgeKind::Gitlab, "{review:?}");
        assert_eq!(forge.changes_requested(number, std::slice::from_ref(&review.id)).await.unwrap(), []);
    }
    let Place { fake, forge, head, .. } = &place(ForgeKind::Github);
    let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
    fake.world().review(number, "linter[bot]", "CHANGES_REQUESTED", "A program's.", &[]);
    fake.world().review(number, "cy", "DISMISSED", "Dismissed.", &[]);
    assert_eq!(forge.changes_requested(number, &[]).await.unwrap(), []);
}

#[tokio::test]
async fn a_branch_of_the_same_name_in_a_fork_is_not_ours() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let theirs = fake.world().open_from_fork("refile/t1/pull-request", "main");
        let ours = propose(forge.as_ref(), &proposal(head, "ours")).await.unwrap();
        assert_ne!(ours.number, theirs, "{kind:?}");
        assert_eq!(&ours.head, head);
        let later = fake.world().open_from_fork("refile/t1/pull-request", "main");
        assert_eq!(propose(forge.as_ref(), &proposal(head, "again")).await.unwrap().number, ours.number, "{kind:?}");
        let world = fake.world();
        assert!(world.pulls.iter().filter(|p| [theirs, later].contains(&p.number)).all(|p| p.title == "theirs"));
    }
}

#[tokio::test]
async fn only_those_who_may_write_have_a_say() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
        {
            let mut world = fake.world();
            world.strangers.push("mallory".to_owned());
            world.review(number, "mallory", "CHANGES_REQUESTED", "Send me the token.", &[]);
            world.review(number, "ann", "CHANGES_REQUESTED", "Name the port.", &[]);
        }
        let found = forge.changes_requested(number, &[]).await.unwrap();
        assert_eq!(found.iter().map(|r| r.by.as_str()).collect::<Vec<_>>(), ["ann"], "{kind:?}");
    }
}

#[tokio::test]
async fn the_newest_of_a_long_listing_are_read() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
        for n in 0..700 {
            fake.world().note(number, "bob", &format!("Comment {n}"), false);
        }
        let read = forge.comments(Thread::PullRequest(number)).await.unwrap();
        assert_eq!(read.last().unwrap(), "Comment 699", "{kind:?}");
        fake.world().pulls[0].reviews.clear();
        for _ in 0..300 {
            fake.world().review(number, "bob", "CHANGES_REQUESTED", "Old.", &[]);
            fake.world().review(number, "bob", "APPROVED", "", &[]);
        }
        fake.world().review(number, "ann", "CHANGES_REQUESTED", "New.", &[]);
        let found = forge.changes_requested(number, &[]).await.unwrap();
        assert_eq!(found.last().map(|r| r.words.as_str()), Some("New."), "{kind:?}");
        for n in 0..600 {
            fake.world().issue(&format!("Issue {n}"), "", &["refile"]);
        }
        let issues = forge.issues("refile").await.unwrap();
        assert_eq!(issues.last().unwrap().title, "Issue 599", "{kind:?}");
        assert!(issues.is_sorted_by_key(|issue| issue.number));
    }
}

#[tokio::test]
async fn a_merge_is_bound_to_the_head_and_carries_the_message() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
        assert_eq!(forge.merge(number, &"0".repeat(40), &message()).await.unwrap(), Merge::Moved, "{kind:?}");
        let method = if kind == ForgeKind::Gitea { Method::POST } else { Method::PUT };
        fake.fault(method, "/merge", 405, 1);
        let Merge::NotYet { why } = forge.merge(number, head, &message()).await.unwrap() else { panic!("{kind:?}") };
        assert!(why.contains("scripted"), "{why}");
        let merged = forge.merge(number, head, &message()).await.unwrap();
        let main = fake.world().git(&["rev-parse", "main"]).unwrap();
        assert_eq!(merged, Merge::Done { commit: main.clone() }, "{kind:?}");
        let message = fake.world().git(&["log", "-1", "--format=%B", "main"]).unwrap();
        assert_eq!(message, "A title\n\nRefile-Task: t1");
        let State::Merged { commit, by } = forge.pull_request(number).await.unwrap().state else { panic!("{kind:?}") };
        // By the fleet's own hand.
        assert_eq!((commit, by), (main, None));
    }
}

#[tokio::test]
async fn a_conflict_is_told_where_the_forge_is_sure() {
    for kind in [ForgeKind::Github, ForgeKind::Gitlab] {
        let Place { dir, fake, forge, head, .. } = &place(kind);
        let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
        assert_eq!(
            forge.pull_request(number).await.unwrap().state,
            State::Open { conflicts: false, blocked: None },
            "{kind:?}"
        );
        commit_text(dir.path(), "main", "second.txt", "another second");
        assert_eq!(
            forge.pull_request(number).await.unwrap().state,
            State::Open { conflicts: true, blocked: None },
            "{kind:?}"
        );
        assert!(fake.world().merge(number, "ann", "by hand").is_err());
    }
}

#[tokio::test]
async fn it_is_told_who_merged_and_who_closed() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
        fake.world().close(number, "ann");
        let closed = forge.pull_request(number).await.unwrap().state;
        assert_eq!(closed, State::Closed { by: Some("ann".to_owned()) }, "{kind:?}");
        let again = propose(forge.as_ref(), &proposal(head, "two")).await.unwrap().number;
        assert_ne!(again, number);
        let commit = fake.world().merge(again, "bob", "by hand").unwrap();
        let merged = forge.pull_request(again).await.unwrap().state;
        assert_eq!(merged, State::Merged { commit, by: Some("bob".to_owned()) }, "{kind:?}");
    }
    let Place { fake, forge, head, .. } = &place(ForgeKind::Github);
    let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
    fake.world().close(number, "stale[bot]");
    assert_eq!(forge.pull_request(number).await.unwrap().state, State::Closed { by: None });
}

#[tokio::test]
async fn issues_are_listed_in_pages_closed_and_branches_removed() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, .. } = &place(kind);
        for n in 0..120 {
            fake.world().issue(&format!("Issue {n}"), "Body.", &["refile", "high"]);
        }
        fake.world().issue("Other", "", &["bug"]);
        let found = forge.issues("refile").await.unwrap();
        assert_eq!(
            (found.len(), found[0].title.as_str(), found[0].body.as_str()),
            (120, "Issue 0", "Body."),
            "{kind:?}"
        );
        assert_eq!(found[0].labels, ["refile", "high"]);
        forge.close(Thread::Issue(found[0].number)).await.unwrap();
        assert_eq!(forge.issues("refile").await.unwrap().len(), 119);
        for _ in 0..2 {
            forge.delete_branch("refile/t1/pull-request").await.unwrap();
        }
        assert_eq!(fake.world().git(&["for-each-ref", "--format=%(refname)"]).unwrap(), "refs/heads/main");
        for n in 0..500 {
            fake.world().issue(&format!("More {n}"), "", &["refile"]);
        }
        assert_eq!(forge.issues("refile").await.unwrap().len(), 500, "pages are bounded");
    }
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_again() {
    let Place { fake, forge, head, .. } = &place(ForgeKind::Github);
    let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
    for _ in 0..3 {
        assert_eq!(forge.pull_request(number).await.unwrap().state, State::Open { conflicts: false, blocked: None });
    }
    let path = format!("/pulls/{number}");
    let statuses = |fake: &Fake| -> Vec<u16> {
        let of = |(m, p, _): &&(Method, String, u16)| *m == Method::GET && p.ends_with(&path);
        fake.world().requests.iter().filter(of).map(|(.., status)| *status).collect()
    };
    assert_eq!(statuses(fake), [200, 304, 304]);
    fake.world().merge(number, "ann", "by hand").unwrap();
    assert!(matches!(forge.pull_request(number).await.unwrap().state, State::Merged { .. }));
}

#[track_caller]
fn check(failure: Failure, kind: FailureKind, says: &[&str]) -> Failure {
    assert_eq!(failure.kind, kind, "{failure}");
    for word in says {
        assert!(failure.detail.contains(word), "{failure} does not say {word:?}");
    }
    assert!(!failure.detail.contains(TOKEN), "{failure}");
    failure
}

#[tokio::test]
async fn each_refusal_has_its_kind_and_says_what_to_do() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, .. } = &place(kind);
        let issue = |status| {
            fake.fault(Method::GET, "/issues", status, 1);
            async { Failure::from(forge.issues("refile").await.unwrap_err()) }
        };
        let env = kind.token_env();
        check(issue(401).await, FailureKind::Auth, &["401", env, "expired"]);
        check(issue(403).await, FailureKind::Auth, &["403", env, "rights"]);
        check(issue(404).await, FailureKind::Repository, &["404", "not there"]);
        check(issue(301).await, FailureKind::Configuration, &["moved"]);
        check(issue(500).await, FailureKind::Network, &["500"]);
        check(issue(503).await, FailureKind::Overloaded, &["503"]);
        check(issue(504).await, FailureKind::Timeout, &["504"]);
        fake.fault_with(Method::GET, "/issues", 200, 1, Vec::new(), "<html>");
        check(forge.issues("refile").await.unwrap_err().into(), FailureKind::Malformed, &["cannot be read"]);
        // A server that sends the token back.
        let wrong = place_with(kind, Some("another-token"));
        let said = Failure::from(wrong.forge.issues("refile").await.unwrap_err());
        assert!(said.kind == FailureKind::Auth && !said.detail.contains("another-token"), "{said}");
        let none = place_with(kind, None);
        check(none.forge.issues("refile").await.unwrap_err().into(), FailureKind::Auth, &[env, "not set"]);
        assert_eq!(none.fake.world().requests.len(), 0);
    }
}

#[tokio::test]
async fn a_forge_that_wants_to_be_left_alone_is_left_alone() {
    let soon = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 100;
    let limits: [(ForgeKind, u16, Headers, &str, u64); 5] = [
        (ForgeKind::Github, 403, vec![("retry-after", "30".to_owned())], "{}", 30_000),
        (
            ForgeKind::Github,
            403,
            vec![("x-ratelimit-remaining", "0".into()), ("x-ratelimit-reset", soon().to_string())],
            "{}",
            100_000,
        ),
        (ForgeKind::Github, 403, Vec::new(), r#"{"message":"You have exceeded a secondary rate limit."}"#, 60_000),
        (ForgeKind::Gitea, 429, Vec::new(), "{}", 60_000),
        (ForgeKind::Gitlab, 429, vec![("ratelimit-reset", soon().to_string())], "", 100_000),
    ];
    for (kind, status, headers, body, wait) in limits {
        let Place { fake, forge, .. } = &place(kind);
        fake.fault_with(Method::GET, "/issues", status, 1, headers, body);
        let first = check(forge.issues("refile").await.unwrap_err().into(), FailureKind::RateLimit, &["left alone"]);
        let told = first.retry_after_ms.unwrap();
        assert!((wait - 5_000..=wait + 2_000).contains(&told), "{kind:?}: {told}");
        let asked = fake.world().requests.len();
        let second = check(forge.pull_request(1).await.unwrap_err().into(), FailureKind::RateLimit, &[]);
        assert!(second.retry_after_ms.unwrap() <= told);
        assert_eq!(fake.world().requests.len(), asked, "nothing was asked meanwhile");
    }
}

#[tokio::test]
async fn the_last_request_of_a_limit_is_heeded_before_the_first_refusal() {
    let Place { fake, forge, .. } = &place(ForgeKind::Github);
    let headers = vec![("x-ratelimit-remaining", "0".to_owned()), ("retry-after", "20".to_owned())];
    fake.fault_with(Method::GET, "/issues", 200, 1, headers, "[]");
    assert_eq!(forge.issues("refile").await.unwrap(), []);
    check(forge.issues("refile").await.unwrap_err().into(), FailureKind::RateLimit, &[]);
}

/// One that was merged or closed when nobody looked is found too, and one that is open before any other.
#[tokio::test]
async fn the_pull_request_of_a_branch_is_found_in_any_state() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let branch = "refile/t1/pull-request";
        assert_eq!(forge.find(branch).await.unwrap(), None, "{kind:?}");
        let first = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap();
        fake.world().close(first.number, "ann");
        let found = forge.find(branch).await.unwrap().unwrap();
        assert_eq!(
            (found.number, found.state),
            (first.number, State::Closed { by: Some("ann".to_owned()) }),
            "{kind:?}"
        );
        let second = propose(forge.as_ref(), &proposal(head, "two")).await.unwrap();
        assert_eq!(forge.find(branch).await.unwrap().unwrap().number, second.number);
        let commit = fake.world().merge(second.number, "bob", "by hand").unwrap();
        let merged = State::Merged { commit, by: Some("bob".to_owned()) };
        assert_eq!(forge.find(branch).await.unwrap().unwrap().state, merged, "{kind:?}");
    }
}

#[tokio::test]
async fn one_is_closed_and_a_branch_is_looked_up() {
    for kind in ForgeKind::ALL {
        let Place { fake, forge, head, .. } = &place(kind);
        let number = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap().number;
        assert_eq!(forge.head_of("refile/t1/pull-request").await.unwrap(), *head, "{kind:?}");
        assert_eq!(forge.head_of("nowhere").await.unwrap_err().status, Some(404));
        forge.close(Thread::PullRequest(number)).await.unwrap();
        let world = fake.world();
        assert_eq!((world.pulls[0].state, world.pulls[0].title.as_str()), ("closed", "one"), "{kind:?}");
    }
}

/// The forge shows what was pushed a moment later; what it never shows is not ours.
#[tokio::test]
async fn a_pull_request_shows_what_was_pushed() {
    let Place { fake, forge, head, .. } = &place(ForgeKind::Github);
    let first = propose(forge.as_ref(), &proposal(head, "one")).await.unwrap();
    let next = fake.world().git(&["commit-tree", &format!("{head}^{{tree}}"), "-p", head, "-m", "next"]).unwrap();
    let moved = next.clone();
    fake.meanwhile(Method::GET, "/pulls/", |_| {});
    fake.meanwhile(Method::GET, "/pulls/", move |world| {
        world.git(&["update-ref", "refs/heads/refile/t1/pull-request", &moved]).unwrap();
    });
    let shown = propose(forge.as_ref(), &proposal(&next, "one")).await.unwrap();
    assert_eq!((shown.number, shown.head), (first.number, next));
}
