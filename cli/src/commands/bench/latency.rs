//! How long things took, from many processes: histograms whose counts can be added up.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::{CreationError, Histogram};
use serde::{Deserialize, Serialize};

/// Now, in microseconds since 1970: what processes of one machine agree on.
pub(super) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// Times in microseconds, each with how often it was seen; three digits are kept.
pub(super) type Counts = Vec<(u64, u64)>;

/// Takes times of many threads.
#[derive(Debug)]
pub(super) struct Latency(Mutex<Histogram<u64>>);

impl Latency {
    pub(super) fn new() -> Result<Self, CreationError> {
        Ok(Self(Mutex::new(Histogram::new(3)?)))
    }

    /// Something that began then has ended now.
    pub(super) fn since(&self, began_us: u64) {
        self.record(now_us().saturating_sub(began_us));
    }

    /// Something took so long.
    pub(super) fn took(&self, time: Duration) {
        self.record(time.as_micros() as u64);
    }

    fn record(&self, us: u64) {
        let mut histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It grows with what it is given; only a time of thousands of years would not fit.
        let _ = histogram.record(us);
    }

    /// What was taken so far.
    pub(super) fn counts(&self) -> Counts {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        histogram.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect()
    }
}

/// What is told of many times, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) count: u64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p99_9: f64,
    pub(super) max: f64,
}

impl Summary {
    /// Adds the counts of many up.
    pub(super) fn of<'a>(counts: impl Iterator<Item = &'a Counts>) -> Result<Self, CreationError> {
        let mut all = Histogram::<u64>::new(3)?;
        for (value, count) in counts.flatten() {
            let _ = all.record_n(*value, *count);
        }
        let ms = |us: u64| us as f64 / 1_000.0;
        let at = |quantile| ms(all.value_at_quantile(quantile));
        let (p50, p90, p99, p99_9) = (at(0.5), at(0.9), at(0.99), at(0.999));
        Ok(Self { count: all.len(), p50, p90, p99, p99_9, max: ms(all.max()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_add_up() {
        let (fast, slow) = (vec![(1_000, 98)], vec![(50_000, 1), (90_000, 1)]);
        let summary = Summary::of([&fast, &slow].into_iter()).unwrap();
        assert_eq!(summary.count, 100);
        let near = |a: f64, b: f64| (a - b).abs() < b / 500.0;
        assert!(near(summary.p50, 1.0) && near(summary.p90, 1.0), "{summary:?}");
        assert!(near(summary.p99, 50.0) && near(summary.p99_9, 90.0), "{summary:?}");
    }
}
