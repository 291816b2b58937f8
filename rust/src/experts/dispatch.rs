//! Running the experts of one layer for all rows of a step.
//!
//! Each distinct expert is fetched once a step, however many rows chose it. Rows are summed in
//! router-rank order whatever order the experts arrived in, so that placement cannot show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Activation, Expert, ExpertStore};
use crate::error::Result;
use crate::kernels::{Kernels, add_bias};
use crate::telemetry::{Phases, timed};
use crate::threads::Team;

/// Most experts fetched before their work starts; bounds memory beyond the budget.
const WAVE: usize = 64;

/// The router's choice for one row, in rank order.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    /// Chosen experts, best first.
    pub experts: Vec<usize>,
    /// Weight of each one's output.
    pub weights: Vec<f32>,
}

/// One expert's share of a step.
struct Task {
    expert: Arc<Expert>,
    /// (row, rank) of each selection.
    selections: Vec<(usize, usize)>,
}

impl ExpertStore {
    /// The weighted sum of the chosen experts for each row.
    ///
    /// `x`: `[rows][hidden]`; `routed`: one choice a row, all of the same length. Returns
    /// `[rows][hidden]`.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if an expert cannot be read.
    pub fn run(
        &mut self,
        map_row: usize,
        x: &[f32],
        routed: &[Routed],
        kernels: &Kernels,
        team: &Team,
        phases: &mut Phases,
    ) -> Result<Vec<f32>> {
        let hidden = x.len() / routed.len();
        let top_k = routed[0].experts.len();
        let mut union: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for (row, choice) in routed.iter().enumerate() {
            for (rank, &expert) in choice.experts.iter().enumerate() {
                union.entry(map_row * self.cols + expert).or_default().push((row, rank));
            }
        }
        for (&index, selections) in &union {
            self.heat.select(index, selections.len() as u64, self.residency.contains(index));
        }
        let mut outputs = Vec::with_capacity(union.len());
        // Where in `outputs` each selection's finished row is: [row][rank] -> (expert, row of it).
        let mut places = vec![(0, 0); routed.len() * top_k];
        let union: Vec<_> = union.into_iter().collect();
        for wave in union.chunks(self.wave_len()) {
            let tasks = self.fetch(wave, team, phases)?;
            let rows = wave.iter().map(|(_, selections)| selections.len()).sum::<usize>();
            let work = rows * tasks[0].expert.gate.n_out * hidden * 3;
            for (i, task) in tasks.iter().enumerate() {
                for (n, &(row, rank)) in task.selections.iter().enumerate() {
                    places[row * top_k + rank] = (outputs.len() + i, n);
                }
            }
            outputs.extend(timed(&mut phases.expert_matmul, || {
                team.map(&tasks, work, |task| task.run(x, hidden, kernels))
            }));
        }
        let mut sums = vec![0.0f32; x.len()];
        team.for_each_chunk(&mut sums, hidden, x.len() * top_k, |row, sum| {
            let places = &places[row * top_k..][..top_k];
            for (&weight, &(expert, n)) in routed[row].weights.iter().zip(places) {
                kernels.add_scaled(sum, weight, &outputs[expert][n * hidden..][..hidden]);
            }
        });
        Ok(sums)
    }

    /// Experts that may be held at once without leaving the budget far behind.
    fn wave_len(&self) -> usize {
        (self.budget_bytes() / self.largest_bytes.max(1)).clamp(1, WAVE as u64) as usize
    }

    /// Brings a wave's experts into RAM: those already there at once, the others read in parallel.
    fn fetch(
        &mut self,
        wave: &[(usize, Vec<(usize, usize)>)],
        team: &Team,
        phases: &mut Phases,
    ) -> Result<Vec<Task>> {
        let resident: Vec<Option<Arc<Expert>>> =
            wave.iter().map(|(index, _)| self.residency.get(*index)).collect();
        let missing: Vec<usize> = wave
            .iter()
            .zip(&resident)
            .filter(|(_, resident)| resident.is_none())
            .map(|((index, _), _)| *index)
            .collect();
        let mut read = Vec::new().into_iter();
        if !missing.is_empty() {
            let start = Instant::now();
            let loaded: Vec<(Result<Expert>, Duration)> =
                team.map(&missing, usize::MAX, |&index| {
                    let start = Instant::now();
                    (self.sources[index].load(&self.catalog), start.elapsed())
                });
            phases.expert_wait += start.elapsed();
            let mut experts = Vec::with_capacity(missing.len());
            for (&index, (expert, service)) in missing.iter().zip(loaded) {
                phases.expert_disk += service;
                let expert = Arc::new(expert?);
                self.bytes_read += self.sources[index].disk_bytes();
                self.residency.insert(index, Arc::clone(&expert));
                experts.push(expert);
            }
            read = experts.into_iter();
        }
        Ok(wave
            .iter()
            .zip(resident)
            .map(|((_, selections), resident)| Task {
                expert: resident
                    .or_else(|| read.next())
                    .expect("every expert that was not resident was read"),
                selections: selections.clone(),
            })
            .collect())
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
