//! The changed files as they are now, out of a real repository.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Place;
use common::fleet::{Try, task};
use refile_worker::git::{ChangedFile, Content};

#[tokio::test]
async fn each_kind_of_change_is_told_apart() {
    let place = Place::new();
    let script = "sed -i s/one/ONE/ a.txt; rm b.txt; : > empty; printf 'a\\0b' > binary; ln -s a.txt link; \
                  printf 'no end' > \"$(printf 'odd\\nname')\"; printf '\\377\\n' > latin; \
                  head -c 5000000 /dev/zero | tr '\\0' x > large";
    let change = Try::script(script).change(&place, &task(&place, "t1")).await;
    let mirror = place.workspace.mirror(&place.url()).await.unwrap();
    let files = mirror.contents(&change.base_commit, &change.head).await.unwrap();
    assert_eq!(files.len(), change.files as usize);
    let text = |text: &str| Content::Text(text.to_owned());
    for (path, content) in [
        ("a.txt", text("ONE\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n")),
        ("b.txt", Content::Removed),
        ("binary", Content::Binary { bytes: 3 }),
        ("empty", text("")),
        ("large", Content::TooLarge { bytes: 5_000_000 }),
        ("latin", text("\u{fffd}\n")),
        ("link", text("a.txt")),
        ("odd\nname", text("no end")),
    ] {
        let expected = ChangedFile { path: path.to_owned(), content };
        assert!(files.contains(&expected), "{expected:?} is not in {files:?}");
    }
}

#[tokio::test]
async fn a_renamed_file_is_there_once_under_its_new_name() {
    let place = Place::new();
    let change = Try::script("mv a.txt c.txt; echo ten >> c.txt").change(&place, &task(&place, "t1")).await;
    let mirror = place.workspace.mirror(&place.url()).await.unwrap();
    let files = mirror.contents(&change.base_commit, &change.head).await.unwrap();
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, ["c.txt"]);
    assert!(matches!(&files[0].content, Content::Text(text) if text.ends_with("nine\nten\n")), "{files:?}");
    // Nothing differs: nothing is asked of git that it could not answer.
    assert!(mirror.contents(&change.head, &change.head).await.unwrap().is_empty());
}
