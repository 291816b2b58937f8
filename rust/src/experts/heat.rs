//! How often each expert was chosen, and where it was then.
//!
//! Counted per routed selection, before experts of several rows are merged into one read.

use crate::telemetry::{Served, Uses};

/// Selection counters of every expert.
pub struct Heat {
    counts: Vec<u64>,
    /// Experts chosen since [`Heat::take_hits`], one bit each.
    recent: Vec<u8>,
    uses: Uses,
}

impl Heat {
    /// Counters for `n` experts.
    pub fn new(n: usize) -> Self {
        Self { counts: vec![0; n], recent: vec![0; n.div_ceil(8)], uses: Uses::default() }
    }

    /// Adds the counts of earlier runs, one an expert.
    pub fn remember(&mut self, counts: &[u64]) {
        for (count, earlier) in self.counts.iter_mut().zip(counts) {
            *count = count.saturating_add(*earlier);
        }
    }

    /// Records `n` selections of the expert.
    pub fn select(&mut self, index: usize, n: u64, served: Served) {
        self.counts[index] = self.counts[index].saturating_add(n);
        self.recent[index / 8] |= 1 << (index % 8);
        self.uses.add(served, n);
    }

    /// Selections of each expert so far.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// All selections so far.
    pub fn uses(&self) -> Uses {
        self.uses
    }

    /// The bitmap of experts chosen since the last call, least significant bit first.
    pub fn take_hits(&mut self) -> Vec<u8> {
        let empty = vec![0; self.recent.len()];
        std::mem::replace(&mut self.recent, empty)
    }

    /// The counter as shown on the map: its bit length, at most 63.
    pub fn level(&self, index: usize) -> u8 {
        (u64::BITS - self.counts[index].leading_zeros()).min(63) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_bit_lengths() {
        let mut heat = Heat::new(1);
        for (n, level) in [(0, 0), (1, 1), (1, 2), (1, 2), (1, 3), (3, 3), (1, 4)] {
            heat.select(0, n, Served::Cached);
            assert_eq!(heat.level(0), level, "{}", heat.counts()[0]);
        }
    }

    #[test]
    fn hits_are_reported_once() {
        let mut heat = Heat::new(12);
        heat.select(1, 1, Served::Ahead);
        heat.select(9, 2, Served::Missed);
        assert_eq!(heat.take_hits(), [0b10, 0b10]);
        assert_eq!(heat.take_hits(), [0, 0]);
        assert_eq!(heat.uses(), Uses { ahead: 1, missed: 2, ..Uses::default() });
    }
}
