//! A fleet that proposes nothing any more, and what it proposed before.

use std::os::unix::fs::PermissionsExt;

use axum::http::Method;
use refile_config::ForgeKind;

use super::common::{git, until};
use super::story::{DEADLINE, Story};

/// The task is over before a coordinator looks again, and the one that comes proposes nothing: the pull request is closed.
#[test]
fn the_pull_request_of_a_task_that_was_called_off_between_two_fleets_is_closed() {
    let mut story = Story::new(ForgeKind::Github, "", "", "poll = \"1s\"");
    let fleet = story.up();
    let id = story.submit("One");
    let (number, _) = story.proposed(&id, 1);
    story.stop(fleet);
    story.configure("strategy = \"pull_request\"", "strategy = \"squash\"");
    // Who says it twice does not want to wait for a worker's look.
    for _ in 0..2 {
        story.json(&["task", "cancel", &id]);
    }
    assert_eq!(story.show(&id)["state"], "cancelled");
    // Nothing can be asked: it is told which may be open, and how often it is looked changes nothing.
    story.configure("FORGE_TOKEN", "NO_TOKEN");
    let fleet = story.up();
    let said = |story: &Story| story.log(fleet).lines().filter(|line| line.contains("may be open")).count();
    until("it is told", DEADLINE, || (said(&story) > 0).then_some(()));
    let log = story.log(fleet);
    assert!(log.contains(&id) && log.contains("$NO_TOKEN is not set"), "{log}");
    let new_one = story.submit("Another");
    story.ended(&new_one, "merged");
    assert_eq!(said(&story), 1);
    story.stop(fleet);
    story.configure("NO_TOKEN", "FORGE_TOKEN");
    story.up();
    until("it is closed, told and tidied up", DEADLINE, || {
        let is_closed = story.fake.world().pulls[0].state == "closed";
        (is_closed && story.branches() == "main").then_some(())
    });
    let said = story.fake.world().comments_on(number);
    assert_eq!(said.iter().filter(|words| words.contains("was called off")).count(), 1, "{said:?}");
}

/// The fleet pushes past what it has proposed, and the push is turned down again and again: a person who closes the pull
/// request meanwhile says no. Where the branches are gone it may have landed, and the forge closed it for that.
#[test]
fn a_closing_by_hand_is_a_no_while_the_change_lands_another_way() {
    let policy = "max_land_failures = 1000\nmax_attempts = 3";
    let mut story = Story::new(ForgeKind::Github, policy, "", "poll = \"1s\"");
    story.configure("cat > work.txt", "cat > $REFILE_TASK_ID.txt");
    let fleet = story.up();
    let (one, two) = (story.submit("One"), story.submit("Two"));
    let ((first, _), (second, _)) = (story.proposed(&one, 1), story.proposed(&two, 1));
    story.stop(fleet);
    story.configure("strategy = \"pull_request\"", "strategy = \"squash\"");
    let origin = story.dir().join("origin.git");
    let hook = origin.join("hooks/update");
    std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
    std::fs::write(&hook, "#!/bin/sh\ntest \"$1\" != refs/heads/main\n").unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    for number in [first, second] {
        story.fake.world().review(number, "ann", "CHANGES_REQUESTED", "Do more.", &[]);
    }
    story.up();
    for id in [&one, &two] {
        until("it could not be pushed", DEADLINE, || {
            let tried = story.show(id)["attempts"][1]["failures"].as_array().map_or(0, Vec::len);
            (tried > 0).then_some(())
        });
    }
    for branch in story.branches().lines().filter(|branch| branch.starts_with(&format!("refile/{two}/"))) {
        git(&origin, &["update-ref", "-d", &format!("refs/heads/{branch}")]);
    }
    story.fake.world().close(second, "bob");
    let looks = || story.fake.world().asked(&Method::GET, &format!("/issues/{second}"));
    let before = looks();
    until("it is looked at", DEADLINE, || (looks() >= before + 2).then_some(()));
    assert_eq!(story.show(&two)["state"], "open");
    story.fake.world().close(first, "bob");
    let task = story.ended(&one, "rejected");
    assert_eq!(task["attempts"][1]["rejection"]["by"], "human:bob");
    assert_eq!(git(&origin, &["log", "--format=%s", "main"]), "the beginning");
}
