//! Running the experts of one layer for all rows of a step.
//!
//! Each distinct expert is fetched once a step, however many rows chose it. Rows are summed in
//! router-rank order whatever order the experts arrived in, so that placement cannot show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

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
            self.heat.select(index, selections.len() as u64, self.residency.contains(index));
        }
        self.residency.touch(union.keys().copied());
        if !self.holds_all() {
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
        let mut absent = missing.keys().copied().collect::<Vec<_>>().into_iter().peekable();
        let in_use: Vec<usize> = tasks.iter().map(|(index, _)| *index).collect();
        self.request(&mut absent, &in_use);
        beside();
        let mut landed = Ok(());
        let mut tasks: Vec<Task> = tasks.into_iter().map(|(_, task)| task).collect();
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
            if landed.is_ok() {
                self.request(&mut absent, &[]);
            }
            if self.reader.pending() == 0 {
                debug_assert!(landed.is_err() || missing.is_empty(), "the budget holds one");
                return landed.map(|()| outputs);
            }
            let start = Instant::now();
            let arrived = self.reader.landed(true);
            phases.expert_wait += start.elapsed();
            for read in arrived {
                phases.expert_disk += read.service;
                let promised = self.sources[read.index].ram_bytes();
                match read.expert {
                    Ok(expert) => {
                        let expert = Arc::new(expert);
                        self.bytes_read += self.sources[read.index].disk_bytes();
                        self.residency.insert(read.index, Arc::clone(&expert), promised);
                        let asked = missing.remove(&read.index);
                        let (place, selections) = asked.expect("it was asked for");
                        tasks.push(Task { place, expert, selections });
                    }
                    Err(error) => {
                        self.residency.take_back(promised);
                        landed = Err(error);
                    }
                }
            }
        }
    }

    /// Asks for experts as long as there is room for them beside those `in_use`.
    fn request(
        &mut self,
        absent: &mut std::iter::Peekable<impl Iterator<Item = usize>>,
        in_use: &[usize],
    ) {
        while let Some(&index) = absent.peek() {
            let bytes = self.sources[index].ram_bytes();
            let keep = |index| in_use.contains(&index);
            if self.reader.pending() >= MAX_PENDING
                || !self.residency.promise(bytes, &self.policy, keep)
            {
                return;
            }
            self.reader.request(index);
            absent.next();
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
