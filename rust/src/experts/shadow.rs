//! What a cache that gives up what was used longest ago would serve, beside the one in use.
//!
//! What is learned serves more in the long run, but where all that is used changes at once it is in
//! the way until it has faded. Then the shadow leads, and the cache in use follows it for a while.
//! Owns: the shadow's contents, its lead. Does not own: experts. Figures: `docs/experts.md`.

use std::collections::BTreeSet;

/// Tokens after which a use counts half in the lead.
const HALF_LIFE: f32 = 16.0;
/// Lead, in shares of the experts that a token takes in a layer, from which on the shadow is followed.
const LEAD: f32 = 0.3;

/// A cache without contents, under the rule of age.
pub struct Shadow {
    /// Time of the last use of what would be there, and bytes of it.
    kept: Vec<Option<(u64, u64)>>,
    by_age: BTreeSet<(u64, usize)>,
    clock: u64,
    used_bytes: u64,
    budget_bytes: u64,
    /// Uses that only the shadow would have served less those that only the cache in use did.
    lead: f32,
    least_lead: f32,
    /// What is left of the lead after a layer.
    keeps: f32,
}

impl Shadow {
    /// An empty one for `n` experts in `layers`, of which a token takes `top_k` in each.
    pub fn new(n: usize, budget_bytes: u64, layers: usize, top_k: usize) -> Self {
        Self {
            kept: vec![None; n],
            by_age: BTreeSet::new(),
            clock: 0,
            used_bytes: 0,
            budget_bytes,
            lead: 0.0,
            least_lead: LEAD * top_k as f32,
            keeps: (-1.0 / (HALF_LIFE * layers.max(1) as f32)).exp2(),
        }
    }

    /// Notes that a layer comes.
    pub fn begin_layer(&mut self) {
        self.lead *= self.keeps;
    }

    /// Notes a use of an expert of so many bytes, which was there or not.
    pub fn take(&mut self, index: usize, bytes: u64, was_there: bool) {
        self.clock += 1;
        let before = self.kept[index].take();
        self.lead += f32::from(before.is_some()) - f32::from(was_there);
        if let Some((time, bytes)) = before {
            self.by_age.remove(&(time, index));
            self.used_bytes -= bytes;
        }
        if !self.make_room(bytes) {
            return;
        }
        self.by_age.insert((self.clock, index));
        self.kept[index] = Some((self.clock, bytes));
        self.used_bytes += bytes;
    }

    /// Keeps no more than `budget_bytes` from now on.
    pub fn set_budget(&mut self, budget_bytes: u64) {
        self.budget_bytes = budget_bytes;
        self.make_room(0);
    }

    /// Gives up the oldest until `bytes` more fit; false if they cannot.
    fn make_room(&mut self, bytes: u64) -> bool {
        while self.used_bytes + bytes > self.budget_bytes {
            let Some((_, oldest)) = self.by_age.pop_first() else { return false };
            let (_, bytes) = self.kept[oldest].take().expect("it is among those by age");
            self.used_bytes -= bytes;
        }
        true
    }

    /// Whether the rule of age serves more these days.
    pub fn leads(&self) -> bool {
        self.lead > self.least_lead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_given_up_and_nothing_larger_than_all_is_kept() {
        let mut shadow = Shadow::new(4, 10, 1, 1);
        for (index, bytes, kept) in [
            (0, 4, vec![0]),
            (1, 4, vec![0, 1]),
            (0, 4, vec![0, 1]),
            (2, 6, vec![0, 2]),
            (3, 11, vec![]),
            (1, 4, vec![1]),
        ] {
            shadow.take(index, bytes, false);
            let there: Vec<usize> = (0..4).filter(|&i| shadow.kept[i].is_some()).collect();
            assert_eq!(there, kept);
            assert_eq!(shadow.by_age.len(), kept.len());
            let bytes: u64 = shadow.kept.iter().flatten().map(|(_, bytes)| bytes).sum();
            assert_eq!(shadow.used_bytes, bytes);
        }
        shadow.take(0, 4, false);
        shadow.set_budget(7);
        let there: Vec<usize> = (0..4).filter(|&i| shadow.kept[i].is_some()).collect();
        assert_eq!((there, shadow.used_bytes, shadow.by_age.len()), (vec![0], 4, 1));
    }

    #[test]
    fn it_leads_where_it_alone_would_have_served_and_no_longer_than_that() {
        let mut shadow = Shadow::new(2, 1, 2, 1);
        let mut take = |was_there| {
            shadow.begin_layer();
            shadow.take(0, 1, was_there);
            shadow.leads()
        };
        assert!(!take(false), "nobody had it");
        assert!(take(false));
        // Both serve all from now on.
        let follows = (0..1000).take_while(|_| take(true)).count();
        assert!((16..200).contains(&follows), "{follows}");
    }
}
