//! What all attention forms share: projections with bias, and attending to a slot's keys.

use super::Step;
use crate::kernels::{Kernels, Softmax};
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
    pub fn forward(&self, layer: usize, x: &[f32], step: &mut Step) -> Vec<f32> {
        match self {
            Self::Gqa(gqa) => gqa.forward(layer, x, step),
            Self::Mla(mla) => mla.forward(layer, x, step),
        }
    }
}

/// Softmax attention of every query head over its slot's positions up to and including the row's.
///
/// `q`: `[rows][n_heads][k_dim]`; query head h reads key head h / (`n_heads` / heads). Returns
/// `[rows][n_heads][v_dim]`.
pub fn attend(
    step: &Step,
    layer: usize,
    layout: KvLayout,
    n_heads: usize,
    q: &[f32],
    scale: f32,
) -> Vec<f32> {
    let KvLayout { heads, k_dim, v_dim } = layout;
    let positions: usize = step.rows.iter().map(|row| row.position + 1).sum();
    let work = positions * n_heads * (k_dim + v_dim);
    let mut out = vec![0.0f32; step.rows.len() * n_heads * v_dim];
    step.team.for_each_chunk(&mut out, v_dim, work, |i, acc| {
        let (row, head) = (step.rows[i / n_heads], i % n_heads);
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
