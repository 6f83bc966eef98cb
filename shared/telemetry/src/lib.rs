//! What every process of the fleet tells about itself: logs, metrics, and whether it is alive and ready.
//!
//! # Layout
//! - [`logging`]: lines for people on a terminal, JSON otherwise
//! - [`metrics`]: every metric of Refile, by name
//! - [`health`]: alive and ready
//! - [`http`]: `/metrics`, `/healthz` and `/readyz`
//! - [`process`]: what every process does at its start and its end

pub mod logging;
pub mod metrics;
pub mod health;
pub mod http;
pub mod process;

pub use health::Health;
pub use metrics::Metrics;
