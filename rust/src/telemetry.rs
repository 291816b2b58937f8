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
    /// Dense feed-forward blocks and shared experts.
    pub ffn: Duration,
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
            ffn: self.ffn.saturating_sub(earlier.ffn),
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

/// Where an expert was when a row took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// On a device.
    Vram,
    /// In memory, read ahead and not used since.
    Ahead,
    /// In memory, after it was used or was read for another use.
    Cached,
    /// Not in memory, or still being read.
    Missed,
}

/// Uses of routed experts, one for each row and rank, by where the expert was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// See [`Served::Vram`].
    pub vram: u64,
    /// See [`Served::Ahead`].
    pub ahead: u64,
    /// See [`Served::Cached`].
    pub cached: u64,
    /// See [`Served::Missed`].
    pub missed: u64,
}

impl Uses {
    /// Adds `n` uses.
    pub fn add(&mut self, served: Served, n: u64) {
        match served {
            Served::Vram => self.vram += n,
            Served::Ahead => self.ahead += n,
            Served::Cached => self.cached += n,
            Served::Missed => self.missed += n,
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.vram + self.ahead + self.cached + self.missed
    }

    /// Share of them served from memory, in percent; 0 for none.
    pub fn hit_pct(&self) -> f64 {
        let (hits, all) = (self.total() - self.missed, self.total());
        if all > 0 { 100.0 * hits as f64 / all as f64 } else { 0.0 }
    }
}

/// How uses of experts were served since the engine started, and what was read for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// By where the experts were.
    pub uses: Uses,
    /// Bytes of experts read from files.
    pub bytes_read: u64,
    /// Time in which at least one expert was being read; reads that overlap count once.
    pub reading: Duration,
}

impl Traffic {
    /// What there was since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            uses: Uses {
                vram: self.uses.vram - earlier.uses.vram,
                ahead: self.uses.ahead - earlier.uses.ahead,
                cached: self.uses.cached - earlier.uses.cached,
                missed: self.uses.missed - earlier.uses.missed,
            },
            bytes_read: self.bytes_read - earlier.bytes_read,
            reading: self.reading.saturating_sub(earlier.reading),
        }
    }
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

/// A device that holds experts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStatus {
    /// What people know it by.
    pub name: String,
    /// Bytes of its memory.
    pub total_bytes: u64,
    /// Bytes of it that experts take, those on their way included.
    pub used_bytes: u64,
    /// Experts on it.
    pub experts: usize,
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
    fn hits_are_uses_of_what_was_in_memory_however_it_came_there() {
        let mut uses = Uses::default();
        assert_eq!(uses.hit_pct(), 0.0);
        uses.add(Served::Ahead, 1);
        uses.add(Served::Cached, 2);
        uses.add(Served::Missed, 5);
        assert_eq!(uses, Uses { vram: 0, ahead: 1, cached: 2, missed: 5 });
        assert_eq!(uses.hit_pct(), 37.5);
        uses.add(Served::Vram, 8);
        assert_eq!((uses.total(), uses.hit_pct()), (16, 68.75));
    }

    #[test]
    fn a_uniform_histogram_has_the_entropy_of_its_size() {
        assert_eq!(entropy_bits([5u64; 8].into_iter()), 3.0);
        assert_eq!(entropy_bits([7u64, 0, 0].into_iter()), 0.0);
        assert_eq!(entropy_bits(std::iter::empty()), 0.0);
    }
}
