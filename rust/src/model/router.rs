//! Choosing experts from router logits.

use crate::experts::Routed;
use crate::kernels::{Kernels, scalar, top_k};

/// How a layer chooses and weighs its experts.
pub enum Router {
    /// See [`SigmoidRouter`].
    Sigmoid(SigmoidRouter),
    /// See [`SoftmaxRouter`].
    Softmax(SoftmaxRouter),
}

impl Router {
    /// The choice for one row of `logits` `[experts]`, which are finite.
    pub fn choose(&self, kernels: &Kernels, logits: &[f32]) -> Routed {
        match self {
            Self::Sigmoid(router) => router.choose(kernels, logits),
            Self::Softmax(router) => router.choose(kernels, logits),
        }
    }
}

/// Groups of experts of which the best are chosen before experts are.
#[derive(Clone, Copy)]
pub struct Groups {
    /// Groups the experts are divided in.
    pub n: usize,
    /// Groups that may be chosen from.
    pub chosen: usize,
    /// Experts by whose sum a group counts: its best ones.
    pub judged_by: usize,
}

impl Groups {
    /// Makes experts outside the best groups unchoosable.
    fn mask(self, scores: &mut [f32]) {
        let size = scores.len() / self.n;
        let group_scores: Vec<f32> = scores
            .chunks_exact(size)
            .map(|group| top_k(group, self.judged_by).iter().fold(0.0f32, |sum, &e| sum + group[e]))
            .collect();
        let kept = top_k(&group_scores, self.chosen);
        for (g, group) in scores.chunks_exact_mut(size).enumerate() {
            if !kept.contains(&g) {
                group.fill(f32::NEG_INFINITY);
            }
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
    /// Groups the experts are divided in.
    pub groups: Option<Groups>,
    /// Whether the weights are scaled to a sum of one.
    pub normalise: bool,
    /// Factor on the weights, applied in any case.
    pub scale: f32,
}

impl SigmoidRouter {
    fn choose(&self, kernels: &Kernels, logits: &[f32]) -> Routed {
        let mut scores = logits.to_vec();
        kernels.sigmoid(&mut scores);
        let mut biased: Vec<f32> = scores.iter().zip(&self.bias).map(|(s, b)| s + b).collect();
        if let Some(groups) = self.groups {
            groups.mask(&mut biased);
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
}

/// The softmax router of Qwen, `OLMoE`, Mixtral and `DeepSeek` V2: the largest logits, of the best
/// groups where there are groups, weighted by their softmax.
///
/// Order of operations: e = exp(logit - largest logit); weight = e / sum. The sum runs over the
/// chosen experts in rank order where the weights are scaled to a sum of one, and else over all
/// experts, in 16 strided chains. Weights are scaled at last.
pub struct SoftmaxRouter {
    /// Experts a row takes.
    pub top_k: usize,
    /// Groups the experts are divided in.
    pub groups: Option<Groups>,
    /// Whether the weights are scaled to a sum of one.
    pub normalise: bool,
    /// Factor on the weights, applied in any case.
    pub scale: f32,
}

impl SoftmaxRouter {
    fn choose(&self, kernels: &Kernels, logits: &[f32]) -> Routed {
        let experts = match self.groups {
            None => top_k(logits, self.top_k),
            Some(groups) => {
                let mut choosable = logits.to_vec();
                groups.mask(&mut choosable);
                top_k(&choosable, self.top_k)
            }
        };
        let largest = logits[experts[0]];
        let chosen = |of: &[f32]| -> Vec<f32> { experts.iter().map(|&e| of[e]).collect() };
        let (mut weights, sum) = if self.normalise {
            let mut weights = chosen(logits);
            kernels.softmax_weights(&mut weights, largest, 1.0);
            let sum = weights.iter().fold(0.0f32, |sum, w| sum + w);
            (weights, sum)
        } else {
            let mut all = logits.to_vec();
            kernels.softmax_weights(&mut all, largest, 1.0);
            (chosen(&all), scalar::strided_sum(all.iter().copied(), |sum, e| sum + e))
        };
        for w in &mut weights {
            *w = *w / sum * self.scale;
        }
        Routed { experts, weights }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::kernels::math;

    fn kernels() -> Kernels {
        Kernels::new(Isa::detect())
    }

    fn router(bias: &[f32], groups: Option<Groups>) -> SigmoidRouter {
        SigmoidRouter { bias: bias.to_vec(), top_k: 2, groups, normalise: true, scale: 2.5 }
    }

    #[test]
    fn the_bias_chooses_and_does_not_weigh() {
        let choice =
            router(&[0.0, 0.0, 10.0, 0.0], None).choose(&kernels(), &[0.0, 3.0, 0.0, -3.0]);
        assert_eq!(choice.experts, [2, 1]);
        let (a, b) = (0.5f32, math::sigmoid(3.0));
        let sum = a + b + 1e-20;
        assert_eq!(choice.weights, [a / sum * 2.5, b / sum * 2.5]);
    }

    #[test]
    fn experts_outside_the_best_groups_are_not_chosen() {
        let groups = Groups { n: 2, chosen: 1, judged_by: 2 };
        // Expert 0 has the best score, but its group's two best are weaker than the other's.
        let choice = router(&[0.0; 4], Some(groups)).choose(&kernels(), &[5.0, -9.0, 2.0, 1.0]);
        assert_eq!(choice.experts, [2, 3]);
    }

    #[test]
    fn softmax_groups_count_by_their_best() {
        let logits = [1.0, 5.0, 4.0, 4.5, 2.0, 3.0];
        let groups = |chosen| Some(Groups { n: 3, chosen, judged_by: 1 });
        for (chosen, experts) in [(1, [1, 0]), (2, [1, 3])] {
            let router =
                SoftmaxRouter { top_k: 2, groups: groups(chosen), normalise: false, scale: 16.0 };
            let choice = router.choose(&kernels(), &logits);
            assert_eq!(choice.experts, experts);
            let all: f64 = logits.iter().map(|&z| libm::exp(f64::from(z))).sum();
            for (weight, expert) in choice.weights.iter().zip(experts) {
                let share = libm::exp(f64::from(logits[expert])) / all;
                assert!((f64::from(*weight) - 16.0 * share).abs() < 2e-6);
            }
        }
    }

    #[test]
    fn softmax_weights_are_shares_of_all_or_of_the_chosen() {
        let logits = [0.5, 2.0, -1.0, 0.25, 1.0];
        let exact: Vec<f64> = logits.iter().map(|&z| libm::exp(f64::from(z))).collect();
        let all: f64 = exact.iter().sum();
        for (normalise, sum) in [(false, all), (true, exact[1] + exact[4])] {
            let choice = SoftmaxRouter { top_k: 2, groups: None, normalise, scale: 1.0 }
                .choose(&kernels(), &logits);
            assert_eq!(choice.experts, [1, 4]);
            for (weight, expert) in choice.weights.iter().zip([1, 4]) {
                assert!((f64::from(*weight) - exact[expert] / sum).abs() < 1e-7);
            }
        }
    }

    #[test]
    fn softmax_takes_the_lower_index_of_equals_and_any_finite_logit() {
        let router = SoftmaxRouter { top_k: 2, groups: None, normalise: true, scale: 1.0 };
        assert_eq!(router.choose(&kernels(), &[1.0, 3.0, 3.0, 3.0]).experts, [1, 2]);
        let extreme = router.choose(&kernels(), &[f32::MIN, f32::MAX, 0.0]);
        assert_eq!((extreme.experts, extreme.weights), (vec![1, 2], vec![1.0, 0.0]));
    }
}
