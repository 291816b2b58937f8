//! Drafts: tokens that an answer will probably have next, computed along with the one it needs.
//!
//! A step of a few rows costs little more than a step of one, where memory or a disk is what binds.
//! So what a conversation said before, after the tokens that it ends with now, is computed beside
//! the next token; as many of it as the answer then really draws are kept. Logits do not depend on
//! the rows beside them, so that the answer is the same. Owns: finding drafts, and whether they
//! are worth their rows. Does not own: taking them (`engine`).
//!
//! What a row costs is measured in time, so that experts that are read for it count.

use std::time::Duration;

/// Most tokens of a draft.
const MOST: usize = 8;
/// Tokens that have to be the same before a draft, at least, and those that are compared.
const LEAST_SAME: usize = 2;
const MOST_SAME: usize = 12;
/// Drafted tokens that are remembered.
const MEMORY: f64 = 64.0;
/// Share of the newest step in what is known about times.
const NEWEST: f64 = 0.125;
/// Tokens of the first draft, before it is known what rows cost.
const FIRST: usize = 2;
/// Tokens more in the same time by which a draft has to pay.
const MARGIN: f64 = 0.05;
/// One of so many steps is done the other way, so that it is known what that costs.
const TRY_EVERY: u64 = 128;
/// Answers whose steps are told apart: a row more costs less beside more.
const MOST_ANSWERS: usize = 16;

/// What followed the last tokens when they were said before, `most` tokens at most.
///
/// Of several places that where most tokens before it are the same, of these the latest.
pub fn continuation(tokens: &[u32], most: usize) -> &[u32] {
    let mut best = (LEAST_SAME - 1, 0);
    let Some(last) = tokens.len().checked_sub(1) else { return &[] };
    for end in (LEAST_SAME..=last).rev() {
        if tokens[end - 1] != tokens[last] {
            continue;
        }
        let back = tokens[..end].iter().rev().zip(tokens.iter().rev());
        let same = back.take(MOST_SAME).take_while(|(a, b)| a == b).count();
        if same > best.0 {
            best = (same, end);
            if same == MOST_SAME {
                break;
            }
        }
    }
    match best.1 {
        0 => &[],
        end => &tokens[end..tokens.len().min(end + most)],
    }
}

/// How often the drafts of an answer were right of late.
#[derive(Clone, Copy, Debug)]
pub struct Luck {
    right: f64,
    all: f64,
}

impl Default for Luck {
    fn default() -> Self {
        Self { right: 1.0, all: 2.0 }
    }
}

impl Luck {
    /// Notes that `right` tokens of a draft of `drafted` were drawn, one after another.
    pub fn note(&mut self, right: usize, drafted: usize) {
        self.right += right as f64;
        self.all += (right + 1).min(drafted) as f64;
        if self.all > MEMORY {
            let keep = MEMORY / self.all;
            (self.right, self.all) = (self.right * keep, self.all * keep);
        }
    }

    fn chance(self) -> f64 {
        self.right / self.all
    }
}

/// What steps cost, by the number of answers: the seconds of one without drafts, and the share of
/// that which each row more costs.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    plain_s: Option<f64>,
    row: Option<f64>,
}

/// When to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mode {
    #[default]
    WhereItPays,
    Never,
    /// So many tokens in each step.
    #[cfg(test)]
    Always(usize),
}

/// Whether drafts are worth their rows.
#[derive(Debug, Default)]
pub struct Drafting {
    mode: Mode,
    costs: [Cost; MOST_ANSWERS],
    steps: u64,
}

impl Drafting {
    /// Never drafts.
    pub fn turn_off(&mut self) {
        self.mode = Mode::Never;
    }

    /// Drafts so many tokens in each step.
    #[cfg(test)]
    pub fn always(&mut self, tokens: usize) {
        self.mode = Mode::Always(tokens);
    }

    /// Begins a step.
    pub fn begin_step(&mut self) {
        self.steps += 1;
    }

    /// Most tokens to draft for an answer of such luck beside `answers` in all.
    pub fn most(&self, luck: Luck, answers: usize) -> usize {
        match self.mode {
            Mode::WhereItPays if answers > 0 => {}
            #[cfg(test)]
            Mode::Always(tokens) => return tokens,
            _ => return 0,
        }
        let Cost { plain_s, row } = self.costs[answers.min(MOST_ANSWERS) - 1];
        let is_trial = self.steps.is_multiple_of(TRY_EVERY);
        // What to compare with comes first.
        if plain_s.is_none() {
            return 0;
        }
        let Some(row) = row else { return FIRST };
        let most = worth(luck.chance(), row, answers);
        match (is_trial, most) {
            (false, most) => most,
            (true, 0) => 1,
            (true, _) => 0,
        }
    }

    /// Notes that a step without prompts took `time` for `answers` and so many drafted tokens.
    pub fn end_step(&mut self, answers: usize, drafted: usize, time: Duration) {
        if answers == 0 {
            return;
        }
        let cost = &mut self.costs[answers.min(MOST_ANSWERS) - 1];
        let time = time.as_secs_f64();
        match cost.plain_s {
            _ if drafted == 0 => mix(&mut cost.plain_s, time),
            Some(plain) => mix(&mut cost.row, (time / plain - 1.0) / drafted as f64),
            None => {}
        }
    }
}

fn mix(known: &mut Option<f64>, newest: f64) {
    *known = Some(known.map_or(newest, |known| known + NEWEST * (newest - known)));
}

/// The length of draft that gives most tokens for the time, if each token is right with `chance`
/// once those before it are, and costs `row` of a step for `answers`; 0 if none is worth it.
fn worth(chance: f64, row: f64, answers: usize) -> usize {
    let answers = answers as f64;
    let (mut best, mut most) = (0, answers + MARGIN);
    let (mut tokens, mut right) = (answers, 1.0);
    for drafted in 1..=MOST {
        right *= chance;
        tokens += right;
        let in_same_time = tokens / (1.0 + row.max(0.0) * drafted as f64);
        if in_same_time > most {
            (best, most) = (drafted, in_same_time);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_longest_match_comes_next() {
        assert_eq!(continuation(&[1, 2, 3, 9, 1, 2, 3], 2), [9, 1]);
        assert_eq!(continuation(&[1, 2, 3, 9, 1, 2, 3], 8), [9, 1, 2, 3]);
        assert_eq!(continuation(&[5, 2, 3, 8, 7, 2, 3, 9, 5, 2, 3], 1), [8], "longer wins");
        assert_eq!(continuation(&[2, 3, 8, 2, 3, 9, 2, 3], 1), [9], "the latest of equals");
        assert_eq!(continuation(&[4, 4, 4, 4], 3), [4], "what is still to come is not known");
        for unknown in [&[][..], &[1], &[1, 1], &[1, 2, 3], &[7, 3, 1, 3]] {
            assert_eq!(continuation(unknown, 4), [0; 0], "{unknown:?}");
        }
    }

    #[test]
    fn drafts_are_as_long_as_they_are_worth() {
        assert_eq!(worth(0.0, 0.0, 1), 0);
        assert_eq!(worth(1.0, 0.0, 1), MOST);
        assert_eq!(worth(0.95, 0.1, 1), MOST);
        assert_eq!(worth(0.5, 0.6, 1), 0);
        assert!((1..4).contains(&worth(0.6, 0.1, 1)));
        assert_eq!(worth(1.0, 1.0, 1), 0, "a disk that reads as much for each row");
        assert_eq!(worth(0.9, 0.2, 8), 0, "answers that wait for each other");
    }

    #[test]
    fn luck_forgets() {
        let mut luck = Luck::default();
        for _ in 0..100 {
            luck.note(4, 4);
        }
        assert!(luck.chance() > 0.95);
        for _ in 0..200 {
            luck.note(0, 4);
        }
        assert!(luck.chance() < 0.1);
        luck.note(0, 0);
    }

    /// Tokens a second of 2,000 steps, where drafted tokens are right with `chance`, in seconds of
    /// steps without.
    fn simulate(chance: f64, row: f64) -> f64 {
        let (mut drafting, mut luck) = (Drafting::default(), Luck::default());
        let (mut tokens, mut seconds, mut random) = (0.0, 0.0, 1u64);
        for _ in 0..2_000 {
            drafting.begin_step();
            let drafted = drafting.most(luck, 1);
            let is_right = |_: &usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((random >> 33) as f64 / (1u64 << 31) as f64) < chance
            };
            let right = (0..drafted).take_while(is_right).count();
            let time = 1.0 + row * drafted as f64;
            drafting.end_step(1, drafted, Duration::from_secs_f64(time));
            if drafted > 0 {
                luck.note(right, drafted);
            }
            tokens += 1.0 + right as f64;
            seconds += time;
        }
        tokens / seconds
    }

    #[test]
    fn drafts_never_cost_much_and_pay_where_they_can() {
        for chance in [0.0, 0.2, 0.5] {
            for row in [0.3, 1.0, 2.0] {
                let rate = simulate(chance, row);
                assert!(rate > 0.97, "{chance} {row}: {rate}");
            }
        }
        assert!(simulate(0.9, 0.1) > 2.5);
        assert!(simulate(0.6, 0.1) > 1.4);
    }

    #[test]
    fn nothing_is_drafted_where_that_is_off() {
        let mut drafting = Drafting::default();
        assert_eq!(drafting.most(Luck::default(), 1), 0, "nothing to compare with yet");
        drafting.end_step(1, 0, Duration::from_millis(10));
        assert_eq!(drafting.most(Luck::default(), 1), FIRST);
        drafting.turn_off();
        assert_eq!(drafting.most(Luck::default(), 1), 0);
    }
}
