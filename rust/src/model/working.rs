//! What a step takes in memory besides weights, experts and conversations, at most.
//!
//! Counted from the shapes of what is alive at the same time, rounded up where that is simpler: a
//! product takes its inputs as integers, its tiles and its result; what grows takes twice its size.
//! `tests/experts/test_budget.py` compares what an engine takes with its budget.

use super::Model;
use super::attention::{Attention, UNMERGED};
use super::dsa::{Indexer, Indexing};
use super::ffn::{Ffn, Inner, Moe, SwiGlu};
use super::linear_attention::LinearAttention;
use super::mla::{Mla, Query};
use crate::kernels::KV_BLOCK;

/// Of small things.
const CONSTANT: usize = 1 << 20;
/// Elements of the distribution of one row that drawing a token takes for each of the vocabulary.
const DRAWING: usize = 8;

/// Elements that a product takes for a row.
fn product(n_in: usize, n_out: usize) -> usize {
    n_in + 2 * n_out
}

/// Elements for each row, and those whatever the number of rows.
#[derive(Clone, Copy, Default)]
struct Elements {
    row: usize,
    once: usize,
}

impl Elements {
    fn of_row(row: usize) -> Self {
        Self { row, once: 0 }
    }

    fn larger(self, other: Self) -> Self {
        Self { row: self.row.max(other.row), once: self.once.max(other.once) }
    }
}

impl Model {
    /// Most bytes that a step takes of `rows` rows, logits of `logits` of them, on `threads` threads,
    /// with conversations of up to `ctx` tokens.
    pub fn step_bytes(&self, rows: usize, logits: usize, threads: usize, ctx: usize) -> u64 {
        let decoder = &self.decoder;
        let (hidden, vocab) = (decoder.embed.n_in, decoder.vocab());
        let inner = self.experts.first().map_or(0, |expert| expert.gate.shape()[0]);
        let parallel = threads.min(self.top_k);
        let layer = |most: Elements, layer: &super::decoder::Layer| {
            let attention = match &layer.attention {
                Attention::Gqa(gqa) => {
                    let width = gqa.n_heads * gqa.head_dim;
                    let (q, kv) = (gqa.q_proj.weight.n_out, gqa.n_kv_heads * gqa.head_dim);
                    let products = product(hidden, q).max(product(width, hidden));
                    // What is attended to twice: by groups of queries and by rows.
                    Elements::of_row(3 * q + 4 * kv + 2 * width + 8 * gqa.n_heads + products)
                }
                Attention::Mla(mla) => latent(mla, hidden, threads, ctx),
                Attention::Linear(linear) => Elements::of_row(recurrent(linear, hidden)),
            };
            let ffn = match &layer.ffn {
                Ffn::Dense(mlp) => swiglu(mlp, hidden),
                Ffn::Sparse(moe) => sparse(moe, hidden, inner, self.top_k, parallel),
            };
            most.larger(attention).larger(Elements::of_row(ffn))
        };
        let most = decoder.all_layers().fold(Elements::default(), layer);
        // States that are kept, and what a layer that predicts is given of them.
        let predicting =
            decoder.mtp.as_ref().map_or(0, |_| 5 * hidden + product(2 * hidden, hidden));
        // The stream, its norm, what a layer adds, and the norm of that.
        let of_rows = rows.saturating_mul(most.row + 4 * hidden + predicting);
        let head = logits.saturating_mul(product(hidden, vocab)) + DRAWING * vocab;
        let once = most.once + threads * UNMERGED;
        let elements = of_rows.saturating_add(head).saturating_add(once);
        (elements.saturating_mul(size_of::<f32>()) as u64).saturating_add(CONSTANT as u64)
    }
}

fn latent(mla: &Mla, hidden: usize, threads: usize, ctx: usize) -> Elements {
    let queries = mla.n_heads * (mla.nope_dim + mla.rope_dim);
    let k_dim = mla.kv_rank + mla.rope_dim;
    let values = mla.n_heads * mla.v_dim;
    let (made, ranks) = match &mla.query {
        Query::Direct(_) => (product(hidden, queries), 0),
        Query::LowRank { down, .. } => {
            let rank = down.weight.n_out;
            (product(rank, queries).max(product(hidden, rank)), 2 * rank)
        }
    };
    let of_head = product(mla.nope_dim, mla.kv_rank).max(product(mla.kv_rank, mla.v_dim));
    let products = made.max(product(hidden, k_dim)).max(product(values, hidden));
    // Queries, those mapped into the latent space, what is attended to three times, values.
    let kept = queries + mla.n_heads * (k_dim + 3 * mla.kv_rank) + values + ranks;
    let mut elements = Elements::of_row(kept + 2 * of_head + products + 8 * mla.n_heads);
    if let Indexing::Own(indexer) = &mla.indexing {
        let more = selecting(indexer, threads, ctx, k_dim + mla.kv_rank);
        elements = Elements { row: elements.row + more.row, ..more };
    }
    elements
}

/// What choosing positions takes, and the copies of the keys and values of those chosen, `kv`
/// elements each.
fn selecting(indexer: &Indexer, threads: usize, ctx: usize, kv: usize) -> Elements {
    // Rows whose scores are alive at the same time.
    const TOGETHER: usize = 8;
    let width = indexer.n_heads * indexer.dim;
    let positions = size_of::<usize>() / size_of::<f32>();
    let chosen = indexer.top_k.min(ctx).next_multiple_of(KV_BLOCK);
    Elements {
        row: 3 * width + 3 * indexer.n_heads + 3 * indexer.dim + positions * chosen,
        // Scores of all positions, and the order of those of one row.
        once: threads * ctx * (TOGETHER + positions) + chosen * kv,
    }
}

fn recurrent(linear: &LinearAttention, hidden: usize) -> usize {
    let (channels, values) = (linear.heads.channels(), linear.heads.v_width());
    let keys = linear.heads.v_heads * linear.heads.k_dim;
    // Inputs before and after the convolution and by head, decays of each element, gates, results.
    product(hidden, channels + values) + 8 * channels + 8 * values + 6 * keys + 2 * hidden
}

fn swiglu(mlp: &SwiGlu, hidden: usize) -> usize {
    let width = mlp.down.n_in;
    let gated = match &mlp.inner {
        Inner::Apart { .. } => hidden + 3 * width,
        // Its halves grow.
        Inner::Joined(_) => product(hidden, 2 * width) + 4 * width,
    };
    gated + product(width, hidden)
}

/// `inner` is the width of an expert; `parallel` experts are computed at the same time, each for
/// all rows at most.
fn sparse(moe: &Moe, hidden: usize, inner: usize, top_k: usize, parallel: usize) -> usize {
    let choices = product(hidden, moe.gate.n_out) + 16 * top_k + 32;
    let outputs = (top_k + 1) * hidden;
    let expert = 2 * hidden + 5 * inner + product(inner, hidden);
    let shared = moe.shared.as_ref().map_or(0, |shared| hidden + swiglu(&shared.mlp, hidden));
    choices + outputs + shared + parallel * expert
}
