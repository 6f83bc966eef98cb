//! What only the SQLite engine has: its file, its folder, and processes that share it and die.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod suite {
    pub(crate) mod kit;
}

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use refile_store::{Filter, Presence, SqliteStore, Store, StoreError};
use rusqlite::Connection;
use suite::kit::{LONG, add, claim, new_task, submission};

fn open(path: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(path, None).unwrap())
}

async fn tasks(store: &Arc<dyn Store>) -> usize {
    store.list(&Filter::default(), None, 100_000).await.unwrap().tasks.len()
}

#[tokio::test]
async fn the_folder_is_made_and_keeps_itself_out_of_the_repository() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("repo/.refile");
    drop(open(&folder.join("fleet.db")));
    assert_eq!(std::fs::read_to_string(folder.join(".gitignore")).unwrap(), "*\n");
    std::fs::remove_file(folder.join(".gitignore")).unwrap();
    drop(open(&folder.join("fleet.db")));
    assert!(!folder.join(".gitignore").exists(), "what a person removed stays removed");
    drop(open(&dir.path().join("other/fleet.db")));
    assert!(!dir.path().join("other/.gitignore").exists());
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path| match SqliteStore::open(path, None).unwrap_err() {
        StoreError::Unsuitable { why, .. } => why,
        other => panic!("{other}"),
    };
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "not a database, but long enough to be looked at as one".repeat(40)).unwrap();
    assert!(refused(&text).contains("move the file away"));
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("not a database"));

    let other = dir.path().join("other.db");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(refused(&other).contains("another program"));

    let newer = dir.path().join("newer.db");
    drop(open(&newer));
    Connection::open(&newer).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(refused(&newer).contains("version 99"));
}

#[tokio::test]
async fn a_lost_file_is_reported_once_and_the_store_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (path, spare) = (dir.path().join("fleet.db"), dir.path().join("spare.db"));
    let store = open(&path);
    add(&store, &["a"]).await;
    store.check().await.unwrap();

    for name in ["fleet.db", "fleet.db-wal", "fleet.db-shm"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let lost = store.check().await.unwrap_err();
    assert!(matches!(&lost, StoreError::LostData { what, .. } if what.contains("gone")), "{lost}");
    store.check().await.unwrap();
    assert_eq!(tasks(&store).await, 0);
    add(&store, &["b"]).await;
    assert_eq!(tasks(&open(&path)).await, 1, "it writes to the file that lies there");

    let replacement = open(&spare);
    add(&replacement, &["c", "d"]).await;
    drop(replacement);
    std::fs::rename(&spare, &path).unwrap();
    for name in ["fleet.db-wal", "fleet.db-shm"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let lost = store.check().await.unwrap_err();
    assert!(matches!(&lost, StoreError::LostData { what, .. } if what.contains("another file")), "{lost}");
    store.check().await.unwrap();
    assert_eq!(tasks(&store).await, 2);
}

#[tokio::test]
async fn a_process_that_fell_silent_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fleet.db");
    let store = open(&path);
    for id in ["silent", "lives"] {
        let (role, host) = ("coder".to_owned(), "host".to_owned());
        store.presence(&Presence { id: id.to_owned(), role, host, pid: 1, running: 0 }, false).await.unwrap();
    }
    let conn = Connection::open(&path).unwrap();
    conn.execute("UPDATE workers SET seen = seen - 61000 WHERE id = 'silent'", []).unwrap();
    let workers = store.stats().await.unwrap().workers;
    assert_eq!(workers.iter().map(|w| w.id.as_str()).collect::<Vec<_>>(), ["lives"]);
}

#[tokio::test]
async fn each_operation_is_observed() {
    let dir = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let seen = Arc::clone(&seen);
        Arc::new(move |operation: &'static str, _| seen.lock().unwrap().push(operation))
    };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.path().join("fleet.db"), Some(observer)).unwrap());
    add(&store, &["a"]).await;
    claim(&store, "w", 1, LONG).await;
    store.stats().await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["submit", "claim", "stats"]);
}

/// This test starts itself again as another process, which submits until it is killed, and says what was accepted.
#[tokio::test]
async fn what_a_killed_process_was_promised_is_there() {
    const FILE: &str = "REFILE_TEST_FILE";
    if let Ok(path) = std::env::var(FILE) {
        let store = open(Path::new(&path));
        for n in 0.. {
            let name = format!("t{}-{n}", std::process::id());
            store.submit(&[submission(&name, new_task(&name))]).await.unwrap();
            println!("\naccepted {name}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fleet.db");
    let store = open(&path);
    let mut accepted = Vec::new();
    for round in 1..=3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_a_killed_process_was_promised_is_there", "--nocapture"])
            .env(FILE, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut names = lines.map_while(Result::ok).filter_map(|l| l.strip_prefix("accepted ").map(str::to_owned));
        accepted.extend(names.by_ref().take(20 * round));
        // Both write at once, and then one of them is killed in the middle of whatever it does.
        add(&store, &[&format!("own{round}")]).await;
        child.kill().unwrap();
        accepted.extend(names);
        child.wait().unwrap();
        accepted.push(format!("own{round}"));
    }
    assert!(accepted.len() > 120);
    let ids: Vec<_> = accepted.iter().map(|name| suite::kit::id(name)).collect();
    assert!(store.tasks(&ids).await.unwrap().iter().all(Option::is_some));
    let conn = Connection::open(&path).unwrap();
    let sound: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
    // Whole or not at all: every task has its job, its events and its place in the counts.
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let tasks = count("SELECT COUNT(*) FROM tasks");
    assert_eq!(count("SELECT COUNT(*) FROM jobs WHERE place = 'queued'"), tasks);
    assert_eq!(count("SELECT COUNT(*) FROM events"), 2 * tasks);
    assert_eq!(count("SELECT value FROM counts WHERE key = 'tasks_submitted_total'"), tasks);
}
