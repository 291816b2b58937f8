//! What all attention forms share: projections with bias, and attending to a slot's keys.

mod walk;

use super::{Row, Step};
use crate::error::Result;
use crate::kernels::{KV_BLOCK, Kernels, Softmax, add_bias};
use crate::kv::{KvLayout, KvSlot, LayerLayout};
use crate::matrix::Matrix;
use crate::threads::Team;
pub use walk::UNMERGED;
use walk::{Seen, attend_blocks};

/// A linear map with an optional bias.
pub struct Linear {
    /// `[n_out, n_in]`
    pub weight: Matrix,
    /// `[n_out]`
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    /// `[rows][n_in]` to `[rows][n_out]`.
    pub fn forward(&self, kernels: &Kernels, team: &Team, x: &[f32]) -> Vec<f32> {
        let mut y = kernels.matmul(team, &self.weight, x);
        if let Some(bias) = &self.bias {
            add_bias(&mut y, bias);
        }
        y
    }
}

/// One layer's attention.
#[allow(clippy::large_enum_variant, reason = "there is one a layer")]
pub enum Attention {
    /// Grouped-query attention.
    Gqa(super::gqa::Gqa),
    /// Multi-head latent attention.
    Mla(super::mla::Mla),
    /// Recurrent attention.
    Linear(super::linear_attention::LinearAttention),
}

impl Attention {
    /// What the layer keeps of a conversation.
    pub fn layout(&self) -> LayerLayout {
        match self {
            Self::Gqa(gqa) => LayerLayout::Positions(gqa.kv_layout()),
            Self::Mla(mla) => LayerLayout::Positions(mla.kv_layout()),
            Self::Linear(linear) => LayerLayout::State(linear.state_layout()),
        }
    }

    /// Adds what the rows leave behind to their slots, and no more.
    ///
    /// # Panics
    /// If that is a state.
    pub fn write_keys(&self, layer: usize, x: &[f32], step: &mut Step) {
        match self {
            Self::Gqa(gqa) => gqa.write_keys(layer, x, step),
            Self::Mla(mla) => mla.write_keys(layer, x, step),
            Self::Linear(_) => panic!("layer {layer} has no keys"),
        }
    }

    /// Adds what the rows leave behind to their slots and attends: `[rows][hidden]` in and out.
    ///
    /// # Errors
    /// [`crate::Error::NonFinite`] where positions are chosen by scores that are not finite.
    pub fn forward(&self, layer: usize, x: &[f32], step: &mut Step) -> Result<Vec<f32>> {
        match self {
            Self::Gqa(gqa) => Ok(gqa.forward(layer, x, step)),
            Self::Mla(mla) => mla.forward(layer, x, step),
            Self::Linear(linear) => Ok(linear.forward(layer, x, step)),
        }
    }
}

/// What one layer's query heads attend to, and how.
pub struct Heads<'a> {
    /// The layer.
    pub layer: usize,
    /// What it keeps for each position.
    pub layout: KvLayout,
    /// Query heads; head h reads key head h / (n / `layout.heads`).
    pub n: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Positions a row sees, its own included; none for all up to its own.
    pub window: Option<usize>,
    /// For each head the score of a key without a value.
    pub sinks: Option<&'a [f32]>,
}

impl Heads<'_> {
    /// Elements of a head's query and of its result.
    fn dims(&self) -> (usize, usize) {
        (self.layout.k_dim, self.layout.v_dim)
    }

    fn start(&self, head: usize) -> Softmax {
        self.sinks.map_or(Softmax::EMPTY, |sinks| Softmax::sink(sinks[head]))
    }
}

/// What works, and on which conversations.
#[derive(Clone, Copy)]
pub struct Attending<'a> {
    /// Compute kernels.
    pub kernels: &'a Kernels,
    /// Worker threads.
    pub team: &'a Team,
    /// All KV slots.
    pub slots: &'a [KvSlot],
}

impl<'a> Attending<'a> {
    /// What `step` works with.
    pub fn of(step: &'a Step) -> Self {
        Self { kernels: step.kernels, team: step.team, slots: step.slots }
    }
}

/// Softmax attention of every query head of `rows` over what it sees of its slot's positions.
///
/// `q`: `[rows][heads][k_dim]`. Returns `[rows][heads][v_dim]`.
pub fn attend(on: Attending, rows: &[Row], heads: &Heads, q: &[f32]) -> Vec<f32> {
    let seen = |row: &Row| {
        let end = row.position + 1;
        let first = heads.window.map_or(0, |window| end.saturating_sub(window));
        Seen { slot: row.slot, positions: first..end }
    };
    let rows: Vec<Seen> = rows.iter().map(seen).collect();
    let find = |slot: usize, head: usize, block: usize| {
        let kv = on.slots[slot].layer(heads.layer);
        let mut found = kv.blocks(head, block * KV_BLOCK..(block + 1) * KV_BLOCK);
        let (keys, values, _) = found.next().expect("what a row sees was written");
        (keys, values)
    };
    attend_blocks(on, &rows, heads, q, &find)
}

/// As [`attend`] for all rows of the step, each over the positions selected for it, in a layer that
/// keeps latents.
///
/// Selected positions are walked in ascending order, 256 at a time, as if they followed one
/// another. So a row's bits depend on its selection alone, and are those of [`attend`] if all
/// positions are selected.
pub fn attend_selected(step: &Step, heads: &Heads, q: &[f32]) -> Vec<f32> {
    let on = Attending::of(step);
    let (k_dim, v_dim) = heads.dims();
    let mut out = Vec::with_capacity(step.rows.len() * heads.n * v_dim);
    let mut first = 0;
    // Runs of rows that select nothing, and each other row by itself.
    for run in step.selection.chunk_by(|a, b| a.is_none() && b.is_none()) {
        let rows = &step.rows[first..first + run.len()];
        let q = &q[first * heads.n * k_dim..][..run.len() * heads.n * k_dim];
        first += run.len();
        let Some(positions) = &run[0] else {
            out.extend(attend(on, rows, heads, q));
            continue;
        };
        let slot = rows[0].slot;
        let kv = step.slots[slot].layer(heads.layer);
        let parts: Vec<&[usize]> = positions.chunks(KV_BLOCK).collect();
        let blocks = step.team.map(&parts, positions.len() * k_dim, |part| kv.gather_latents(part));
        let row = Seen { slot, positions: 0..positions.len() };
        let find = |_, _, block: usize| blocks[block].kept();
        out.extend(attend_blocks(on, &[row], heads, q, &find));
    }
    out
}

#[cfg(test)]
mod tests;
