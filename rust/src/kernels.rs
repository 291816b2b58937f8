//! Safe entry points to the compute kernels, and the once-chosen table behind them.
//!
//! Owns: run-time dispatch over instruction sets. Does not own: threads, buffers, formats.

pub mod generic;
mod isa;
pub mod math;
pub mod scalar;

use crate::cpu::Isa;
use crate::matrix::{Elements, Matrix, TILE};
use crate::threads::Team;
pub use generic::{KV_BLOCK, Softmax};
use generic::{Lanes, Rows};

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
        let quantized = match &w.elements {
            Elements::Int8 { group, .. } | Elements::Int4 { group, .. } => self.quantize(x, *group),
            _ => (Vec::new(), Vec::new()),
        };
        let rows = Rows { n_in: w.n_in, x, q: &quantized.0, scales: &quantized.1 };
        // Tile-major first: a thread owns whole tiles, and no two threads write into one row.
        let mut tiles = vec![[0.0f32; TILE]; w.n_tiles() * n_rows];
        let tiles_per_chunk = w.n_tiles().div_ceil(team.n_threads() * 4).next_multiple_of(4);
        let work = n_rows * w.n_in * w.n_out;
        team.for_each_chunk(&mut tiles, tiles_per_chunk * n_rows, work, |i, out| {
            self.table.matmul(&w.elements, i * tiles_per_chunk, rows, n_rows, out);
        });
        let mut y = vec![0.0; n_rows * w.n_out];
        scatter(&tiles, n_rows, w.n_out, &mut y);
        y
    }

    fn quantize(&self, x: &[f32], group: usize) -> (Vec<i8>, Vec<f32>) {
        let mut q = vec![0; x.len()];
        let mut scales = vec![0.0; x.len() / group];
        self.table.quantize_row(x, group, &mut q, &mut scales);
        (q, scales)
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

    /// Adds one key/value block to a query's attention; see [`generic::attend_block`].
    #[allow(clippy::too_many_arguments, reason = "mirrors the kernel")]
    pub fn attend_block(
        &self,
        q: &[f32],
        scale: f32,
        keys: &[f32],
        values: &[f32],
        n: usize,
        state: &mut Softmax,
        acc: &mut [f32],
    ) {
        self.table.attend_block(q, scale, keys, values, n, state, acc);
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
