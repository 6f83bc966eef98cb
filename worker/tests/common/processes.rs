//! Processes that must not outlive what started them.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

/// Whether the process is gone or only waits to be reaped.
pub fn is_dead(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z"))
}

/// Waits for a process whose number, a line, comes into `file`; drops what is running, and holds that the process ends.
pub async fn dies_with<T: std::fmt::Debug>(running: JoinHandle<T>, file: &Path) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut pid = String::new();
    while !pid.ends_with('\n') {
        assert!(Instant::now() < deadline, "it did not start");
        tokio::time::sleep(Duration::from_millis(5)).await;
        pid = std::fs::read_to_string(file).unwrap_or_default();
    }
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    while !is_dead(pid.trim()) {
        assert!(Instant::now() < deadline, "what it started lives on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
