//! Logs go to standard error: for people on a terminal, one JSON object a line otherwise.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Sets logging up for the process. `REFILE_LOG` chooses what is logged (`debug`, `refile_store=trace`); `info` by
/// default, `quiet` leaves warnings and errors. A second call changes nothing.
pub fn init(quiet: bool) {
    let default = if quiet { "warn" } else { "info" };
    let filter = EnvFilter::try_from_env("REFILE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    // Where nobody reads the log any more, to say so there would panic whoever logs.
    let builder = tracing_subscriber::fmt().log_internal_errors(false);
    let builder = builder.with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // An error means that logging is set up already.
    let _ = if std::io::stderr().is_terminal() {
        builder.compact().try_init()
    } else {
        builder.json().flatten_event(true).with_ansi(false).try_init()
    };
}
