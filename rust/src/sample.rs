//! From logits to a token: penalties, temperature, truncation, a generator indexed by position.
//!
//! The draw depends on the request alone, never on what else runs. The order of the stages is the
//! field's: bias, repetition, frequency and presence as in vLLM, then temperature, top-k, top-p
//! and min-p as in transformers; each truncation is relative to what the one before it left.

mod scores;

use crate::kernels::{Kernels, top_k};
use scores::scores;

/// How a request's tokens are drawn. The default asks for the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Probability mass drawn from, in (0, 1].
    pub top_p: f32,
    /// Draw among the k most likely tokens only, ties by the lower id; 0 is all.
    pub top_k: usize,
    /// Drop tokens less likely than this fraction of the most likely one (Nguyen et al. 2024).
    pub min_p: f32,
    /// Divides positive and multiplies negative scores of tokens in prompt or answer (Keskar et
    /// al. 2019); above 0, 1 is neutral.
    pub repetition: f64,
    /// Subtracted from the scores of tokens in the answer (`presence_penalty` of the `OpenAI` API).
    pub presence: f64,
    /// Subtracted for each occurrence in the answer (`frequency_penalty` there).
    pub frequency: f64,
    /// Added to these tokens' logits (`logit_bias` there).
    pub bias: Vec<(u32, f64)>,
    /// Key of the generator.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Draws the token behind `prompt` and `answer` from finite `logits` `[vocab]`; all ids are below
/// vocab.
///
/// # Panics
/// If `logits` is empty.
pub fn sample(
    kernels: &Kernels,
    logits: &[f32],
    sampling: &Sampling,
    prompt: &[u32],
    answer: &[u32],
) -> u32 {
    let uniform = uniform(sampling.seed, prompt.len() + answer.len());
    draw(kernels, &scores(logits, sampling, prompt, answer), sampling, uniform)
}

/// As [`sample`], for a given number in [0, 1); also the scores it was drawn from.
#[cfg(feature = "python")]
pub fn sample_with(
    kernels: &Kernels,
    logits: &[f32],
    sampling: &Sampling,
    prompt: &[u32],
    answer: &[u32],
    uniform: f64,
) -> (u32, Vec<f32>) {
    let scores = scores(logits, sampling, prompt, answer).into_owned();
    (draw(kernels, &scores, sampling, uniform), scores)
}

/// The token that a number in [0, 1) stands for.
fn draw(kernels: &Kernels, scores: &[f32], sampling: &Sampling, uniform: f64) -> u32 {
    if sampling.temperature <= 0.0 {
        return top_k(scores, 1)[0] as u32;
    }
    let max = scores.iter().fold(f32::NEG_INFINITY, |a, &v| if v > a { v } else { a });
    let mut weights = scores.to_vec();
    kernels.softmax_weights(&mut weights, max, sampling.temperature);
    let n = match sampling.top_k {
        0 => weights.len(),
        k => k.min(weights.len()),
    };
    let mut order = Descending::new(&weights);
    let total: f64 = if n == weights.len() {
        weights.iter().map(|&w| f64::from(w)).sum()
    } else {
        (0..n).map(|rank| f64::from(order.weight(rank))).sum()
    };
    let (mut mass, mut kept) = (total, n);
    if sampling.top_p < 1.0 || sampling.min_p > 0.0 {
        let wanted = total * f64::from(sampling.top_p);
        // The most likely token has the weight 1.
        (mass, kept) = (0.0, 0);
        while kept < n && (kept == 0 || mass < wanted && order.weight(kept) >= sampling.min_p) {
            mass += f64::from(order.weight(kept));
            kept += 1;
        }
    }
    let mut left = uniform * mass;
    for rank in 0..kept {
        left -= f64::from(order.weight(rank));
        if left < 0.0 {
            return order.token(rank);
        }
    }
    // Only rounding gets here: the draw is below the mass, which is this very sum.
    order.token(kept - 1)
}

/// Tokens by descending weight, ties by the lower id, sorted as far as somebody asked: nearly
/// every draw ends among the first few of a vocabulary of hundreds of thousands.
struct Descending<'a> {
    weights: &'a [f32],
    order: Vec<u32>,
    sorted: usize,
}

impl<'a> Descending<'a> {
    /// Tokens sorted at first.
    const FIRST: usize = 64;

    fn new(weights: &'a [f32]) -> Self {
        Self { weights, order: (0..weights.len() as u32).collect(), sorted: 0 }
    }

    fn token(&mut self, rank: usize) -> u32 {
        while rank >= self.sorted {
            let rest = &mut self.order[self.sorted..];
            let more = rest.len().min((3 * self.sorted).max(Self::FIRST));
            let before = |a: &u32, b: &u32| {
                self.weights[*b as usize].total_cmp(&self.weights[*a as usize]).then(a.cmp(b))
            };
            if more < rest.len() {
                rest.select_nth_unstable_by(more - 1, before);
            }
            rest[..more].sort_unstable_by(before);
            self.sorted += more;
        }
        self.order[rank]
    }

    fn weight(&mut self, rank: usize) -> f32 {
        self.weights[self.token(rank) as usize]
    }
}

/// Natural logarithms of the softmax of `logits` at temperature 1, for the tokens `ids`.
pub fn logprobs(logits: &[f32], ids: impl Iterator<Item = u32>) -> Vec<f32> {
    let max = logits.iter().fold(f32::NEG_INFINITY, |a, &v| if v > a { v } else { a });
    let sum: f64 = logits.iter().map(|&v| libm::exp(f64::from(v) - f64::from(max))).sum();
    let normaliser = f64::from(max) + libm::log(sum);
    ids.map(|id| (f64::from(logits[id as usize]) - normaliser) as f32).collect()
}

/// The uniform number in [0, 1) of this seed and position, a multiple of 2^-53.
fn uniform(seed: u64, position: usize) -> f64 {
    let position = position as u64;
    let key = [seed as u32, (seed >> 32) as u32];
    let word = philox([position as u32, (position >> 32) as u32, 0, 0], key);
    let bits = (u64::from(word[0]) << 32 | u64::from(word[1])) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

/// Philox-4x32 with ten rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;

    #[test]
    fn the_generator_gives_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    fn draws(logits: &[f32], sampling: &Sampling, n: usize) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for position in 0..n {
            counts[draw(&Kernels::new(Isa::detect()), logits, sampling, uniform(7, position))
                as usize] += 1;
        }
        counts
    }

    fn logits_of(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [2.0f32, 1.0, 0.0, -1.0];
        let n = 40_000;
        let counts = draws(&logits, &Sampling::default(), n);
        let total: f64 = logits.iter().map(|&v| f64::from(v).exp()).sum();
        for (count, logit) in counts.iter().zip(logits) {
            let expected = f64::from(logit).exp() / total;
            let found = *count as f64 / n as f64;
            // Four standard deviations.
            let spread = 4.0 * (expected * (1.0 - expected) / n as f64).sqrt();
            assert!((found - expected).abs() < spread, "{found} instead of {expected}");
        }
    }

    #[test]
    fn tokens_are_sorted_as_far_as_they_are_looked_at() {
        let weights: Vec<f32> = (0..5000u32).map(|i| (i * 7919 % 997) as f32).collect();
        let mut order = Descending::new(&weights);
        let all: Vec<usize> = (0..weights.len()).map(|rank| order.token(rank) as usize).collect();
        assert_eq!(all, top_k(&weights, weights.len()));
        let mut order = Descending::new(&weights);
        assert_eq!(order.token(0) as usize, all[0]);
        assert!(order.sorted < 100);
    }

    #[test]
    fn the_nucleus_is_the_smallest_set_with_the_mass() {
        let logits = logits_of(&[0.5, 0.3, 0.15, 0.05]);
        let nucleus = |top_p| Sampling { top_p, ..Sampling::default() };
        let counts = draws(&logits, &nucleus(0.75), 2000);
        assert!(counts[0] > 0 && counts[1] > 0 && counts[2] == 0 && counts[3] == 0, "{counts:?}");
        assert_eq!(draws(&logits, &nucleus(1e-6), 100), [100, 0, 0, 0]);
    }

    #[test]
    fn each_truncation_is_relative_to_what_the_one_before_it_left() {
        let logits = logits_of(&[0.4, 0.3, 0.2, 0.1]);
        let reachable = |sampling: Sampling| -> Vec<bool> {
            draws(&logits, &sampling, 2000).iter().map(|&count| count > 0).collect()
        };
        let base = Sampling::default();
        // Of the first two the first has 4/7, so half the mass is the first alone.
        let both = Sampling { top_k: 2, top_p: 0.5, ..base.clone() };
        assert_eq!(reachable(both), [true, false, false, false]);
        let nucleus = Sampling { top_p: 0.5, ..base.clone() };
        assert_eq!(reachable(nucleus), [true, true, false, false]);
        let fraction = Sampling { min_p: 0.49, ..base.clone() };
        assert_eq!(reachable(fraction), [true, true, true, false]);
        // min_p comes last: it does not shrink the mass that top_p is a part of.
        let last = Sampling { top_p: 0.75, min_p: 0.49, ..base.clone() };
        assert_eq!(reachable(last), [true, true, true, false]);
        assert_eq!(reachable(Sampling { top_k: 9, ..base }), [true; 4]);
    }

    #[test]
    fn greedy_takes_the_lower_of_equals() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let kernels = Kernels::new(Isa::Scalar);
        assert_eq!(sample(&kernels, &[1.0, 3.0, 3.0], &greedy, &[], &[]), 1);
        assert_eq!(
            sample(
                &kernels,
                &[1.0, 3.0, 3.0],
                &Sampling { bias: vec![(1, -1.0)], ..greedy },
                &[],
                &[]
            ),
            2
        );
    }

    #[test]
    fn logprobs_sum_to_one() {
        let logits = [3.0f32, -1.0, 0.5];
        let sum: f64 = logprobs(&logits, 0..3).iter().map(|&l| f64::from(l).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }
}
