//! What every process does at its start and its end.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::Metrics;

/// The status of a process that a second signal ended: 128 + SIGINT.
const LEFT_AT_ONCE: i32 = 130;

/// Installs the TLS library's provider of cryptography; without it every TLS connection fails.
pub fn install_tls() {
    // An error means that it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The machine's name.
pub fn host_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A name that no other process has or had: role, machine, number and 48 random bits.
pub fn unique_name(role: &str) -> String {
    let random = uuid::Uuid::new_v4().as_u128() & 0xffff_ffff_ffff;
    format!("{role}-{}-{}-{random:012x}", host_name(), std::process::id())
}

/// An error with its causes, in one text. Many errors tell their cause themselves; it is not told twice.
pub fn explained(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !said.contains(&words) {
            said = format!("{said}: {words}");
        }
        cause = next.source();
    }
    said
}

/// The end of a process that could not do its work: says why, and gives the status 1.
pub fn failed(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    use std::io::Write as _;
    // `eprintln!` would panic where nobody reads it.
    let _ = writeln!(std::io::stderr(), "error: {}", explained(error));
    ExitCode::FAILURE
}

/// Tells a store's operations to the metrics.
pub fn observer(metrics: &Metrics) -> Arc<dyn Fn(&'static str, Duration) + Send + Sync> {
    let histogram = metrics.store_command.clone();
    Arc::new(move |operation, took| histogram.with_label_values(&[operation]).observe(took.as_secs_f64()))
}

/// Cancels the token at SIGTERM or SIGINT; a second signal ends the process at once, after `last`.
///
/// Errors where signals cannot be caught.
pub fn stop_on_signal(shutdown: CancellationToken, last: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        shutdown.cancel();
        tracing::info!("stopping: running jobs get a grace period; a second signal leaves at once");
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        // Nothing is dropped by an exit: what must not outlive the process is ended here.
        last();
        std::process::exit(LEFT_AT_ONCE);
    });
    Ok(())
}
