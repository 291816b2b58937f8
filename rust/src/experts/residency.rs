//! Which experts are in RAM.
//!
//! Owns: the cached experts, byte accounting, making room. Does not own: reading (`reader`), what
//! is worth keeping (`policy`), counting (`heat`).

use std::sync::Arc;

use super::policy::Policy;
use super::shadow::Shadow;

/// Looking for victims visits every expert, so that this share of them is found at once.
const VICTIMS: usize = 64;

struct Resident<T> {
    expert: Arc<T>,
    bytes: u64,
}

/// A cache of experts `T` that never holds more than its budget.
pub struct Residency<T> {
    entries: Vec<Option<Resident<T>>>,
    /// When an expert was last used or stored, in calls of [`Self::touch`].
    stamps: Vec<u64>,
    clock: u64,
    len: usize,
    used_bytes: u64,
    /// Bytes of experts that are being read.
    promised_bytes: u64,
    budget_bytes: u64,
    /// Experts to give up with their stamps, the last first; found at `victims_from`.
    victims: Vec<(usize, u64)>,
    victims_from: u64,
    /// Experts that were given up, until somebody takes them.
    gone: Vec<Arc<T>>,
    /// What the rule of age alone would have served.
    shadow: Shadow,
    /// Whether that rule is followed at present.
    by_age: bool,
}

impl<T> Residency<T> {
    /// An empty cache for the experts of `layers`, `cols` in each, of which a token takes `top_k`.
    pub fn new(layers: usize, cols: usize, top_k: usize, budget_bytes: u64) -> Self {
        let n = layers * cols;
        Self {
            entries: (0..n).map(|_| None).collect(),
            stamps: vec![0; n],
            clock: 0,
            len: 0,
            used_bytes: 0,
            promised_bytes: 0,
            budget_bytes,
            victims: Vec::new(),
            victims_from: 0,
            gone: Vec::new(),
            shadow: Shadow::new(n, budget_bytes, layers, top_k),
            by_age: false,
        }
    }

    /// Whether the expert is in RAM.
    pub fn contains(&self, index: usize) -> bool {
        self.entries[index].is_some()
    }

    /// The expert if it is in RAM.
    pub fn get(&self, index: usize) -> Option<Arc<T>> {
        self.entries[index].as_ref().map(|entry| Arc::clone(&entry.expert))
    }

    /// Notes that one layer uses these experts of so many bytes now.
    pub fn touch(&mut self, uses: impl Iterator<Item = (usize, u64)>) {
        self.clock += 1;
        self.shadow.begin_layer();
        for (index, bytes) in uses {
            self.stamps[index] = self.clock;
            self.shadow.take(index, bytes, self.contains(index));
        }
        if self.by_age != self.shadow.leads() {
            self.by_age = !self.by_age;
            self.victims.clear();
        }
    }

    /// Whether `bytes` more fit without giving anything up.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.used_bytes + self.promised_bytes + bytes <= self.budget_bytes
    }

    /// Promises `bytes` to an expert that is to be read, giving up others that `keep` does not
    /// hold on to. False if that is not enough; nothing is promised then.
    pub fn promise(&mut self, bytes: u64, policy: &Policy, keep: impl Fn(usize) -> bool) -> bool {
        while !self.has_room(bytes) {
            if !self.give_up_next(policy, &keep) {
                return false;
            }
        }
        self.promised_bytes += bytes;
        true
    }

    /// Allows `budget_bytes` from now on; nothing is given up yet.
    pub fn set_budget(&mut self, budget_bytes: u64) {
        self.budget_bytes = budget_bytes;
        self.shadow.set_budget(budget_bytes);
    }

    /// Gives up what is beyond the budget. What is promised stays so, even if that is beyond it.
    pub fn shrink(&mut self, policy: &Policy) {
        while !self.has_room(0) && self.give_up_next(policy, |_| false) {}
    }

    /// Gives up the expert that is needed last of those that `keep` does not hold on to; false if
    /// there is none.
    fn give_up_next(&mut self, policy: &Policy, keep: impl Fn(usize) -> bool) -> bool {
        loop {
            match self.victims.pop() {
                Some((victim, stamp)) => {
                    if self.contains(victim) && self.stamps[victim] == stamp && !keep(victim) {
                        self.give_up(victim);
                        return true;
                    }
                }
                None => {
                    if !self.find_victims(policy, &keep) {
                        return false;
                    }
                }
            }
        }
    }

    /// False if there is none.
    fn find_victims(&mut self, policy: &Policy, keep: impl Fn(usize) -> bool) -> bool {
        let mut found: Vec<(f32, usize)> = (0..self.entries.len())
            .filter(|&index| self.contains(index) && !keep(index))
            .map(|index| (self.wait(index, policy), index))
            .collect();
        let n = found.len().div_ceil(VICTIMS);
        if n < found.len() {
            found.select_nth_unstable_by(n, |a, b| b.0.total_cmp(&a.0));
            found.truncate(n);
        }
        found.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        self.victims = found.into_iter().map(|(_, i)| (i, self.stamps[i])).collect();
        self.victims_from = self.clock;
        !self.victims.is_empty()
    }

    /// How long an expert is not needed, in a measure that the rule of the day has.
    fn wait(&self, index: usize, policy: &Policy) -> f32 {
        if policy.is_expected(index) {
            return 0.0;
        }
        if self.by_age { (self.clock - self.stamps[index]) as f32 } else { policy.wait(index) }
    }

    /// Forgets that some experts were found to be given up: they have become likelier.
    pub fn spare(&mut self, experts: &[usize]) {
        self.victims.retain(|(victim, _)| !experts.contains(victim));
    }

    /// Forgets what was found to be given up, if that was `layers` calls of [`Self::touch`] ago:
    /// other layers are the next ones now.
    pub fn forget_victims(&mut self, layers: usize) {
        if self.clock - self.victims_from > layers as u64 {
            self.victims.clear();
        }
    }

    /// Takes the expert out of RAM, if it is there.
    pub fn give_up(&mut self, index: usize) {
        if let Some(gone) = self.entries[index].take() {
            self.used_bytes -= gone.bytes;
            self.len -= 1;
            self.gone.push(gone.expert);
        }
    }

    /// What was given up since the last call.
    pub fn take_gone(&mut self) -> impl Iterator<Item = Arc<T>> {
        self.gone.drain(..)
    }

    /// Takes back what [`Self::promise`] gave to an expert that could not be read.
    pub fn take_back(&mut self, bytes: u64) {
        self.promised_bytes -= bytes;
    }

    /// Stores an expert of as many bytes as were promised to it.
    pub fn insert(&mut self, index: usize, expert: Arc<T>, bytes: u64) {
        self.promised_bytes -= bytes;
        if self.entries[index].replace(Resident { expert, bytes }).is_none() {
            self.used_bytes += bytes;
            self.len += 1;
        }
    }

    /// Experts in RAM.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no expert is in RAM.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_kept_stays_and_what_does_not_fit_is_told() {
        let bytes = 10;
        let (mut cache, policy) = (Residency::new(1, 4, 1, 2 * bytes), Policy::new(1, 4, 1));
        for index in 0..2 {
            assert!(cache.promise(bytes, &policy, |_| false));
            cache.insert(index, Arc::new(()), bytes);
        }
        assert!(!cache.promise(bytes, &policy, |_| true), "both are in use");
        assert_eq!(cache.len(), 2);
        assert!(cache.promise(bytes, &policy, |index| index == 0));
        assert_eq!([0, 1].map(|i| cache.contains(i)), [true, false]);
        assert!(!cache.promise(bytes, &policy, |index| index == 0), "the rest is promised");
        cache.take_back(bytes);
        assert!(cache.promise(bytes, &policy, |index| index == 0));
    }

    #[test]
    fn a_smaller_budget_gives_up_what_is_needed_last_and_a_larger_one_nothing() {
        let (mut cache, mut policy) = (Residency::new(1, 6, 1, 60), Policy::new(1, 6, 1));
        for _ in 0..50 {
            for index in [0, 1, 1, 2, 2, 2] {
                policy.take(0, [&[index][..]].into_iter());
                cache.touch([(index, 10)].into_iter());
            }
        }
        for index in 0..4 {
            assert!(cache.promise(10, &policy, |_| false));
            cache.insert(index, Arc::new(()), 10);
        }
        assert!(cache.promise(10, &policy, |_| false), "one is being read");
        cache.set_budget(25);
        cache.shrink(&policy);
        assert_eq!([0, 1, 2, 3].map(|i| cache.contains(i)), [false, false, true, false]);
        cache.set_budget(5);
        cache.shrink(&policy);
        assert_eq!((cache.len(), cache.used_bytes(), cache.has_room(0)), (0, 0, false));
        cache.set_budget(60);
        cache.shrink(&policy);
        assert_eq!((cache.len(), cache.has_room(50), cache.has_room(51)), (0, true, false));
    }

    proptest! {
        #[test]
        fn the_budget_is_never_exceeded(
            budgets in prop::collection::vec(1u64..30, 1..9),
            steps in prop::collection::vec((0usize..20, 1u64..6), 1..200),
            expected in prop::collection::vec(0usize..20, 0..20),
        ) {
            let mut budget = budgets[0];
            let (mut cache, mut policy) = (Residency::new(4, 5, 1, budget), Policy::new(4, 5, 1));
            for (i, (index, bytes)) in steps.into_iter().enumerate() {
                if i % 7 == 6 {
                    budget = budgets[i / 7 % budgets.len()];
                    cache.set_budget(budget);
        cache.shrink(&policy);
                }
                policy.take(index / 5, [&[index % 5][..]].into_iter());
                cache.touch([(index, bytes)].into_iter());
                cache.forget_victims(1);
                // What is likely goes last, but it goes.
                policy.expect(&expected);
                cache.spare(&expected);
                if !cache.contains(index) {
                    let fits = cache.promise(bytes, &policy, |_| false);
                    prop_assert_eq!(fits, bytes <= budget);
                    if fits {
                        cache.insert(index, Arc::new(bytes), bytes);
                    }
                }
                prop_assert!(cache.used_bytes() <= budget);
                let held: u64 = cache.entries.iter().flatten().map(|e| *e.expert).sum();
                prop_assert_eq!(held, cache.used_bytes());
                prop_assert_eq!(cache.entries.iter().flatten().count(), cache.len());
            }
        }
    }
}
