//! Logits as biases and penalties change them, before temperature.

use std::borrow::Cow;

use super::Sampling;

/// The scores `[vocab]` to draw from; the logits themselves where nothing changes them.
///
/// Bias comes first, then repetition, then frequency and presence. The arithmetic is in f64 and
/// the result finite, whatever the factors.
pub(super) fn scores<'a>(
    logits: &'a [f32],
    sampling: &Sampling,
    prompt: &[u32],
    answer: &[u32],
) -> Cow<'a, [f32]> {
    let repeats = sampling.repetition != 1.0;
    let counts = sampling.presence != 0.0 || sampling.frequency != 0.0;
    if sampling.bias.is_empty() && !repeats && !counts {
        return Cow::Borrowed(logits);
    }
    let mut scores: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
    for &(token, bias) in &sampling.bias {
        scores[token as usize] += bias;
    }
    if repeats {
        for token in distinct(logits.len(), prompt.iter().chain(answer)) {
            let score = &mut scores[token];
            *score = if *score > 0.0 {
                *score / sampling.repetition
            } else {
                *score * sampling.repetition
            };
        }
    }
    if counts {
        for &token in answer {
            scores[token as usize] -= sampling.frequency;
        }
        for token in distinct(logits.len(), answer) {
            scores[token] -= sampling.presence;
        }
    }
    let finite = |score: f64| score.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32;
    Cow::Owned(scores.into_iter().map(finite).collect())
}

/// Each of `tokens` once.
fn distinct<'a>(
    vocab: usize,
    tokens: impl IntoIterator<Item = &'a u32>,
) -> impl Iterator<Item = usize> {
    let mut seen = vec![false; vocab];
    tokens
        .into_iter()
        .map(|&token| token as usize)
        .filter(move |&token| !std::mem::replace(&mut seen[token], true))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [2.0, -2.0, 1.0, 0.0, 4.0];

    #[test]
    fn nothing_asked_is_nothing_copied() {
        let plain = Sampling { temperature: 0.3, top_k: 2, min_p: 0.1, ..Sampling::default() };
        assert!(matches!(scores(&LOGITS, &plain, &[1], &[2]), Cow::Borrowed(_)));
    }

    #[test]
    fn each_stage_follows_its_formula() {
        let of = |sampling: Sampling| scores(&LOGITS, &sampling, &[0, 1, 1], &[2, 2, 1]).to_vec();
        let base = Sampling::default();
        assert_eq!(
            of(Sampling { bias: vec![(3, -100.0), (4, 0.5), (4, 1.0)], ..base.clone() }),
            [2.0, -2.0, 1.0, -100.0, 5.5]
        );
        assert_eq!(of(Sampling { repetition: 2.0, ..base.clone() }), [1.0, -4.0, 0.5, 0.0, 4.0]);
        assert_eq!(of(Sampling { presence: 0.5, ..base.clone() }), [2.0, -2.5, 0.5, 0.0, 4.0]);
        assert_eq!(of(Sampling { frequency: 0.5, ..base.clone() }), [2.0, -2.5, 0.0, 0.0, 4.0]);
        let all = Sampling {
            bias: vec![(2, 3.0)],
            repetition: 2.0,
            presence: 0.5,
            frequency: 0.25,
            ..base
        };
        assert_eq!(of(all), [1.0, -4.75, 1.0, 0.0, 4.0]);
    }

    #[test]
    fn scores_stay_finite() {
        for repetition in [1e-300, 10.0] {
            let sampling = Sampling { repetition, ..Sampling::default() };
            let logits = [f32::MAX, f32::MIN, 0.0];
            let found = scores(&logits, &sampling, &[0, 1, 2], &[]).to_vec();
            assert!(found.iter().all(|score| score.is_finite()), "{found:?}");
        }
    }
}
