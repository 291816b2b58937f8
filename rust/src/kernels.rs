//! Safe entry points to the compute kernels, and the once-chosen table behind them.
//!
//! Owns: run-time dispatch over instruction sets. Does not own: threads, buffers, formats.

pub mod generic;
mod int;
mod isa;
pub mod math;
pub mod scalar;

use std::ops::Range;

use crate::cpu::Isa;
use crate::matrix::{Elements, Matrix, TILE, padded_group};
use crate::threads::Team;
pub use generic::{KV_BLOCK, Softmax};
use generic::{Lanes, Rows};
use int::IntRows;

/// The kernels of one instruction set level.
pub struct Kernels {
    table: isa::Table,
    isa: Isa,
}

impl Kernels {
    /// The kernels for `isa`.
    ///
    /// # Panics
    /// If this CPU does not run `isa`.
    pub fn new(isa: Isa) -> Self {
        assert!(Isa::available().contains(&isa), "the CPU does not run {}", isa.name());
        Self { table: isa::table(isa), isa }
    }

    /// The level in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `y[r] = w x[r]` for each row; `x` is `[rows][n_in]`, the result `[rows][n_out]`.
    ///
    /// # Panics
    /// If `x` is not a whole number of rows.
    pub fn matmul(&self, team: &Team, w: &Matrix, x: &[f32]) -> Vec<f32> {
        assert_eq!(x.len() % w.n_in, 0, "inputs of {} elements", w.n_in);
        let n_rows = x.len() / w.n_in;
        if n_rows == 0 {
            return Vec::new();
        }
        // Tile-major first: a thread owns whole tiles, and no two threads write into one row.
        let mut tiles = vec![[0.0f32; TILE]; w.n_tiles() * n_rows];
        let tiles_per_chunk = w.n_tiles().div_ceil(team.n_threads() * 4).next_multiple_of(4);
        let work = n_rows * w.n_in * w.n_out;
        let for_each_chunk = |tiles: &mut [Lanes], f: &(dyn Fn(usize, &mut [Lanes]) + Sync)| {
            team.for_each_chunk(tiles, tiles_per_chunk * n_rows, work, |i, out| {
                f(i * tiles_per_chunk, out);
            });
        };
        if let Elements::Int(int) = &w.elements {
            let inputs = self.quantize(x, w.n_in, int.group);
            for_each_chunk(&mut tiles, &|first, out| {
                self.table.int_matmul(int, first, inputs.rows(), n_rows, out);
            });
        } else {
            let rows = Rows { n_in: w.n_in, x };
            for_each_chunk(&mut tiles, &|first, out| {
                self.table.matmul(&w.elements, first, rows, n_rows, out);
            });
        }
        let mut y = vec![0.0; n_rows * w.n_out];
        scatter(&tiles, n_rows, w.n_out, &mut y);
        y
    }

    fn quantize(&self, x: &[f32], n_in: usize, group: usize) -> Quantized {
        let padded = padded_group(group);
        let n_groups = x.len() / group;
        let mut q = Quantized {
            words: vec![0; n_groups * padded / 4],
            scales: Vec::with_capacity(n_groups),
            sums: Vec::with_capacity(n_groups),
            groups: n_in / group,
        };
        let bytes: &mut [i8] = bytemuck::cast_slice_mut(&mut q.words);
        for (x, bytes) in x.chunks_exact(group).zip(bytes.chunks_exact_mut(padded)) {
            q.scales.push(self.table.quantize_group(x, &mut bytes[..group]));
            q.sums.push(bytes.iter().map(|&v| i32::from(v)).sum());
        }
        q
    }

    /// `out[r] = rms_norm(x[r])`; `x` and `out` are `[rows][w.len()]`.
    pub fn rms_norm(&self, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(w.len()).zip(out.chunks_exact_mut(w.len())) {
            self.table.rms_norm(x, w, eps, out);
        }
    }

    /// `gate = silu(gate) * up`.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        self.table.silu_mul(gate, up);
    }

    /// `gate = (up + 1) * gate * sigmoid(alpha * gate)`, clamped; see [`generic::clamped_swiglu`].
    pub fn clamped_swiglu(&self, gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
        self.table.clamped_swiglu(gate, up, alpha, limit);
    }

    /// `x = e^((x - max) / temperature)`.
    pub fn softmax_weights(&self, x: &mut [f32], max: f32, temperature: f32) {
        self.table.softmax_weights(x, max, temperature);
    }

    /// An indexer's scores of the first positions of a block; see [`generic::index_scores`].
    pub fn index_scores(
        &self,
        q: &[f32],
        weights: &[f32],
        scale: f32,
        keys: &[f32],
        out: &mut [f32],
    ) {
        self.table.index_scores(q, weights, scale, keys, out);
    }

    /// Adds positions of one key/value block to a query's attention; see [`generic::attend_block`].
    #[allow(clippy::too_many_arguments, reason = "mirrors the kernel")]
    pub fn attend_block(
        &self,
        q: &[f32],
        scale: f32,
        keys: &[f32],
        values: &[f32],
        positions: Range<usize>,
        state: &mut Softmax,
        acc: &mut [f32],
    ) {
        self.table.attend_block(q, scale, keys, values, positions, state, acc);
    }
}

/// Quantised inputs; see [`IntRows`].
struct Quantized {
    words: Vec<i32>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    groups: usize,
}

impl Quantized {
    fn rows(&self) -> IntRows<'_> {
        IntRows { words: &self.words, scales: &self.scales, sums: &self.sums, groups: self.groups }
    }
}

/// Copies `[tiles][rows][16]` to `[rows][n_out]`, dropping the padding of the last tile.
fn scatter(tiles: &[Lanes], n_rows: usize, n_out: usize, y: &mut [f32]) {
    for (t, rows) in tiles.chunks_exact(n_rows).enumerate() {
        let width = TILE.min(n_out - t * TILE);
        for (r, lanes) in rows.iter().enumerate() {
            y[r * n_out + t * TILE..][..width].copy_from_slice(&lanes[..width]);
        }
    }
}

/// Adds `bias` to each row of `y` `[rows][bias.len()]`.
pub fn add_bias(y: &mut [f32], bias: &[f32]) {
    for row in y.chunks_exact_mut(bias.len()) {
        for (y, b) in row.iter_mut().zip(bias) {
            *y += b;
        }
    }
}

/// Indices of the `k` largest of `scores`, largest first, ties by the lower index.
///
/// Scores must not be NaN (the caller checks).
pub fn top_k(scores: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let by_score = |&a: &usize, &b: &usize| scores[b].total_cmp(&scores[a]).then(a.cmp(&b));
    if k < order.len() {
        order.select_nth_unstable_by(k, by_score);
        order.truncate(k);
    }
    order.sort_unstable_by(by_score);
    order
}

#[cfg(test)]
mod tests;
