//! The experts that a device holds, above those in RAM.
//!
//! Owns: which experts are there, the account of its memory, the batch under way. Does not own: the
//! device (`gpu`), RAM (`residency`), how often an expert is taken (`policy`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::policy::Policy;
use crate::error::human_bytes;
use crate::expert::Expert;
use crate::gpu::{Device, Fault, Work};
use crate::telemetry::DeviceStatus;

/// Uploads under way at the same time: while one is copied, the next is prepared.
const MAX_UPLOADS: usize = 2;
/// Most experts that are chosen in a step to go to the device, and most that are given up for them.
const MAX_MOVES: usize = 32;
/// An expert takes another's place if it is taken by this share of rows more: 8 of the 512 rows
/// after which a use counts half (`policy`). An upload has to save that many uses elsewhere.
const LEAD: f32 = 1.0 / 64.0;

/// A device and what is on it.
pub struct Vram {
    device: Box<dyn Device>,
    /// Bytes of each expert that is there.
    held: BTreeMap<usize, u64>,
    held_bytes: u64,
    /// Bytes of each expert that is being copied there.
    uploading: BTreeMap<usize, u64>,
    /// Most bytes of both.
    limit_bytes: u64,
    /// Experts in RAM that this step brings there, by the share of rows that take them, the
    /// hottest last.
    candidates: Vec<(f32, usize)>,
    /// Experts there that this step may give up, the coldest last.
    victims: Vec<(f32, usize)>,
    /// Whether a batch was begun and is not collected.
    is_computing: bool,
}

impl Vram {
    /// A device that holds nothing.
    pub fn new(device: Box<dyn Device>) -> Self {
        Self {
            limit_bytes: device.budget_bytes(),
            device,
            held: BTreeMap::new(),
            held_bytes: 0,
            uploading: BTreeMap::new(),
            candidates: Vec::new(),
            victims: Vec::new(),
            is_computing: false,
        }
    }

    /// Whether the expert can be computed there.
    pub fn holds(&self, index: usize) -> bool {
        self.held.contains_key(&index)
    }

    /// Whether the expert is being copied there, so that it has to stay in RAM.
    pub fn is_uploading(&self, index: usize) -> bool {
        self.uploading.contains_key(&index)
    }

    /// Experts there.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no expert is there.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Bytes of the experts there.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes of this process' own memory that experts there take.
    pub fn bytes_here(&self) -> u64 {
        self.device.bytes_here()
    }

    /// What is told of the device.
    pub fn status(&self) -> DeviceStatus {
        DeviceStatus {
            name: self.device.name().to_owned(),
            total_bytes: self.device.total_bytes(),
            used_bytes: self.device.used_bytes(),
            experts: self.held.len(),
        }
    }

    /// Chooses, for a step, which of `n` experts go to the device, of those that `is_in_ram` has.
    pub fn plan(&mut self, n: usize, policy: &Policy, is_in_ram: impl Fn(usize) -> bool) {
        let share = |index| (policy.frequency(index), index);
        let candidates = (0..n).filter(|&i| is_in_ram(i) && !self.is_uploading(i)).map(share);
        self.candidates = largest_last(candidates.filter(|(share, _)| *share > 0.0));
        let coldness = |&index: &usize| (-policy.frequency(index), index);
        self.victims = largest_last(self.held.keys().map(coldness));
    }

    /// Begins to copy the hottest of those that the step has chosen, as many as may be on their way,
    /// and gives up colder experts for them; adds those to `demoted`. `in_ram`: the expert, if it is
    /// in RAM still.
    ///
    /// # Errors
    /// The device's own.
    pub fn promote(
        &mut self,
        in_ram: impl Fn(usize) -> Option<Arc<Expert>>,
        demoted: &mut Vec<usize>,
    ) -> Result<(), Fault> {
        while self.uploading.len() < MAX_UPLOADS
            && let Some((share, index)) = self.candidates.pop()
        {
            let Some(expert) = in_ram(index) else { continue };
            let Some(bytes) = self.device.expert_bytes(&expert) else { continue };
            if self.make_room(bytes, share, demoted) {
                self.device.upload(index, expert)?;
                self.uploading.insert(index, bytes);
            }
        }
        Ok(())
    }

    /// Gives up experts until there are `bytes` for one that this `share` of rows takes. False, and
    /// nothing is given up, if those to give up are not that much colder.
    fn make_room(&mut self, bytes: u64, share: f32, demoted: &mut Vec<usize>) -> bool {
        let taken = self.held_bytes + self.uploading.values().sum::<u64>();
        let mut room = self.limit_bytes.saturating_sub(taken);
        let mut kept = self.victims.len();
        while room < bytes {
            let coldest = kept.checked_sub(1).map(|last| self.victims[last]);
            let Some((_, victim)) = coldest.filter(|(coldness, _)| share + coldness >= LEAD) else {
                return false;
            };
            room += self.held[&victim];
            kept -= 1;
        }
        for (_, victim) in self.victims.drain(kept..) {
            self.device.release(victim);
            self.held_bytes -= self.held.remove(&victim).expect("victims are held");
            demoted.push(victim);
        }
        true
    }

    /// The next expert that has come to the device, or why one did not; `wait`s for it if asked to.
    /// None if there is none.
    pub fn uploaded(&mut self, wait: bool) -> Option<Result<usize, Fault>> {
        let (index, ended) = self.device.uploaded(wait)?;
        let bytes = self.uploading.remove(&index).expect("its upload was begun");
        Some(ended.map(|()| {
            self.held.insert(index, bytes);
            self.held_bytes += bytes;
            index
        }))
    }

    /// Takes no more memory than is taken now, since the device has no more. What there is to say,
    /// the first time.
    pub fn stop_growing(&mut self) -> Option<String> {
        let is_first = self.limit_bytes == self.device.budget_bytes();
        self.limit_bytes = self.held_bytes + self.uploading.values().sum::<u64>();
        is_first.then(|| {
            format!(
                "{} is out of memory with {} experts on it, before the {} that it was to give; \
                 it gets no more",
                self.device.name(),
                self.held.len(),
                human_bytes(self.device.budget_bytes())
            )
        })
    }

    /// What there is to say of the end of the device.
    pub fn obituary(&self, fault: &Fault) -> String {
        format!(
            "{} is lost: {fault}; from now on the processor computes its {} experts",
            self.device.name(),
            self.held.len()
        )
    }

    /// Begins to compute `work` for rows of `x` `[rows][hidden]`.
    ///
    /// # Errors
    /// The device's own.
    pub fn submit(&mut self, x: &[f32], work: &[Work]) -> Result<(), Fault> {
        if self.is_computing {
            // A panic elsewhere kept the last batch from being collected.
            self.collect()?;
        }
        self.device.submit(x, work)?;
        self.is_computing = true;
        Ok(())
    }

    /// Waits for what was begun; see [`Device::collect`].
    ///
    /// # Errors
    /// The device's own.
    pub fn collect(&mut self) -> Result<Vec<Vec<f32>>, Fault> {
        self.is_computing = false;
        self.device.collect()
    }
}

/// The [`MAX_MOVES`] largest, in ascending order.
fn largest_last(found: impl Iterator<Item = (f32, usize)>) -> Vec<(f32, usize)> {
    let by_value = |a: &(f32, usize), b: &(f32, usize)| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1));
    let mut found: Vec<_> = found.collect();
    if found.len() > MAX_MOVES {
        let rest = found.len() - MAX_MOVES;
        found.select_nth_unstable_by(rest, by_value);
        found.drain(..rest);
    }
    found.sort_unstable_by(by_value);
    found
}
