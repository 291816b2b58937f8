//! What a drive has to do, and how fast it is.

use std::time::{Duration, Instant};

/// Bytes after which older reads count half for the rate of a drive.
const RATE_BYTES: f64 = (64 << 20) as f64;
/// Fewer tell nothing of it.
const LEAST_RATE_BYTES: f64 = (1 << 20) as f64;
/// Bytes a second that a drive is taken for that was not measured, or not lately: it is tried then.
pub(super) const UNKNOWN_RATE: f64 = 1e10;
pub(super) const LATELY: Duration = Duration::from_secs(10);

/// What a drive has to do, and how fast it was.
#[derive(Default)]
pub(super) struct Load {
    /// Reads that are under way.
    pub(super) running: usize,
    /// Bytes of the reads that are under way.
    pub(super) waiting: u64,
    /// Bytes that were read, and seconds in which at least one read was under way.
    pub(super) done: f64,
    pub(super) busy_s: f64,
    /// Up to when those seconds are counted.
    counted: Option<Instant>,
}

impl Load {
    /// A read begins.
    pub(super) fn begin(&mut self, bytes: usize, now: Instant) {
        if self.running == 0 {
            self.counted = Some(now);
        }
        self.running += 1;
        self.waiting += bytes as u64;
    }

    /// It is over.
    pub(super) fn end(&mut self, bytes: usize, now: Instant) {
        self.running -= 1;
        self.waiting -= bytes as u64;
        self.done += bytes as f64;
        let counted = self.counted.replace(now).unwrap_or(now);
        self.busy_s += now.saturating_duration_since(counted).as_secs_f64();
        if self.done > RATE_BYTES {
            self.done /= 2.0;
            self.busy_s /= 2.0;
        }
    }

    /// Bytes a second, if enough was read.
    pub(super) fn known_rate(&self) -> Option<f64> {
        let is_known = self.done >= LEAST_RATE_BYTES && self.busy_s > 0.0;
        is_known.then(|| self.done / self.busy_s)
    }

    /// Bytes a second to reckon with.
    pub(super) fn rate(&self, now: Instant) -> f64 {
        let is_old = |at: Instant| self.running == 0 && now.saturating_duration_since(at) > LATELY;
        let lately = self.known_rate().filter(|_| !self.counted.is_some_and(is_old));
        lately.unwrap_or(UNKNOWN_RATE)
    }

    /// Seconds until `bytes` more are read.
    pub(super) fn finish_s(&self, bytes: usize, now: Instant) -> f64 {
        (self.waiting as f64 + bytes as f64) / self.rate(now)
    }
}
