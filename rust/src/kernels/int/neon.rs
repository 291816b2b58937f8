//! The operations on aarch64 with dot products: four 128-bit registers for a tile. Compiled for its
//! features and called only where the CPU has them.

use std::arch::aarch64::{
    float32x4_t, int32x4_t, uint8x16_t, vandq_u8, vcvtq_f32_s32, vdupq_n_s32, vdupq_n_u8,
    vfmaq_f32, vmulq_n_f32, vqtbl1q_u8, vshrq_n_u8,
};

use super::{BF16, BYTES, F16, F32, INT4, IntRows, MXFP4, PART, PART_MXFP4, int_matmul, portable};
use crate::kernels::generic::Lanes;
use crate::matrix::{Bits, IntTiles, Line, MXFP4_BIAS, MXFP4_UNSIGNED, Scales, TILE};

type Sums = [int32x4_t; 4];
type Bytes = [uint8x16_t; 4];

const SOLO_TILES: usize = 4;
const TILES: usize = 1;
const ROWS: usize = 4;
const BIAS8: i32 = 0;

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn splat(value: i32) -> Sums {
    [vdupq_n_s32(value); 4]
}

fn begin(sums: Sums) -> Sums {
    sums
}

fn end(_: Sums, part: Sums) -> Sums {
    part
}

fn bytes(line: &Line) -> Bytes {
    bytemuck::cast(*line)
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn low(mut bytes: Bytes) -> Bytes {
    for b in &mut bytes {
        *b = vandq_u8(*b, vdupq_n_u8(15));
    }
    bytes
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn high(mut bytes: Bytes) -> Bytes {
    for b in &mut bytes {
        *b = vshrq_n_u8::<4>(*b);
    }
    bytes
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn mxfp4(mut nibbles: Bytes) -> Bytes {
    for codes in &mut nibbles {
        *codes = vqtbl1q_u8(bytemuck::cast(MXFP4_UNSIGNED), *codes);
    }
    nibbles
}

/// What nibbles stand for is less than 128, so that it does not matter whether they have a sign.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn dot4(part: Sums, nibbles: Bytes, word: i32) -> Sums {
    dot8(part, nibbles, word)
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn dot8(mut sums: Sums, bytes: Bytes, word: i32) -> Sums {
    let x = vdupq_n_s32(word);
    for (sum, w) in sums.iter_mut().zip(bytes) {
        *sum = sdot(*sum, w, x);
    }
    sums
}

/// Adds to each of 4 sums the products of 4 signed bytes; `vdotq_s32`, which Rust does not offer yet.
#[target_feature(enable = "neon,dotprod")]
#[inline]
#[allow(unsafe_code, reason = "an instruction without a stable intrinsic")]
fn sdot(mut sums: int32x4_t, w: uint8x16_t, x: int32x4_t) -> int32x4_t {
    // SAFETY: the function is compiled for the features that have the instruction; it changes
    // nothing but the register of the sums.
    unsafe {
        std::arch::asm!(
            "sdot {sums:v}.4s, {w:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

#[inline(always)]
fn scales<const SCALE: u8>(scales: &[u8], group: usize) -> Lanes {
    portable::scales::<SCALE>(scales, group)
}

fn fetch_ahead(_: &[Line], _: usize) {}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn finish(sums: Sums, w_scales: Lanes, x_scale: f32, acc: &mut Lanes) {
    let w_scales: [float32x4_t; 4] = bytemuck::cast(w_scales);
    let mut new: [float32x4_t; 4] = bytemuck::cast(*acc);
    for (new, (sum, w_scale)) in new.iter_mut().zip(sums.into_iter().zip(w_scales)) {
        *new = vfmaq_f32(*new, vcvtq_f32_s32(sum), vmulq_n_f32(w_scale, x_scale));
    }
    *acc = bytemuck::cast(new);
}

int_matmul!("neon,dotprod");
