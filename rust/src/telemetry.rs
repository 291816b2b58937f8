//! Plain snapshots of what the engine does; filled by the engine, rendered by `mux` and `python`.

use std::time::{Duration, Instant};

/// Time spent since the engine started, by phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Phases {
    /// Reading experts; reads that overlap are all counted.
    pub expert_disk: Duration,
    /// Waiting for those reads.
    pub expert_wait: Duration,
    /// Expert matrix products.
    pub expert_matmul: Duration,
    /// Attention, its projections included.
    pub attention: Duration,
    /// Work with the decompression matrix of latent attention, a part of `attention`.
    pub kv_decompress: Duration,
    /// Output head.
    pub head: Duration,
}

impl Phases {
    /// What was spent since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            expert_disk: self.expert_disk.saturating_sub(earlier.expert_disk),
            expert_wait: self.expert_wait.saturating_sub(earlier.expert_wait),
            expert_matmul: self.expert_matmul.saturating_sub(earlier.expert_matmul),
            attention: self.attention.saturating_sub(earlier.attention),
            kv_decompress: self.kv_decompress.saturating_sub(earlier.kv_decompress),
            head: self.head.saturating_sub(earlier.head),
        }
    }
}

/// Runs `f` and adds its duration to `total`.
pub fn timed<R>(total: &mut Duration, f: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = f();
    *total += start.elapsed();
    result
}

/// How many experts are in each tier, and the bytes of those in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tiers {
    /// Experts in VRAM.
    pub vram: usize,
    /// Experts in RAM.
    pub ram: usize,
    /// Experts on disk only.
    pub disk: usize,
    /// Bytes in VRAM.
    pub vram_bytes: u64,
    /// Bytes in RAM.
    pub ram_bytes: u64,
}

/// Shannon entropy in bits of a histogram; 0 for an empty one.
pub fn entropy_bits(counts: impl Iterator<Item = u64> + Clone) -> f64 {
    let total: u64 = counts.clone().sum();
    if total == 0 {
        return 0.0;
    }
    counts
        .filter(|&n| n > 0)
        .map(|n| {
            let p = n as f64 / total as f64;
            -p * p.log2()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_histogram_has_the_entropy_of_its_size() {
        assert_eq!(entropy_bits([5u64; 8].into_iter()), 3.0);
        assert_eq!(entropy_bits([7u64, 0, 0].into_iter()), 0.0);
        assert_eq!(entropy_bits(std::iter::empty()), 0.0);
    }
}
