//! The kernels, written once over 16 lanes; `isa` compiles them for each instruction set.
//!
//! Every function is `inline(always)` so that it takes on the caller's target features, and keeps
//! the order of operations of `scalar`, which the tests compare bit for bit.

use super::Kept;
use super::math;
use crate::dtype::{bf16_to_f32, e4m3_number_to_f32};
use crate::matrix::{Fp8Tiles, TILE};

/// One value per output row of a tile.
pub type Lanes = [f32; TILE];

/// Positions of one key/value block; blocks start at multiples of it.
pub const KV_BLOCK: usize = 256;

/// Inputs of a product with float weights.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Elements of one row.
    pub n_in: usize,
    /// `[rows][n_in]`
    pub x: &'a [f32],
}

impl<'a> Rows<'a> {
    /// `R` rows from `first` on.
    #[inline(always)]
    fn take<const R: usize>(self, first: usize) -> [&'a [f32]; R] {
        let n_in = self.n_in;
        std::array::from_fn(|r| &self.x[(first + r) * n_in..(first + r + 1) * n_in])
    }
}

/// Float weights that products are taken of.
pub trait Weights: Copy {
    /// The outputs of `T` tiles from tile `first` for `R` rows of inputs from `first_row`.
    fn accumulate<const T: usize, const R: usize>(
        self,
        first: usize,
        x: Rows<'_>,
        first_row: usize,
    ) -> [[Lanes; R]; T];

    /// Weights of a tile for the inputs from `from` on.
    fn widen(self, tile: usize, n_in: usize, from: usize, out: &mut [Lanes]);

    /// Inputs that have a chain of their own.
    fn block(self, n_in: usize) -> usize;

    /// Adds the chain of a tile's block `b` of so many to what those before gave.
    fn add_block(self, tile: usize, b: usize, n_blocks: usize, chain: &Lanes, acc: &mut Lanes);
}

/// Float weights `[tiles][n_in][16]` widened by `W`.
#[derive(Clone, Copy)]
pub struct Plain<'a, E, W>(pub &'a [E], pub W);

/// Float weights with a scale per row and block of inputs.
#[derive(Clone, Copy)]
pub struct Scaled<'a>(pub &'a Fp8Tiles);

#[inline(always)]
fn lanes<T>(elements: &[T], at: usize) -> &[T; TILE] {
    elements[at * TILE..(at + 1) * TILE].try_into().expect("a slice of 16 elements")
}

impl<E: Copy, W: Fn(E) -> f32 + Copy> Plain<'_, E, W> {
    /// The outputs of `T` tiles from tile `first` for `rows` `[n_in]`: one chain of fused
    /// multiply-adds per output, inputs ascending. The weights of so many inputs `ahead` are fetched
    /// meanwhile; 0 leaves that to the CPU.
    #[inline(always)]
    pub fn chains<const T: usize, const R: usize>(
        self,
        first: usize,
        rows: [&[f32]; R],
        ahead: usize,
    ) -> [[Lanes; R]; T] {
        let n_in = rows[0].len();
        let rows = rows.map(|row| &row[..n_in]);
        let tiles: [&[E]; T] = std::array::from_fn(|t| {
            &self.0[(first + t) * n_in * TILE..(first + t + 1) * n_in * TILE]
        });
        let mut acc = [[[0.0f32; TILE]; R]; T];
        for k in 0..n_in {
            for t in 0..T {
                let w = lanes(tiles[t], k);
                if ahead > 0 {
                    prefetch(w.as_ptr().wrapping_add(ahead * TILE));
                }
                let w = w.map(self.1);
                for r in 0..R {
                    let x = rows[r][k];
                    for l in 0..TILE {
                        acc[t][r][l] = w[l].mul_add(x, acc[t][r][l]);
                    }
                }
            }
        }
        acc
    }
}

/// Has what lies at `place`, which need not be anything, brought into the second cache, where the
/// compiler can say that.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint, which neither reads nor faults, of every x86-64 CPU.
        #[allow(unsafe_code, reason = "takes a pointer, which it does not follow")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(place.cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

impl<E: Copy, W: Fn(E) -> f32 + Copy> Weights for Plain<'_, E, W> {
    #[inline(always)]
    fn accumulate<const T: usize, const R: usize>(
        self,
        first: usize,
        x: Rows<'_>,
        first_row: usize,
    ) -> [[Lanes; R]; T] {
        self.chains(first, x.take(first_row), 0)
    }

    #[inline(always)]
    fn widen(self, tile: usize, n_in: usize, from: usize, out: &mut [Lanes]) {
        let elements = &self.0[(tile * n_in + from) * TILE..][..out.len() * TILE];
        for (w, &element) in out.as_flattened_mut().iter_mut().zip(elements) {
            *w = self.1(element);
        }
    }

    #[inline(always)]
    fn block(self, n_in: usize) -> usize {
        n_in
    }

    #[inline(always)]
    fn add_block(self, _: usize, _: usize, _: usize, chain: &Lanes, acc: &mut Lanes) {
        *acc = *chain;
    }
}

/// Inputs whose e4m3 weights are widened at once: loops over so many are vectorised, others not.
const WIDENED: usize = 16;

impl Weights for Scaled<'_> {
    /// One chain per block without its scale, then one chain over the blocks.
    #[inline(always)]
    fn accumulate<const T: usize, const R: usize>(
        self,
        first: usize,
        x: Rows<'_>,
        first_row: usize,
    ) -> [[Lanes; R]; T] {
        let n_in = x.n_in;
        let block = self.0.block;
        let blocks = n_in.div_ceil(block);
        let rows: [&[f32]; R] = x.take(first_row);
        let mut widened = [[[0.0f32; TILE]; WIDENED]; T];
        let mut acc = [[[0.0f32; TILE]; R]; T];
        for b in 0..blocks {
            let end = n_in.min((b + 1) * block);
            let mut chains = [[[0.0f32; TILE]; R]; T];
            for from in (b * block..end).step_by(WIDENED) {
                let n = WIDENED.min(end - from);
                for t in 0..T {
                    self.widen(first + t, n_in, from, &mut widened[t][..n]);
                }
                for k in 0..n {
                    for t in 0..T {
                        let w = &widened[t][k];
                        for r in 0..R {
                            let x = rows[r][from + k];
                            for l in 0..TILE {
                                chains[t][r][l] = w[l].mul_add(x, chains[t][r][l]);
                            }
                        }
                    }
                }
            }
            for t in 0..T {
                for r in 0..R {
                    self.add_block(first + t, b, blocks, &chains[t][r], &mut acc[t][r]);
                }
            }
        }
        acc
    }

    #[inline(always)]
    fn widen(self, tile: usize, n_in: usize, from: usize, out: &mut [Lanes]) {
        let codes = &self.0.codes[(tile * n_in + from) * TILE..][..out.len() * TILE];
        for (w, &code) in out.as_flattened_mut().iter_mut().zip(codes) {
            *w = e4m3_number_to_f32(code);
        }
    }

    #[inline(always)]
    fn block(self, _: usize) -> usize {
        self.0.block
    }

    #[inline(always)]
    fn add_block(self, tile: usize, b: usize, n_blocks: usize, chain: &Lanes, acc: &mut Lanes) {
        let scale = lanes(&self.0.scales, tile * n_blocks + b);
        for l in 0..TILE {
            acc[l] = chain[l].mul_add(scale[l], acc[l]);
        }
    }
}

/// Products of `n_rows` inputs with the tiles `first..first + n`, into `out` `[n][n_rows][16]`.
#[inline(always)]
pub fn matmul<W: Weights>(w: W, first: usize, x: Rows<'_>, n_rows: usize, out: &mut [Lanes]) {
    let n_tiles = out.len() / n_rows;
    if n_rows == 1 {
        // Several tiles in flight hide the latency of each chain.
        let whole = n_tiles / 4 * 4;
        for t in (0..whole).step_by(4) {
            out[t..t + 4].copy_from_slice(w.accumulate::<4, 1>(first + t, x, 0).as_flattened());
        }
        for t in whole..n_tiles {
            out[t] = w.accumulate::<1, 1>(first + t, x, 0)[0][0];
        }
        return;
    }
    if n_rows >= MANY_ROWS {
        return matmul_many(w, first, x, n_rows, out);
    }
    for (t, out) in out.chunks_exact_mut(n_rows).enumerate() {
        let whole = n_rows / 4 * 4;
        for r in (0..whole).step_by(4) {
            out[r..r + 4].copy_from_slice(&w.accumulate::<1, 4>(first + t, x, r)[0]);
        }
        for r in whole..n_rows {
            out[r] = w.accumulate::<1, 1>(first + t, x, r)[0][0];
        }
    }
}

/// Rows from which on it pays to widen weights once for all of them.
const MANY_ROWS: usize = 8;
/// Inputs whose weights are widened at once then: a tile's are 8 KiB, which the nearest cache holds.
const DEPTH: usize = 128;

/// [`matmul`] of many rows.
#[inline(always)]
fn matmul_many<W: Weights>(w: W, first: usize, x: Rows<'_>, n_rows: usize, out: &mut [Lanes]) {
    let block = w.block(x.n_in);
    let blocks = x.n_in.div_ceil(block);
    let mut widened = [[0.0f32; TILE]; DEPTH];
    let mut chains = vec![[0.0f32; TILE]; n_rows];
    for (t, out) in out.chunks_exact_mut(n_rows).enumerate() {
        out.fill([0.0; TILE]);
        for b in 0..blocks {
            let end = x.n_in.min((b + 1) * block);
            chains.fill([0.0; TILE]);
            for from in (b * block..end).step_by(DEPTH) {
                let widened = &mut widened[..DEPTH.min(end - from)];
                w.widen(first + t, x.n_in, from, widened);
                let whole = n_rows / 4 * 4;
                for r in (0..whole).step_by(4) {
                    lengthen::<4>(&mut chains[r..], widened, x.take(r), from);
                }
                for r in whole..n_rows {
                    lengthen::<1>(&mut chains[r..], widened, x.take(r), from);
                }
            }
            for (chain, acc) in chains.iter().zip(&mut *out) {
                w.add_block(first + t, b, blocks, chain, acc);
            }
        }
    }
}

/// Goes on with the chains of `R` rows, by the weights of the inputs from `from` on.
#[inline(always)]
fn lengthen<const R: usize>(
    chains: &mut [Lanes],
    weights: &[Lanes],
    rows: [&[f32]; R],
    from: usize,
) {
    let rows = rows.map(|row| &row[from..from + weights.len()]);
    let mut acc: [Lanes; R] = std::array::from_fn(|r| chains[r]);
    for (k, w) in weights.iter().enumerate() {
        for r in 0..R {
            let x = rows[r][k];
            for l in 0..TILE {
                acc[r][l] = w[l].mul_add(x, acc[r][l]);
            }
        }
    }
    chains[..R].copy_from_slice(&acc);
}

/// Quantises a group `x` to signed bytes: amax / 127, ties to even. Returns the scale.
///
/// A NaN or infinity makes the scale NaN or infinite, so it cannot vanish.
#[inline(always)]
pub fn quantize_group(x: &[f32], q: &mut [i8]) -> f32 {
    let mut bits = 0u32;
    for &v in x {
        bits = bits.max(v.to_bits() & 0x7fff_ffff);
    }
    let amax = f32::from_bits(bits);
    let inverse = if amax > 0.0 { 127.0 / amax } else { 0.0 };
    for (q, &v) in q.iter_mut().zip(x) {
        *q = (v * inverse).round_ties_even() as i8;
    }
    amax / 127.0
}

/// Adds 16 partial sums pairwise: 8 and 8, then 4 and 4, 2 and 2, 1 and 1.
#[inline(always)]
pub fn tree_sum(mut p: Lanes) -> f32 {
    let mut n = TILE;
    while n > 1 {
        n /= 2;
        for l in 0..n {
            p[l] += p[l + n];
        }
    }
    p[0]
}

/// Sums `x` as 16 strided chains, element i in chain i mod 16, added up pairwise.
#[inline(always)]
fn strided_sum(x: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut partial = [0.0f32; TILE];
    let chunks = x.chunks_exact(TILE);
    let rest = chunks.remainder();
    for chunk in chunks {
        for l in 0..TILE {
            partial[l] = add(partial[l], chunk[l]);
        }
    }
    for (l, &v) in rest.iter().enumerate() {
        partial[l] = add(partial[l], v);
    }
    tree_sum(partial)
}

/// `out = x / sqrt(mean(x^2) + eps) * w`.
#[inline(always)]
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let squares = strided_sum(x, |sum, v| v.mul_add(v, sum));
    let inverse = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    for ((out, &x), &w) in out.iter_mut().zip(x).zip(w) {
        *out = x * inverse * w;
    }
}

/// `out = (x - mean) / sqrt(variance + eps) * w + b`; squares are rounded before they are added.
#[inline(always)]
pub fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f32;
    let mean = strided_sum(x, |sum, v| sum + v) / n;
    let squares = strided_sum(x, |sum, v| sum + (v - mean) * (v - mean));
    let inverse = 1.0 / (squares / n + eps).sqrt();
    for (((out, &x), &w), &b) in out.iter_mut().zip(x).zip(w).zip(b) {
        *out = (x - mean) * inverse * w + b;
    }
}

/// `x = sigmoid(x)`.
#[inline(always)]
pub fn sigmoid(x: &mut [f32]) {
    for v in x {
        *v = math::sigmoid(*v);
    }
}

/// `gate = silu(gate) * up`.
#[inline(always)]
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = math::silu(*g) * u;
    }
}

/// `y += weight * x`, fused.
#[inline(always)]
pub fn add_scaled(y: &mut [f32], weight: f32, x: &[f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = weight.mul_add(x, *y);
    }
}

/// `gate = (up + 1) * gate * sigmoid(alpha * gate)` of a gate of at most `limit` and an `up` within
/// it, either way. A NaN stays one.
#[inline(always)]
pub fn clamped_swiglu(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
    for (g, &u) in gate.iter_mut().zip(up) {
        let gate = if *g > limit { limit } else { *g };
        let up = if u > limit { limit } else { u };
        let up = if up < -limit { -limit } else { up };
        *g = (up + 1.0) * (gate * math::sigmoid(alpha * gate));
    }
}

/// `x = e^((x - max) / temperature)`.
#[inline(always)]
pub fn softmax_weights(x: &mut [f32], max: f32, temperature: f32) {
    for v in x {
        *v = math::exp((*v - max) / temperature);
    }
}

/// An indexer's scores of the first `out.len()` positions of a block.
///
/// `q`: `[heads][dim]`. `weights`: `[heads]`. `keys`: `[16 tiles][dim][16 positions]`.
#[inline(always)]
pub fn index_scores(q: &[f32], weights: &[f32], scale: f32, keys: Kept<'_>, out: &mut [f32]) {
    match keys {
        Kept::F32(keys) => scores_of(q, weights, scale, Plain(keys, |k| k), out),
        Kept::Bf16(keys) => scores_of(q, weights, scale, Plain(keys, bf16_to_f32), out),
    }
}

#[inline(always)]
fn scores_of<E: Copy, W: Fn(E) -> f32 + Copy>(
    q: &[f32],
    weights: &[f32],
    scale: f32,
    keys: Plain<'_, E, W>,
    out: &mut [f32],
) {
    let rows = Rows { n_in: q.len() / weights.len(), x: q };
    for (tile, out) in out.chunks_mut(TILE).enumerate() {
        let mut acc = [0.0f32; TILE];
        let mut add = |weight: f32, products: &Lanes| {
            for l in 0..TILE {
                let dot = products[l] * scale;
                acc[l] = weight.mul_add(if dot < 0.0 { 0.0 } else { dot }, acc[l]);
            }
        };
        let whole = weights.len() / 4 * 4;
        for head in (0..whole).step_by(4) {
            let products = keys.accumulate::<1, 4>(tile, rows, head)[0];
            for (weight, products) in weights[head..].iter().zip(&products) {
                add(*weight, products);
            }
        }
        for head in whole..weights.len() {
            add(weights[head], &keys.accumulate::<1, 1>(tile, rows, head)[0][0]);
        }
        out.copy_from_slice(&acc[..out.len()]);
    }
}
