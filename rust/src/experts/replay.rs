//! A recorded routing through a cache of any size, without a model.
//!
//! Owns: the rules that ours is compared with. The rule in use is the very code of the engine.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::policy::Policy;
use super::residency::Residency;

/// Which experts each token of a run took in each layer.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// `[tokens][layers][top_k]`
    pub choices: &'a [u16],
    /// Sparse layers.
    pub layers: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts that a token takes.
    pub top_k: usize,
}

/// How a cache chooses what to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// As the engine does.
    Learned,
    /// What was used longest ago.
    Lru,
    /// What is needed last or never again, by looking ahead (Belady 1966), the new one included:
    /// no rule has more hits.
    Optimal,
}

impl Rule {
    /// By its name on the command line.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "learned" => Some(Self::Learned),
            "lru" => Some(Self::Lru),
            "optimal" => Some(Self::Optimal),
            _ => None,
        }
    }
}

impl Trace<'_> {
    /// Uses of experts that were served from a cache of `slots` experts, empty at first.
    ///
    /// # Errors
    /// What is wrong with the trace, or with a cache that does not hold one token's experts.
    pub fn hits(&self, slots: usize, rule: Rule) -> Result<u64, String> {
        self.check()?;
        if slots < self.top_k {
            return Err(format!("{slots} slots do not hold the {} of one token", self.top_k));
        }
        Ok(match rule {
            Rule::Learned => self.learned(slots),
            Rule::Lru => self.lru(slots),
            Rule::Optimal => self.optimal(slots),
        })
    }

    fn check(&self) -> Result<(), String> {
        let a_token = self.layers * self.top_k;
        if a_token == 0 || !self.choices.len().is_multiple_of(a_token) {
            return Err(format!(
                "{} choices are not those of whole tokens, {a_token} each",
                self.choices.len()
            ));
        }
        match self.choices.iter().find(|&&expert| usize::from(expert) >= self.experts) {
            Some(expert) => Err(format!("expert {expert} of {}", self.experts)),
            None => Ok(()),
        }
    }

    /// Each token's layers in order: the layer, and the experts it takes there.
    fn steps(&self) -> impl Iterator<Item = (usize, Vec<usize>)> {
        self.choices.chunks_exact(self.top_k).enumerate().map(|(i, chosen)| {
            let layer = i % self.layers;
            (layer, chosen.iter().map(|&expert| usize::from(expert)).collect())
        })
    }

    /// All uses in order, experts counted through all layers.
    fn uses(&self) -> impl Iterator<Item = usize> {
        self.steps().flat_map(move |(layer, chosen)| {
            chosen.into_iter().map(move |expert| layer * self.experts + expert)
        })
    }

    fn learned(&self, slots: usize) -> u64 {
        let mut policy = Policy::new(self.layers, self.experts, self.top_k);
        let mut cache = Residency::new(self.layers, self.experts, self.top_k, slots as u64);
        let mut hits = 0;
        for (layer, chosen) in self.steps() {
            let indices = || chosen.iter().map(|expert| layer * self.experts + expert);
            cache.touch(indices().map(|index| (index, 1)));
            cache.forget_victims(self.layers.div_ceil(4));
            policy.take(layer, [&chosen[..]].into_iter());
            let missing: Vec<usize> = indices().filter(|&index| !cache.contains(index)).collect();
            hits += (chosen.len() - missing.len()) as u64;
            for index in missing {
                let keep = |other| indices().any(|index| index == other);
                assert!(cache.promise(1, &policy, keep), "there is room for one token");
                drop(cache.take_gone());
                cache.insert(index, Arc::new(()), 1);
            }
        }
        hits
    }

    fn lru(&self, slots: usize) -> u64 {
        let mut last: Vec<Option<usize>> = vec![None; self.layers * self.experts];
        let mut by_age = BTreeSet::new();
        let mut hits = 0;
        for (time, index) in self.uses().enumerate() {
            if let Some(before) = last[index].replace(time) {
                hits += 1;
                by_age.remove(&(before, index));
            } else if by_age.len() == slots {
                let (_, victim) = by_age.pop_first().expect("slots are not none");
                last[victim] = None;
            }
            by_age.insert((time, index));
        }
        hits
    }

    fn optimal(&self, slots: usize) -> u64 {
        const NEVER: usize = usize::MAX;
        let mut ahead: Vec<VecDeque<usize>> = vec![VecDeque::new(); self.layers * self.experts];
        for (time, index) in self.uses().enumerate() {
            ahead[index].push_back(time);
        }
        let mut kept: Vec<Option<usize>> = vec![None; ahead.len()];
        let mut by_next = BTreeSet::new();
        let mut hits = 0;
        for index in self.uses() {
            ahead[index].pop_front();
            let next = ahead[index].front().copied().unwrap_or(NEVER);
            if let Some(known) = kept[index].take() {
                hits += 1;
                by_next.remove(&(known, index));
            } else if by_next.len() == slots {
                let last = by_next.last().copied().filter(|&(latest, _)| latest > next);
                let Some((latest, victim)) = last else { continue };
                by_next.remove(&(latest, victim));
                kept[victim] = None;
            }
            kept[index] = Some(next);
            by_next.insert((next, index));
        }
        hits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trace(choices: &[u16]) -> Trace<'_> {
        Trace { choices, layers: 1, experts: 8, top_k: 1 }
    }

    #[test]
    fn a_loop_longer_than_the_cache_defeats_only_lru() {
        let choices: Vec<u16> = (0..4000).map(|n| n % 4).collect();
        let hits = |rule| trace(&choices).hits(3, rule).expect("a trace");
        assert_eq!(hits(Rule::Lru), 0);
        // Three of the four stay for good.
        assert_eq!(hits(Rule::Optimal), 3000 - 3);
        assert!(hits(Rule::Learned) > 1500, "{}", hits(Rule::Learned));
    }

    #[test]
    fn a_cache_for_all_misses_each_expert_once() {
        let choices: Vec<u16> = (0..400).map(|n| n % 20 * n % 7).collect();
        let distinct = choices.iter().collect::<BTreeSet<_>>().len() as u64;
        for rule in [Rule::Learned, Rule::Lru, Rule::Optimal] {
            assert_eq!(trace(&choices).hits(8, rule), Ok(400 - distinct), "{rule:?}");
        }
    }

    #[test]
    fn what_is_no_trace_is_told() {
        assert!(trace(&[8]).hits(8, Rule::Lru).is_err_and(|e| e == "expert 8 of 8"));
        let two = Trace { top_k: 2, ..trace(&[1, 2, 3]) };
        assert!(two.hits(8, Rule::Lru).is_err_and(|e| e.contains("2 each")));
        assert!(two.hits(1, Rule::Lru).is_err());
        assert!(Trace { top_k: 0, ..trace(&[]) }.hits(8, Rule::Lru).is_err());
    }

    proptest! {
        #[test]
        fn no_rule_beats_the_optimal_one(
            choices in prop::collection::vec(0u16..8, 3..300), slots in 2usize..9
        ) {
            let whole = choices.len() / 3 * 3;
            let trace = Trace { choices: &choices[..whole], layers: 3, experts: 8, top_k: 1 };
            let best = trace.hits(slots, Rule::Optimal).expect("a trace");
            for rule in [Rule::Learned, Rule::Lru] {
                prop_assert!(trace.hits(slots, rule).expect("a trace") <= best, "{rule:?}");
            }
        }
    }
}
