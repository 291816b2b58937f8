//! The lightning indexer of `DeepSeek` sparse attention: which earlier positions a row attends to.
//!
//! Per layer a few small heads score every earlier position by a key of their own, kept beside the
//! layer's keys and values, and the best positions are attended to, all others not at all.

use std::sync::Arc;

use super::Step;
use super::check_finite;
use super::rope::Rope;
use crate::error::Result;
use crate::kernels::{KV_BLOCK, top_k};
use crate::matrix::Matrix;

/// Epsilon of the keys' norm, whatever the model's own is.
const KEY_EPS: f32 = 1e-6;

/// How a layer chooses what it attends to.
pub enum Indexing {
    /// Everything before the row and the row itself.
    All,
    /// By its own indexer.
    Own(Box<Indexer>),
    /// As the nearest layer before it that has an indexer.
    Shared,
}

/// Weights and geometry of one layer's indexer.
pub struct Indexer {
    /// Index heads.
    pub n_heads: usize,
    /// Elements of an index head's query and of the key.
    pub dim: usize,
    /// Components of them that are rotated, from the first.
    pub rope_dim: usize,
    /// Most positions a row attends to.
    pub top_k: usize,
    /// From the normed latent of the queries, `[n_heads * dim, q_rank]`.
    pub q_proj: Matrix,
    /// `[dim, hidden]`
    pub k_proj: Matrix,
    /// Weight of the keys' layer norm, `[dim]`.
    pub k_norm: Vec<f32>,
    /// Bias of it, `[dim]`.
    pub k_norm_bias: Vec<f32>,
    /// Weights of the heads, f32, `[n_heads, hidden]`.
    pub head_weights: Matrix,
    /// Rotation tables.
    pub rope: Arc<Rope>,
}

/// Positions that one row attends to, ascending; none for all up to its own.
pub type Selection = Option<Vec<usize>>;

impl Indexer {
    /// Adds the rows' index keys to their slots and chooses each row's positions.
    ///
    /// `x`: `[rows][hidden]`; `latent`: `[rows][q_rank]`.
    ///
    /// # Errors
    /// [`crate::Error::NonFinite`] for a score that is not finite.
    pub fn select(
        &self,
        layer: usize,
        x: &[f32],
        latent: &[f32],
        step: &mut Step,
    ) -> Result<Vec<Selection>> {
        self.write_keys(layer, x, step);
        // Nobody is left out while all fit.
        if step.rows.iter().all(|row| row.position < self.top_k) {
            return Ok(vec![None; step.rows.len()]);
        }
        let mut q = step.kernels.matmul(step.team, &self.q_proj, latent);
        let mut weights = step.kernels.matmul(step.team, &self.head_weights, x);
        let share = 1.0 / (self.n_heads as f32).sqrt();
        for weight in &mut weights {
            *weight *= share;
        }
        let width = self.n_heads * self.dim;
        let rows = step.rows.iter().zip(q.chunks_exact_mut(width));
        rows.zip(weights.chunks_exact(self.n_heads))
            .map(|((row, q), weights)| {
                if row.position < self.top_k {
                    return Ok(None);
                }
                for head in q.chunks_exact_mut(self.dim) {
                    self.rope.apply(row.position, &mut head[..self.rope_dim]);
                }
                let kv = step.slots[row.slot].layer(layer);
                let mut scores = vec![0.0f32; row.position + 1];
                let work = scores.len() * width;
                let scale = 1.0 / (self.dim as f32).sqrt();
                step.team.for_each_chunk(&mut scores, KV_BLOCK, work, |block, scores| {
                    step.kernels.index_scores(q, weights, scale, kv.index_keys(block), scores);
                });
                check_finite("index score", &scores, scores.len(), layer, &[*row])?;
                let mut chosen = top_k(&scores, self.top_k);
                chosen.sort_unstable();
                Ok(Some(chosen))
            })
            .collect()
    }

    fn write_keys(&self, layer: usize, x: &[f32], step: &mut Step) {
        let keys = step.kernels.matmul(step.team, &self.k_proj, x);
        for (row, key) in step.rows.iter().zip(keys.chunks_exact(self.dim)) {
            let mut normed = vec![0.0; self.dim];
            step.kernels.layer_norm(key, &self.k_norm, &self.k_norm_bias, KEY_EPS, &mut normed);
            self.rope.apply(row.position, &mut normed[..self.rope_dim]);
            step.slots[row.slot].layer_mut(layer).write_index(row.position, &normed);
        }
    }
}
