//! Multi-head latent attention, always in the absorbed form.
//!
//! Keys and values are one latent vector a position, shared by all heads: per head h the
//! decompression matrix is [`Uk_h`; `Uv_h`], and instead of decompressing every position the query is
//! mapped into the latent space by `Uk_h^T` and the latent result back by `Uv_h`. One form for prefill
//! and decode keeps a token's bits independent of how it was batched.

use super::Step;
use super::attention::{Heads, Linear, attend_selected};
use super::dsa::Indexing;
use super::rope::Rope;
use crate::error::Result;
use crate::kernels::Kernels;
use crate::kv::{KvLayout, Precision};
use crate::matrix::Matrix;
use crate::telemetry::timed;
use crate::threads::Team;

/// Epsilon of the latent norms, whatever the model's own is.
pub const LATENT_EPS: f32 = 1e-6;

/// Weights and geometry of one layer.
pub struct Mla {
    /// Query heads.
    pub n_heads: usize,
    /// Elements of the latent vector.
    pub kv_rank: usize,
    /// Elements of a head's query that meet the latent.
    pub nope_dim: usize,
    /// Elements of a head's query that meet a key of their own and are rotated; they come last.
    pub rope_dim: usize,
    /// Elements of a head's value.
    pub v_dim: usize,
    /// How queries are made.
    pub query: Query,
    /// `[kv_rank + rope_dim, hidden]`
    pub kv_a_proj: Linear,
    /// `[kv_rank]`
    pub kv_a_norm: Vec<f32>,
    /// `Uk_h^T` of each head, `[kv_rank, nope_dim]`.
    pub absorb_k: Vec<Matrix>,
    /// `Uv_h` of each head, `[v_dim, kv_rank]`.
    pub absorb_v: Vec<Matrix>,
    /// `[hidden, n_heads * v_dim]`
    pub o_proj: Linear,
    /// Rotation tables; none where nothing is rotated.
    pub rope: Option<std::sync::Arc<Rope>>,
    /// Factor on the scores.
    pub scale: f32,
    /// Which positions are attended to.
    pub indexing: Indexing,
}

/// From hidden state to `[n_heads * (nope_dim + rope_dim)]`.
pub enum Query {
    /// One projection.
    Direct(Linear),
    /// Down to a normed latent, then up.
    LowRank {
        /// `[q_rank, hidden]`
        down: Linear,
        /// `[q_rank]`
        norm: Vec<f32>,
        /// `[n_heads * (nope_dim + rope_dim), q_rank]`
        up: Linear,
    },
}

impl Query {
    /// Queries, and the normed latent where there is one.
    fn forward(&self, kernels: &Kernels, team: &Team, x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        match self {
            Self::Direct(proj) => (proj.forward(kernels, team, x), Vec::new()),
            Self::LowRank { down, norm, up } => {
                let latent = down.forward(kernels, team, x);
                let normed = kernels.rms_norm(team, &latent, norm, LATENT_EPS);
                (up.forward(kernels, team, &normed), normed)
            }
        }
    }
}

impl Mla {
    /// What the layer keeps for each position, as it is computed: key = latent and rotated part, value = latent.
    pub fn kv_layout(&self) -> KvLayout {
        let index_dim = match &self.indexing {
            Indexing::Own(indexer) => indexer.dim,
            Indexing::All | Indexing::Shared => 0,
        };
        let (k_dim, v_dim) = (self.kv_rank + self.rope_dim, self.kv_rank);
        KvLayout { heads: 1, k_dim, v_dim, index_dim, precision: Precision::F32 }
    }

    /// See [`super::attention::Attention::forward`].
    pub fn forward(&self, layer: usize, x: &[f32], step: &mut Step) -> Result<Vec<f32>> {
        let (mut elapsed, mut absorbing) = Default::default();
        let y = timed(&mut elapsed, || {
            let (mut q, q_latent) = self.query.forward(step.kernels, step.team, x);
            self.write_latents(layer, x, step);
            match &self.indexing {
                Indexing::All => step.selection = vec![None; step.rows.len()],
                Indexing::Own(indexer) => {
                    step.selection = indexer.select(layer, x, &q_latent, step)?;
                }
                Indexing::Shared => {}
            }
            let head_dim = self.nope_dim + self.rope_dim;
            for (r, row) in step.rows.iter().enumerate() {
                let width = self.n_heads * head_dim;
                for head in q[r * width..(r + 1) * width].chunks_exact_mut(head_dim) {
                    self.rotate(row.position, &mut head[self.nope_dim..]);
                }
            }
            let absorbed = timed(&mut absorbing, || self.absorb_queries(&q, step));
            let heads = Heads {
                layer,
                layout: self.kv_layout(),
                n: self.n_heads,
                scale: self.scale,
                window: None,
                sinks: None,
            };
            let latent = attend_selected(step, &heads, &absorbed);
            let values = timed(&mut absorbing, || self.decompress(&latent, step));
            Ok(self.o_proj.forward(step.kernels, step.team, &values))
        });
        step.phases.attention += elapsed;
        step.phases.kv_decompress += absorbing;
        y
    }

    /// Adds all that later rows need of these to their slots.
    pub fn write_keys(&self, layer: usize, x: &[f32], step: &mut Step) {
        self.write_latents(layer, x, step);
        if let Indexing::Own(indexer) = &self.indexing {
            indexer.write_keys(layer, x, step);
        }
    }

    fn rotate(&self, position: usize, x: &mut [f32]) {
        if let Some(rope) = &self.rope {
            rope.apply(position, x);
        }
    }

    /// Adds the rows' latents to their slots, without an indexer's keys.
    fn write_latents(&self, layer: usize, x: &[f32], step: &mut Step) {
        let mut kv = self.kv_a_proj.forward(step.kernels, step.team, x);
        let width = self.kv_rank + self.rope_dim;
        for (row, key) in step.rows.iter().zip(kv.chunks_exact_mut(width)) {
            let latent = &key[..self.kv_rank];
            let latent = step.kernels.rms_norm(step.team, latent, &self.kv_a_norm, LATENT_EPS);
            key[..self.kv_rank].copy_from_slice(&latent);
            self.rotate(row.position, &mut key[self.kv_rank..]);
            step.slots[row.slot].layer_mut(layer).write(row.position, key, &latent);
        }
    }

    /// `[rows][heads][nope | rope]` to `[rows][heads][latent | rope]`.
    fn absorb_queries(&self, q: &[f32], step: &Step) -> Vec<f32> {
        let head_dim = self.nope_dim + self.rope_dim;
        let k_dim = self.kv_rank + self.rope_dim;
        let mut out = vec![0.0; step.rows.len() * self.n_heads * k_dim];
        for (head, matrix) in self.absorb_k.iter().enumerate() {
            let at = |row: usize| row * self.n_heads + head;
            let mut nope = Vec::with_capacity(step.rows.len() * self.nope_dim);
            for row in 0..step.rows.len() {
                nope.extend_from_slice(&q[at(row) * head_dim..][..self.nope_dim]);
            }
            let latent = step.kernels.matmul(step.team, matrix, &nope);
            for (row, latent) in latent.chunks_exact(self.kv_rank).enumerate() {
                let out = &mut out[at(row) * k_dim..][..k_dim];
                out[..self.kv_rank].copy_from_slice(latent);
                out[self.kv_rank..]
                    .copy_from_slice(&q[at(row) * head_dim + self.nope_dim..][..self.rope_dim]);
            }
        }
        out
    }

    /// `[rows][heads][latent]` to `[rows][heads][v_dim]`.
    fn decompress(&self, latent: &[f32], step: &Step) -> Vec<f32> {
        let mut out = vec![0.0; step.rows.len() * self.n_heads * self.v_dim];
        for (head, matrix) in self.absorb_v.iter().enumerate() {
            let at = |row: usize| row * self.n_heads + head;
            let mut rows = Vec::with_capacity(step.rows.len() * self.kv_rank);
            for row in 0..step.rows.len() {
                rows.extend_from_slice(&latent[at(row) * self.kv_rank..][..self.kv_rank]);
            }
            let values = step.kernels.matmul(step.team, matrix, &rows);
            for (row, value) in values.chunks_exact(self.v_dim).enumerate() {
                out[at(row) * self.v_dim..][..self.v_dim].copy_from_slice(value);
            }
        }
        out
    }
}
