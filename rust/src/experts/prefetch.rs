//! Reading what the next layer will probably take, while this one is computed.
//!
//! The router of the next sparse layer is asked about the state there is already. A layer changes
//! that state little, so that many of its answers hold. Such reads come after all that are needed
//! now, push out only what is not likely to be needed within a step, and are taken back as soon as
//! they turn out wrong, unless they have begun. Owns: which answers are worth a read, by what came
//! of the ones before. Does not own: reading (`reader`), the routers (`model`). Figures:
//! `docs/experts.md`.

use std::time::Duration;

use super::{ExpertStore, Routed};

/// Share of uses that miss from which on it is worth while to guess.
const MIN_MISSES: f32 = 0.05;
/// Share of guesses of a kind that have to be right for a read.
const MIN_RIGHT: f32 = 0.25;
/// Guesses of a kind that are remembered, and uses.
const MEMORY: f32 = 256.0;
/// Of guesses that are not worth a read, one of so many is made nevertheless, to see whether they are now.
const TRIAL: u64 = 16;
/// How often the rows of a step take an expert, on average, that take nearly every one of them.
const TIMES_EACH: usize = 4;
/// Most experts that are asked for by one guess.
const MAX_EXPERTS: usize = 64;

/// Steps that are timed together, all with guesses or all without.
const BLOCK: usize = 8;
/// Of blocks the usual way, so many come between two trials of the other way.
const TRY_EVERY: u32 = 8;
/// Share of the time of a step by which the other way has to be faster to be worth a change.
const MARGIN: f32 = 0.03;
/// Most that one trial counts: a drive may have been busy with something else.
const MOST_LEAD: f32 = 0.15;
/// What leads of trials in a row, beyond the margin, have to add up to for a change.
const ENOUGH_LEAD: f32 = 0.2;
/// Blocks between a change and the next one, which each change doubles ...
const DWELL: u32 = 32;
/// ... so many times at most.
const MAX_DOUBLINGS: u32 = 4;
/// Most rows of a step that is compared with others; prompts differ too much.
const MAX_ROWS: usize = 16;

/// When a guess is made: the later, the better, and the less time is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// While the experts of the layer before are computed.
    BesideExperts,
    /// Before the layer's attention.
    BeforeAttention,
}

/// What the rows of a step will probably take in a layer.
pub struct Guess {
    /// Row of the expert map.
    pub map_row: usize,
    /// When it was made.
    pub stage: Stage,
    /// Choices of some of the rows at least.
    pub choices: Vec<Routed>,
}

/// A share that fades.
#[derive(Clone, Copy)]
struct Share {
    some: f32,
    all: f32,
}

impl Share {
    fn add(&mut self, some: f32, all: f32) {
        self.some += some;
        self.all += all;
        if self.all > MEMORY {
            let keep = MEMORY / self.all;
            (self.some, self.all) = (self.some * keep, self.all * keep);
        }
    }

    fn get(self) -> f32 {
        self.some / self.all
    }
}

/// An expert that was not in memory when a guess named it.
struct Absent {
    index: usize,
    stage: Stage,
    rank: usize,
}

/// Whether steps are faster with guesses than without, found by trying: what a read costs beside
/// the computation, nobody knows beforehand.
///
/// A drive wanders more than the two ways differ. So a block the other way is compared with the two
/// around it, and what such trials say has to add up (a one-sided CUSUM, Page 1954).
struct Benefit {
    /// How it is done now, and usually.
    is_without: bool,
    prefers_without: bool,
    /// Rows of a step, and the times of those of the current block in seconds.
    rows: usize,
    times: Vec<f32>,
    /// Time of a step in the last block the usual way, and in a trial since.
    before: Option<f32>,
    trial: Option<f32>,
    /// By what share the other way was faster, beyond the margin, in trials that add up.
    lead: f32,
    /// Blocks until the next trial, and until the next change.
    until_trial: u32,
    until_change: u32,
    changes: u32,
}

impl Default for Benefit {
    fn default() -> Self {
        Self {
            is_without: false,
            prefers_without: false,
            rows: 0,
            times: Vec::new(),
            before: None,
            trial: None,
            lead: 0.0,
            until_trial: 1,
            until_change: 0,
            changes: 0,
        }
    }
}

impl Benefit {
    /// Notes how long a step of `rows` took; what is said if something else is found to be faster now.
    fn end_step(&mut self, rows: usize, seconds: f32) -> Option<String> {
        if rows > MAX_ROWS {
            return None;
        }
        if rows != self.rows {
            // Only steps of as many rows can be compared.
            self.rows = rows;
            self.times.clear();
            (self.before, self.trial) = (None, None);
            self.is_without = self.prefers_without;
        }
        self.times.push(seconds);
        if self.times.len() < BLOCK {
            return None;
        }
        // Half of the steps were faster: one that was held up by something else does not count.
        self.times.sort_unstable_by(f32::total_cmp);
        let time = self.times[BLOCK / 2];
        self.times.clear();
        self.end_block(time)
    }

    fn end_block(&mut self, time: f32) -> Option<String> {
        self.until_change = self.until_change.saturating_sub(1);
        if self.is_without != self.prefers_without {
            self.trial = Some(time);
            self.is_without = self.prefers_without;
            return None;
        }
        let told = match (self.before, self.trial.take()) {
            (Some(before), Some(other)) => self.end_trial(0.5 * (before + time), other),
            _ => None,
        };
        self.before = Some(time);
        self.until_trial = self.until_trial.saturating_sub(1);
        if self.until_trial == 0 {
            self.is_without = !self.prefers_without;
        }
        told
    }

    /// Notes the times of a step the usual and the `other` way.
    fn end_trial(&mut self, usual: f32, other: f32) -> Option<String> {
        let lead = (1.0 - other / usual).clamp(-MOST_LEAD, MOST_LEAD) - MARGIN;
        self.lead = (self.lead + lead).max(0.0);
        // What looks faster is looked at again soon.
        let is_open = self.lead > 0.0 && self.until_change == 0;
        self.until_trial = if is_open { 1 } else { TRY_EVERY };
        if self.lead < ENOUGH_LEAD || self.until_change > 0 {
            return None;
        }
        let was_without = self.prefers_without;
        self.prefers_without = !was_without;
        self.is_without = self.prefers_without;
        self.lead = 0.0;
        self.until_change = DWELL << self.changes.min(MAX_DOUBLINGS);
        self.changes += 1;
        self.until_trial = TRY_EVERY;
        let (verb, [with, without]) =
            if was_without { ("are", [other, usual]) } else { ("are not", [usual, other]) };
        let [with, without] = [with, without].map(|seconds| seconds * 1e3);
        Some(format!(
            "experts {verb} read before it is certain that they are needed: a step took {with:.1} ms \
             with that and {without:.1} ms without"
        ))
    }
}

/// What is known about guesses.
pub struct Prefetch {
    benefit: Benefit,
    is_off: bool,
    /// Guesses that were worth considering, by stage.
    chances: [u64; 2],
    /// How often an absent expert was taken after all, by stage and rank.
    right: [Vec<Share>; 2],
    missed: Share,
    /// Guesses about the layer that comes next.
    open: Vec<Absent>,
    /// Experts that were asked for because of them.
    asked: Vec<usize>,
}

impl Prefetch {
    /// Nothing known yet about a model whose rows take `top_k` experts.
    pub fn new(top_k: usize) -> Self {
        let even = Share { some: 8.0, all: 16.0 };
        Self {
            benefit: Benefit::default(),
            is_off: false,
            chances: [0; 2],
            right: [vec![even; top_k], vec![even; top_k]],
            missed: Share { some: 1.0, all: 1.0 },
            open: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// Notes that `missed` of `all` uses missed.
    pub(super) fn count(&mut self, missed: u64, all: u64) {
        self.missed.add(missed as f32, all as f32);
    }

    /// Whether misses are so many, and such guesses so often right, that it is worth while to make
    /// one now.
    fn wants(&mut self, stage: Stage) -> bool {
        if self.is_off || self.benefit.is_without || self.missed.get() < MIN_MISSES {
            return false;
        }
        let chances = &mut self.chances[stage as usize];
        *chances += 1;
        let is_read = self.right[stage as usize].iter().any(|share| share.get() >= MIN_RIGHT);
        is_read || chances.is_multiple_of(TRIAL)
    }

    /// Compares the guesses about a layer with what it takes.
    fn judge(&mut self, is_taken: impl Fn(usize) -> bool) {
        for Absent { index, stage, rank } in self.open.drain(..) {
            self.right[stage as usize][rank].add(f32::from(u8::from(is_taken(index))), 1.0);
        }
    }

    /// Notes a guess; returns the experts of which such a one is worth a read or to be kept, the likeliest
    /// first.
    fn note(
        &mut self,
        guess: &Guess,
        index: impl Fn(usize) -> usize,
        is_absent: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let mut likely: Vec<usize> = Vec::new();
        let right = &self.right[guess.stage as usize];
        for (rank, share) in right.iter().enumerate() {
            let named = guess.choices.iter().filter_map(|choice| choice.experts.get(rank));
            for index in named.map(|&expert| index(expert)) {
                if likely.contains(&index) {
                    continue;
                }
                if is_absent(index) {
                    self.open.push(Absent { index, stage: guess.stage, rank });
                }
                if share.get() >= MIN_RIGHT && likely.len() < MAX_EXPERTS {
                    likely.push(index);
                }
            }
        }
        likely
    }
}

impl ExpertStore {
    /// Never reads ahead what a layer will probably take.
    pub fn never_guess(&mut self) {
        self.prefetch.is_off = true;
    }

    /// Notes how long a step of `rows` took; what is said if it goes on another way.
    pub fn end_step(&mut self, rows: usize, time: Duration) -> Option<String> {
        if self.prefetch.is_off || self.holds_all() {
            return None;
        }
        self.prefetch.benefit.end_step(rows, time.as_secs_f32())
    }

    /// Whether a guess about the next layer would be of use.
    pub fn wants_guess(&mut self, stage: Stage) -> bool {
        !self.holds_all() && self.prefetch.wants(stage)
    }

    /// Reads ahead what a guess names, beside the experts `in_use`, and no longer what an earlier
    /// one about the same layer named alone.
    pub fn expect(&mut self, guess: &Guess, in_use: &[usize]) {
        let (cols, map_row) = (self.cols, guess.map_row);
        let (residency, vram) = (&self.residency, &self.vram);
        let is_there = |index| {
            residency.contains(index) || vram.as_ref().is_some_and(|vram| vram.holds(index))
        };
        let index = |expert| map_row * cols + expert;
        let likely = self.prefetch.note(guess, index, |index| !is_there(index));
        self.withdraw_unless(|index| likely.contains(&index));
        self.read_likely(likely, in_use);
    }

    /// Reads ahead for the first sparse layer of a step of so many `rows` that they will take nearly
    /// all of its experts, whatever they are: the layers before it take time.
    pub fn begin_wave(&mut self, map_row: usize, rows: usize) {
        let top_k = self.prefetch.right[0].len();
        let is_certain = rows * top_k >= TIMES_EACH * self.cols;
        if self.prefetch.is_off || self.holds_all() || !is_certain {
            return;
        }
        let mut all: Vec<usize> = (map_row * self.cols..(map_row + 1) * self.cols).collect();
        let policy = &self.policy;
        all.sort_by(|&a, &b| policy.frequency(b).total_cmp(&policy.frequency(a)));
        all.truncate(MAX_EXPERTS);
        self.read_likely(all, &[]);
    }

    /// Reads what is `likely` to be taken next, the likeliest first, as far as there is room beside
    /// the experts `in_use` and what is likelier.
    fn read_likely(&mut self, likely: Vec<usize>, in_use: &[usize]) {
        self.policy.expect(&likely);
        self.residency.spare(&likely);
        let mut asked = Vec::new();
        for index in likely {
            let is_there = self.residency.contains(index) || self.is_on_device(index);
            if is_there || self.pending.contains(&index) {
                continue;
            }
            let (policy, vram, step) = (&self.policy, &self.vram, self.rows as f32);
            let keep = |other| {
                let is_uploading = vram.as_ref().is_some_and(|vram| vram.is_uploading(other));
                let is_likely = policy.is_expected(other) || policy.wait(other) < step;
                in_use.contains(&other) || is_uploading || is_likely
            };
            let bytes = self.sources[index].ram_bytes();
            let is_promised = self.residency.promise(bytes, policy, keep);
            self.recycle();
            if !is_promised {
                break;
            }
            self.pending.insert(index);
            asked.push(index);
        }
        self.reader.request_next(&asked);
        self.prefetch.asked.extend(asked);
    }

    /// Compares guesses with what a layer takes; what is not read yet and not taken is left.
    pub(super) fn end_guesses(&mut self, is_taken: impl Fn(usize) -> bool) {
        self.withdraw_unless(&is_taken);
        self.prefetch.asked.clear();
        self.prefetch.judge(is_taken);
        self.policy.expect(&[]);
    }

    fn withdraw_unless(&mut self, is_wanted: impl Fn(usize) -> bool) {
        let asked = std::mem::take(&mut self.prefetch.asked);
        for index in asked {
            if is_wanted(index) {
                self.prefetch.asked.push(index);
            } else if self.reader.withdraw_one(index) {
                self.forget_request(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(stage: Stage, rows: &[[usize; 2]]) -> Guess {
        let choice = |experts: &[usize; 2]| Routed { experts: experts.to_vec(), weights: vec![] };
        Guess { map_row: 0, stage, choices: rows.iter().map(choice).collect() }
    }

    #[test]
    fn the_likeliest_come_first_and_each_once() {
        let mut prefetch = Prefetch::new(2);
        let likely = prefetch.note(
            &guess(Stage::BesideExperts, &[[3, 1], [5, 3]]),
            |expert| expert + 10,
            |_| true,
        );
        assert_eq!(likely, [13, 15, 11]);
    }

    #[test]
    fn ranks_that_are_mostly_wrong_are_not_read_until_they_are_right_again() {
        let mut prefetch = Prefetch::new(2);
        let note = |prefetch: &mut Prefetch| {
            prefetch.note(&guess(Stage::BeforeAttention, &[[0, 1]]), |expert| expert, |_| true)
        };
        for _ in 0..50 {
            note(&mut prefetch);
            prefetch.judge(|index| index == 0);
        }
        assert_eq!(note(&mut prefetch), [0]);
        let early =
            prefetch.note(&guess(Stage::BesideExperts, &[[0, 1]]), |expert| expert, |_| true);
        assert_eq!(early, [0, 1], "a stage of its own");
        prefetch.judge(|_| true);
        for _ in 0..50 {
            note(&mut prefetch);
            prefetch.judge(|_| true);
        }
        assert_eq!(note(&mut prefetch), [0, 1]);
    }

    #[test]
    fn what_is_in_memory_says_nothing_about_guesses() {
        let mut prefetch = Prefetch::new(2);
        for _ in 0..50 {
            prefetch.note(&guess(Stage::BeforeAttention, &[[0, 1]]), |expert| expert, |_| false);
            prefetch.judge(|_| false);
        }
        assert!(prefetch.right.iter().flatten().all(|share| share.get() == 0.5));
    }

    /// Runs `steps` whose times `seconds(step, is_without)` gives; which were without guesses, and
    /// when something was told.
    fn run(
        benefit: &mut Benefit,
        steps: usize,
        mut seconds: impl FnMut(usize, bool) -> f32,
    ) -> (Vec<bool>, Vec<usize>) {
        let (mut without, mut told) = (Vec::new(), Vec::new());
        for step in 0..steps {
            without.push(benefit.is_without);
            if let Some(said) = benefit.end_step(1, seconds(step, benefit.is_without)) {
                assert_eq!(said.starts_with("experts are not read"), benefit.prefers_without);
                told.push(step);
            }
        }
        (without, told)
    }

    fn share(ways: &[bool], way: bool) -> f32 {
        ways.iter().filter(|&&other| other == way).count() as f32 / ways.len() as f32
    }

    #[test]
    fn what_is_faster_is_done_and_the_other_way_tried_now_and_then() {
        let mut benefit = Benefit::default();
        let of =
            |with: f32, without: f32| move |_, is_without| if is_without { without } else { with };
        let (ways, told) = run(&mut benefit, 400, of(1.0, 1.5));
        assert!(share(&ways, true) < 0.15 && share(&ways, true) > 0.05 && told.is_empty());
        // Other times, other ways, which are found soon.
        let (ways, told) = run(&mut benefit, 400, of(1.5, 1.0));
        assert!(share(&ways[128..], false) < 0.15, "{ways:?}");
        assert_eq!(told.len(), 1);
        assert!(benefit.prefers_without);
        // Prompts say nothing, other numbers of rows do not undo it.
        benefit.end_step(MAX_ROWS + 1, 9.0);
        benefit.end_step(2, 9.0);
        assert!(benefit.prefers_without && benefit.is_without);
    }

    /// Numbers around 0 with a deviation of 1, the same in each run.
    fn noise() -> impl FnMut() -> f32 {
        let mut state = 1u64;
        move || {
            let mut uniform = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f32 / (1 << 24) as f32
            };
            // Of twelve the variance is 1 (Irwin-Hall).
            (0..12).map(|_| uniform()).sum::<f32>() - 6.0
        }
    }

    /// A drive that is up to half as fast again for some seconds, in a step that each way makes
    /// longer or shorter by nothing but chance.
    fn wandering(mut noise: impl FnMut() -> f32, period: f32) -> impl FnMut(usize) -> f32 {
        move |step| {
            let drift = 1.0 + 0.25 * (step as f32 * std::f32::consts::TAU / period).sin();
            drift * (1.0 + 0.1 * noise()).max(0.1)
        }
    }

    #[test]
    fn a_drive_that_wanders_changes_little() {
        for period in [24.0, 100.0, 333.0] {
            let (mut benefit, mut drive) = (Benefit::default(), wandering(noise(), period));
            let (_, told) = run(&mut benefit, 20_000, |step, _| drive(step));
            assert!(told.len() <= 8, "{period}: {told:?}");
            let apart = told.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(apart.min().is_none_or(|least| least >= DWELL as usize * BLOCK), "{told:?}");
        }
    }

    #[test]
    fn what_is_faster_on_a_drive_that_wanders_is_found_and_kept() {
        for (is_faster, lead) in [(true, 0.85), (false, 0.85), (true, 0.75)] {
            let (mut benefit, mut drive) = (Benefit::default(), wandering(noise(), 100.0));
            let (ways, told) = run(&mut benefit, 8000, |step, is_without| {
                drive(step) * if is_without == is_faster { lead } else { 1.0 }
            });
            assert!(share(&ways[2000..], is_faster) > 0.8, "{is_faster}, {lead}: {told:?}");
        }
    }

    #[test]
    fn guessing_ends_where_little_is_missed_or_little_is_right() {
        let mut prefetch = Prefetch::new(1);
        let wanted = |prefetch: &mut Prefetch| {
            (0..TRIAL).filter(|_| prefetch.wants(Stage::BesideExperts)).count() as u64
        };
        assert_eq!(wanted(&mut prefetch), TRIAL);
        prefetch.right[Stage::BesideExperts as usize][0] = Share { some: 1.0, all: 10.0 };
        assert_eq!(wanted(&mut prefetch), 1);
        prefetch.count(1, 10_000);
        assert_eq!(wanted(&mut prefetch), 0);
    }
}
