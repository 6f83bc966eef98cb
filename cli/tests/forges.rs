//! Whole stories with a forge: the fleet as a process, a server that speaks the three wire formats, and a real repository
//! behind it that people merge into.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
mod story;

use axum::http::Method;
use common::{git, until};
use refile_config::ForgeKind;
use story::fake::PROJECT;
use story::{DEADLINE, SECRET, Story, signature, webhook};

/// An issue becomes one task though two fleets look; a person asks for changes, the fleet follows, a person merges.
fn from_the_issue_to_the_merge(kind: ForgeKind) {
    let mut story = Story::new(kind, "", "", "label = \"refile\"\npoll = \"1s\"");
    let issue = story.fake.world().issue("Say hello", "Write it. @everyone fixes #1", &["refile", "priority:high"]);
    story.up();
    story.up();
    let id = until("the issue is a task", DEADLINE, || {
        story.json(&["task", "list"]).as_array().unwrap().first().map(|task| task["id"].as_str().unwrap().to_owned())
    });
    let (number, head) = story.proposed(&id, 1);
    {
        let world = story.fake.world();
        let pull = &world.pulls[0];
        assert_eq!((world.pulls.len(), pull.title.as_str(), &pull.head), (1, "Say hello", &head));
        assert!(pull.body.contains(&format!("For #{issue}.")) && pull.body.contains(&format!("Refile-Task: {id}")));
        // The issue's words stand in a fence: they call nobody.
        assert!(pull.body.starts_with("```text\nSay hello\n\nWrite it. @everyone fixes #1\n```\n"), "{}", pull.body);
        let comments = world.comments_on(number);
        assert_eq!(comments.len(), 1, "{comments:?}");
        assert!(comments[0].contains("Attempt 1: approved on"), "{comments:?}");
        assert_eq!(world.status_of(&head), Some(("success".into(), "attempt 1 approved by strict".into())));
    }
    let remarks = [("work.txt", 1, "This line.")];
    story.fake.world().review(number, "ann", "CHANGES_REQUESTED", "Greet by name. A bare hello is rude.", &remarks);
    let (same, second) = story.proposed(&id, 2);
    assert_eq!(same, number);
    assert_ne!(second, head);
    {
        let world = story.fake.world();
        let asked = "changes requested by ann; the next attempt follows";
        assert_eq!(world.status_of(&head), Some(("failure".into(), asked.into())));
        assert_eq!(world.status_of(&second), Some(("success".into(), "attempt 2 approved by strict".into())));
    }
    let task = story.show(&id);
    let first = &task["attempts"][0];
    assert_eq!(first["required_change"], "Greet by name.");
    assert_eq!(first["rejection"]["by"], "human:ann");
    let prompt = task["attempts"][1]["prompt"].as_str().unwrap();
    let lead = "## ATTEMPT #2 — previous attempt rejected\n\n**Required change**: Greet by name.\n**Reviewer critique**: A bare hello is rude. work.txt:1: This line.";
    assert!(prompt.starts_with(lead), "{prompt}");
    assert_eq!((task["priority"].as_str(), task["labels"][0].as_str()), (Some("high"), Some("refile")));
    let log = story.command(&["task", "log", &id]).output().unwrap();
    let log = String::from_utf8(log.stdout).unwrap();
    for words in ["review by human:ann: needs_changes", "required change: Greet by name.", "A bare hello is rude."] {
        assert!(log.contains(words), "no {words:?} in {log}");
    }

    let commit = story.fake.world().merge(number, "bob", "merged by hand").unwrap();
    let task = story.ended(&id, "merged");
    assert_eq!(task["landed"], commit.as_str());
    until("the issue is told and closed, the branches are gone", DEADLINE, || {
        let world = story.fake.world();
        let is_told = world.issues[0].open || world.comments_on(issue).is_empty();
        drop(world);
        (!is_told && story.branches() == "main").then_some(())
    });
    // One more look of each fleet, and nothing is said twice.
    let looks = || story.fake.world().asked(&Method::GET, "/issues?state=open");
    let before = looks();
    until("both look again", DEADLINE, || (looks() >= before + 4).then_some(()));
    let world = story.fake.world();
    let told = world.comments_on(issue);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(&format!("was merged as {commit}")), "{told:?}");
    assert_eq!((world.pulls.len(), world.pulls[0].reviews.len().max(1)), (1, 1));
    assert_eq!(world.comments_on(number).iter().filter(|c| c.contains("<!-- refile task=")).count(), 2);
    drop(world);
    assert_eq!(story.json(&["task", "list"]).as_array().unwrap().len(), 1);
    assert_eq!(task["attempts"].as_array().unwrap().len(), 2);
    story.assert_nothing_leaked();
}

#[test]
fn from_the_issue_to_the_merge_on_github() {
    from_the_issue_to_the_merge(ForgeKind::Github);
}

#[test]
fn from_the_issue_to_the_merge_on_gitea() {
    from_the_issue_to_the_merge(ForgeKind::Gitea);
}

#[test]
fn from_the_issue_to_the_merge_on_gitlab() {
    from_the_issue_to_the_merge(ForgeKind::Gitlab);
}

/// The fleet merges by itself: at once where the forge lets it, else as soon as it does.
fn merged_by_the_fleet(kind: ForgeKind) {
    let mut story = Story::new(kind, "", "merge = \"auto\"", "poll = \"1s\"");
    story.up();
    let id = story.submit("Say hello");
    let task = story.ended(&id, "merged");
    let origin = story.dir().join("origin.git");
    let message = git(&origin, &["log", "-1", "--format=%B", "main"]);
    assert_eq!(message, format!("Say hello\n\nRefile-Task: {id}\nRefile-Attempt: 1\nReviewed-by: strict"));
    assert_eq!(task["landed"], git(&origin, &["rev-parse", "main"]));
    assert_eq!(story.branches(), "main");
    let method = if kind == ForgeKind::Gitea { Method::POST } else { Method::PUT };
    story.fake.fault(method, "/merge", 405, 2);
    let id = story.submit("Say it again");
    story.ended(&id, "merged");
    assert_eq!(git(&origin, &["log", "-1", "--format=%(trailers:key=Refile-Task,valueonly)", "main"]), id);
    assert_eq!(git(&origin, &["rev-list", "--count", "main"]), "3");
}

#[test]
fn merged_by_the_fleet_on_github() {
    merged_by_the_fleet(ForgeKind::Github);
}

#[test]
fn merged_by_the_fleet_on_gitea() {
    merged_by_the_fleet(ForgeKind::Gitea);
}

#[test]
fn merged_by_the_fleet_on_gitlab() {
    merged_by_the_fleet(ForgeKind::Gitlab);
}

/// The base moves while people look at the pull request, so that they could not merge it any more.
fn a_conflict_goes_back_to_the_coder(kind: ForgeKind) {
    let mut story = Story::new(kind, "", "", "poll = \"1s\"");
    story.up();
    let id = story.submit("One");
    let (number, head) = story.proposed(&id, 1);
    let first = story.dir().join("first");
    std::fs::write(first.join("work.txt"), "theirs\n").unwrap();
    git(&first, &["add", "-A"]);
    git(&first, &["commit", "-q", "-m", "by hand"]);
    git(&first, &["push", "-q", "../origin.git", "main"]);
    let (same, _) = story.proposed(&id, 2);
    assert_eq!(same, number);
    let task = story.show(&id);
    let demand = "Rebase onto main and resolve conflicts before reopening";
    assert_eq!(task["attempts"][0]["required_change"], demand);
    let told = story.fake.world().statuses_of(&head);
    let [(first, _), (second, _), .., (last, words)] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!([first, second, last], ["success", "pending", "failure"], "{told:?}");
    assert_eq!(words, "conflicts with `main`; the next attempt follows");
    story.fake.world().merge(number, "ann", "by hand").unwrap();
    story.ended(&id, "merged");
}

#[test]
fn a_conflict_goes_back_to_the_coder_on_github() {
    a_conflict_goes_back_to_the_coder(ForgeKind::Github);
}

#[test]
fn a_conflict_goes_back_to_the_coder_on_gitlab() {
    a_conflict_goes_back_to_the_coder(ForgeKind::Gitlab);
}

#[test]
fn a_person_who_closes_it_rejects_and_a_program_asks_a_person() {
    let mut story = Story::new(ForgeKind::Github, "", "", "poll = \"1s\"");
    story.up();
    let id = story.submit("One");
    let (number, _) = story.proposed(&id, 1);
    story.fake.world().close(number, "ann");
    let task = story.ended(&id, "rejected");
    assert_eq!(task["attempts"][0]["rejection"]["by"], "human:ann");

    let id = story.submit("Two");
    let (number, _) = story.proposed(&id, 1);
    story.fake.world().close(number, "stale[bot]");
    let task = story.ended(&id, "escalated");
    assert_eq!(task["escalations"][0]["reason"], "landing_failed");
    story.json(&["escalation", "retry", task["escalations"][0]["id"].as_str().unwrap()]);
    let (again, _) = story.proposed(&id, 1);
    assert_ne!(again, number);
    story.fake.world().merge(again, "ann", "by hand").unwrap();
    story.ended(&id, "merged");
}

#[test]
fn an_expired_token_waits_for_a_person_with_words_that_say_what_to_do() {
    let mut story = Story::new(ForgeKind::Github, "max_land_failures = 2", "", "poll = \"1s\"");
    story.fake.fault(Method::GET, "/pulls", 401, 2);
    story.up();
    let id = story.submit("One");
    let task = story.ended(&id, "escalated");
    let escalation = &task["escalations"][0];
    assert_eq!(
        (escalation["reason"].as_str(), task["attempts"].as_array().unwrap().len()),
        (Some("landing_failed"), 1)
    );
    let detail = escalation["detail"].as_str().unwrap();
    assert!(detail.contains("$FORGE_TOKEN") && detail.contains("expired"), "{detail}");
    story.json(&["escalation", "retry", escalation["id"].as_str().unwrap()]);
    story.proposed(&id, 1);
    story.assert_nothing_leaked();
}

#[test]
fn a_rate_limit_is_waited_for_and_nothing_is_asked_meanwhile() {
    let mut story = Story::new(ForgeKind::Github, "", "", "poll = \"1s\"");
    let wait = vec![("retry-after", "4".to_owned())];
    story.fake.fault_with(Method::POST, "/pulls", 403, 1, wait, r#"{"message":"secondary rate limit"}"#);
    story.up();
    let id = story.submit("One");
    story.proposed(&id, 1);
    let task = story.show(&id);
    let failures = task["attempts"][0]["failures"].as_array().unwrap();
    assert!(failures.len() <= 2 && failures[0].as_str().unwrap().contains("left alone"), "{failures:?}");
    assert_eq!(story.fake.world().asked(&Method::POST, "/pulls"), 2);
}

#[test]
fn commits_of_somebody_else_on_the_branch_are_not_overwritten() {
    let mut story = Story::new(ForgeKind::Github, "max_land_failures = 1", "", "poll = \"1s\"");
    story.up();
    let id = story.submit("One");
    let (number, head) = story.proposed(&id, 1);
    let origin = story.dir().join("origin.git");
    let branch = format!("refs/heads/refile/{id}/pull-request");
    let tree = git(&origin, &["rev-parse", &format!("{head}^{{tree}}")]);
    let theirs = git(&origin, &["commit-tree", &tree, "-p", &head, "-m", "by ann"]);
    git(&origin, &["update-ref", &branch, &theirs]);
    story.fake.world().review(number, "ann", "CHANGES_REQUESTED", "Do more.", &[]);
    let task = story.ended(&id, "escalated");
    let detail = task["escalations"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("somebody added to it"), "{detail}");
    assert_eq!(git(&origin, &["rev-parse", &branch]), theirs);
    // They merge it as it is: that is their word.
    let commit = story.fake.world().merge(number, "ann", "by hand").unwrap();
    assert_eq!(story.ended(&id, "merged")["landed"], commit.as_str());
}

/// The repository has an address on the forge's own server, and git gets in with the token and nothing else.
#[test]
fn git_gets_in_over_http_with_the_token_from_the_environment() {
    let mut story = Story::new(ForgeKind::Github, "", "merge = \"auto\"", "poll = \"1s\"");
    let file = story.dir().join("refile.toml");
    let address = format!("url = \"{}/acme/widgets.git\"", story.fake.url);
    let config = std::fs::read_to_string(&file).unwrap().replace("url = \"origin.git\"", &address);
    std::fs::write(&file, config.replace(&format!("project = \"{PROJECT}\"\n"), "")).unwrap();
    story.up();
    let id = story.submit("One");
    story.ended(&id, "merged");
    let origin = story.dir().join("origin.git");
    assert_eq!(git(&origin, &["log", "-1", "--format=%(trailers:key=Refile-Task,valueonly)", "main"]), id);
    assert!(story.fake.world().asked(&Method::POST, "/acme/widgets.git/git-receive-pack") > 0);
    story.assert_nothing_leaked();
}

/// The fleet pushes to the branch by itself from now on, and what it has proposed is followed all the same; where that
/// cannot be, it says so.
#[test]
fn what_was_proposed_is_followed_whatever_the_strategy_is_now() {
    let mut story = Story::new(ForgeKind::Github, "", "", "poll = \"1s\"");
    story.configure("cat > work.txt", "cat > $REFILE_TASK_ID.txt");
    let fleet = story.up();
    let (one, two) = (story.submit("One"), story.submit("Two"));
    let ((first, _), (second, _)) = (story.proposed(&one, 1), story.proposed(&two, 1));
    story.stop(fleet);
    story.configure("strategy = \"pull_request\"", "strategy = \"squash\"");
    let place = format!("kind = \"github\"\nbase_url = \"{}\"\n", story.fake.url);
    for (old, new, why) in [
        (place.as_str(), "", "set `kind` and `base_url` in [forge]"),
        ("FORGE_TOKEN", "NO_TOKEN", "$NO_TOKEN is not set"),
    ] {
        story.configure(old, new);
        let fleet = story.up();
        let said = |story: &Story| -> Vec<String> {
            let lines = story.log(fleet).lines().map(str::to_owned).collect::<Vec<_>>();
            lines.into_iter().filter(|line| line.contains("does not see what people do")).collect()
        };
        until("it is told", DEADLINE, || (!said(&story).is_empty()).then_some(()));
        // What is new goes its way, and nothing is told twice.
        let new_one = story.submit("Another");
        story.ended(&new_one, "merged");
        let said = said(&story);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!([why, &one, &two, "refile task cancel"].iter().all(|part| said[0].contains(part)), "{said:?}");
        story.stop(fleet);
        if new.is_empty() {
            story.configure("[forge]\n", &format!("[forge]\n{place}"));
        } else {
            story.configure(new, old);
        }
    }
    story.up();
    let commit = story.fake.world().merge(first, "bob", "merged by hand").unwrap();
    assert_eq!(story.ended(&one, "merged")["landed"], commit.as_str());
    // The next attempt is pushed past the pull request, which is closed then.
    story.fake.world().review(second, "ann", "CHANGES_REQUESTED", "Greet by name.", &[]);
    let task = story.ended(&two, "merged");
    assert_eq!(task["attempts"][0]["required_change"], "Greet by name.");
    assert_eq!(task["landed"], git(&story.dir().join("origin.git"), &["rev-parse", "main"]));
    until("it is closed with a word on why", DEADLINE, || {
        let world = story.fake.world();
        let is_told = world.comments_on(second).iter().any(|words| words.contains("was merged as"));
        (is_told && world.pulls.iter().all(|pull| pull.state != "open")).then_some(())
    });
}

#[test]
fn a_drain_ends_where_people_on_the_forge_have_to_decide() {
    let story = Story::new(ForgeKind::Github, "", "", "poll = \"1s\"");
    let id = story.submit("One");
    let out = story.command(&["up", "--drain"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("1 of the open ones wait for people on the forge"), "{said}");
    story.proposed(&id, 1);
    // A drain that finds nothing to do looks at the forge all the same before long; a fleet that stays does in any case.
    assert_eq!(story.fake.world().pulls.len(), 1);
}

#[test]
fn a_signed_webhook_makes_the_fleet_look_at_once_and_any_other_does_not() {
    let mut story = Story::new(ForgeKind::Github, "", "", "poll = \"1h\"");
    let fleet = story.up();
    let id = story.submit("One");
    let (number, _) = story.proposed(&id, 1);
    let commit = story.fake.world().merge(number, "ann", "by hand").unwrap();
    let address = story.address(fleet);
    let (path, body) = ("/api/v1/webhooks/github", r#"{"action":"closed","number":1}"#);
    let signed = |secret: &str| [("x-hub-signature-256", format!("sha256={}", signature(secret, body)))];
    let looks = || story.fake.world().asked(&Method::GET, &format!("/pulls/{number}"));
    let before = looks();
    assert_eq!(webhook(&address, path, &[], body), 401);
    assert_eq!(webhook(&address, path, &signed("another"), body), 401);
    assert_eq!(webhook(&address, path, &signed(SECRET), &body.replace('1', "2")), 401);
    assert_eq!(webhook(&address, "/api/v1/webhooks/gitlab", &signed(SECRET), body), 401);
    assert_eq!(webhook(&address, "/api/v1/webhooks/other", &signed(SECRET), body), 404);
    assert_eq!(webhook(&address, path, &signed(SECRET), &"x".repeat(2 << 20)), 413);
    assert_eq!((looks(), story.show(&id)["state"].as_str()), (before, Some("open")));
    // Sent again and again it does no harm.
    for _ in 0..3 {
        assert_eq!(webhook(&address, path, &signed(SECRET), body), 202);
    }
    assert_eq!(story.ended(&id, "merged")["landed"], commit.as_str());
    // The name of another host is refused for all that is not a webhook.
    assert_eq!(webhook(&address, "/api/v1/tasks", &signed(SECRET), body), 403);
}
