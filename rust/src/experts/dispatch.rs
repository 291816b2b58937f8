//! Running the experts of one layer for all rows of a step.
//!
//! Each distinct expert is fetched once a step, however many rows chose it. Rows are summed in
//! router-rank order whatever order the experts arrived in, so that placement cannot show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::reader::Landed;
use super::{Activation, Expert, ExpertStore};
use crate::error::Result;
use crate::kernels::{Kernels, add_bias};
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

/// (row, rank) of each selection of an expert.
type Selections = Vec<(usize, usize)>;

/// One expert's share of a step.
struct Task {
    /// Its place among the step's experts.
    place: usize,
    expert: Arc<Expert>,
    selections: Selections,
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
    /// `[rows][hidden]`. `beside` is called once, while experts are read.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if an expert cannot be read.
    pub fn run(
        &mut self,
        map_row: usize,
        x: &[f32],
        routed: &[Routed],
        tools: Tools,
        phases: &mut Phases,
        beside: impl FnOnce(),
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
            self.unused.insert(landed.index);
            drop(self.settle(landed, phases));
        }
        self.count(map_row, routed, &union);
        // Where each selection's finished row is: [row][rank] -> (expert's place, row of it).
        let mut places = vec![(0, 0); routed.len() * top_k];
        for (place, selections) in union.values().enumerate() {
            for (n, &(row, rank)) in selections.iter().enumerate() {
                places[row * top_k + rank] = (place, n);
            }
        }
        let outputs = self.outputs(union, x, hidden, tools, phases, beside)?;
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
        for (&index, selections) in union {
            let served = self.served(index);
            self.heat.select(index, selections.len() as u64, served);
        }
        if !self.holds_all() {
            let bytes = |&index: &usize| (index, self.sources[index].ram_bytes());
            self.residency.touch(union.keys().map(bytes));
            self.residency.forget_victims(self.rows.div_ceil(4));
            self.policy.take(map_row, routed.iter().map(|choice| &choice.experts[..]));
        }
    }

    /// The output of each expert of `union`, in its order: `[selections][hidden]`.
    ///
    /// Those that are in memory are computed while the others are read; these are computed as
    /// they come, and asked for as early as the budget allows.
    fn outputs(
        &mut self,
        union: BTreeMap<usize, Selections>,
        x: &[f32],
        hidden: usize,
        tools: Tools,
        phases: &mut Phases,
        beside: impl FnOnce(),
    ) -> Result<Vec<Vec<f32>>> {
        let mut outputs = vec![Vec::new(); union.len()];
        let mut tasks = Vec::new();
        let mut missing = BTreeMap::new();
        for (place, (index, selections)) in union.into_iter().enumerate() {
            match self.residency.get(index) {
                Some(expert) => tasks.push((index, Task { place, expert, selections })),
                None => drop(missing.insert(index, (place, selections))),
            }
        }
        let in_use: Vec<usize> = tasks.iter().map(|(index, _)| *index).collect();
        let mut tasks: Vec<Task> = tasks.into_iter().map(|(_, task)| task).collect();
        // What is being read ahead already has its memory, and only has to come sooner.
        let (coming, absent): (Vec<usize>, Vec<usize>) =
            missing.keys().partition(|&index| self.pending.contains(index));
        for &index in &coming {
            self.reader.hurry(index);
        }
        let mut absent = absent.into_iter().peekable();
        let mut asked = coming.len();
        asked += self.request(&mut absent, asked, &in_use);
        beside();
        let mut failure = None;
        loop {
            let rows = tasks.iter().map(|task| task.selections.len()).sum::<usize>();
            let inner = tasks.first().map_or(0, |task| task.expert.gate.n_out);
            let done = timed(&mut phases.expert_matmul, || {
                let work = rows * inner * hidden * 3;
                tools.team.map(&tasks, work, |task| task.run(x, hidden, tools.kernels))
            });
            for (task, output) in tasks.drain(..).zip(done) {
                outputs[task.place] = output;
            }
            if failure.is_none() {
                asked += self.request(&mut absent, asked, &[]);
            }
            // Where nothing could be asked for, what is read ahead has all the memory until it comes.
            if asked == 0 && (failure.is_some() || missing.is_empty()) {
                return failure.map_or(Ok(outputs), Err);
            }
            let start = Instant::now();
            let mut next = Some(self.reader.wait());
            phases.expert_wait += start.elapsed();
            while let Some(landed) = next {
                let needed = missing.remove(&landed.index);
                asked -= usize::from(needed.is_some());
                if needed.is_none() {
                    self.unused.insert(landed.index);
                }
                match (self.settle(landed, phases), needed) {
                    (Ok(expert), Some((place, selections))) => {
                        tasks.push(Task { place, expert, selections });
                    }
                    (Err(error), Some(_)) => failure = Some(error),
                    // Whoever needs what could not be read ahead will ask again.
                    (_, None) => {}
                }
                next = self.reader.poll();
            }
        }
    }

    /// Takes in an expert that was read.
    fn settle(&mut self, landed: Landed<Expert>, phases: &mut Phases) -> Result<Arc<Expert>> {
        let Landed { index, expert, service } = landed;
        phases.expert_disk += service;
        self.pending.remove(&index);
        let promised = self.sources[index].ram_bytes();
        match expert {
            Ok(expert) => {
                let expert = Arc::new(expert);
                self.bytes_read += self.sources[index].disk_bytes();
                self.residency.insert(index, Arc::clone(&expert), promised);
                Ok(expert)
            }
            Err(error) => {
                self.residency.take_back(promised);
                Err(error)
            }
        }
    }

    /// Asks for experts as long as there is room for them beside those `in_use`; `asked` for are
    /// some already. Returns how many more.
    fn request(
        &mut self,
        absent: &mut std::iter::Peekable<impl Iterator<Item = usize>>,
        asked: usize,
        in_use: &[usize],
    ) -> usize {
        let mut more = 0;
        while let Some(&index) = absent.peek().filter(|_| asked + more < MAX_PENDING) {
            if !self.make_room(self.sources[index].ram_bytes(), in_use) {
                break;
            }
            self.pending.insert(index);
            self.reader.request(index);
            absent.next();
            more += 1;
        }
        more
    }

    /// Promises memory to an expert: free one, else that of experts to be read ahead, else that
    /// of those in memory but the ones `in_use`. False if even that is not enough.
    fn make_room(&mut self, bytes: u64, in_use: &[usize]) -> bool {
        while !self.residency.has_room(bytes) {
            let Some(index) = self.reader.withdraw() else { break };
            self.pending.remove(&index);
            self.residency.take_back(self.sources[index].ram_bytes());
        }
        self.residency.promise(bytes, &self.policy, |index| in_use.contains(&index))
    }

    /// Asks for experts, the hottest first, as long as the budget has room.
    pub fn read_ahead(&mut self, hottest: impl Iterator<Item = usize>) {
        for index in hottest {
            let bytes = self.sources[index].ram_bytes();
            if !self.residency.has_room(bytes) {
                return;
            }
            if self.residency.contains(index) || !self.pending.insert(index) {
                continue;
            }
            self.residency.promise(bytes, &self.policy, |_| true);
            self.reader.request_ahead(index);
        }
    }
}

impl Task {
    /// The expert's output for each selected row, in the order of `selections`.
    fn run(&self, x: &[f32], hidden: usize, kernels: &Kernels) -> Vec<f32> {
        let solo = Team::new(1);
        let expert = &*self.expert;
        let mut input = Vec::with_capacity(self.selections.len() * hidden);
        for &(row, _) in &self.selections {
            input.extend_from_slice(&x[row * hidden..(row + 1) * hidden]);
        }
        let inner = match (&expert.activation, &expert.biases) {
            (Activation::SwiGlu, None) => kernels.gated(&solo, &expert.gate, &expert.up, &input),
            (activation, biases) => {
                let mut gate = kernels.matmul(&solo, &expert.gate, &input);
                let mut up = kernels.matmul(&solo, &expert.up, &input);
                if let Some(biases) = biases {
                    add_bias(&mut gate, &biases.gate);
                    add_bias(&mut up, &biases.up);
                }
                match *activation {
                    Activation::SwiGlu => kernels.silu_mul(&mut gate, &up),
                    Activation::Clamped { alpha, limit } => {
                        kernels.clamped_swiglu(&mut gate, &up, alpha, limit);
                    }
                }
                gate
            }
        };
        let mut y = kernels.matmul(&solo, &expert.down, &inner);
        if let Some(biases) = &expert.biases {
            add_bias(&mut y, &biases.down);
        }
        y
    }
}
