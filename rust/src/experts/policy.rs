//! Which experts to give up: those whose next use is furthest away, as far as the past tells.
//!
//! Every expert has a chance to be taken by each row (token) of its layer. How likely that is, is
//! learned while running, for experts of like history: rows since the last use, and how often an
//! expert was used lately and in the long run. From that chance, and from how far away its layer is
//! in the cycle of layers, follows when an expert is needed next. Owns: these statistics. Does not
//! own: experts, memory, clocks; time is the number of rows. Figures: `docs/experts.md`.

/// Rows after which a use counts half in the frequency of the long run.
const SLOW_HALF_LIFE: f32 = 512.0;
/// Rows after which a use counts half in the frequency of late.
const FAST_HALF_LIFE: f32 = 16.0;
/// Classes of experts: by age in octaves, ...
const AGES: usize = 12;
/// ... by frequency in the long run in half octaves around the mean, ...
const SLOWS: usize = 16;
/// ... and by frequency of late in octaves.
const FASTS: usize = 8;
/// Chances of a class from which on old ones fade.
const MEMORY: f32 = 20_000.0;
/// Chances that the frequencies themselves count for, before a class has seen any.
const PRIOR: f32 = 16.0;
/// Most rows of a step that are learned from; the chances of many are much alike.
const SAMPLE: usize = 8;
/// Share of the average row that the average over steps keeps.
const STEP_MEMORY: f32 = 0.9;

/// What is known about the use of every expert.
pub struct Policy {
    layers: usize,
    experts: usize,
    /// Row at which the current step begins, and how many it has.
    now: u64,
    step_rows: usize,
    /// Layer of the current step.
    layer: usize,
    /// Rows of a step, on average.
    usual_rows: f32,
    /// Frequency of an expert in a model that takes all alike.
    mean: f32,
    uses: Vec<Use>,
    classes: Vec<Class>,
    /// Experts that the next layer will probably take.
    expected: Vec<usize>,
}

#[derive(Clone, Copy, Default)]
struct Use {
    /// Row of the last one.
    last: u64,
    /// Fading counts of uses, as they were at `last`.
    slow: f32,
    fast: f32,
}

impl Use {
    /// Share of rows with a use, in the long run, `age` rows after the last one.
    fn slow_share(&self, age: f32) -> f32 {
        self.slow * fade(age, SLOW_HALF_LIFE) / every_row(SLOW_HALF_LIFE)
    }
}

#[derive(Clone, Copy, Default)]
struct Class {
    chances: f32,
    taken: f32,
}

/// A use's weight after `age` rows, and the sum of the weights of a use each row.
fn fade(age: f32, half_life: f32) -> f32 {
    (-age / half_life).exp2()
}

fn every_row(half_life: f32) -> f32 {
    1.0 / (1.0 - fade(1.0, half_life))
}

impl Policy {
    /// Nothing known yet about `layers` of `experts`, of which a row takes `top_k`.
    pub fn new(layers: usize, experts: usize, top_k: usize) -> Self {
        Self {
            layers,
            experts,
            // Everything is long ago.
            now: 1 << 20,
            step_rows: 0,
            layer: usize::MAX,
            usual_rows: 1.0,
            mean: top_k as f32 / experts.max(1) as f32,
            uses: vec![Use::default(); layers * experts],
            classes: vec![Class::default(); AGES * SLOWS * FASTS],
            expected: Vec::new(),
        }
    }

    /// Takes an earlier run's counts of uses, one an expert, for the frequencies of the long run.
    pub fn remember(&mut self, counts: &[u64]) {
        for (layer, counts) in counts.chunks_exact(self.experts).enumerate() {
            let total: f32 = counts.iter().map(|&count| count as f32).sum();
            let rows = total / (self.mean * self.experts as f32);
            for (expert, &count) in counts.iter().enumerate().filter(|_| total > 0.0) {
                let used = &mut self.uses[layer * self.experts + expert];
                used.last = self.now - FAST_HALF_LIFE as u64;
                used.slow = (count as f32 / rows).min(1.0) * every_row(SLOW_HALF_LIFE);
            }
        }
    }

    /// Learns which experts the rows of the current step take in `layer`.
    pub fn take<'a>(&mut self, layer: usize, rows: impl ExactSizeIterator<Item = &'a [usize]>) {
        if layer <= self.layer {
            self.now += self.step_rows as u64;
            self.usual_rows +=
                (1.0 - STEP_MEMORY) * (self.step_rows.max(1) as f32 - self.usual_rows);
            self.step_rows = 0;
        }
        self.layer = layer;
        // The last layer may compute fewer.
        self.step_rows = self.step_rows.max(rows.len());
        let stride = rows.len().div_ceil(SAMPLE);
        for (i, taken) in rows.enumerate() {
            let row = self.now + i as u64;
            if i % stride == 0 {
                self.learn(layer, row, taken);
            }
            for &expert in taken {
                let used = &mut self.uses[layer * self.experts + expert];
                let age = row.saturating_sub(used.last) as f32;
                used.slow = used.slow * fade(age, SLOW_HALF_LIFE) + 1.0;
                used.fast = used.fast * fade(age, FAST_HALF_LIFE) + 1.0;
                used.last = row;
            }
        }
    }

    fn learn(&mut self, layer: usize, row: u64, taken: &[usize]) {
        for expert in 0..self.experts {
            let (class, _) = self.class(layer * self.experts + expert, row);
            let class = &mut self.classes[class];
            class.chances += 1.0;
            class.taken += f32::from(taken.contains(&expert));
            if class.chances > MEMORY {
                class.chances *= 0.5;
                class.taken *= 0.5;
            }
        }
    }

    /// The class of an expert at `row`, and the share of rows that take it, by its frequencies.
    fn class(&self, index: usize, row: u64) -> (usize, f32) {
        let used = self.uses[index];
        let age = row.saturating_sub(used.last) as f32;
        let slow = used.slow_share(age);
        let fast = used.fast * fade(age, FAST_HALF_LIFE) / every_row(FAST_HALF_LIFE);
        let octaves = |share: f32| (share / self.mean).max(f32::MIN_POSITIVE).log2();
        let ages = (age.max(1.0).log2() as usize).min(AGES - 1);
        let slows = (octaves(slow) * 2.0 + 8.0).clamp(0.0, SLOWS as f32 - 1.0) as usize;
        let fasts = (octaves(fast) + 4.0).clamp(0.0, FASTS as f32 - 1.0) as usize;
        let share = (0.5 * (slow + fast)).max(0.02 * self.mean);
        ((ages * SLOWS + slows) * FASTS + fasts, share)
    }

    /// Notes which experts the next layer will probably take, and no others any more.
    pub fn expect(&mut self, experts: &[usize]) {
        self.expected.clear();
        self.expected.extend(experts);
    }

    /// Whether the next layer will probably take it.
    pub fn is_expected(&self, index: usize) -> bool {
        self.expected.contains(&index)
    }

    /// Share of rows that take the expert, in the long run.
    pub fn frequency(&self, index: usize) -> f32 {
        let used = self.uses[index];
        used.slow_share(self.now.saturating_sub(used.last) as f32)
    }

    /// How long until the expert is needed, in layers computed, seen from the current layer.
    pub fn wait(&self, index: usize) -> f32 {
        let layer = index / self.experts;
        let here = if self.layer == usize::MAX { 0 } else { self.layer };
        // Layers that the current step has passed have their next chance in the next one.
        let passed = if layer <= here { self.step_rows } else { 0 };
        let row = self.now + passed as u64;
        let (class, share) = self.class(index, row);
        let Class { chances, taken } = self.classes[class];
        let by_row = ((taken + PRIOR * share) / (chances + PRIOR)).min(1.0);
        let by_step = 1.0 - (1.0 - by_row).powf(self.usual_rows.max(1.0));
        let ahead = (layer + self.layers - here - 1) % self.layers + 1;
        (1.0 / by_step.max(1e-9) - 1.0) * self.layers as f32 + ahead as f32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_used_often_is_worth_more_than_what_was_used_last() {
        let mut policy = Policy::new(1, 8, 1);
        for n in 0..400 {
            // Expert 0 every other row; the others take turns.
            let taken = if n % 2 == 0 { 0 } else { 1 + n / 2 % 7 };
            policy.take(0, [&[taken][..]].into_iter());
        }
        let last = 1 + 399 / 2 % 7;
        assert!(policy.wait(0) < policy.wait(last));
    }

    #[test]
    fn of_alike_experts_the_one_whose_layer_comes_next_is_worth_most() {
        let mut policy = Policy::new(4, 2, 1);
        for _ in 0..100 {
            for layer in 0..4 {
                policy.take(layer, [&[0][..]].into_iter());
            }
        }
        policy.take(0, [&[0][..]].into_iter());
        let waits: Vec<f32> = (0..4).map(|layer| policy.wait(layer * 2)).collect();
        assert!(waits[1] < waits[2] && waits[2] < waits[3] && waits[3] < waits[0], "{waits:?}");
    }

    #[test]
    fn an_earlier_run_is_remembered() {
        let mut policy = Policy::new(2, 3, 1);
        policy.remember(&[90, 9, 4, 0, 0, 0]);
        assert!(policy.wait(0) < policy.wait(1) && policy.wait(1) < policy.wait(2));
        assert!(policy.wait(2) < policy.wait(3), "a layer without any history");
    }

    proptest! {
        #[test]
        fn waits_are_positive_numbers_whatever_was_taken(
            steps in prop::collection::vec(
                (0usize..3, prop::collection::vec(prop::array::uniform2(0usize..5), 1..40)), 0..40
            ),
            counts in prop::array::uniform15(any::<u64>().prop_map(|n| n >> 8)),
        ) {
            let mut policy = Policy::new(3, 5, 2);
            policy.remember(&counts);
            for (layer, rows) in steps {
                policy.take(layer, rows.iter().map(|row| &row[..]));
                for index in 0..15 {
                    let wait = policy.wait(index);
                    prop_assert!(wait.is_finite() && wait >= 1.0, "{wait}");
                }
            }
        }
    }
}
