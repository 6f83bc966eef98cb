//! The coordinator's process says why it does not start.

#![allow(clippy::unwrap_used, missing_docs)]

use std::net::TcpListener;
use std::process::Command;

/// Runs the coordinator, which must not come up, and gives what it says.
#[track_caller]
fn refused(arguments: &[&str], says: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_refile-coordinator"));
    let ran = command.args(arguments).current_dir(dir.path()).env_clear().output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for word in says {
        assert!(said.contains(word), "does not say {word:?}: {said}");
    }
    assert!(!said.contains("panicked") && !said.contains("s3cret"), "{said}");
    said
}

#[test]
fn a_redis_that_is_away_is_said() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://:s3cret@127.0.0.1:{port}/0");
    let said = refused(&["--store", &url], &["127.0.0.1", "does not answer", "check that it runs"]);
    assert_eq!(said.matches("Connection refused").count(), 1, "the cause is told once: {said}");
}

#[test]
fn a_store_or_an_address_that_cannot_be_used_is_said() {
    refused(&["--store", "postgres://me:s3cret@host/db"], &["is not a store", "sqlite:PATH"]);
    refused(&["--listen", "0.0.0.0:0"], &["loopback", "coordinator.listen"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&["--listen", &address], &["cannot listen", &address]);
    refused(&["--config", "absent.toml"], &["absent.toml", "refile init"]);
}
