//! The routed experts: on disk always, in RAM or on a device where there is room.
//!
//! Owns: fetching, running and accounting for experts; placement decides speed only. Does not own:
//! which experts a row takes (`model::router`), the dense part.

pub mod dispatch;
#[cfg(test)]
mod explore;
pub mod guard;
pub mod hang;
pub mod heat;
pub mod history;
pub mod policy;
pub mod prefetch;
pub mod reader;
pub mod replay;
pub mod residency;
pub mod shadow;
mod sync;
pub mod vram;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
pub use crate::expert::{Activation, Biases, Expert};
use crate::gpu::Device;
use crate::store::calls::Calls;
use crate::store::{Catalog, MatrixSource, VectorSource, abandonable};
use crate::telemetry::{DeviceStatus, Served, Tiers, Traffic};
pub use dispatch::{Course, Routed, Tools};
use heat::Heat;
use policy::Policy;
use prefetch::Prefetch;
use reader::{Reader, THREADS};
use residency::Residency;
use vram::Vram;

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

    /// Most bytes that loading it takes at a time besides the expert itself.
    fn passing_bytes(&self) -> u64 {
        let matrices = [&self.gate, &self.up, &self.down].map(MatrixSource::passing_bytes);
        matrices.into_iter().max().unwrap_or(0) as u64
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

/// Most bytes that reading any of `sources` on `threads` threads takes besides the experts themselves.
pub fn passing_bytes(sources: &[ExpertSource], threads: usize) -> u64 {
    let largest = sources.iter().map(ExpertSource::passing_bytes).max().unwrap_or(0);
    largest.saturating_mul(threads.min(sources.len()) as u64)
}

/// Starts `threads` threads that read experts.
fn start_reading(
    catalog: &Arc<Catalog>,
    sources: &Arc<[ExpertSource]>,
    calls: &Arc<Calls>,
    threads: usize,
) -> Reader<Expert> {
    let (catalog, sources, calls) = (Arc::clone(catalog), Arc::clone(sources), Arc::clone(calls));
    Reader::new(threads.min(sources.len()), move |index, needless| {
        let load = || sources[index].load(&catalog);
        calls.watch(index, || match needless {
            None => load(),
            Some(needless) => abandonable(needless, load),
        })
    })
}

/// All routed experts of a model.
pub struct ExpertStore {
    /// `[rows][cols]`: row n is the n-th sparse layer.
    sources: Arc<[ExpertSource]>,
    rows: usize,
    cols: usize,
    residency: Residency<Expert>,
    policy: Policy,
    catalog: Arc<Catalog>,
    reader: Reader<Expert>,
    /// What its threads wait for, by expert.
    calls: Arc<Calls>,
    /// Longest time that a read is waited for.
    read_limit: Duration,
    /// When it was last told what is waited for.
    told_of_waiting: Option<Instant>,
    /// The tier above RAM, of a device that works.
    vram: Option<Vram>,
    /// Experts that memory is promised to until they are read.
    pending: BTreeSet<usize>,
    /// Experts to read ahead once RAM has room for them, the next one first.
    ahead: VecDeque<usize>,
    /// Experts in memory that were read before anything needed them, and were not used since.
    unused: BTreeSet<usize>,
    prefetch: Prefetch,
    /// Whether all experts are records, which are read to where they stay.
    are_records: bool,
    heat: Heat,
    total_bytes: u64,
    /// What happened that nobody was told of.
    notices: Vec<String>,
    /// Bytes of the experts of one row.
    floor_bytes: u64,
    /// Most bytes that [`Self::limit`] may allow.
    most_bytes: u64,
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
        let calls = Arc::new(Calls::default());
        Ok(Self {
            rows,
            cols,
            residency: Residency::new(rows, cols, top_k, budget_bytes),
            policy: Policy::new(rows, cols, top_k),
            catalog: Arc::clone(catalog),
            reader: start_reading(catalog, &sources, &calls, THREADS),
            calls,
            read_limit: hang::READ_LIMIT,
            told_of_waiting: None,
            vram: None,
            pending: BTreeSet::new(),
            ahead: VecDeque::new(),
            unused: BTreeSet::new(),
            prefetch: Prefetch::new(top_k),
            are_records: sources.iter().all(|source| source.gate.is_record()),
            heat: Heat::new(sources.len()),
            total_bytes: sources.iter().map(ExpertSource::ram_bytes).sum(),
            sources,
            notices: Vec::new(),
            floor_bytes: floor,
            most_bytes: budget_bytes,
        })
    }

    /// Keeps the hottest experts on `device` from now on, as many as it takes.
    pub fn use_device(&mut self, device: Box<dyn Device>) {
        self.vram = Some(Vram::new(device));
    }

    /// Has experts read by `threads` threads from now on. Not while any are being read.
    pub fn read_on(&mut self, threads: usize) {
        if threads != THREADS {
            self.reader = start_reading(&self.catalog, &self.sources, &self.calls, threads);
        }
    }

    /// Bytes of this process' memory that a device takes which is a part of it.
    pub fn device_bytes_here(&self) -> u64 {
        self.vram.as_ref().map_or(0, Vram::bytes_here)
    }

    /// The device, if there is one that works.
    pub fn device(&self) -> Option<DeviceStatus> {
        self.vram.as_ref().map(Vram::status)
    }

    /// What happened since the last call that somebody has to be told, one line each.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
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
    pub fn holds_all(&self) -> bool {
        self.total_bytes <= self.budget_bytes()
    }

    /// Most bytes of experts that may be in RAM now.
    pub fn budget_bytes(&self) -> u64 {
        self.residency.budget_bytes()
    }

    /// Most bytes of experts that may ever be in RAM.
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// Bytes of experts below which nothing can be computed.
    pub fn floor_bytes(&self) -> u64 {
        self.floor_bytes
    }

    /// Bytes of experts read from disk so far, also of those that were given up meanwhile.
    pub fn bytes_read(&self) -> u64 {
        self.catalog.bytes_read().experts
    }

    /// How uses were served so far, and what was read.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            uses: self.heat.uses(),
            bytes_read: self.bytes_read(),
            reading: self.reader.reading(),
        }
    }

    /// Where the expert is for a use of it now, which takes it off those read ahead.
    fn served(&mut self, index: usize) -> Served {
        let was_unused = self.unused.remove(&index);
        match (self.residency.contains(index), was_unused) {
            _ if self.is_on_device(index) => Served::Vram,
            (false, _) => Served::Missed,
            (true, true) => Served::Ahead,
            (true, false) => Served::Cached,
        }
    }

    fn is_on_device(&self, index: usize) -> bool {
        self.vram.as_ref().is_some_and(|vram| vram.holds(index))
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
        self.ahead = used.into();
        self.read_ahead();
    }

    /// See [`Heat::take_hits`].
    pub fn take_hits(&mut self) -> Vec<u8> {
        self.heat.take_hits()
    }

    /// Experts per tier.
    pub fn tiers(&self) -> Tiers {
        // What has come to the device has left RAM.
        let (vram, ram) = (self.vram.as_ref().map_or(0, Vram::len), self.residency.len());
        Tiers {
            vram,
            ram,
            disk: self.sources.len() - ram - vram,
            vram_bytes: self.vram.as_ref().map_or(0, Vram::held_bytes),
            ram_bytes: self.residency.used_bytes(),
        }
    }

    /// The expert map, one byte an expert: `tier << 6 | heat level`.
    pub fn map(&self) -> Vec<u8> {
        let tier = |index| {
            if self.is_on_device(index) { 2 } else { u8::from(self.residency.contains(index)) }
        };
        (0..self.sources.len()).map(|i| tier(i) << 6 | self.heat.level(i)).collect()
    }
}
