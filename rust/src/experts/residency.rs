//! Which experts are in RAM.
//!
//! Owns: the cached experts, byte accounting, least-recently-used eviction. Does not own: reading
//! (`dispatch`), counting (`heat`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Expert;

struct Resident {
    expert: Arc<Expert>,
    bytes: u64,
    /// Key of this entry in `by_age`.
    stamp: u64,
}

/// A cache of experts that never holds more than its budget.
pub struct Residency {
    entries: Vec<Option<Resident>>,
    /// Last use -> expert; the first is the least recently used.
    by_age: BTreeMap<u64, usize>,
    clock: u64,
    used_bytes: u64,
    budget_bytes: u64,
}

impl Residency {
    /// An empty cache for `n` experts.
    pub fn new(n: usize, budget_bytes: u64) -> Self {
        Self {
            entries: (0..n).map(|_| None).collect(),
            by_age: BTreeMap::new(),
            clock: 0,
            used_bytes: 0,
            budget_bytes,
        }
    }

    /// Whether the expert is in RAM.
    pub fn contains(&self, index: usize) -> bool {
        self.entries[index].is_some()
    }

    /// The expert if it is in RAM, now the most recently used.
    pub fn get(&mut self, index: usize) -> Option<Arc<Expert>> {
        let entry = self.entries[index].as_mut()?;
        self.by_age.remove(&entry.stamp);
        self.clock += 1;
        entry.stamp = self.clock;
        self.by_age.insert(self.clock, index);
        Some(Arc::clone(&entry.expert))
    }

    /// Stores an expert, evicting the least recently used until it fits.
    ///
    /// An expert larger than the whole budget is not kept; its user still holds it.
    pub fn insert(&mut self, index: usize, expert: Arc<Expert>) {
        let bytes = expert.bytes();
        if bytes > self.budget_bytes || self.contains(index) {
            return;
        }
        while self.used_bytes + bytes > self.budget_bytes {
            let (_, victim) = self.by_age.pop_first().expect("used bytes belong to entries");
            let gone = self.entries[victim].take().expect("every aged entry exists");
            self.used_bytes -= gone.bytes;
        }
        self.clock += 1;
        self.used_bytes += bytes;
        self.by_age.insert(self.clock, index);
        self.entries[index] = Some(Resident { expert, bytes, stamp: self.clock });
    }

    /// Experts in RAM.
    pub fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Whether no expert is in RAM.
    pub fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Bytes of the experts in RAM.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Most bytes they may take.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::experts::Activation;
    use crate::matrix::Matrix;
    use proptest::prelude::*;

    /// An expert of `3 * n * 64` bytes.
    fn expert(n: usize) -> Arc<Expert> {
        let matrix = || Matrix::from_plain(Dtype::F32, &vec![0; 16 * n * 4], 16, n);
        Arc::new(Expert {
            gate: matrix(),
            up: matrix(),
            down: matrix(),
            biases: None,
            activation: Activation::SwiGlu,
        })
    }

    #[test]
    fn evicts_the_least_recently_used_expert() {
        let mut cache = Residency::new(4, 2 * expert(1).bytes());
        cache.insert(0, expert(1));
        cache.insert(1, expert(1));
        assert!(cache.get(0).is_some());
        cache.insert(2, expert(1));
        assert_eq!([0, 1, 2].map(|i| cache.contains(i)), [true, false, true]);
    }

    proptest! {
        #[test]
        fn the_budget_is_never_exceeded_and_what_was_just_used_stays(
            budget in 1u64..3000, steps in prop::collection::vec((0usize..20, 1usize..6), 1..200)
        ) {
            let mut cache = Residency::new(20, budget);
            for (index, size) in steps {
                let expert = expert(size);
                let fits = expert.bytes() <= budget;
                if cache.get(index).is_none() {
                    cache.insert(index, expert);
                    prop_assert_eq!(cache.contains(index), fits);
                }
                prop_assert!(cache.used_bytes() <= budget);
                let held: u64 = cache.entries.iter().flatten().map(|e| e.expert.bytes()).sum();
                prop_assert_eq!(held, cache.used_bytes());
                prop_assert_eq!(cache.entries.iter().flatten().count(), cache.len());
            }
        }
    }
}
