//! Safe entry points to the compute kernels, and the once-chosen table behind them.
//!
//! Owns: run-time dispatch over instruction sets. Does not own: threads, buffers, formats.

mod attention;
pub mod generic;
mod int;
mod isa;
pub mod math;
mod recurrent;
pub mod scalar;

use crate::cpu::Isa;
use crate::matrix::{Elements, Matrix, TILE, padded_group};
use crate::threads::Team;
pub use attention::{BlockInputs, Kept, Softmax};
pub use generic::KV_BLOCK;
use generic::{Lanes, Rows};
use int::IntRows;
pub use recurrent::HeadInputs;

/// Version of the numeric contract: what was computed under another may have other bits. Raised when
/// the order of operations changes.
pub const CONTRACT: u32 = 1;

/// What an operation on one element costs, in multiply-adds of a product.
const ELEMENT_WORK: usize = 8;

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
        let inputs = self.inputs(team, w, x);
        let work = x.len() * w.n_out;
        by_tiles(team, w, inputs.n_rows, work, |first, out| {
            self.product(w, first, &inputs, out);
        })
    }

    /// `silu(gate x[r]) * (up x[r])` for each row, as by [`Self::matmul`] and [`Self::silu_mul`].
    ///
    /// # Panics
    /// If `x` is not a whole number of rows, or the matrices differ in shape.
    pub fn gated(&self, team: &Team, gate: &Matrix, up: &Matrix, x: &[f32]) -> Vec<f32> {
        assert_eq!((gate.n_out, gate.n_in), (up.n_out, up.n_in), "gate and up have one shape");
        let gate_inputs = self.inputs(team, gate, x);
        let other_group = gate.group() != up.group();
        let up_inputs = if other_group { &self.inputs(team, up, x) } else { &gate_inputs };
        let work = 2 * x.len() * gate.n_out;
        by_tiles(team, gate, gate_inputs.n_rows, work, |first, out| {
            let mut ups = vec![[0.0; TILE]; out.len()];
            self.product(up, first, up_inputs, &mut ups);
            self.product(gate, first, &gate_inputs, out);
            self.silu_mul(out.as_flattened_mut(), ups.as_flattened());
        })
    }

    /// The rows `x` as products with `w` take them.
    fn inputs<'a>(&self, team: &Team, w: &Matrix, x: &'a [f32]) -> Inputs<'a> {
        assert_eq!(x.len() % w.n_in, 0, "inputs of {} elements", w.n_in);
        Inputs {
            n_rows: x.len() / w.n_in,
            rows: Rows { n_in: w.n_in, x },
            quantized: w.group().map(|group| self.quantize(team, x, w.n_in, group)),
        }
    }

    /// Products with the tiles from `first`, into `out` `[tiles][rows][16]`.
    fn product(&self, w: &Matrix, first: usize, inputs: &Inputs, out: &mut [Lanes]) {
        match (&w.elements, &inputs.quantized) {
            (Elements::Int(w), Some(quantized)) => {
                self.table.int_matmul(w, first, quantized.rows(), inputs.n_rows, out);
            }
            (elements, _) => self.table.matmul(elements, first, inputs.rows, inputs.n_rows, out),
        }
    }

    fn quantize(&self, team: &Team, x: &[f32], n_in: usize, group: usize) -> Quantized {
        let padded = padded_group(group);
        let groups = n_in / group;
        let rows: Vec<&[f32]> = x.chunks_exact(n_in).collect();
        let parts = team.map(&rows, x.len() * ELEMENT_WORK, |row| {
            let mut words = vec![0i32; groups * padded / 4];
            let mut scales = Vec::with_capacity(groups);
            let mut sums: Vec<i32> = Vec::with_capacity(groups);
            let bytes: &mut [i8] = bytemuck::cast_slice_mut(&mut words);
            for (x, bytes) in row.chunks_exact(group).zip(bytes.chunks_exact_mut(padded)) {
                scales.push(self.table.quantize_group(x, &mut bytes[..group]));
                sums.push(bytes.iter().map(|&v| i32::from(v)).sum());
            }
            (words, scales, sums)
        });
        let mut q = Quantized { words: Vec::new(), scales: Vec::new(), sums: Vec::new(), groups };
        for (words, scales, sums) in parts {
            q.words.extend(words);
            q.scales.extend(scales);
            q.sums.extend(sums);
        }
        q
    }

    /// `rms_norm(x[r])` of each row; `x` and the result are `[rows][w.len()]`.
    pub fn rms_norm(&self, team: &Team, x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        team.for_each_chunk(&mut out, w.len(), x.len() * ELEMENT_WORK, |row, out| {
            self.table.rms_norm(&x[row * w.len()..][..w.len()], w, eps, out);
        });
        out
    }

    /// `out = layer_norm(x)` of one row: mean 0 and spread 1, times `w`, plus `b`.
    pub fn layer_norm(&self, x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
        self.table.layer_norm(x, w, b, eps, out);
    }

    /// `x = sigmoid(x)`.
    pub fn sigmoid(&self, x: &mut [f32]) {
        self.table.sigmoid(x);
    }

    /// `gate = silu(gate) * up`.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        self.table.silu_mul(gate, up);
    }

    /// `y += weight * x`, fused.
    pub fn add_scaled(&self, y: &mut [f32], weight: f32, x: &[f32]) {
        self.table.add_scaled(y, weight, x);
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
        keys: Kept<'_>,
        out: &mut [f32],
    ) {
        self.table.index_scores(q, weights, scale, keys, out);
    }
}

/// Input rows of a product.
struct Inputs<'a> {
    n_rows: usize,
    rows: Rows<'a>,
    /// The same for integer weights.
    quantized: Option<Quantized>,
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

/// Has `f(first tile, [tiles][rows][16])` fill all tiles of a result with the rows of `w`;
/// returns it as `[rows][n_out]`.
fn by_tiles(
    team: &Team,
    w: &Matrix,
    n_rows: usize,
    work: usize,
    f: impl Fn(usize, &mut [Lanes]) + Sync,
) -> Vec<f32> {
    if n_rows == 0 {
        return Vec::new();
    }
    // Tile-major first: a thread owns whole tiles, and no two threads write into one row.
    let mut tiles = vec![[0.0f32; TILE]; w.n_tiles() * n_rows];
    let tiles_per_chunk = w.n_tiles().div_ceil(team.n_threads() * 4).next_multiple_of(4);
    team.for_each_chunk(&mut tiles, tiles_per_chunk * n_rows, work, |i, out| {
        f(i * tiles_per_chunk, out);
    });
    let mut y = vec![0.0; n_rows * w.n_out];
    team.for_each_chunk(&mut y, w.n_out, n_rows * w.n_out, |row, y| {
        // Drops the padding of the last tile.
        for (y, tile) in y.chunks_mut(TILE).zip(tiles.chunks_exact(n_rows)) {
            y.copy_from_slice(&tile[row][..y.len()]);
        }
    });
    y
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
