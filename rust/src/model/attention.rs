//! What all attention forms share: projections with bias, and attending to a slot's keys.

use super::{Row, Step};
use crate::error::Result;
use crate::kernels::{KV_BLOCK, Kernels, Softmax};
use crate::kv::KvLayout;
use crate::matrix::Matrix;
use crate::threads::Team;

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
            for row in y.chunks_exact_mut(bias.len()) {
                for (y, b) in row.iter_mut().zip(bias) {
                    *y += b;
                }
            }
        }
        y
    }
}

/// One layer's attention.
pub enum Attention {
    /// Grouped-query attention.
    Gqa(super::gqa::Gqa),
    /// Multi-head latent attention.
    Mla(super::mla::Mla),
}

impl Attention {
    /// What the layer keeps for each position.
    pub fn kv_layout(&self) -> KvLayout {
        match self {
            Self::Gqa(gqa) => gqa.kv_layout(),
            Self::Mla(mla) => mla.kv_layout(),
        }
    }

    /// Adds the rows' keys and values to their slots and attends: `[rows][hidden]` in and out.
    ///
    /// # Errors
    /// [`crate::Error::NonFinite`] where positions are chosen by scores that are not finite.
    pub fn forward(&self, layer: usize, x: &[f32], step: &mut Step) -> Result<Vec<f32>> {
        match self {
            Self::Gqa(gqa) => Ok(gqa.forward(layer, x, step)),
            Self::Mla(mla) => mla.forward(layer, x, step),
        }
    }
}

/// Softmax attention of every query head of `rows` over its slot's positions up to and including the
/// row's.
///
/// `q`: `[rows][n_heads][k_dim]`; query head h reads key head h / (`n_heads` / heads). Returns
/// `[rows][n_heads][v_dim]`.
pub fn attend(
    step: &Step,
    rows: &[Row],
    layer: usize,
    layout: KvLayout,
    n_heads: usize,
    q: &[f32],
    scale: f32,
) -> Vec<f32> {
    let KvLayout { heads, k_dim, v_dim, .. } = layout;
    let positions: usize = rows.iter().map(|row| row.position + 1).sum();
    let work = positions * n_heads * (k_dim + v_dim);
    let mut out = vec![0.0f32; rows.len() * n_heads * v_dim];
    step.team.for_each_chunk(&mut out, v_dim, work, |i, acc| {
        let (row, head) = (rows[i / n_heads], i % n_heads);
        let q = &q[i * k_dim..(i + 1) * k_dim];
        let kv = step.slots[row.slot].layer(layer);
        let mut state = Softmax::EMPTY;
        for (keys, values, n) in kv.blocks(head / (n_heads / heads), row.position + 1) {
            step.kernels.attend_block(q, scale, keys, values, n, &mut state, acc);
        }
        for v in acc {
            *v /= state.sum;
        }
    });
    out
}

/// As [`attend`] for all rows of the step, each over the positions selected for it. The only key
/// head is read by every query head.
///
/// Selected positions are walked in ascending order, 256 at a time, as if they followed one
/// another. So a row's bits depend on its selection alone, and are those of [`attend`] if all
/// positions are selected.
pub fn attend_selected(
    step: &Step,
    layer: usize,
    layout: KvLayout,
    n_heads: usize,
    q: &[f32],
    scale: f32,
) -> Vec<f32> {
    let KvLayout { k_dim, v_dim, .. } = layout;
    let mut out = Vec::with_capacity(step.rows.len() * n_heads * v_dim);
    let mut first = 0;
    // Runs of rows that select nothing, and each other row by itself.
    for run in step.selection.chunk_by(|a, b| a.is_none() && b.is_none()) {
        let rows = &step.rows[first..first + run.len()];
        let q = &q[first * n_heads * k_dim..][..run.len() * n_heads * k_dim];
        first += run.len();
        let Some(positions) = &run[0] else {
            out.extend(attend(step, rows, layer, layout, n_heads, q, scale));
            continue;
        };
        let kv = step.slots[rows[0].slot].layer(layer);
        let parts: Vec<&[usize]> = positions.chunks(KV_BLOCK).collect();
        let blocks = step.team.map(&parts, positions.len() * k_dim, |part| kv.gather(part));
        let work = positions.len() * n_heads * (k_dim + v_dim);
        let at = out.len();
        out.resize(at + n_heads * v_dim, 0.0);
        step.team.for_each_chunk(&mut out[at..], v_dim, work, |head, acc| {
            let q = &q[head * k_dim..(head + 1) * k_dim];
            let mut state = Softmax::EMPTY;
            for (part, (keys, values)) in parts.iter().zip(&blocks) {
                step.kernels.attend_block(q, scale, keys, values, part.len(), &mut state, acc);
            }
            for v in acc {
                *v /= state.sum;
            }
        });
    }
    out
}
