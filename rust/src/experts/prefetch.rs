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
/// Most experts that are asked for by one guess.
const MAX_EXPERTS: usize = 64;

/// Steps after which it is decided whether the next ones guess.
const BLOCK: usize = 8;
/// One block of so many is the other way, to see whether that is faster now.
const TRY_EVERY: u64 = 8;
/// Share of the time of a step by which the other way has to be faster.
const MARGIN: f32 = 0.03;
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
#[derive(Default)]
struct Benefit {
    /// How it is done now, and what was found to be faster.
    is_without: bool,
    prefers_without: bool,
    blocks: u64,
    /// Rows of a step, and the times of those of the current block in seconds.
    rows: usize,
    times: Vec<f32>,
    /// Usual time of a step with and without guesses.
    usual: [Option<f32>; 2],
}

impl Benefit {
    /// Notes how long a step of `rows` took; what is said if something else is found to be faster now.
    fn end_step(&mut self, rows: usize, seconds: f32) -> Option<String> {
        if rows > MAX_ROWS {
            return None;
        }
        if rows != self.rows {
            *self = Self { rows, ..Self::default() };
        }
        self.times.push(seconds);
        if self.times.len() < BLOCK {
            return None;
        }
        // Half of the steps were faster: one that was held up by something else does not count.
        self.times.sort_unstable_by(f32::total_cmp);
        let time = self.times[BLOCK / 2];
        self.times.clear();
        let usual = &mut self.usual[usize::from(self.is_without)];
        *usual = Some(usual.map_or(time, |usual| 0.5 * (usual + time)));
        self.blocks += 1;
        let [Some(with), Some(without)] = self.usual else {
            self.is_without = self.usual[0].is_some();
            return None;
        };
        let did_prefer = self.prefers_without;
        let [now, other] = if did_prefer { [without, with] } else { [with, without] };
        self.prefers_without = did_prefer != (other < now * (1.0 - MARGIN));
        self.is_without = self.prefers_without != self.blocks.is_multiple_of(TRY_EVERY);
        (self.prefers_without != did_prefer).then(|| {
            let verb = if did_prefer { "are" } else { "are not" };
            let [with, without] = [with, without].map(|seconds| seconds * 1e3);
            format!(
                "experts {verb} read before it is certain that they are needed: a step took {with:.1} ms \
                 with that and {without:.1} ms without"
            )
        })
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

    #[test]
    fn what_is_faster_is_done_and_the_other_way_tried_now_and_then() {
        let mut told = Vec::new();
        let mut steps = |benefit: &mut Benefit, with: f32, without: f32| {
            let step = |_| {
                let is_without = benefit.is_without;
                if let Some(said) = benefit.end_step(1, if is_without { without } else { with }) {
                    told.push(said);
                }
                usize::from(is_without)
            };
            (0..20 * BLOCK).map(step).sum::<usize>() / BLOCK
        };
        let mut benefit = Benefit::default();
        assert!(steps(&mut benefit, 1.0, 1.5) <= 4);
        // Other times, other ways.
        steps(&mut benefit, 1.5, 1.0);
        assert!(steps(&mut benefit, 1.5, 1.0) >= 16);
        // Prompts say nothing; other numbers of rows begin anew.
        benefit.end_step(MAX_ROWS + 1, 9.0);
        assert!(benefit.prefers_without);
        benefit.end_step(2, 9.0);
        assert!(!benefit.is_without);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("experts are not read before"), "{told:?}");
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
