//! Grouped-query attention, with the optional parts families add to it.

use super::Step;
use super::attention::{Attending, Heads, Linear, attend};
use super::ffn::halves;
use super::rope::Rope;
use crate::kv::{KvLayout, Precision};
use crate::telemetry::timed;

/// Weights and geometry of one layer.
pub struct Gqa {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// `[n_heads * head_dim, hidden]`, twice as many rows if `gated`.
    pub q_proj: Linear,
    /// `[n_kv_heads * head_dim, hidden]`
    pub k_proj: Linear,
    /// `[n_kv_heads * head_dim, hidden]`
    pub v_proj: Linear,
    /// `[hidden, n_heads * head_dim]`
    pub o_proj: Linear,
    /// Norms of queries and keys, before the rotation.
    pub qk_norm: Option<QkNorm>,
    /// Components of a head that are rotated, from its first.
    pub rotary_dim: usize,
    /// Whether `q_proj` has, behind each head's query, as many rows of a gate: its sigmoid is a factor
    /// on what the head gives.
    pub gated: bool,
    /// Rotation tables.
    pub rope: std::sync::Arc<Rope>,
    /// Positions a row sees, its own included; none for all.
    pub window: Option<usize>,
    /// For each query head the score of a key without a value, `[n_heads]`.
    pub sinks: Option<Vec<f32>>,
}

/// Norms of queries and keys: of each head by itself, or of all heads of a row together, as long as
/// the weights are.
pub struct QkNorm {
    /// `[head_dim]` or `[n_heads * head_dim]`
    pub q: Vec<f32>,
    /// `[head_dim]` or `[n_kv_heads * head_dim]`
    pub k: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

impl Gqa {
    /// What the layer keeps for each position, as it is computed.
    pub fn kv_layout(&self) -> KvLayout {
        let dim = self.head_dim;
        KvLayout {
            heads: self.n_kv_heads,
            k_dim: dim,
            v_dim: dim,
            index_dim: 0,
            precision: Precision::F32,
        }
    }

    /// See [`super::attention::Attention::forward`].
    pub fn forward(&self, layer: usize, x: &[f32], step: &mut Step) -> Vec<f32> {
        let mut elapsed = std::time::Duration::ZERO;
        let y = timed(&mut elapsed, || {
            let (kernels, team) = (step.kernels, step.team);
            let (mut q, gate) = self.split_gate(self.q_proj.forward(kernels, team, x));
            if let Some(norm) = &self.qk_norm {
                q = kernels.rms_norm(team, &q, &norm.q, norm.eps);
            }
            let q_width = self.n_heads * self.head_dim;
            for (row, q) in step.rows.iter().zip(q.chunks_exact_mut(q_width)) {
                self.rotate(row.position, q);
            }
            self.write_keys(layer, x, step);
            let heads = Heads {
                layer,
                layout: self.kv_layout(),
                n: self.n_heads,
                scale: 1.0 / (self.head_dim as f32).sqrt(),
                window: self.window,
                sinks: self.sinks.as_deref(),
            };
            let mut out = attend(Attending::of(step), step.rows, &heads, &q);
            if let Some(mut gate) = gate {
                kernels.sigmoid_mul(&mut gate, &out);
                out = gate;
            }
            self.o_proj.forward(kernels, team, &out)
        });
        step.phases.attention += elapsed;
        y
    }

    /// Adds the rows' keys and values to their slots.
    pub fn write_keys(&self, layer: usize, x: &[f32], step: &mut Step) {
        let (kernels, team) = (step.kernels, step.team);
        let mut k = self.k_proj.forward(kernels, team, x);
        let v = self.v_proj.forward(kernels, team, x);
        if let Some(norm) = &self.qk_norm {
            k = kernels.rms_norm(team, &k, &norm.k, norm.eps);
        }
        let width = self.n_kv_heads * self.head_dim;
        let pairs = k.chunks_exact_mut(width).zip(v.chunks_exact(width));
        for (row, (k, v)) in step.rows.iter().zip(pairs) {
            self.rotate(row.position, k);
            step.slots[row.slot].layer_mut(layer).write(row.position, k, v);
        }
    }

    /// Queries and, if there are any, gates, both `[rows][n_heads * head_dim]`.
    fn split_gate(&self, q: Vec<f32>) -> (Vec<f32>, Option<Vec<f32>>) {
        if !self.gated {
            return (q, None);
        }
        let (q, gate) = halves(&q, 2 * self.head_dim);
        (q, Some(gate))
    }

    fn rotate(&self, position: usize, heads: &mut [f32]) {
        for head in heads.chunks_exact_mut(self.head_dim) {
            self.rope.apply(position, &mut head[..self.rotary_dim]);
        }
    }
}
