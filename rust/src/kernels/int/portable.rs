//! The operations in plain Rust, for CPUs without a module of their own.

use super::{
    BF16, BYTES, F16, F32, INT4, IntRows, MXFP4, PART, PART_MXFP4, int_matmul, scale_lanes,
};
use crate::dtype::{bf16_to_f32, f16_to_f32};
use crate::kernels::generic::Lanes;
use crate::matrix::{Bits, IntTiles, Line, MXFP4_BIAS, MXFP4_UNSIGNED, Scales, TILE};

type Sums = [i32; TILE];
type Bytes = [[u8; 4]; TILE];

const SOLO_TILES: usize = 4;
const TILES: usize = 1;
const ROWS: usize = 4;
const BIAS8: i32 = 0;

fn splat(value: i32) -> Sums {
    [value; TILE]
}

fn begin(sums: Sums) -> Sums {
    sums
}

fn end(_: Sums, part: Sums) -> Sums {
    part
}

fn bytes(line: &Line) -> Bytes {
    line.0
}

fn low(bytes: Bytes) -> Bytes {
    bytes.map(|b| b.map(|b| b & 15))
}

fn high(bytes: Bytes) -> Bytes {
    bytes.map(|b| b.map(|b| b >> 4))
}

fn mxfp4(nibbles: Bytes) -> Bytes {
    nibbles.map(|b| b.map(|code| MXFP4_UNSIGNED[usize::from(code & 15)]))
}

fn dot4(part: Sums, nibbles: Bytes, word: i32) -> Sums {
    dot8(part, nibbles, word)
}

fn dot8(mut sums: Sums, bytes: Bytes, word: i32) -> Sums {
    let x = word.to_ne_bytes().map(|x| i32::from(x as i8));
    for (sum, w) in sums.iter_mut().zip(bytes) {
        for (w, x) in w.into_iter().zip(x) {
            *sum = sum.wrapping_add(i32::from(w as i8) * x);
        }
    }
    sums
}

#[inline(always)]
pub fn scales<const SCALE: u8>(scales: &[u8], group: usize) -> Lanes {
    match SCALE {
        F32 => scale_lanes(scales, group),
        F16 => scale_lanes(scales, group).map(f16_to_f32),
        _ => scale_lanes(scales, group).map(bf16_to_f32),
    }
}

fn fetch_ahead(_: &[Line], _: usize) {}

fn finish(sums: Sums, w_scales: Lanes, x_scale: f32, acc: &mut Lanes) {
    for ((acc, sum), w_scale) in acc.iter_mut().zip(sums).zip(w_scales) {
        *acc = (sum as f32).mul_add(w_scale * x_scale, *acc);
    }
}

int_matmul!();
