//! Drafts: tokens that an answer will probably have next, computed along with the one it needs.
//!
//! A step of a few rows costs little more than a step of one, where memory or a disk is what binds.
//! So what a conversation said before, after the tokens that it ends with now, or what the model's
//! own layer for that predicts, is computed beside the next token; as many of it as the answer then
//! really draws are kept. Logits do not depend on the rows beside them, so that the answer is the
//! same. Owns: finding what was said, and whether drafts are worth their rows. Does not own:
//! predicting (`runner`), taking drafts (`engine`).
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
/// Steps in which the layer drafts whether it pays or not, until it is known what that costs: the
/// first ones read experts that nobody has used.
const LEARNING: u32 = 4;
/// What a new answer takes over of how often the layer's drafts were right, in tokens, and the least
/// share of them that it begins with: conversations differ.
const TAKEN_OVER: f64 = 4.0;
const LEAST_CHANCE: f64 = 0.4;

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

/// Where a draft comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The conversation said it before.
    Said,
    /// The model's own layer predicted it.
    Layer,
}

/// Most tokens to draft, by where they come from; the layer is asked where nothing was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Most {
    /// Of what was said before.
    pub said: usize,
    /// Of what the model's own layer predicts.
    pub layer: usize,
}

impl Luck {
    /// That of a layer of which nothing is known: few would be made for nothing.
    const OF_LAYER: Self = Self { right: 3.0, all: 4.0 };

    /// Notes that `right` tokens of a draft of `drafted` were drawn, one after another.
    pub fn note(&mut self, right: usize, drafted: usize) {
        self.right += right as f64;
        self.all += (right + 1).min(drafted) as f64;
        if self.all > MEMORY {
            let keep = MEMORY / self.all;
            (self.right, self.all) = (self.right * keep, self.all * keep);
        }
    }

    /// The share of tokens that are right.
    pub fn chance(self) -> f64 {
        self.right / self.all
    }
}

/// What steps cost, by the number of answers: the seconds of one without drafts, and the shares of
/// that which each row more costs, and that the layer takes for each token it drafts.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    plain_s: Option<f64>,
    row: Option<f64>,
    layer: Option<f64>,
    /// How often the layer has drafted.
    layer_steps: u32,
}

/// When to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mode {
    #[default]
    WhereItPays,
    Never,
    /// So many tokens in each step.
    #[cfg(test)]
    Always(Most),
}

/// Whether drafts are worth their rows.
#[derive(Debug, Default)]
pub struct Drafting {
    mode: Mode,
    costs: [Cost; MOST_ANSWERS],
    steps: u64,
    /// How often the drafts of the model's own layer were right of late, in any answer; none if there
    /// is no such layer.
    layer: Option<Luck>,
}

impl Drafting {
    /// For a model with a layer of its own for drafts, or without.
    pub fn new(has_layer: bool) -> Self {
        Self { layer: has_layer.then_some(Luck::OF_LAYER), ..Self::default() }
    }

    /// Never drafts.
    pub fn turn_off(&mut self) {
        self.mode = Mode::Never;
        self.layer = None;
    }

    /// Drafts by what was said alone from now on.
    pub fn lose_layer(&mut self) {
        self.layer = None;
    }

    /// Drafts so many tokens in each step.
    #[cfg(test)]
    pub fn always(&mut self, most: Most) {
        self.mode = Mode::Always(most);
    }

    /// Whether the model's own layer may draft.
    pub fn has_layer(&self) -> bool {
        self.layer.is_some()
    }

    /// How often the layer's drafts for a new answer are taken to be right.
    pub fn layer_luck(&self) -> Luck {
        let chance = self.layer.unwrap_or(Luck::OF_LAYER).chance().max(LEAST_CHANCE);
        Luck { right: chance * TAKEN_OVER, all: TAKEN_OVER }
    }

    /// Whether the layer's drafts would pay for an answer alone, so far as is known: else what it
    /// needs of prompts is not computed.
    pub fn layer_pays(&self) -> bool {
        #[cfg(test)]
        if let Mode::Always(most) = self.mode {
            return most.layer > 0;
        }
        let cost = self.costs[0];
        self.layer.is_some()
            && (cost.layer_steps < LEARNING || self.of_layer(self.layer_luck(), cost, 1).0 > 0)
    }

    /// What the layer's drafts are worth; see [`worth`].
    fn of_layer(&self, luck: Luck, cost: Cost, answers: usize) -> (usize, f64) {
        match cost {
            _ if self.layer.is_none() => (0, 0.0),
            Cost { row: Some(row), layer: Some(layer), layer_steps: LEARNING.., .. } => {
                worth(luck.chance(), row.max(0.0) + layer, answers)
            }
            _ => (1, answers as f64),
        }
    }

    /// Begins a step.
    pub fn begin_step(&mut self) {
        self.steps += 1;
    }

    /// Most tokens to draft for an answer with such luck with what was said and with the layer,
    /// beside `answers` in all.
    pub fn most(&self, said: Luck, layer: Luck, answers: usize) -> Most {
        match self.mode {
            Mode::WhereItPays if answers > 0 => {}
            #[cfg(test)]
            Mode::Always(most) => return most,
            _ => return Most::default(),
        }
        let cost = self.costs[answers.min(MOST_ANSWERS) - 1];
        // What to compare with comes first.
        if cost.plain_s.is_none() {
            return Most::default();
        }
        let of_said = cost.row.map_or((FIRST, f64::MAX), |row| worth(said.chance(), row, answers));
        let of_layer = self.of_layer(layer, cost, answers);
        if !self.steps.is_multiple_of(TRY_EVERY) {
            let said = if of_said.1 >= of_layer.1 { of_said.0 } else { 0 };
            return Most { said, layer: of_layer.0 };
        }
        // What would cost whole steps is tried less often.
        let (turns, sources) = (self.steps / TRY_EVERY, 1 + u64::from(self.layer.is_some()));
        let other = |most, cost: f64| {
            usize::from(most == 0 && (turns / sources).is_multiple_of(1 + cost as u64))
        };
        let row = cost.row.unwrap_or(0.0);
        if turns.is_multiple_of(sources) && self.layer.is_some() {
            Most { said: 0, layer: other(of_layer.0, row + cost.layer.unwrap_or(0.0)) }
        } else {
            Most { said: other(of_said.0, row), layer: 0 }
        }
    }

    /// Notes that the layer took `time` to draft so many tokens for some of `answers`.
    pub fn end_drafting(&mut self, answers: usize, drafted: usize, time: Duration) {
        let cost = &mut self.costs[answers.min(MOST_ANSWERS) - 1];
        let Some(plain) = cost.plain_s else { return };
        let share = time.as_secs_f64() / plain / drafted as f64;
        cost.layer_steps = cost.layer_steps.saturating_add(1);
        match &mut cost.layer {
            Some(known) if cost.layer_steps <= LEARNING => *known = known.min(share),
            known => mix(known, share),
        }
    }

    /// Notes that `right` tokens of a draft of `drafted` by the layer were drawn.
    pub fn note_layer(&mut self, right: usize, drafted: usize) {
        if let Some(luck) = &mut self.layer {
            luck.note(right, drafted);
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

/// The length of draft that gives most tokens for the time, and how many for that of a step, if each
/// token is right with `chance` once those before it are, and costs `row` of a step for `answers`;
/// 0 if none is worth it.
fn worth(chance: f64, row: f64, answers: usize) -> (usize, f64) {
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
    if best == 0 { (0, 0.0) } else { (best, most) }
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
        assert_eq!(worth(0.0, 0.0, 1).0, 0);
        assert_eq!(worth(1.0, 0.0, 1).0, MOST);
        assert_eq!(worth(0.95, 0.1, 1).0, MOST);
        assert_eq!(worth(0.5, 0.6, 1).0, 0);
        assert!((1..4).contains(&worth(0.6, 0.1, 1).0));
        assert_eq!(worth(1.0, 1.0, 1).0, 0, "a disk that reads as much for each row");
        assert_eq!(worth(0.9, 0.2, 8).0, 0, "answers that wait for each other");
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

    /// Tokens a second of answers of 250 steps, 2,000 in all, in seconds of steps without drafts. What
    /// was said and what the layer predicts are right with `chances`; each row takes `row`, and the
    /// layer `layer` for each of its tokens, ten times that for the first.
    fn simulate_both([said, predicted]: [f64; 2], row: f64, layer: f64) -> f64 {
        let mut drafting = Drafting::new(predicted >= 0.0);
        let (mut of_said, mut of_layer) = (Luck::default(), drafting.layer_luck());
        let (mut tokens, mut seconds, mut random) = (0.0, 0.0, 1u64);
        for step in 0..2_000 {
            if step % 250 == 0 {
                (of_said, of_layer) = (Luck::default(), drafting.layer_luck());
            }
            drafting.begin_step();
            let most = drafting.most(of_said, of_layer, 1);
            let (drafted, chance) =
                if most.said > 0 { (most.said, said) } else { (most.layer, predicted) };
            let is_right = |_: &usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((random >> 33) as f64 / (1u64 << 31) as f64) < chance
            };
            let right = (0..drafted).take_while(is_right).count();
            let time = 1.0 + row * drafted as f64;
            drafting.end_step(1, drafted, Duration::from_secs_f64(time));
            if most.said > 0 {
                of_said.note(right, drafted);
            } else if drafted > 0 {
                let first = if drafting.costs[0].layer.is_none() { 10.0 } else { 1.0 };
                let time = first * layer * drafted as f64;
                seconds += time;
                drafting.end_drafting(1, drafted, Duration::from_secs_f64(time));
                drafting.note_layer(right, drafted);
                of_layer.note(right, drafted);
            }
            tokens += 1.0 + right as f64;
            seconds += time;
        }
        tokens / seconds
    }

    fn simulate(chance: f64, row: f64) -> f64 {
        simulate_both([chance, -1.0], row, 0.0)
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
    fn the_layer_never_costs_much_and_pays_where_it_can() {
        for said in [0.0, 0.2] {
            for predicted in [0.0, 0.3, 0.6] {
                for (row, layer) in [(0.3, 0.2), (1.0, 0.1), (0.1, 1.0), (2.0, 2.0)] {
                    let rate = simulate_both([said, predicted], row, layer);
                    assert!(rate > 0.97, "{said} {predicted} {row} {layer}: {rate}");
                }
            }
        }
        assert!(simulate_both([0.0, 0.8], 0.1, 0.05) > 1.8);
        assert!(simulate_both([0.0, 0.6], 0.1, 0.1) > 1.2);
        // The better of both.
        assert!(simulate_both([0.95, 0.5], 0.1, 0.1) > 2.5);
        assert!(simulate_both([0.3, 0.9], 0.1, 0.05) > 2.2);
    }

    #[test]
    fn nothing_is_drafted_where_that_is_off() {
        let mut drafting = Drafting::new(true);
        let most = |drafting: &Drafting| drafting.most(Luck::default(), drafting.layer_luck(), 1);
        assert_eq!(most(&drafting), Most::default(), "nothing to compare with yet");
        assert!(drafting.layer_pays(), "until more is known");
        drafting.begin_step();
        drafting.end_step(1, 0, Duration::from_millis(10));
        assert_eq!(most(&drafting), Most { said: FIRST, layer: 1 });
        let mut without = Drafting::new(false);
        without.begin_step();
        without.end_step(1, 0, Duration::from_millis(10));
        assert_eq!(most(&without), Most { said: FIRST, layer: 0 });
        drafting.turn_off();
        assert_eq!(most(&drafting), Most::default());
        assert!(!drafting.has_layer() && !drafting.layer_pays());
    }
}
