//! How much memory the process may use, what of it is not the experts', and who sees to that.
//!
//! Owns: the budget, the reserves, measuring while running. Does not own: what experts are given up
//! (`experts::residency`), when memory is withheld from them (`experts::guard`).

use std::time::{Duration, Instant};

use super::{RunnerOptions, conversation_bytes};
use crate::cpu::{self, Memory, cgroup};
use crate::error::{Error, Result, human_bytes};
use crate::experts::guard::{Guard, Held, Measured};
use crate::experts::{self, ExpertSource, ExpertStore};
use crate::kv::LayerLayout;
use crate::log::say;
use crate::model::Model;

/// Share of the available memory that is planned with when no budget is given.
const AUTO_SHARE: f64 = 0.9;
/// What is left of the memory around the process, as a share of the budget.
const MARGIN: u64 = 20;
/// Rows of the largest step for which there is always room, besides a row of each slot.
const LEAST_ROWS: usize = 16;
/// A larger step than that takes this share of what experts could have, at most.
const STEP_SHARE: u64 = 4;
/// Steps after which the memory of a large one is given to experts.
const STEPS_KEPT: usize = 32;
/// Threads that read experts may take this share of the budget, but for two of them.
const READING_SHARE: u64 = 32;
/// Share of the budget that is left to small things, of which free ones are not returned.
const SMALL_SHARE: u64 = 128;
/// What small things may grow by from one measurement to the next, so that free memory of large
/// blocks is not kept in its place: of threads that begin to work, for the most part.
#[cfg(not(fuzzing))]
const GROWTH: u64 = 3 << 20;
/// Least time between two measurements.
const INTERVAL: Duration = Duration::from_millis(50);
/// Least time between two notices.
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// Most anonymous bytes of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// That many.
    pub most: u64,
    /// Whether somebody set it.
    pub asked_for: bool,
}

impl Budget {
    /// What was asked for, or most of what is available, for a process that takes `used` bytes. A
    /// budget beyond what control groups leave is lowered to that.
    pub fn of(ram_bytes: Option<u64>, used: u64, memory: Memory, groups: Option<u64>) -> Self {
        match ram_bytes {
            Some(ram) => {
                let most = groups.map_or(u64::MAX, |room| {
                    let all = used.saturating_add(room);
                    all - all / MARGIN
                });
                Self { most: ram.min(most), asked_for: true }
            }
            // Where nothing is known, nothing is refused.
            None if memory.available_bytes == 0 => Self { most: u64::MAX, asked_for: false },
            None => {
                let share = (memory.available_bytes as f64 * AUTO_SHARE) as u64;
                Self { most: used.saturating_add(share), asked_for: false }
            }
        }
    }

    /// The budget of this process, which takes `used` bytes now, beside a device that is a part of
    /// its memory.
    pub fn of_process(options: &RunnerOptions, used: u64) -> Self {
        let device = options.device.filter(|device| device.is_own_memory());
        let beside = device.and(options.vram_bytes).unwrap_or(0);
        let mut memory = Memory::read();
        // Nothing is what is available where that is unknown.
        if memory.available_bytes > 0 {
            memory.available_bytes = memory.available_bytes.saturating_sub(beside).max(1);
        }
        let groups = group_room().map(|room| room.saturating_sub(beside));
        Self::of(options.ram_bytes, used, memory, groups)
    }

    /// Has the process, which takes `used` bytes now, keep to it from now on.
    pub fn begin(self, used: u64) {
        bound_blocks(self.most, used, self.small_bytes());
    }

    /// Threads that read experts of `model`: as many as keep a drive busy, fewer where what passes
    /// through them is much of the budget.
    pub fn readers(self, model: &Model) -> usize {
        let one = experts::passing_bytes(&model.experts, 1).max(1);
        let most = usize::try_from(self.most / READING_SHARE / one).unwrap_or(usize::MAX);
        most.clamp(2, experts::reader::THREADS)
    }

    /// Bytes that pass through them at most.
    fn reading_bytes(self, model: &Model) -> u64 {
        experts::passing_bytes(&model.experts, self.readers(model))
    }

    /// Bytes that are left to small things.
    fn small_bytes(self) -> u64 {
        if self.most == u64::MAX { 0 } else { self.most / SMALL_SHARE }
    }
}

/// Bytes that are left in the tightest control group.
fn group_room() -> Option<u64> {
    cgroup::groups().into_iter().map(cgroup::Group::room).min()
}

/// What a model takes in memory besides its dense part and the experts it keeps there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserves {
    /// Conversations of full length.
    pub conversations: u64,
    /// A step of few rows, and what passes through memory as experts are read.
    pub working: u64,
}

impl Reserves {
    /// Those of `model` for `slots` conversations of `ctx` tokens, within `budget`.
    pub fn of(model: &Model, ctx: usize, slots: usize, threads: usize, budget: Budget) -> Self {
        let conversation = conversation_bytes(&model.layouts(), ctx);
        let step = model.step_bytes(LEAST_ROWS.max(slots), slots, threads, ctx);
        let reading = budget.reading_bytes(model);
        let working = step.saturating_add(reading).saturating_add(budget.small_bytes());
        Self { conversations: conversation.saturating_mul(slots as u64), working }
    }

    /// All of them.
    pub fn bytes(self) -> u64 {
        self.conversations.saturating_add(self.working)
    }
}

/// Refuses, before they are read, weights for which `budget` has no room beside the `process`:
/// dense ones that by themselves exceed it, and the experts of one token beside all else.
///
/// # Errors
/// [`Error::DoesNotFit`] with what is needed, what there is, and what would fit.
pub fn refuse_hopeless(
    model: &Model,
    dense: u64,
    process: u64,
    options: &RunnerOptions,
    (ctx, threads): (usize, usize),
    budget: Budget,
) -> Result<()> {
    if dense > budget.most {
        let hint = if budget.asked_for {
            "raise --ram, or leave it out to use what is available"
        } else {
            "free some memory, or make the model smaller with 'colibri convert'"
        };
        return Err(Error::DoesNotFit {
            what: "cannot place the dense weights".into(),
            need_bytes: dense,
            have_bytes: budget.most,
            hint: hint.into(),
        });
    }
    let floor = floor_bytes(model);
    let needed = |budget: Budget, ctx, slots| {
        let reserves = Reserves::of(model, ctx, slots, threads, budget).bytes();
        process.saturating_add(dense).saturating_add(floor).saturating_add(reserves)
    };
    let slots = options.slots;
    if needed(budget, ctx, slots) <= budget.most {
        return Ok(());
    }
    // A larger budget keeps a little more for reading.
    let mut fitting_budget = budget;
    while needed(fitting_budget, ctx, slots) > fitting_budget.most {
        fitting_budget.most = needed(fitting_budget, ctx, slots);
    }
    let need_bytes = fitting_budget.most;
    let reserves = Reserves::of(model, ctx, slots, threads, fitting_budget);
    let what = if floor > 0 {
        format!("cannot keep the {} experts of one token in memory", model.top_k)
    } else {
        "cannot keep the conversations in memory".into()
    };
    Err(Error::DoesNotFit {
        what: format!(
            "{what}: {} of the process, {} of dense weights, {} of conversations of full length, \
             {} to work with, {} of experts",
            human_bytes(process),
            human_bytes(dense),
            human_bytes(reserves.conversations),
            human_bytes(reserves.working),
            human_bytes(floor)
        ),
        need_bytes,
        have_bytes: budget.most,
        hint: fitting(need_bytes, (ctx, slots), budget, |ctx, slots| needed(budget, ctx, slots)),
    })
}

/// What would fit instead of `need_bytes` for `slots` conversations of `ctx` tokens.
fn fitting(
    need_bytes: u64,
    (ctx, slots): (usize, usize),
    budget: Budget,
    needed: impl Fn(usize, usize) -> u64,
) -> String {
    let fits = |ctx, slots| needed(ctx, slots) <= budget.most;
    let mut ways = Vec::new();
    if budget.asked_for {
        // Up to the next of the digits that people write.
        ways.push(format!("--ram {:.3}", (need_bytes as f64 / 1e6).ceil() / 1e3));
    }
    if let Some(ctx) = longest(ctx, |ctx| fits(ctx, slots)) {
        ways.push(format!("--ctx {ctx}"));
    }
    if let Some(slots) = (1..slots).rev().find(|&slots| fits(ctx, slots)) {
        ways.push(format!("--slots {slots}"));
    }
    match ways.split_last() {
        None => "free some memory, or make the model smaller with 'colibri convert'".into(),
        Some((only, [])) => format!("{only} would fit"),
        Some((last, others)) => format!("{} or {last} would fit", others.join(", ")),
    }
}

/// Bytes of the experts of one token in one layer.
pub fn floor_bytes(model: &Model) -> u64 {
    let largest = model.experts.iter().map(ExpertSource::ram_bytes).max().unwrap_or(0);
    largest.saturating_mul(model.top_k as u64)
}

/// Least context that is worth asking for.
const LEAST_CTX: usize = 16;

/// The longest context up to `most` that `fits`, of those that are worth asking for; shorter ones fit
/// where longer ones do.
pub fn longest(most: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut low, mut high) = (LEAST_CTX.min(most), most);
    if !fits(low) {
        return None;
    }
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    Some(low)
}

/// Keeps the process within its budget while it runs.
pub struct Keeper {
    budget: Budget,
    /// Bytes of the process without experts and conversations, those that pass through memory as
    /// experts are read, and small things.
    fixed: u64,
    layouts: Vec<LayerLayout>,
    /// Bytes that steps are given, and how many smaller ones there were since.
    step: (u64, usize),
    /// Bytes for experts if nothing is withheld.
    allowed: u64,
    guard: Guard,
    started: Instant,
    measured: Duration,
    /// When the last notice was written.
    told: Option<Duration>,
}

impl Keeper {
    /// For a process that has loaded `model`.
    pub fn new(budget: Budget, model: &Model) -> Self {
        release();
        let process = cpu::anonymous_bytes();
        budget.begin(process);
        Self {
            budget,
            fixed: process
                .saturating_add(budget.reading_bytes(model))
                .saturating_add(budget.small_bytes()),
            layouts: model.layouts(),
            step: (0, 0),
            allowed: 0,
            guard: Guard::default(),
            started: Instant::now(),
            measured: Duration::ZERO,
            told: None,
        }
    }

    /// Bytes that experts could have if nothing were computed and nobody had said anything.
    pub fn most_for_experts(&self) -> u64 {
        self.budget.most.saturating_sub(self.fixed)
    }

    /// Bytes for experts beside conversations of so many tokens and a step that takes `step` bytes.
    fn for_experts(&self, lengths: impl Iterator<Item = usize>, step: u64) -> u64 {
        let kept = lengths.filter(|&tokens| tokens > 0);
        let conversations = kept.map(|tokens| conversation_bytes(&self.layouts, tokens)).sum();
        self.most_for_experts().saturating_sub(conversations).saturating_sub(step)
    }

    /// Gives experts what conversations of so many tokens and a step of `step` bytes leave.
    pub fn make_room(
        &mut self,
        experts: &mut ExpertStore,
        lengths: impl Iterator<Item = usize>,
        step: u64,
    ) {
        let (kept, since) = self.step;
        // Steps of many and of few rows take turns where some prompts and some answers are under way.
        self.step = if step >= kept || since >= STEPS_KEPT { (step, 0) } else { (kept, since + 1) };
        self.allowed = self.for_experts(lengths, self.step.0);
        self.limit(experts);
    }

    fn limit(&self, experts: &mut ExpertStore) {
        if experts.limit(self.allowed.min(self.guard.cap())) {
            release();
        }
    }

    /// Allows at most `cap` bytes of experts, until there has been room for more for a while.
    pub fn lower(&mut self, experts: &mut ExpertStore, cap: u64) {
        self.guard.lower(cap);
        self.limit(experts);
    }

    /// Most rows up to `wanted` whose step leaves experts most of the memory, beside conversations of
    /// so many tokens; `step_bytes` says what rows take.
    pub fn most_rows(
        &self,
        wanted: usize,
        floor: u64,
        lengths: impl Iterator<Item = usize>,
        step_bytes: impl Fn(usize) -> u64,
    ) -> usize {
        let room = self.for_experts(lengths, 0).saturating_sub(floor) / STEP_SHARE;
        let halves = std::iter::successors(Some(wanted), |rows| Some(rows / 2));
        let mut halves = halves.take_while(|&rows| rows > LEAST_ROWS);
        halves.find(|&rows| step_bytes(rows) <= room).unwrap_or(wanted.min(LEAST_ROWS))
    }

    /// Measures what the process takes, if that was not done just now, and lets experts do without
    /// what is too much.
    pub fn watch(&mut self, experts: &mut ExpertStore) {
        let now = self.started.elapsed();
        if now < self.measured + INTERVAL || self.budget.most == u64::MAX {
            return;
        }
        self.measured = now;
        // A device that is a part of the process has its own budget.
        let beside = experts.device_bytes_here();
        let mut measured = self.measure(beside);
        if measured.used > measured.may {
            release();
            measured = self.measure(beside);
        }
        let (most, used) = (self.budget.most.saturating_add(beside), measured.used + beside);
        bound_blocks(most, used, self.budget.small_bytes());
        let limit = experts.budget_bytes().min(experts.total_bytes());
        let held = Held {
            have: experts.tiers().ram_bytes,
            floor: experts.floor_bytes(),
            most: self.allowed.min(experts.most_bytes()).min(experts.total_bytes()),
        };
        if !self.guard.measure(now, measured, held) {
            return;
        }
        self.limit(experts);
        if self.told.is_none_or(|told| now >= told + NOTICE_INTERVAL) {
            self.told = Some(now);
            say(format_args!(
                "notice: experts may take {} of memory from now on, not {}: the process took {} \
                 of the {} it may",
                human_bytes(experts.budget_bytes().min(experts.total_bytes())),
                human_bytes(limit),
                human_bytes(measured.used),
                human_bytes(measured.may)
            ));
        }
    }

    fn measure(&self, beside: u64) -> Measured {
        let used = cpu::anonymous_bytes().saturating_sub(beside);
        let around =
            if self.budget.asked_for { group_room() } else { Some(Memory::read().available_bytes) };
        let margin = self.budget.most / MARGIN;
        let may = around.map_or(u64::MAX, |room| used.saturating_add(room).saturating_sub(margin));
        Measured { used, may: self.budget.most.min(may) }
    }
}

/// Has free memory of large blocks returned before it makes more than `most` bytes, but for `small`,
/// of a process that takes `used` bytes now. The fuzz targets have another allocator.
#[cfg_attr(fuzzing, allow(unused_variables, reason = "nothing is bounded"))]
fn bound_blocks(most: u64, used: u64, small: u64) {
    #[cfg(not(fuzzing))]
    {
        let others = used.saturating_sub(crate::memory::in_memory());
        crate::memory::limit(most.saturating_sub(others).saturating_sub(small + GROWTH));
    }
}

/// Returns to the system what is free. The fuzz targets have another allocator.
fn release() {
    #[cfg(not(fuzzing))]
    crate::memory::release();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_what_was_asked_for_or_most_of_what_there_is() {
        let memory = |available_bytes| Memory { total_bytes: 9000, available_bytes };
        let of = |ram, available, groups| Budget::of(ram, 100, memory(available), groups).most;
        assert_eq!(of(Some(5000), 1000, None), 5000);
        assert_eq!(of(Some(5000), 1000, Some(3000)), 3100 - 155, "no more than the groups leave");
        assert_eq!(of(None, 1000, Some(4000)), 1000);
        assert_eq!(of(None, 0, None), u64::MAX, "unknown");
    }

    /// One of each family, and of each kind of experts.
    const MODELS: [&str; 14] = [
        "deepseek_v2",
        "deepseek_v3_fp8",
        "deepseek_v32",
        "glm4_moe",
        "glm_moe_dsa",
        "gpt_oss",
        "gpt_oss_mxfp4",
        "kimi_linear",
        "minimax_m2",
        "olmoe",
        "qwen2_moe",
        "qwen3_5_moe",
        "qwen3_moe_mixed",
        "qwen3_next",
    ];

    #[test]
    #[cfg(not(fuzzing))]
    fn steps_take_what_was_counted() {
        for name in MODELS {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
            let folder = folder.join("tests/data/oracle").join(name);
            // On this thread, which counts.
            let options =
                RunnerOptions { ctx: Some(256), threads: Some(1), ..RunnerOptions::default() };
            let mut runner =
                super::super::Runner::load(&folder, &options, &mut |_, _| {}).expect("it loads");
            let step = |positions: std::ops::Range<usize>, runner: &mut super::super::Runner| {
                let token = |position: usize| (7 + position * 11 % 100) as u32;
                let row =
                    |position| crate::model::Row { slot: 0, position, token: token(position) };
                let rows: Vec<_> = positions.map(row).collect();
                let last = [rows.len() - 1];
                let wanted = crate::model::Logits::Of(&last);
                runner.forward(&rows, wanted, None, &mut || false).expect("a step");
            };
            // What stays comes here: experts, blocks of keys and values.
            step(0..56, &mut runner);
            let counted = runner.step_bytes(200, 1) as usize;
            let took = crate::memory::count::passing(|| step(56..256, &mut runner));
            assert!(took <= counted, "{name}: {took} of {counted}");
        }
    }

    #[test]
    fn the_longest_context_that_fits_is_found() {
        for fitting in [16, 17, 1000, 4095, 4096] {
            assert_eq!(longest(4096, |ctx| ctx <= fitting), Some(fitting));
        }
        assert_eq!(longest(4096, |_| false), None);
        assert_eq!(longest(8, |_| true), Some(8));
    }

    #[test]
    fn what_would_fit_is_told() {
        let told = |asked_for, most| {
            // 1 MB, and 1 kB for each token of each conversation.
            let needed = |ctx, slots| 1_000_000 + 1000 * (ctx * slots) as u64;
            fitting(needed(1000, 4), (1000, 4), Budget { most, asked_for }, needed)
        };
        assert_eq!(told(true, 3_500_000), "--ram 0.005, --ctx 625 or --slots 2 would fit");
        assert_eq!(told(true, 1_100_000), "--ram 0.005 or --ctx 25 would fit");
        assert_eq!(told(true, 900_000), "--ram 0.005 would fit");
        assert_eq!(told(false, 2_000_000), "--ctx 250 or --slots 1 would fit");
        let convert = "free some memory, or make the model smaller with 'colibri convert'";
        assert_eq!(told(false, 900_000), convert);
    }
}
