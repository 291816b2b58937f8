//! The routed experts: on disk always, in RAM where there is room.
//!
//! Owns: fetching, running and accounting for experts; placement decides speed only. Does not own:
//! which experts a row takes (`model::router`), the dense part.

pub mod dispatch;
#[cfg(test)]
mod explore;
pub mod heat;
pub mod history;
pub mod policy;
pub mod reader;
pub mod replay;
pub mod residency;
pub mod shadow;
mod sync;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::store::{Catalog, MatrixSource, VectorSource};
use crate::telemetry::{Served, Tiers, Traffic};
pub use dispatch::{Routed, Tools};
use heat::Heat;
use policy::Policy;
use reader::{Reader, THREADS};
use residency::Residency;

/// What an expert does between its products.
#[derive(Clone, Copy, Debug)]
pub enum Activation {
    /// silu(gate) up
    SwiGlu,
    /// (up + 1) gate sigmoid(alpha gate), where gate is at most `limit` and up within it.
    Clamped {
        /// Steepness of the gate.
        alpha: f32,
        /// Bound of both.
        limit: f32,
    },
}

/// What is added to each product of an expert.
#[derive(Clone, Debug)]
pub struct Biases<T> {
    /// To [`Expert::gate`], `[expert width]`.
    pub gate: T,
    /// To [`Expert::up`], `[expert width]`.
    pub up: T,
    /// To [`Expert::down`], `[hidden]`.
    pub down: T,
}

/// One expert's weights in memory.
pub struct Expert {
    /// `[expert width, hidden]`
    pub gate: Matrix,
    /// `[expert width, hidden]`
    pub up: Matrix,
    /// `[hidden, expert width]`
    pub down: Matrix,
    /// What is added to the products, if anything is.
    pub biases: Option<Biases<Vec<f32>>>,
    /// What is done between them.
    pub activation: Activation,
}

impl Expert {
    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        let biases = self.biases.as_ref().map_or(0, |b| b.gate.len() + b.up.len() + b.down.len());
        let matrices = self.gate.bytes() + self.up.bytes() + self.down.bytes();
        (matrices + biases * size_of::<f32>()) as u64
    }
}

/// One expert's weights on disk.
#[derive(Clone, Debug)]
pub struct ExpertSource {
    /// See [`Expert::gate`].
    pub gate: MatrixSource,
    /// See [`Expert::up`].
    pub up: MatrixSource,
    /// See [`Expert::down`].
    pub down: MatrixSource,
    /// See [`Expert::biases`].
    pub biases: Option<Biases<VectorSource>>,
    /// See [`Expert::activation`].
    pub activation: Activation,
}

impl ExpertSource {
    fn load(&self, catalog: &Catalog) -> Result<Expert> {
        let [gate, up, down] = MatrixSource::load_all([&self.gate, &self.up, &self.down], catalog)?;
        let biases = match &self.biases {
            None => None,
            Some(Biases { gate, up, down }) => Some(Biases {
                gate: gate.load(catalog)?,
                up: up.load(catalog)?,
                down: down.load(catalog)?,
            }),
        };
        Ok(Expert { gate, up, down, biases, activation: self.activation })
    }

    /// Bytes in memory once loaded.
    pub fn ram_bytes(&self) -> u64 {
        self.sum(MatrixSource::ram_bytes, VectorSource::ram_bytes)
    }

    /// Bytes read to load it.
    pub fn disk_bytes(&self) -> u64 {
        self.sum(MatrixSource::disk_bytes, VectorSource::disk_bytes)
    }

    fn sum(
        &self,
        matrix: impl Fn(&MatrixSource) -> usize,
        vector: impl Fn(&VectorSource) -> usize,
    ) -> u64 {
        let matrices: usize = [&self.gate, &self.up, &self.down].into_iter().map(matrix).sum();
        let biases = self.biases.as_ref().map(|b| [&b.gate, &b.up, &b.down]);
        let biases: usize = biases.into_iter().flatten().map(vector).sum();
        (matrices + biases) as u64
    }
}

/// All routed experts of a model.
pub struct ExpertStore {
    /// `[rows][cols]`: row n is the n-th sparse layer.
    sources: Arc<[ExpertSource]>,
    rows: usize,
    cols: usize,
    residency: Residency<Expert>,
    policy: Policy,
    reader: Reader<Expert>,
    /// Experts that memory is promised to until they are read.
    pending: BTreeSet<usize>,
    /// Experts in memory that were read before anything needed them, and were not used since.
    unused: BTreeSet<usize>,
    heat: Heat,
    bytes_read: u64,
    total_bytes: u64,
}

impl ExpertStore {
    /// A store over `sources` `[rows][cols]` that keeps at most `budget_bytes` in RAM.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if the budget does not hold the `top_k` experts one row needs.
    ///
    /// # Panics
    /// If `sources` is not a whole number of rows.
    pub fn new(
        catalog: &Arc<Catalog>,
        sources: Vec<ExpertSource>,
        cols: usize,
        top_k: usize,
        budget_bytes: u64,
    ) -> Result<Self> {
        assert_eq!(sources.len() % cols.max(1), 0, "whole rows of the expert map");
        let largest = sources.iter().map(ExpertSource::ram_bytes).max().unwrap_or(0);
        let floor = largest * top_k as u64;
        if budget_bytes < floor {
            return Err(Error::DoesNotFit {
                what: format!("cannot keep the {top_k} experts of one token in memory"),
                need_bytes: floor,
                have_bytes: budget_bytes,
                hint: "raise --ram, or lower --ctx or --slots".into(),
            });
        }
        let rows = sources.len().checked_div(cols).unwrap_or(0);
        let sources: Arc<[ExpertSource]> = sources.into();
        let (read_from, to_read) = (Arc::clone(catalog), Arc::clone(&sources));
        Ok(Self {
            rows,
            cols,
            residency: Residency::new(rows, cols, top_k, budget_bytes),
            policy: Policy::new(rows, cols, top_k),
            reader: Reader::new(THREADS.min(sources.len()), move |index| {
                to_read[index].load(&read_from)
            }),
            pending: BTreeSet::new(),
            unused: BTreeSet::new(),
            heat: Heat::new(sources.len()),
            total_bytes: sources.iter().map(ExpertSource::ram_bytes).sum(),
            sources,
            bytes_read: 0,
        })
    }

    /// Sparse layers and experts in each.
    pub fn geometry(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Bytes of all experts once loaded.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes that all experts take on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.sources.iter().map(ExpertSource::disk_bytes).sum()
    }

    /// Whether the budget holds all of them, so that none is ever given up.
    fn holds_all(&self) -> bool {
        self.total_bytes <= self.budget_bytes()
    }

    /// Most bytes of experts that may be in RAM.
    pub fn budget_bytes(&self) -> u64 {
        self.residency.budget_bytes()
    }

    /// Bytes of experts read from disk so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// How uses were served so far, and what was read.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            uses: self.heat.uses(),
            bytes_read: self.bytes_read,
            reading: self.reader.reading(),
        }
    }

    /// Where the expert is for a use of it now, which takes it off those read ahead.
    fn served(&mut self, index: usize) -> Served {
        let was_unused = self.unused.remove(&index);
        match (self.residency.contains(index), was_unused) {
            (false, _) => Served::Missed,
            (true, true) => Served::Ahead,
            (true, false) => Served::Cached,
        }
    }

    /// Selection counters.
    pub fn heat(&self) -> &Heat {
        &self.heat
    }

    /// Takes the counts of earlier runs, one an expert: they add to the heat, are what the policy
    /// begins with, and say what is read ahead, beside whatever else is done.
    ///
    /// # Panics
    /// If there are more or fewer counts than experts.
    pub fn remember(&mut self, counts: &[u64]) {
        assert_eq!(counts.len(), self.sources.len(), "a count for each expert");
        self.heat.remember(counts);
        self.policy.remember(counts);
        let mut used: Vec<usize> = (0..counts.len()).filter(|&index| counts[index] > 0).collect();
        used.sort_by_key(|&index| std::cmp::Reverse(counts[index]));
        self.read_ahead(used.into_iter());
    }

    /// See [`Heat::take_hits`].
    pub fn take_hits(&mut self) -> Vec<u8> {
        self.heat.take_hits()
    }

    /// Experts per tier.
    pub fn tiers(&self) -> Tiers {
        let ram = self.residency.len();
        Tiers {
            vram: 0,
            ram,
            disk: self.sources.len() - ram,
            vram_bytes: 0,
            ram_bytes: self.residency.used_bytes(),
        }
    }

    /// The expert map, one byte an expert: `tier << 6 | heat level`.
    pub fn map(&self) -> Vec<u8> {
        (0..self.sources.len())
            .map(|i| u8::from(self.residency.contains(i)) << 6 | self.heat.level(i))
            .collect()
    }
}
