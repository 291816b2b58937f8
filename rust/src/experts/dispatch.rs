//! Running the experts of one layer for all rows of a step.
//!
//! Each distinct expert is fetched once a step, however many rows chose it. Rows are summed in
//! router-rank order whatever order the experts arrived in, so that placement cannot show.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::prefetch::Guess;
use super::reader::Landed;
use super::vram::Vram;
use super::{Expert, ExpertStore};
use crate::error::{Error, Result};
use crate::gpu::{Fault, Work};
use crate::kernels::Kernels;
use crate::telemetry::{Phases, timed};
use crate::threads::Team;

/// The router's choice for one row, in rank order.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    /// Chosen experts, best first.
    pub experts: Vec<usize>,
    /// Weight of each one's output.
    pub weights: Vec<f32>,
}

/// Most experts that are read at the same time.
const MAX_PENDING: usize = 64;
/// Time between two looks at reads that take long, and at whether the step is still wanted.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// (row, rank) of each selection of an expert.
pub(super) type Selections = Vec<(usize, usize)>;

/// Experts of a step that are not computed yet: for each its place among the step's experts, and
/// its selections.
pub(super) type Share = BTreeMap<usize, (usize, Selections)>;

/// What a step has to read, and how far it has come with that.
pub(super) struct Needs {
    /// Experts that are not in memory.
    pub(super) missing: Share,
    /// Those that were not asked for yet, the next one first.
    pub(super) absent: VecDeque<usize>,
    /// How many were.
    pub(super) asked: usize,
    /// Why the step fails, if it does.
    pub(super) failure: Option<Error>,
    /// When it began to wait.
    pub(super) began: Instant,
}

/// One expert's share of a step.
struct Task {
    /// Its place among the step's experts.
    place: usize,
    expert: Arc<Expert>,
    selections: Selections,
}

/// What a step tells of itself, and who may end it.
pub struct Course<'a> {
    /// Timers to add to.
    pub phases: &'a mut Phases,
    /// Asked while experts are waited for; true abandons the step.
    pub interrupted: &'a mut dyn FnMut() -> bool,
}

/// What a step works with.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    /// Compute kernels.
    pub kernels: &'a Kernels,
    /// Worker threads.
    pub team: &'a Team,
}

impl ExpertStore {
    /// The weighted sum of the chosen experts for each row.
    ///
    /// `x`: `[rows][hidden]`; `routed`: one choice a row, all of the same length. Returns
    /// `[rows][hidden]`. `beside` is called once, while experts are read, and may
    /// guess what the next layer takes.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if an expert cannot be read, or is not within the limit;
    /// [`Error::Interrupted`]
    pub fn run(
        &mut self,
        map_row: usize,
        x: &[f32],
        routed: &[Routed],
        tools: Tools,
        mut course: Course,
        beside: impl FnOnce() -> Option<Guess>,
    ) -> Result<Vec<f32>> {
        let hidden = x.len() / routed.len();
        let top_k = routed[0].experts.len();
        let mut union: BTreeMap<usize, Selections> = BTreeMap::new();
        for (row, choice) in routed.iter().enumerate() {
            for (rank, &expert) in choice.experts.iter().enumerate() {
                union.entry(map_row * self.cols + expert).or_default().push((row, rank));
            }
        }
        while let Some(landed) = self.reader.poll() {
            // One that was read ahead; whoever needs it will ask again if that failed.
            let index = landed.index;
            if self.settle(landed, course.phases).is_some_and(|landed| landed.is_ok()) {
                self.unused.insert(index);
            }
        }
        while self.end_upload(false) {}
        self.count(map_row, routed, &union);
        // Where each selection's finished row is: [row][rank] -> (expert's place, row of it).
        let mut places = vec![(0, 0); routed.len() * top_k];
        for (place, selections) in union.values().enumerate() {
            for (n, &(row, rank)) in selections.iter().enumerate() {
                places[row * top_k + rank] = (place, n);
            }
        }
        let outputs = self.outputs(union, x, hidden, tools, &mut course, beside)?;
        // Nothing is read for the step any more that this would be in the way of.
        self.promote(map_row);
        let mut sums = vec![0.0f32; x.len()];
        tools.team.for_each_chunk(&mut sums, hidden, x.len() * top_k, |row, sum| {
            let places = &places[row * top_k..][..top_k];
            for (&weight, &(expert, n)) in routed[row].weights.iter().zip(places) {
                tools.kernels.add_scaled(sum, weight, &outputs[expert][n * hidden..][..hidden]);
            }
        });
        Ok(sums)
    }

    /// Notes what the step takes, before anything is fetched for it.
    fn count(&mut self, map_row: usize, routed: &[Routed], union: &BTreeMap<usize, Selections>) {
        let before = self.heat.uses();
        for (&index, selections) in union {
            let served = self.served(index);
            self.heat.select(index, selections.len() as u64, served);
        }
        let uses = self.heat.uses();
        self.prefetch.count(uses.missed - before.missed, uses.total() - before.total());
        if !self.holds_all() {
            self.end_guesses(|index| union.contains_key(&index));
        }
        if !self.holds_all() || self.vram.is_some() {
            let vram = self.vram.as_ref();
            let in_ram = union.keys().filter(|&&i| vram.is_none_or(|vram| !vram.holds(i)));
            let bytes = |&index: &usize| (index, self.sources[index].ram_bytes());
            self.residency.touch(in_ram.map(bytes));
            self.residency.forget_victims(self.rows.div_ceil(4));
            self.policy.take(map_row, routed.iter().map(|choice| &choice.experts[..]));
        }
    }

    /// The output of each expert of `union`, in its order: `[selections][hidden]`.
    ///
    /// Those that are in memory are computed while the others are read; these are computed as
    /// they come, and asked for as early as the budget allows. The device has until then for its own.
    fn outputs(
        &mut self,
        union: BTreeMap<usize, Selections>,
        x: &[f32],
        hidden: usize,
        tools: Tools,
        course: &mut Course,
        beside: impl FnOnce() -> Option<Guess>,
    ) -> Result<Vec<Vec<f32>>> {
        let mut outputs = vec![Vec::new(); union.len()];
        let (mut tasks, mut in_use) = (Vec::new(), Vec::new());
        let (mut given, mut missing) = (Share::new(), Share::new());
        for (place, (index, selections)) in union.into_iter().enumerate() {
            if self.is_on_device(index) {
                given.insert(index, (place, selections));
            } else if let Some(expert) = self.residency.get(index) {
                in_use.push(index);
                tasks.push(Task { place, expert, selections });
            } else {
                missing.insert(index, (place, selections));
            }
        }
        if !self.submit(&given, x) {
            missing.append(&mut given);
        }
        let mut needs = self.need(missing);
        self.request(&mut needs, &in_use, course.phases);
        if let Some(guess) = beside() {
            self.expect(&guess, &in_use);
        }
        loop {
            let rows = tasks.iter().map(|task| task.selections.len()).sum::<usize>();
            let inner = tasks.first().map_or(0, |task| task.expert.gate.n_out);
            let done = timed(&mut course.phases.expert_matmul, || {
                let work = rows * inner * hidden * 3;
                tools.team.map(&tasks, work, |task| task.run(x, tools.kernels))
            });
            for (task, output) in tasks.drain(..).zip(done) {
                outputs[task.place] = output;
            }
            self.request(&mut needs, &[], course.phases);
            if needs.missing.is_empty() {
                if given.is_empty() {
                    return Ok(outputs);
                }
                let given = std::mem::take(&mut given);
                if let Some(done) = timed(&mut course.phases.expert_matmul, || self.collect()) {
                    for ((place, _), output) in given.into_values().zip(done) {
                        outputs[place] = output;
                    }
                } else {
                    needs.absent.extend(given.keys());
                    needs.missing = given;
                }
                continue;
            }
            // Where nothing could be asked for, what is read ahead has all the memory until it comes.
            let wait = || self.reader.wait(LOOK_INTERVAL);
            let mut next = timed(&mut course.phases.expert_wait, wait);
            if next.is_none() {
                self.look(&mut needs);
            }
            while let Some(landed) = next {
                tasks.extend(self.land(landed, &mut needs, course.phases));
                next = self.reader.poll();
            }
            if (course.interrupted)() {
                needs.failure = Some(Error::Interrupted);
            }
            if let Some(error) = needs.failure {
                self.leave(&needs.missing);
                if !given.is_empty() {
                    // A device computes one batch at a time.
                    self.collect();
                }
                return Err(error);
            }
        }
    }

    /// What a step has to read of `missing` experts.
    fn need(&self, missing: Share) -> Needs {
        // What is being read ahead already has its memory, and only has to come sooner.
        let (coming, absent): (VecDeque<usize>, VecDeque<usize>) =
            missing.keys().partition(|&index| self.pending.contains(index));
        for &index in &coming {
            self.reader.hurry(index);
        }
        Needs { missing, absent, asked: coming.len(), failure: None, began: Instant::now() }
    }

    /// Takes in an expert that was read; what is to be computed if the step needs it.
    fn land(
        &mut self,
        landed: Landed<Expert>,
        needs: &mut Needs,
        phases: &mut Phases,
    ) -> Option<Task> {
        let index = landed.index;
        let landed = self.settle(landed, phases)?;
        let needed = needs.missing.remove(&index);
        needs.asked -= usize::from(needed.is_some());
        match (landed, needed) {
            (Ok(expert), Some((place, selections))) => {
                return Some(Task { place, expert, selections });
            }
            // Its read ahead was given up before it was known to be needed.
            (Err(Error::Interrupted), Some(use_of_it)) => {
                needs.missing.insert(index, use_of_it);
                needs.absent.push_front(index);
            }
            (Err(error), Some(_)) => needs.failure = Some(error),
            (Ok(_), None) => drop(self.unused.insert(index)),
            // Whoever needs what could not be read ahead will ask again.
            (Err(_), None) => {}
        }
        None
    }

    /// Takes in an expert that was read; none if it was given up for lost.
    fn settle(
        &mut self,
        landed: Landed<Expert>,
        phases: &mut Phases,
    ) -> Option<Result<Arc<Expert>>> {
        let Landed { index, expert, service, was_lost } = landed;
        let promised = self.sources[index].ram_bytes();
        if was_lost {
            self.residency.take_back(promised);
            return None;
        }
        phases.expert_disk += service;
        self.pending.remove(&index);
        if self.pending.is_empty() {
            // What no read has taken was not as large as any needed.
            self.catalog.spare().clear();
        }
        Some(match expert {
            Ok(expert) => {
                let expert = Arc::new(expert);
                self.residency.insert(index, Arc::clone(&expert), promised);
                Ok(expert)
            }
            Err(error) => {
                self.residency.take_back(promised);
                Err(error)
            }
        })
    }

    /// Asks for experts as long as there is room for them beside those `in_use`.
    fn request(&mut self, needs: &mut Needs, in_use: &[usize], phases: &mut Phases) {
        while let Some(&index) = needs.absent.front().filter(|_| needs.asked < MAX_PENDING) {
            if self.make_room(self.sources[index].ram_bytes(), in_use) {
                self.pending.insert(index);
                self.reader.request(index);
                needs.absent.pop_front();
                needs.asked += 1;
                continue;
            }
            // Room comes from what is computed or read next, else only from what is on its way to
            // the device.
            let is_stuck = needs.asked == 0 && in_use.is_empty();
            if !is_stuck || !timed(&mut phases.expert_wait, || self.end_upload(true)) {
                break;
            }
        }
    }

    /// Promises memory to an expert: free one, else that of experts to be read ahead, else that
    /// of those in memory but the ones `in_use` or on their way to the device. False if even that
    /// is not enough.
    fn make_room(&mut self, bytes: u64, in_use: &[usize]) -> bool {
        while !self.residency.has_room(bytes) && self.withdraw() {}
        let vram = self.vram.as_ref();
        let is_promised = self.residency.promise(bytes, &self.policy, |index| {
            in_use.contains(&index) || vram.is_some_and(|vram| vram.is_uploading(index))
        });
        if is_promised {
            self.recycle();
        } else {
            // No read takes what was given up so far, and nobody would count it.
            drop(self.residency.take_gone());
        }
        is_promised
    }

    /// Lets go of what was given up; its memory is left to the read that it was given up for, if that
    /// needs the same.
    pub(super) fn recycle(&mut self) {
        if !self.are_records {
            drop(self.residency.take_gone());
            return;
        }
        for expert in self.residency.take_gone().filter_map(Arc::into_inner) {
            for matrix in [expert.gate, expert.up, expert.down] {
                self.catalog.spare().keep(matrix);
            }
        }
    }

    /// Keeps at most `bytes` in RAM from now on, within the floor and what the store was made with;
    /// others are given up at once. Returns whether any were. Not while a step runs.
    pub fn limit(&mut self, bytes: u64) -> bool {
        let bytes = bytes.clamp(self.floor_bytes, self.most_bytes);
        if bytes == self.budget_bytes() {
            return false;
        }
        let before = self.residency.len();
        // What is not read yet goes first.
        self.residency.set_budget(bytes);
        while !self.residency.has_room(0) && self.withdraw() {}
        self.residency.shrink(&self.policy);
        drop(self.residency.take_gone());
        // Reads that are under way do without it.
        self.catalog.spare().clear();
        self.residency.len() < before
    }

    /// Takes back the memory of the expert to be read ahead that is wanted least; false if none is
    /// left that is not being read.
    fn withdraw(&mut self) -> bool {
        let withdrawn = self.reader.withdraw();
        if let Some(index) = withdrawn {
            self.forget_request(index);
        }
        withdrawn.is_some()
    }

    /// Takes back the memory that was promised to an expert, which is not asked for any more.
    pub(super) fn forget_request(&mut self, index: usize) {
        self.pending.remove(&index);
        self.residency.take_back(self.sources[index].ram_bytes());
        // Nobody reads into what was given up for it.
        self.catalog.spare().clear();
    }

    /// Asks for the experts to be read ahead, as long as the budget has room.
    pub(super) fn read_ahead(&mut self) {
        while let Some(&index) = self.ahead.front() {
            let bytes = self.sources[index].ram_bytes();
            if !self.residency.has_room(bytes) {
                return;
            }
            self.ahead.pop_front();
            let is_there = self.residency.contains(index) || self.is_on_device(index);
            if is_there || !self.pending.insert(index) {
                continue;
            }
            self.residency.promise(bytes, &self.policy, |_| true);
            self.reader.request_ahead(index);
        }
    }

    /// Has the device begin to compute the experts `given` to it. False if it is lost.
    fn submit(&mut self, given: &Share, x: &[f32]) -> bool {
        let Some(vram) = self.vram.as_mut().filter(|_| !given.is_empty()) else { return true };
        let rows =
            |selections: &Selections| selections.iter().map(|&(row, _)| row as u32).collect();
        let work: Vec<Work> =
            given.iter().map(|(&key, (_, chosen))| Work { key, rows: rows(chosen) }).collect();
        let begun = vram.submit(x, &work);
        begun.map_err(|fault| self.lose_device(&fault)).is_ok()
    }

    /// What the device has computed, in the order it was given. None if it is lost.
    fn collect(&mut self) -> Option<Vec<Vec<f32>>> {
        let done = self.vram.as_mut()?.collect();
        done.map_err(|fault| self.lose_device(&fault)).ok()
    }

    /// Sends the hottest experts in RAM to the device, where there is one.
    fn promote(&mut self, map_row: usize) {
        let Some(vram) = &mut self.vram else { return };
        if map_row == 0 {
            vram.plan(self.sources.len(), &self.policy, |index| self.residency.contains(index));
        }
        let mut demoted = Vec::new();
        let begun = vram.promote(|index| self.residency.get(index), &mut demoted);
        for index in demoted {
            // Back into RAM where that has room.
            self.ahead.push_front(index);
        }
        self.ahead.truncate(self.sources.len());
        if let Err(fault) = begun {
            self.upload_failed(&fault);
        }
        self.read_ahead();
    }

    /// Takes note of the next upload that has ended; `wait`s for it if asked to. False if there is none.
    fn end_upload(&mut self, wait: bool) -> bool {
        match self.vram.as_mut().and_then(|vram| vram.uploaded(wait)) {
            None => return false,
            Some(Ok(index)) => {
                self.residency.give_up(index);
                // No read was promised its memory.
                drop(self.residency.take_gone());
            }
            Some(Err(fault)) => self.upload_failed(&fault),
        }
        true
    }

    fn upload_failed(&mut self, fault: &Fault) {
        match fault {
            Fault::OutOfMemory => {
                self.notices.extend(self.vram.as_mut().and_then(Vram::stop_growing));
            }
            Fault::Lost(_) => self.lose_device(fault),
        }
    }

    /// What was on the device is read again when it is needed.
    fn lose_device(&mut self, fault: &Fault) {
        self.notices.extend(self.vram.take().map(|vram| vram.obituary(fault)));
    }
}

impl Task {
    /// The expert's output for each selected row, in the order of `selections`.
    fn run(&self, x: &[f32], kernels: &Kernels) -> Vec<f32> {
        self.expert.forward(kernels, x, self.selections.iter().map(|&(row, _)| row))
    }
}
