//! How many tokens of which prompts the next step takes, so that nobody waits for long.
//!
//! A step takes the next token of every answer and a wave of prompt tokens. Answers wait for the
//! wave, so beside them it is as large as computes in the time that they may be held up; alone it
//! is as large as memory allows, since each expert is read once a step. The oldest prompt gets half
//! of a wave and the shortest ones the rest: short prompts do not wait for long ones, and those
//! are not kept waiting by any number of short ones.

use std::time::Duration;

/// Prompt tokens of a step where nobody waits for it and nobody says otherwise.
const ALONE: usize = 512;
/// The same beside answers, as long as nothing is known about the time it takes.
const FIRST_BESIDE: usize = 64;
/// Least beside answers: fewer take about as long.
const LEAST: usize = 16;
/// The same where experts are read for it: nearly all of them are, also for fewer tokens.
const LEAST_READING: usize = 64;
/// Share of the newest wave in what is known about their time.
const NEWEST: f64 = 0.5;

/// How large waves are.
#[derive(Debug)]
pub struct Waves {
    /// Tokens of a wave, if that was said.
    pub fixed: Option<usize>,
    /// How long an answer may be held up.
    pub stall: Duration,
    /// Seconds that a prompt token takes, in steps of late.
    token_s: Option<f64>,
}

impl Waves {
    /// Nothing known yet.
    pub fn new(stall: Duration) -> Self {
        Self { fixed: None, stall, token_s: None }
    }

    /// Most prompt tokens of the next step, beside `answers` or not; `reads` says whether some
    /// experts have to be read for it.
    pub fn most_tokens(&self, answers: usize, reads: bool) -> usize {
        if let Some(tokens) = self.fixed {
            return tokens;
        }
        if answers == 0 {
            return ALONE;
        }
        let Some(token_s) = self.token_s else { return FIRST_BESIDE };
        let fit = (self.stall.as_secs_f64() / token_s) as usize;
        fit.clamp(if reads { LEAST_READING } else { LEAST }, ALONE)
    }

    /// Notes that a step with `tokens` of prompts took `time`.
    pub fn end_step(&mut self, tokens: usize, time: Duration) {
        if tokens < LEAST.min(self.fixed.unwrap_or(LEAST)) {
            return;
        }
        let newest = time.as_secs_f64() / tokens as f64;
        let known = self.token_s.unwrap_or(newest);
        self.token_s = Some(known + NEWEST * (newest - known));
    }
}

/// How many of `tokens` each prompt gets of which `left` are to be computed, the oldest first.
pub fn shares(left: &[usize], tokens: usize) -> Vec<usize> {
    let mut shares = vec![0; left.len()];
    let Some(&oldest) = left.first() else { return shares };
    shares[0] = oldest.min(tokens.div_ceil(2));
    let mut rest = tokens - shares[0];
    let mut shortest_first: Vec<usize> = (0..left.len()).collect();
    shortest_first.sort_by_key(|&i| left[i]);
    for i in shortest_first {
        let more = rest.min(left[i] - shares[i]);
        shares[i] += more;
        rest -= more;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gets_half_and_the_shortest_the_rest() {
        assert_eq!(shares(&[1000], 64), [64]);
        assert_eq!(shares(&[10], 64), [10]);
        assert_eq!(shares(&[1000, 20, 900], 64), [32, 20, 12]);
        assert_eq!(shares(&[1000, 1000], 64), [64, 0], "equal ones one by one");
        assert_eq!(shares(&[5, 3, 4], 64), [5, 3, 4]);
        assert_eq!(shares(&[1000, 5, 5], 1), [1, 0, 0]);
        assert_eq!(shares(&[], 64), [0; 0]);
    }

    #[test]
    fn nothing_is_given_twice_and_nothing_is_left_over() {
        for seed in 0..500usize {
            let left: Vec<usize> =
                (0..seed % 17).map(|i| 1 + (seed * 7919 + i * 104_729) % 300).collect();
            let tokens = 1 + seed * 31 % 600;
            let given = shares(&left, tokens);
            assert!(given.iter().zip(&left).all(|(given, left)| given <= left), "{left:?}");
            assert_eq!(given.iter().sum::<usize>(), tokens.min(left.iter().sum()), "{left:?}");
            if let (Some(given), Some(left)) = (given.first(), left.first()) {
                assert!(*given >= tokens.div_ceil(2).min(*left), "the oldest goes on");
            }
        }
    }

    #[test]
    fn waves_beside_answers_come_to_the_time_they_may_take() {
        let mut waves = Waves::new(Duration::from_millis(200));
        assert_eq!((waves.most_tokens(0, false), waves.most_tokens(1, false)), (512, 64));
        let step = |waves: &mut Waves, token_ms: u64| {
            let tokens = waves.most_tokens(3, false);
            // What is computed anyhow comes to it.
            let time = Duration::from_millis(20 + token_ms * tokens as u64);
            waves.end_step(tokens, time);
            time
        };
        for token_ms in [1, 4, 2] {
            for _ in 0..12 {
                step(&mut waves, token_ms);
            }
            let time = step(&mut waves, token_ms);
            assert!((150..=220).contains(&time.as_millis()), "{token_ms}: {time:?}");
        }
        for _ in 0..12 {
            step(&mut waves, 100);
        }
        assert_eq!((waves.most_tokens(1, false), waves.most_tokens(1, true)), (16, 64));
        waves.end_step(3, Duration::from_secs(60));
        waves.end_step(512, Duration::ZERO);
        assert_eq!(waves.most_tokens(0, true), 512);
        waves.fixed = Some(7);
        assert_eq!((waves.most_tokens(0, false), waves.most_tokens(5, true)), (7, 7));
    }
}
