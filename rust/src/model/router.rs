//! Choosing experts from router logits.

use crate::experts::Routed;
use crate::kernels::{math, scalar, top_k};

/// How a layer chooses and weighs its experts.
pub enum Router {
    /// See [`SigmoidRouter`].
    Sigmoid(SigmoidRouter),
    /// See [`SoftmaxRouter`].
    Softmax(SoftmaxRouter),
}

impl Router {
    /// The choice for one row of `logits` `[experts]`, which are finite.
    pub fn choose(&self, logits: &[f32]) -> Routed {
        match self {
            Self::Sigmoid(router) => router.choose(logits),
            Self::Softmax(router) => router.choose(logits),
        }
    }
}

/// The sigmoid router of `DeepSeek` V3, GLM and Kimi ("`noaux_tc`").
///
/// Experts are chosen by sigmoid(logit) + bias, first whole groups, then experts; they are
/// weighted by the unbiased sigmoid.
pub struct SigmoidRouter {
    /// Correction bias `[experts]`, used for the choice only.
    pub bias: Vec<f32>,
    /// Experts a row takes.
    pub top_k: usize,
    /// Groups the experts are divided in; 1 for none.
    pub n_group: usize,
    /// Groups that may be chosen from.
    pub topk_group: usize,
    /// Whether the weights are scaled to a sum of one.
    pub normalise: bool,
    /// Factor on the weights, applied in any case.
    pub scale: f32,
}

impl SigmoidRouter {
    fn choose(&self, logits: &[f32]) -> Routed {
        let scores: Vec<f32> = logits.iter().map(|&z| math::sigmoid(z)).collect();
        let mut biased: Vec<f32> = scores.iter().zip(&self.bias).map(|(s, b)| s + b).collect();
        if self.n_group > 1 {
            self.mask_groups(&mut biased);
        }
        let experts = top_k(&biased, self.top_k);
        let mut weights: Vec<f32> = experts.iter().map(|&e| scores[e]).collect();
        if self.normalise {
            let sum = weights.iter().fold(0.0f32, |sum, w| sum + w) + 1e-20;
            for w in &mut weights {
                *w /= sum;
            }
        }
        for w in &mut weights {
            *w *= self.scale;
        }
        Routed { experts, weights }
    }

    /// Makes experts outside the best groups unchoosable; a group counts by its two best.
    fn mask_groups(&self, biased: &mut [f32]) {
        let size = biased.len() / self.n_group;
        let group_scores: Vec<f32> = biased
            .chunks_exact(size)
            .map(|group| top_k(group, 2).iter().fold(0.0f32, |sum, &e| sum + group[e]))
            .collect();
        let kept = top_k(&group_scores, self.topk_group);
        for (g, group) in biased.chunks_exact_mut(size).enumerate() {
            if !kept.contains(&g) {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// The softmax router of Qwen, `OLMoE` and Mixtral: the largest logits, weighted by their softmax.
///
/// Order of operations: e = exp(logit - largest logit); weight = e / sum. The sum runs over the
/// chosen experts in rank order where the weights are scaled to a sum of one, and else over all
/// experts, in 16 strided chains.
pub struct SoftmaxRouter {
    /// Experts a row takes.
    pub top_k: usize,
    /// Whether the weights are scaled to a sum of one.
    pub normalise: bool,
}

impl SoftmaxRouter {
    fn choose(&self, logits: &[f32]) -> Routed {
        let experts = top_k(logits, self.top_k);
        let largest = logits[experts[0]];
        let mut weights: Vec<f32> =
            experts.iter().map(|&e| math::exp(logits[e] - largest)).collect();
        let sum = if self.normalise {
            weights.iter().fold(0.0f32, |sum, w| sum + w)
        } else {
            scalar::strided_sum(logits.iter().map(|z| math::exp(z - largest)), |sum, e| sum + e)
        };
        for w in &mut weights {
            *w /= sum;
        }
        Routed { experts, weights }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(bias: &[f32], n_group: usize, topk_group: usize) -> SigmoidRouter {
        SigmoidRouter {
            bias: bias.to_vec(),
            top_k: 2,
            n_group,
            topk_group,
            normalise: true,
            scale: 2.5,
        }
    }

    #[test]
    fn the_bias_chooses_and_does_not_weigh() {
        let choice = router(&[0.0, 0.0, 10.0, 0.0], 1, 1).choose(&[0.0, 3.0, 0.0, -3.0]);
        assert_eq!(choice.experts, [2, 1]);
        let (a, b) = (0.5f32, math::sigmoid(3.0));
        let sum = a + b + 1e-20;
        assert_eq!(choice.weights, [a / sum * 2.5, b / sum * 2.5]);
    }

    #[test]
    fn experts_outside_the_best_groups_are_not_chosen() {
        // Expert 0 has the best score, but its group's two best are weaker than the other's.
        let choice = router(&[0.0; 4], 2, 1).choose(&[5.0, -9.0, 2.0, 1.0]);
        assert_eq!(choice.experts, [2, 3]);
    }
    #[test]
    fn softmax_weights_are_shares_of_all_or_of_the_chosen() {
        let logits = [0.5, 2.0, -1.0, 0.25, 1.0];
        let exact: Vec<f64> = logits.iter().map(|&z| libm::exp(f64::from(z))).collect();
        let all: f64 = exact.iter().sum();
        for (normalise, sum) in [(false, all), (true, exact[1] + exact[4])] {
            let choice = SoftmaxRouter { top_k: 2, normalise }.choose(&logits);
            assert_eq!(choice.experts, [1, 4]);
            for (weight, expert) in choice.weights.iter().zip([1, 4]) {
                assert!((f64::from(*weight) - exact[expert] / sum).abs() < 1e-7);
            }
        }
    }

    #[test]
    fn softmax_takes_the_lower_index_of_equals_and_any_finite_logit() {
        let router = SoftmaxRouter { top_k: 2, normalise: true };
        assert_eq!(router.choose(&[1.0, 3.0, 3.0, 3.0]).experts, [1, 2]);
        let extreme = router.choose(&[f32::MIN, f32::MAX, 0.0]);
        assert_eq!((extreme.experts, extreme.weights), (vec![1, 2], vec![1.0, 0.0]));
    }
}
