//! A device with memory of its own that holds experts and computes them: what it must do, and
//! which ones there are.
//!
//! Owns: the interface. Does not own: which experts are on a device (`experts::vram`), the
//! arithmetic of an expert (`expert`), whose bits a device gives too. Why it is so:
//! `docs/design/0015-device-tier.md`.

pub mod host;

use std::sync::Arc;

use crate::cpu::Isa;
use crate::error::{Error, Result};
use crate::expert::Expert;
use host::HostDevice;

/// Why a device did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no memory for it; what the device holds is as it was.
    #[error("out of memory")]
    OutOfMemory,
    /// The device is of no use any more, for this reason. It is dropped then.
    #[error("{0}")]
    Lost(String),
}

/// What one expert is to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The key that the expert was uploaded under.
    pub key: usize,
    /// Rows of the batch's input that take it, ascending.
    pub rows: Vec<u32>,
}

/// Memory that holds experts, and what computes them there.
///
/// One thread calls it. Copies and computing go on beside that thread, and beside each other:
/// [`Device::upload`] and [`Device::submit`] only begin. A device keeps whatever else it needs
/// (buffers for rows, for copies) outside of its budget, for batches of any size.
pub trait Device: Send {
    /// What people know it by.
    fn name(&self) -> &str;

    /// Bytes of memory it has.
    fn total_bytes(&self) -> u64;

    /// Most bytes of them that experts may take; never changes.
    fn budget_bytes(&self) -> u64;

    /// Bytes that experts take, those included whose upload has begun.
    fn used_bytes(&self) -> u64;

    /// Of these, bytes in the memory of this process; none of a device that has its own.
    fn bytes_here(&self) -> u64 {
        0
    }

    /// Bytes of the budget that `expert` would take; none if the device cannot compute it to the bit.
    fn expert_bytes(&self, expert: &Expert) -> Option<u64>;

    /// Begins to copy `expert`, known as `key` from now on. It does not change while it is copied,
    /// and stays in memory at least until the device lets go of it.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] if it does not fit: into the budget, or into pieces that are free.
    ///
    /// # Panics
    /// May, if `key` is in use or [`Self::expert_bytes`] is none.
    fn upload(&mut self, key: usize, expert: Arc<Expert>) -> Result<(), Fault>;

    /// The next upload that has ended, and how; `wait`s for it if asked to. None if there is none,
    /// in particular if none was begun.
    fn uploaded(&mut self, wait: bool) -> Option<(usize, Result<(), Fault>)>;

    /// Gives up an expert whose upload has ended well. Not called while a batch is under way.
    fn release(&mut self, key: usize);

    /// Begins to compute `work`, of experts that are there, one or more. `x` is `[rows][hidden]`, and
    /// may change once this returns. The batch before was collected.
    ///
    /// # Errors
    /// Any: the device is taken for lost, and the experts are computed elsewhere.
    fn submit(&mut self, x: &[f32], work: &[Work]) -> Result<(), Fault>;

    /// Waits for the batch; for each of its `work` in order, the expert's output `[rows][hidden]`, with
    /// the bits of [`Expert::forward`].
    ///
    /// # Errors
    /// As those of [`Self::submit`].
    fn collect(&mut self) -> Result<Vec<Vec<f32>>, Fault>;
}

/// The kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceKind {
    /// A part of this machine's own memory, for tests and measurements.
    Host,
}

impl DeviceKind {
    /// Whether its memory is this process' own, so that what is available for both is shared.
    pub fn is_own_memory(self) -> bool {
        matches!(self, Self::Host)
    }

    /// What `COLIBRI_DEVICE` names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
        }
    }

    /// Bytes for experts that a device opened with these would have.
    ///
    /// # Errors
    /// [`Error::Setting`] if it needs a budget and none is given.
    pub fn budget_bytes(self, asked: Option<u64>) -> Result<u64> {
        match (self, asked) {
            (Self::Host, Some(bytes)) => Ok(bytes),
            (Self::Host, None) => Err(Error::Setting {
                name: "COLIBRI_DEVICE (--device)".into(),
                reason: "host is a part of memory whose size --vram GB (VRAM_GB) must say".into(),
            }),
        }
    }

    /// Opens the device, with at most `budget_bytes` for experts; `isa` is what the CPU computes with.
    ///
    /// # Errors
    /// As [`Self::budget_bytes`].
    pub fn open(self, asked: Option<u64>, isa: Isa) -> Result<Box<dyn Device>> {
        let bytes = self.budget_bytes(asked)?;
        match self {
            Self::Host => Ok(Box::new(HostDevice::new(bytes, isa))),
        }
    }
}
