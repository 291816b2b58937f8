//! The generic kernels compiled for each instruction set, behind one table of function pointers.

use super::attention::{self, Kept, Softmax};
use super::generic::{self, Lanes, Plain, Rows, Scaled};
use super::int::{self, IntRows};
use super::recurrent;
use crate::cpu::Isa;
use crate::matrix::{Elements, IntTiles};

/// Entry points of one level; each is safe to call only on a CPU that has the level.
pub struct Table {
    matmul: unsafe fn(&Elements, usize, Rows<'_>, usize, &mut [Lanes]),
    int_matmul: unsafe fn(&IntTiles, usize, IntRows<'_>, usize, &mut [Lanes]),
    quantize_group: unsafe fn(&[f32], &mut [i8]) -> f32,
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    layer_norm: unsafe fn(&[f32], &[f32], &[f32], f32, &mut [f32]),
    sigmoid: unsafe fn(&mut [f32]),
    silu_mul: unsafe fn(&mut [f32], &[f32]),
    add_scaled: unsafe fn(&mut [f32], f32, &[f32]),
    clamped_swiglu: unsafe fn(&mut [f32], &[f32], f32, f32),
    softmax_weights: unsafe fn(&mut [f32], f32, f32),
    index_scores: unsafe fn(&[f32], &[f32], f32, Kept<'_>, &mut [f32]),
    pub attention: attention::Entries,
    pub recurrent: recurrent::Entries,
}

#[inline(always)]
fn matmul(w: &Elements, first: usize, x: Rows<'_>, n_rows: usize, out: &mut [Lanes]) {
    match w {
        Elements::F32(w) => generic::matmul(Plain(w, |w: f32| w), first, x, n_rows, out),
        Elements::F16(w) => {
            generic::matmul(Plain(w, crate::dtype::f16_to_f32), first, x, n_rows, out);
        }
        Elements::Bf16(w) => {
            generic::matmul(Plain(w, crate::dtype::bf16_to_f32), first, x, n_rows, out);
        }
        Elements::Fp8(w) => generic::matmul(Scaled(w), first, x, n_rows, out),
        Elements::Int(_) => unreachable!("integer weights have kernels of their own"),
    }
}

macro_rules! level {
    ($name:ident, $int_matmul:path $(, $feature:literal)*) => {
        mod $name {
            use super::{
                Elements, Kept, Lanes, Rows, Softmax, Table, attention, generic, int, recurrent,
            };

            pub const TABLE: Table = Table {
                matmul,
                int_matmul: $int_matmul,
                quantize_group,
                rms_norm,
                layer_norm,
                sigmoid,
                silu_mul,
                add_scaled,
                clamped_swiglu,
                softmax_weights,
                index_scores,
                attention: attention::Entries { attend_block, merge_block },
                recurrent: recurrent::Entries { delta_rule, conv_silu, decays, sigmoid_mul },
            };

            $(#[target_feature(enable = $feature)])*
            fn matmul(w: &Elements, first: usize, x: Rows<'_>, n_rows: usize, out: &mut [Lanes]) {
                super::matmul(w, first, x, n_rows, out);
            }

            $(#[target_feature(enable = $feature)])*
            fn quantize_group(x: &[f32], q: &mut [i8]) -> f32 {
                generic::quantize_group(x, q)
            }

            $(#[target_feature(enable = $feature)])*
            fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
                generic::rms_norm(x, w, eps, out);
            }

            $(#[target_feature(enable = $feature)])*
            fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
                generic::layer_norm(x, w, b, eps, out);
            }

            $(#[target_feature(enable = $feature)])*
            fn sigmoid(x: &mut [f32]) {
                generic::sigmoid(x);
            }

            $(#[target_feature(enable = $feature)])*
            fn silu_mul(gate: &mut [f32], up: &[f32]) {
                generic::silu_mul(gate, up);
            }

            $(#[target_feature(enable = $feature)])*
            fn add_scaled(y: &mut [f32], weight: f32, x: &[f32]) {
                generic::add_scaled(y, weight, x);
            }

            $(#[target_feature(enable = $feature)])*
            fn clamped_swiglu(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
                generic::clamped_swiglu(gate, up, alpha, limit);
            }

            $(#[target_feature(enable = $feature)])*
            fn softmax_weights(x: &mut [f32], max: f32, temperature: f32) {
                generic::softmax_weights(x, max, temperature);
            }

            $(#[target_feature(enable = $feature)])*
            fn index_scores(q: &[f32], w: &[f32], scale: f32, keys: Kept<'_>, out: &mut [f32]) {
                generic::index_scores(q, w, scale, keys, out);
            }

            $(#[target_feature(enable = $feature)])*
            fn attend_block(x: attention::BlockInputs<'_>, found: &mut [Softmax], sums: &mut [f32]) {
                attention::attend_block(x, found, sums);
            }

            $(#[target_feature(enable = $feature)])*
            fn merge_block(found: Softmax, sums: &[f32], state: &mut Softmax, acc: &mut [f32]) {
                attention::merge_block(found, sums, state, acc);
            }

            $(#[target_feature(enable = $feature)])*
            fn delta_rule(x: recurrent::HeadInputs<'_>, state: &mut [Lanes], out: &mut [f32]) {
                recurrent::delta_rule(x, state, out);
            }

            $(#[target_feature(enable = $feature)])*
            fn conv_silu(window: &[f32], taps: &[f32], out: &mut [f32]) {
                recurrent::conv_silu(window, taps, out);
            }

            $(#[target_feature(enable = $feature)])*
            fn decays(x: &mut [f32], bias: &[f32], rate: &[f32]) {
                recurrent::decays(x, bias, rate);
            }

            $(#[target_feature(enable = $feature)])*
            fn sigmoid_mul(gate: &mut [f32], x: &[f32]) {
                recurrent::sigmoid_mul(gate, x);
            }
        }
    };
}

level!(baseline, int::portable);
#[cfg(target_arch = "x86_64")]
level!(avx2, int::avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
level!(avx512, int::avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl");
#[cfg(target_arch = "aarch64")]
level!(neon, int::neon, "neon,dotprod");

/// The table of `isa`, which the caller has checked to be available.
pub fn table(isa: Isa) -> Table {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => Table { int_matmul: int::avxvnni, ..avx2::TABLE },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Vnni => Table { int_matmul: int::vnni, ..avx512::TABLE },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => neon::TABLE,
        _ => baseline::TABLE,
    }
}

#[allow(unsafe_code, reason = "calls into functions compiled for a detected instruction set")]
impl Table {
    pub fn matmul(
        &self,
        w: &Elements,
        first: usize,
        x: Rows<'_>,
        n_rows: usize,
        out: &mut [Lanes],
    ) {
        // SAFETY: `Kernels::new` checked that the CPU has this table's features.
        unsafe { (self.matmul)(w, first, x, n_rows, out) }
    }

    pub fn int_matmul(
        &self,
        w: &IntTiles,
        first: usize,
        x: IntRows<'_>,
        n_rows: usize,
        out: &mut [Lanes],
    ) {
        // SAFETY: as above.
        unsafe { (self.int_matmul)(w, first, x, n_rows, out) }
    }

    pub fn quantize_group(&self, x: &[f32], q: &mut [i8]) -> f32 {
        // SAFETY: as above.
        unsafe { (self.quantize_group)(x, q) }
    }

    pub fn rms_norm(&self, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.rms_norm)(x, w, eps, out) }
    }

    pub fn layer_norm(&self, x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.layer_norm)(x, w, b, eps, out) }
    }

    pub fn sigmoid(&self, x: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.sigmoid)(x) }
    }

    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        // SAFETY: as above.
        unsafe { (self.silu_mul)(gate, up) }
    }

    pub fn add_scaled(&self, y: &mut [f32], weight: f32, x: &[f32]) {
        // SAFETY: as above.
        unsafe { (self.add_scaled)(y, weight, x) }
    }

    pub fn clamped_swiglu(&self, gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
        // SAFETY: as above.
        unsafe { (self.clamped_swiglu)(gate, up, alpha, limit) }
    }

    pub fn softmax_weights(&self, x: &mut [f32], max: f32, temperature: f32) {
        // SAFETY: as above.
        unsafe { (self.softmax_weights)(x, max, temperature) }
    }

    pub fn index_scores(&self, q: &[f32], w: &[f32], scale: f32, keys: Kept<'_>, out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.index_scores)(q, w, scale, keys, out) }
    }
}
