//! The lightning indexer of `DeepSeek` sparse attention: which earlier positions a row attends to.
//!
//! Per layer a few small heads score every earlier position by a key of their own, kept beside the
//! layer's keys and values, and the best positions are attended to, all others not at all.

use std::sync::Arc;

use super::rope::Rope;
use super::{Row, Step, check_finite};
use crate::error::Result;
use crate::kernels::{KV_BLOCK, Kernels, top_k};
use crate::kv::KvSlot;
use crate::matrix::Matrix;

/// Epsilon of the keys' norm, whatever the model's own is.
const KEY_EPS: f32 = 1e-6;

/// Rows of a prompt that one thread scores at a time: the keys of a block of positions are read once
/// for all of them.
const TOGETHER: usize = 8;

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

/// What a row scores positions by.
struct Query<'a> {
    row: Row,
    /// `[n_heads][dim]`, rotated.
    q: &'a [f32],
    /// `[n_heads]`
    weights: &'a [f32],
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
        let rotations = q.len() / self.dim * self.rope_dim;
        step.team.for_each_chunk(&mut q, width, rotations, |row, q| {
            for head in q.chunks_exact_mut(self.dim) {
                self.rope.apply(step.rows[row].position, &mut head[..self.rope_dim]);
            }
        });
        let queries = step.rows.iter().zip(q.chunks_exact(width));
        let queries: Vec<Query> = queries
            .zip(weights.chunks_exact(self.n_heads))
            .map(|((&row, q), weights)| Query { row, q, weights })
            .collect();
        let (kernels, slots) = (step.kernels, &*step.slots);
        if queries.len() < TOGETHER * step.team.n_threads() {
            let choose = |query: &Query| {
                let mut scores = vec![0.0f32; self.n_scores(query.row)];
                let work = scores.len() * width;
                step.team.for_each_chunk(&mut scores, KV_BLOCK, work, |block, scores| {
                    self.score(kernels, slots, layer, query, block, scores);
                });
                self.take_best(layer, query.row, &scores)
            };
            return queries.iter().map(choose).collect();
        }
        let groups: Vec<&[Query]> = queries.chunks(TOGETHER).collect();
        let positions: usize = step.rows.iter().map(|&row| self.n_scores(row)).sum();
        let chosen = step.team.map(&groups, positions * width, |group| {
            self.choose_together(kernels, slots, layer, group)
        });
        chosen.into_iter().flatten().collect()
    }

    /// Positions that are scored for `row`: none where all may be attended to.
    fn n_scores(&self, row: Row) -> usize {
        if row.position < self.top_k { 0 } else { row.position + 1 }
    }

    /// The choices of `group`, scored block by block, so that a block's keys serve all its rows while
    /// they are near.
    fn choose_together(
        &self,
        kernels: &Kernels,
        slots: &[KvSlot],
        layer: usize,
        group: &[Query],
    ) -> Vec<Result<Selection>> {
        let mut scores: Vec<Vec<f32>> =
            group.iter().map(|query| vec![0.0; self.n_scores(query.row)]).collect();
        let most = scores.iter().map(Vec::len).max().unwrap_or(0);
        for block in 0..most.div_ceil(KV_BLOCK) {
            for (query, scores) in group.iter().zip(&mut scores) {
                if let Some(scores) = scores.chunks_mut(KV_BLOCK).nth(block) {
                    self.score(kernels, slots, layer, query, block, scores);
                }
            }
        }
        let rows = group.iter().zip(&scores);
        rows.map(|(query, scores)| self.take_best(layer, query.row, scores)).collect()
    }

    /// The scores of the first positions of `block`.
    fn score(
        &self,
        kernels: &Kernels,
        slots: &[KvSlot],
        layer: usize,
        query: &Query,
        block: usize,
        scores: &mut [f32],
    ) {
        let keys = slots[query.row.slot].layer(layer).index_keys(block);
        let scale = 1.0 / (self.dim as f32).sqrt();
        kernels.index_scores(query.q, query.weights, scale, keys, scores);
    }

    /// The positions with the best scores; none for a row that attends to all.
    fn take_best(&self, layer: usize, row: Row, scores: &[f32]) -> Result<Selection> {
        if scores.is_empty() {
            return Ok(None);
        }
        check_finite("index score", scores, scores.len(), layer, &[row])?;
        let mut chosen = top_k(scores, self.top_k);
        chosen.sort_unstable();
        Ok(Some(chosen))
    }

    /// Adds the rows' index keys to their slots.
    pub fn write_keys(&self, layer: usize, x: &[f32], step: &mut Step) {
        let keys = step.kernels.matmul(step.team, &self.k_proj, x);
        for (row, key) in step.rows.iter().zip(keys.chunks_exact(self.dim)) {
            let mut normed = vec![0.0; self.dim];
            step.kernels.layer_norm(key, &self.k_norm, &self.k_norm_bias, KEY_EPS, &mut normed);
            self.rope.apply(row.position, &mut normed[..self.rope_dim]);
            step.slots[row.slot].layer_mut(layer).write_index(row.position, &normed);
        }
    }
}
