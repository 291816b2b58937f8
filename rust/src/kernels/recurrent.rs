//! Kernels of recurrent attention: the gated delta rule, what comes before it (a short convolution,
//! decays) and behind it (gates).
//!
//! As in `generic`, every function is `inline(always)` and keeps the order of operations of `scalar`.

use super::generic::Lanes;
use super::{Kernels, math};
use crate::matrix::TILE;

/// What one head takes in over some tokens.
#[derive(Clone, Copy)]
pub struct HeadInputs<'a> {
    /// Normed and scaled queries, `[tokens][k_dim]`.
    pub q: &'a [f32],
    /// Normed keys, `[tokens][k_dim]`.
    pub k: &'a [f32],
    /// Values, `[tokens][v_dim]`.
    pub v: &'a [f32],
    /// Factors on the state's rows, `[tokens][k_dim]`.
    pub decay: &'a [f32],
    /// How much of what a key is taken for is corrected, `[tokens]`.
    pub beta: &'a [f32],
}

/// Entry points of one level; each is safe to call only on a CPU that has the level.
pub struct Entries {
    pub delta_rule: unsafe fn(HeadInputs<'_>, &mut [Lanes], &mut [f32]),
    pub conv_silu: unsafe fn(&[f32], &[f32], &mut [f32]),
    pub decays: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub sigmoid_mul: unsafe fn(&mut [f32], &[f32]),
}

#[allow(unsafe_code, reason = "calls into functions compiled for a detected instruction set")]
impl Kernels {
    /// Takes a head's state over some tokens: S = decay S; u = beta (v - S^T k); S += k u^T;
    /// out = S^T q (arXiv 2412.06464).
    ///
    /// `state`: S in tiles of 16 columns, `[v tiles][k_dim][16]`. `out`: `[tokens][v_dim]`.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn delta_rule(&self, x: HeadInputs<'_>, state: &mut [f32], out: &mut [f32]) {
        // SAFETY: `Kernels::new` checked that the CPU has this table's features.
        unsafe { (self.table.recurrent.delta_rule)(x, state.as_chunks_mut().0, out) }
    }

    /// `out[c] = silu(sum over j of taps[j][c] window[j][c])`; `taps` and `window` are
    /// `[taps][channels]`, the oldest input first.
    pub fn conv_silu(&self, window: &[f32], taps: &[f32], out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.table.recurrent.conv_silu)(window, taps, out) }
    }

    /// `x = e^(rate softplus(x + bias))`.
    pub fn decays(&self, x: &mut [f32], bias: &[f32], rate: &[f32]) {
        // SAFETY: as above.
        unsafe { (self.table.recurrent.decays)(x, bias, rate) }
    }

    /// `gate = sigmoid(gate) * x`.
    pub fn sigmoid_mul(&self, gate: &mut [f32], x: &[f32]) {
        // SAFETY: as above.
        unsafe { (self.table.recurrent.sigmoid_mul)(gate, x) }
    }
}

/// See [`Kernels::delta_rule`]. Columns of the state do not meet, so that several tiles are in
/// flight at once, and a tile stays in the cache for all tokens.
#[inline(always)]
pub fn delta_rule(x: HeadInputs<'_>, state: &mut [Lanes], out: &mut [f32]) {
    let n_tokens = x.beta.len();
    if n_tokens == 0 {
        return;
    }
    let (k_dim, n_tiles) = (x.k.len() / n_tokens, (x.v.len() / n_tokens).div_ceil(TILE));
    assert_eq!(state.len(), n_tiles * k_dim, "a state of {n_tiles} tiles of {k_dim} rows");
    let whole = n_tiles / 4 * 4;
    for tile in (0..whole).step_by(4) {
        delta_tiles::<4>(x, tile, &mut state[tile * k_dim..][..4 * k_dim], out);
    }
    for tile in whole..n_tiles {
        delta_tiles::<1>(x, tile, &mut state[tile * k_dim..][..k_dim], out);
    }
}

/// The `T` tiles from tile `first`, of which `state` `[T][k_dim]` is the state.
#[inline(always)]
fn delta_tiles<const T: usize>(
    x: HeadInputs<'_>,
    first: usize,
    state: &mut [Lanes],
    out: &mut [f32],
) {
    let k_dim = state.len() / T;
    let v_dim = x.v.len() / x.beta.len();
    let columns = first * TILE..v_dim.min((first + T) * TILE);
    for (t, &beta) in x.beta.iter().enumerate() {
        let rows = t * k_dim..(t + 1) * k_dim;
        let (q, k, decay) = (&x.q[rows.clone()], &x.k[rows.clone()], &x.decay[rows]);
        let mut held = [[0.0f32; TILE]; T];
        for i in 0..k_dim {
            for tile in 0..T {
                let s = &mut state[tile * k_dim + i];
                for l in 0..TILE {
                    s[l] *= decay[i];
                    held[tile][l] = s[l].mul_add(k[i], held[tile][l]);
                }
            }
        }
        // Padding stays zero: it has neither state nor value.
        let mut u = [[0.0f32; TILE]; T];
        let v = &x.v[t * v_dim..][columns.clone()];
        u.as_flattened_mut()[..v.len()].copy_from_slice(v);
        for tile in 0..T {
            for l in 0..TILE {
                u[tile][l] = (u[tile][l] - held[tile][l]) * beta;
            }
        }
        let mut o = [[0.0f32; TILE]; T];
        for i in 0..k_dim {
            for tile in 0..T {
                let s = &mut state[tile * k_dim + i];
                for l in 0..TILE {
                    s[l] = k[i].mul_add(u[tile][l], s[l]);
                    o[tile][l] = s[l].mul_add(q[i], o[tile][l]);
                }
            }
        }
        let out = &mut out[t * v_dim..][columns.clone()];
        out.copy_from_slice(&o.as_flattened()[..out.len()]);
    }
}

/// See [`Kernels::conv_silu`]. One chain of fused multiply-adds per channel.
#[inline(always)]
pub fn conv_silu(window: &[f32], taps: &[f32], out: &mut [f32]) {
    let n = out.len();
    out.fill(0.0);
    for (inputs, taps) in window.chunks_exact(n).zip(taps.chunks_exact(n)) {
        for ((out, &x), &tap) in out.iter_mut().zip(inputs).zip(taps) {
            *out = tap.mul_add(x, *out);
        }
    }
    for v in out {
        *v = math::silu(*v);
    }
}

/// See [`Kernels::decays`].
#[inline(always)]
pub fn decays(x: &mut [f32], bias: &[f32], rate: &[f32]) {
    for ((x, &bias), &rate) in x.iter_mut().zip(bias).zip(rate) {
        *x = math::exp(rate * math::softplus(*x + bias));
    }
}

/// See [`Kernels::sigmoid_mul`].
#[inline(always)]
pub fn sigmoid_mul(gate: &mut [f32], x: &[f32]) {
    for (g, &x) in gate.iter_mut().zip(x) {
        *g = math::sigmoid(*g) * x;
    }
}
