//! How often each expert was chosen, and how often it was in memory when chosen.
//!
//! Counted per routed selection, before experts of several rows are merged into one read.

/// Selection counters of every expert.
pub struct Heat {
    counts: Vec<u64>,
    /// Experts chosen since [`Heat::take_hits`], one bit each.
    recent: Vec<u8>,
    selections: u64,
    hits: u64,
}

impl Heat {
    /// Counters for `n` experts.
    pub fn new(n: usize) -> Self {
        Self { counts: vec![0; n], recent: vec![0; n.div_ceil(8)], selections: 0, hits: 0 }
    }

    /// Adds the counts of earlier runs, one an expert.
    pub fn remember(&mut self, counts: &[u64]) {
        for (count, earlier) in self.counts.iter_mut().zip(counts) {
            *count = count.saturating_add(*earlier);
        }
    }

    /// Records `n` selections of the expert, which was in memory or had to be read.
    pub fn select(&mut self, index: usize, n: u64, resident: bool) {
        self.counts[index] = self.counts[index].saturating_add(n);
        self.recent[index / 8] |= 1 << (index % 8);
        self.selections += n;
        if resident {
            self.hits += n;
        }
    }

    /// Selections of each expert so far.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// All selections so far, and those served from memory.
    pub fn totals(&self) -> (u64, u64) {
        (self.selections, self.hits)
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
            heat.select(0, n, true);
            assert_eq!(heat.level(0), level, "{}", heat.counts()[0]);
        }
    }

    #[test]
    fn hits_are_reported_once() {
        let mut heat = Heat::new(12);
        heat.select(1, 1, true);
        heat.select(9, 2, false);
        assert_eq!(heat.take_hits(), [0b10, 0b10]);
        assert_eq!(heat.take_hits(), [0, 0]);
        assert_eq!(heat.totals(), (3, 1));
    }
}
