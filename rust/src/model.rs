//! Models: operations that families share, and one file a family that composes them.
//!
//! Owns: the mathematics of a forward pass. Does not own: where experts are (`experts`), which
//! rows a step has (`engine`).

mod ahead;
pub mod arch;
pub mod attention;
mod decoder;
mod dsa;
mod ffn;
mod gqa;
mod linear_attention;
mod loader;
mod mla;
mod mtp;
mod rope;
mod router;
mod summary;
mod survey;
mod working;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::experts::ExpertSource;
use crate::kernels::Kernels;
use crate::kv::{KvSlot, LayerLayout, Precision};
use crate::store::Catalog;
use crate::telemetry::Phases;
use crate::threads::Team;
pub use decoder::{Decoder, Logits};
pub use dsa::Selection;
pub use loader::Loader;
pub use mtp::{Mtp, Predicted};
pub use summary::summary;
pub use survey::Survey;

/// One token position of one sequence within a step.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// KV slot of the sequence.
    pub slot: usize,
    /// Position in the sequence.
    pub position: usize,
    /// The token there.
    pub token: u32,
}

/// The router's choices of a forward pass, kept where somebody asked for them.
#[derive(Debug, Default)]
pub struct Trace {
    /// `[sparse layers][rows]`, filled layer by layer.
    pub choices: Vec<Vec<crate::experts::Routed>>,
}

/// Everything one forward pass works with besides the weights.
pub struct Step<'a> {
    /// Compute kernels.
    pub kernels: &'a Kernels,
    /// Worker threads.
    pub team: &'a Team,
    /// Rows to compute; those of one slot are consecutive and in ascending positions.
    pub rows: &'a [Row],
    /// All KV slots.
    pub slots: &'a mut [KvSlot],
    /// Routed experts.
    pub experts: &'a mut crate::experts::ExpertStore,
    /// Timers to add to.
    pub phases: &'a mut Phases,
    /// Where to record routing, if wanted.
    pub trace: Option<&'a mut Trace>,
    /// Where to put the normed states of all rows, `[rows][hidden]`, if they are wanted.
    pub states: Option<&'a mut Vec<f32>>,
    /// Positions each row attends to, as the last indexer chose; latent attention fills it.
    pub selection: Vec<Selection>,
    /// Asked between layers and while experts are waited for; true abandons the pass.
    pub interrupted: &'a mut dyn FnMut() -> bool,
}

/// A loaded model without its routed experts.
pub struct Model {
    /// The dense part and the mathematics.
    pub decoder: Decoder,
    /// Routed experts on disk, `[sparse layers][experts]`.
    pub experts: Vec<ExpertSource>,
    /// Experts of one sparse layer; 0 for a dense model.
    pub n_experts: usize,
    /// Experts a row takes.
    pub top_k: usize,
    /// Layer number of each row of the expert map, that of [`Decoder::mtp`] included.
    pub sparse_layers: Vec<usize>,
    /// Most positions the model was made for.
    pub max_positions: usize,
    /// Ids of the tokens that end an answer.
    pub eos_ids: Vec<u32>,
    /// In what conversations keep keys and values.
    pub precision: Precision,
    /// What the loader noticed, one line each.
    pub notices: Vec<String>,
    /// Files of the model.
    pub catalog: Arc<Catalog>,
}

impl Model {
    /// What each layer keeps of a conversation.
    pub fn layouts(&self) -> Vec<LayerLayout> {
        let layouts = self.decoder.layouts().into_iter();
        layouts.map(|layout| layout.kept_in(self.precision)).collect()
    }
}

/// Refuses a value that is not finite, naming where it appeared.
fn check_finite(
    what: &'static str,
    values: &[f32],
    width: usize,
    layer: usize,
    rows: &[Row],
) -> Result<()> {
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(i) => Err(Error::NonFinite { what, layer, position: rows[i / width].position }),
    }
}
