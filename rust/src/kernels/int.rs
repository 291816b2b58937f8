//! Products with integer weights: exact dots of each group, then one chain of fused multiply-adds.
//!
//! The algorithm is written once, as a macro, over the operations that a module for each
//! instruction set defines. Those work on the 16 rows of a tile side by side, so that nothing is
//! ever summed across lanes. Vectors are loaded and stored by casts, which are safe.

use bytemuck::Pod;

use crate::matrix::TILE;

/// What `WEIGHTS` may be: bytes, or one of the two kinds of nibbles.
const BYTES: u8 = 0;
const INT4: u8 = 1;
const MXFP4: u8 = 2;

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub use neon::matmul as neon;
pub use portable::matmul as portable;
#[cfg(target_arch = "x86_64")]
pub use x86::{
    avx2::matmul as avx2, avx512::matmul as avx512, avxvnni::matmul as avxvnni,
    vnni::matmul as vnni,
};

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

/// Lines that are added up before anything else happens; their addresses are checked together.
const PART: usize = 4;
/// The same of mxfp4, whose products are larger.
const PART_MXFP4: usize = 2;

/// Defines `matmul` over the operations of the module it is used in:
///
/// - `splat(i32)` gives 16 sums; `begin(sums)` gives room for products of nibbles, which `end(sums,
///   part)` adds after at most `PART` lines of int4 or `PART_MXFP4` of mxfp4;
/// - `bytes(&Line)`, `low(bytes)`, `high(bytes)`, and `mxfp4(nibbles)`, which makes of codes what
///   [`MXFP4_UNSIGNED`](crate::matrix::MXFP4_UNSIGNED) says;
/// - `dot4(part, nibbles, word)` and `dot8(sums, bytes, word)` add the products with 4 inputs; `dot8`
///   takes each weight for `BIAS8` more than it is;
/// - `scales::<SCALE>(bytes of all scales, group of a tile)`, and `finish(sums, scales, x scale,
///   acc)`, which is `acc = fma(f32(sums), scales * x scale, acc)`;
/// - `fetch_ahead(lines, at)` may have the cache read what a single row will soon need;
/// - `SOLO_TILES`: how many tiles in flight hide the latencies where there is one row; `TILES`,
///   `ROWS`: how many stay in registers where there are many.
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
            match (w.bits, &w.scales) {
                (Bits::Four, Scales::F32(_)) => all_blocks::<INT4, 2, F32>(w, first, x, n_rows, out),
                (Bits::Four, Scales::F16(_)) => all_blocks::<INT4, 2, F16>(w, first, x, n_rows, out),
                (Bits::Four, Scales::Bf16(_)) => all_blocks::<INT4, 2, BF16>(w, first, x, n_rows, out),
                (Bits::Eight, Scales::F32(_)) => all_blocks::<BYTES, 1, F32>(w, first, x, n_rows, out),
                (Bits::Eight, Scales::F16(_)) => all_blocks::<BYTES, 1, F16>(w, first, x, n_rows, out),
                (Bits::Eight, Scales::Bf16(_)) => all_blocks::<BYTES, 1, BF16>(w, first, x, n_rows, out),
                (Bits::Mxfp4, Scales::F32(_)) => all_blocks::<MXFP4, 2, F32>(w, first, x, n_rows, out),
                (Bits::Mxfp4, Scales::F16(_)) => all_blocks::<MXFP4, 2, F16>(w, first, x, n_rows, out),
                (Bits::Mxfp4, Scales::Bf16(_)) => all_blocks::<MXFP4, 2, BF16>(w, first, x, n_rows, out),
            }
        }

        /// `WORDS` of inputs go with a line of `WEIGHTS`.
        $(#[target_feature(enable = $feature)])?
        fn all_blocks<const WEIGHTS: u8, const WORDS: usize, const SCALE: u8>(
            w: &IntTiles,
            first: usize,
            x: IntRows<'_>,
            n_rows: usize,
            out: &mut [Lanes],
        ) {
            let n_tiles = out.len() / n_rows;
            let mut tile = 0;
            let tiles_at_once = if n_rows == 1 { SOLO_TILES } else { TILES };
            while tile < n_tiles {
                let whole = tile + tiles_at_once <= n_tiles;
                let out = &mut out[tile * n_rows..];
                let mut row = 0;
                while row < n_rows {
                    let left = n_rows - row;
                    let at = (first + tile, row, n_rows);
                    row += match (whole, left) {
                        (true, _) if n_rows == 1 => {
                            block::<WEIGHTS, WORDS, SCALE, SOLO_TILES, 1>(w, x, at, out)
                        }
                        (true, n) if n >= ROWS => block::<WEIGHTS, WORDS, SCALE, TILES, ROWS>(w, x, at, out),
                        (true, n) if n >= 4 => block::<WEIGHTS, WORDS, SCALE, TILES, 4>(w, x, at, out),
                        (true, n) if n >= 2 => block::<WEIGHTS, WORDS, SCALE, TILES, 2>(w, x, at, out),
                        (true, _) => block::<WEIGHTS, WORDS, SCALE, TILES, 1>(w, x, at, out),
                        (false, n) if n >= 4 => block::<WEIGHTS, WORDS, SCALE, 1, 4>(w, x, at, out),
                        (false, _) => block::<WEIGHTS, WORDS, SCALE, 1, 1>(w, x, at, out),
                    };
                }
                tile += if whole { tiles_at_once } else { 1 };
            }
        }

        /// `T` tiles from `at.0` for `R` rows from `at.1`; returns `R`.
        $(#[target_feature(enable = $feature)])?
        fn block<
            const WEIGHTS: u8,
            const WORDS: usize,
            const SCALE: u8,
            const T: usize,
            const R: usize,
        >(
            w: &IntTiles,
            x: IntRows<'_>,
            at: (usize, usize, usize),
            out: &mut [Lanes],
        ) -> usize {
            let (tile, row, n_rows) = at;
            let n_lines = w.lines_per_group();
            let words = x.words.as_chunks::<WORDS>().0;
            let scale_bytes = w.scales.as_bytes();
            let bias = match WEIGHTS {
                INT4 => 8,
                MXFP4 => MXFP4_BIAS,
                _ => BIAS8,
            };
            let mut acc = [[[0.0; TILE]; R]; T];
            for g in 0..x.groups {
                let mut sums = [[splat(0); R]; T];
                for r in 0..R {
                    let start = splat(x.sums[(row + r) * x.groups + g].wrapping_mul(-bias));
                    for t in 0..T {
                        sums[t][r] = start;
                    }
                }
                // Adds the products of `$n` lines from `line`.
                macro_rules! add_lines {
                    ($n:expr, $line:expr) => {
                        let mut inputs = [&[[0; WORDS]; $n]; R];
                        for r in 0..R {
                            let from = ((row + r) * x.groups + g) * n_lines + $line;
                            inputs[r] = words[from..].first_chunk().expect("words for each line");
                        }
                        let mut lines = [&[Line::ZERO; $n]; T];
                        for t in 0..T {
                            let from = ((tile + t) * x.groups + g) * n_lines + $line;
                            lines[t] = w.lines[from..].first_chunk().expect("a group's lines");
                            if R == 1 {
                                for i in 0..$n {
                                    fetch_ahead(&w.lines, from + i);
                                }
                            }
                        }
                        let mut parts = sums;
                        if WEIGHTS != BYTES {
                            for t in 0..T {
                                for r in 0..R {
                                    parts[t][r] = begin(sums[t][r]);
                                }
                            }
                        }
                        for i in 0..$n {
                            for t in 0..T {
                                let w = bytes(&lines[t][i]);
                                if WEIGHTS != BYTES {
                                    let (mut low, mut high) = (low(w), high(w));
                                    if WEIGHTS == MXFP4 {
                                        (low, high) = (mxfp4(low), mxfp4(high));
                                    }
                                    for r in 0..R {
                                        let part = dot4(parts[t][r], low, inputs[r][i][0]);
                                        parts[t][r] = dot4(part, high, inputs[r][i][WORDS - 1]);
                                    }
                                } else {
                                    for r in 0..R {
                                        parts[t][r] = dot8(parts[t][r], w, inputs[r][i][0]);
                                    }
                                }
                            }
                        }
                        for t in 0..T {
                            for r in 0..R {
                                sums[t][r] = if WEIGHTS != BYTES {
                                    end(sums[t][r], parts[t][r])
                                } else {
                                    parts[t][r]
                                };
                            }
                        }
                    };
                }
                let part = if WEIGHTS == MXFP4 { PART_MXFP4 } else { PART };
                let whole = n_lines / part * part;
                for line in (0..whole).step_by(part) {
                    if WEIGHTS == MXFP4 {
                        add_lines!(PART_MXFP4, line);
                    } else {
                        add_lines!(PART, line);
                    }
                }
                for line in whole..n_lines {
                    add_lines!(1, line);
                }
                for t in 0..T {
                    let w_scales = scales::<SCALE>(scale_bytes, (tile + t) * x.groups + g);
                    for r in 0..R {
                        let x_scale = x.scales[(row + r) * x.groups + g];
                        finish(sums[t][r], w_scales, x_scale, &mut acc[t][r]);
                    }
                }
            }
            for t in 0..T {
                out[t * n_rows + row..][..R].copy_from_slice(&acc[t]);
            }
            R
        }
    };
}
use int_matmul;

/// The kinds of [`Scales`], for code that is compiled for each.
const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// The 16 scales of one group of a tile.
#[inline(always)]
fn scale_lanes<T: Pod>(scales: &[u8], group: usize) -> [T; TILE] {
    let bytes = size_of::<[T; TILE]>();
    bytemuck::pod_read_unaligned(&scales[group * bytes..][..bytes])
}
