//! Products with integer weights: exact dots of each group, then one chain of fused multiply-adds.
//!
//! The algorithm is written once, as a macro, over the operations that a module for each
//! instruction set defines. Those work on the 16 rows of a tile side by side, so that nothing is
//! ever summed across lanes. No function here is unsafe: vectors are loaded and stored by casts.

use crate::matrix::TILE;

/// What `NIBBLES` may be: the weights are bytes, or one of the two kinds of nibbles.
const BYTES: u8 = 0;
const INT4: u8 = 1;
const MXFP4: u8 = 2;

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use portable::matmul as portable;
#[cfg(target_arch = "x86_64")]
pub use x86::{avx2::matmul as avx2, avx512::matmul as avx512, vnni::matmul as vnni};

/// Inputs of a product, quantised by group; see `Kernels::quantize`.
#[derive(Clone, Copy, Debug)]
pub struct IntRows<'a> {
    /// `[rows][groups][padded group]`, four inputs a word in memory order.
    pub words: &'a [i32],
    /// `[rows][groups]`
    pub scales: &'a [f32],
    /// `[rows][groups]`, the sum of a group's integers.
    pub sums: &'a [i32],
    /// Groups of a row.
    pub groups: usize,
}

/// Defines `matmul` over the operations of the module it is used in:
///
/// - `splat(i32)` gives 16 sums; `begin(sums)` gives room for products of nibbles, which `end(sums,
///   part)` adds after at most `PART_LINES` lines of int4 or `PART_LINES_MXFP4` of mxfp4;
/// - `bytes(&Line)`, `low(bytes)`, `high(bytes)`, and `mxfp4(nibbles)`, which makes of codes what
///   [`MXFP4_UNSIGNED`](crate::matrix::MXFP4_UNSIGNED) says;
/// - `dot4(part, nibbles, word)` and `dot8(sums, bytes, word)` add the products with 4 inputs; `dot8`
///   takes each weight for `BIAS8` more than it is;
/// - `scales(&Scales, group of a tile)`, and `finish(sums, scales, x scale, acc)`, which is
///   `acc = fma(f32(sums), scales * x scale, acc)`;
/// - `TILES`, `ROWS`: how many stay in registers where there are many rows.
macro_rules! int_matmul {
    ($($feature:literal)?) => {
        /// The product of `n_rows` inputs with the tiles from `first`, into `out`
        /// `[tiles][n_rows][16]`.
        $(#[target_feature(enable = $feature)])?
        pub fn matmul(
            w: &IntTiles,
            first: usize,
            x: IntRows<'_>,
            n_rows: usize,
            out: &mut [Lanes],
        ) {
            out.fill([0.0; TILE]);
            match w.bits {
                Bits::Four => all_blocks::<INT4>(w, first, x, n_rows, out),
                Bits::Eight => all_blocks::<BYTES>(w, first, x, n_rows, out),
                Bits::Mxfp4 => all_blocks::<MXFP4>(w, first, x, n_rows, out),
            }
        }

        $(#[target_feature(enable = $feature)])?
        fn all_blocks<const NIBBLES: u8>(
            w: &IntTiles,
            first: usize,
            x: IntRows<'_>,
            n_rows: usize,
            out: &mut [Lanes],
        ) {
            let n_tiles = out.len() / n_rows;
            let mut tile = 0;
            // One row: several tiles in flight hide the latency of each chain.
            let tiles_at_once = if n_rows == 1 { 4 } else { TILES };
            while tile < n_tiles {
                let whole = tile + tiles_at_once <= n_tiles;
                let out = &mut out[tile * n_rows..];
                let mut row = 0;
                while row < n_rows {
                    let left = n_rows - row;
                    let at = (first + tile, row, n_rows);
                    row += match (whole, left) {
                        (true, _) if n_rows == 1 => block::<NIBBLES, 4, 1>(w, x, at, out),
                        (true, n) if n >= ROWS => block::<NIBBLES, TILES, ROWS>(w, x, at, out),
                        (true, n) if n >= 4 => block::<NIBBLES, TILES, 4>(w, x, at, out),
                        (true, n) if n >= 2 => block::<NIBBLES, TILES, 2>(w, x, at, out),
                        (true, _) => block::<NIBBLES, TILES, 1>(w, x, at, out),
                        (false, n) if n >= 4 => block::<NIBBLES, 1, 4>(w, x, at, out),
                        (false, _) => block::<NIBBLES, 1, 1>(w, x, at, out),
                    };
                }
                tile += if whole { tiles_at_once } else { 1 };
            }
        }

        /// `T` tiles from `at.0` for `R` rows from `at.1`; returns `R`.
        $(#[target_feature(enable = $feature)])?
        fn block<const NIBBLES: u8, const T: usize, const R: usize>(
            w: &IntTiles,
            x: IntRows<'_>,
            at: (usize, usize, usize),
            out: &mut [Lanes],
        ) -> usize {
            let (tile, row, n_rows) = at;
            let n_lines = w.lines_per_group();
            let words = w.padded_group() / 4;
            for g in 0..x.groups {
                let lines: [&[Line]; T] = std::array::from_fn(|t| {
                    &w.lines[((tile + t) * x.groups + g) * n_lines..][..n_lines]
                });
                let inputs: [&[i32]; R] = std::array::from_fn(|r| {
                    &x.words[((row + r) * x.groups + g) * words..][..words]
                });
                let (bias, part_lines) = match NIBBLES {
                    INT4 => (8, PART_LINES),
                    MXFP4 => (MXFP4_BIAS, PART_LINES_MXFP4),
                    _ => (BIAS8, 0),
                };
                let mut sums = [[splat(0); R]; T];
                for r in 0..R {
                    let start = splat(x.sums[(row + r) * x.groups + g].wrapping_mul(-bias));
                    for t in 0..T {
                        sums[t][r] = start;
                    }
                }
                if NIBBLES != BYTES {
                    let mut line = 0;
                    while line < n_lines {
                        let line_end = n_lines.min(line.saturating_add(part_lines));
                        let mut parts = sums;
                        for part in parts.as_flattened_mut() {
                            *part = begin(*part);
                        }
                        for i in line..line_end {
                            for t in 0..T {
                                let w = bytes(&lines[t][i]);
                                let (mut low, mut high) = (low(w), high(w));
                                if NIBBLES == MXFP4 {
                                    (low, high) = (mxfp4(low), mxfp4(high));
                                }
                                for r in 0..R {
                                    let part = dot4(parts[t][r], low, inputs[r][2 * i]);
                                    parts[t][r] = dot4(part, high, inputs[r][2 * i + 1]);
                                }
                            }
                        }
                        for t in 0..T {
                            for r in 0..R {
                                sums[t][r] = end(sums[t][r], parts[t][r]);
                            }
                        }
                        line = line_end;
                    }
                } else {
                    for i in 0..n_lines {
                        for t in 0..T {
                            let w = bytes(&lines[t][i]);
                            for r in 0..R {
                                sums[t][r] = dot8(sums[t][r], w, inputs[r][i]);
                            }
                        }
                    }
                }
                for t in 0..T {
                    let w_scales = scales(&w.scales, (tile + t) * x.groups + g);
                    for r in 0..R {
                        let x_scale = x.scales[(row + r) * x.groups + g];
                        finish(sums[t][r], w_scales, x_scale, &mut out[t * n_rows + row + r]);
                    }
                }
            }
            R
        }
    };
}
use int_matmul;

/// The 16 scales of one group of a tile.
#[inline(always)]
fn scale_lanes<T: Copy>(scales: &[T], group: usize) -> [T; TILE] {
    scales[group * TILE..][..TILE].try_into().expect("a slice of 16 scales")
}
