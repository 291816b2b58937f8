//! The numeric contract: plain loops over logical values, obviously right, never fast.
//!
//! The order of operations here is the definition. Every kernel the engine runs is compared with
//! these functions bit for bit; see `docs/design/0001-numeric-contract.md`.

use super::math;
use crate::matrix::{Elements, Fp8Tiles, Matrix};

/// `y[row] = sum over k of w[row][k] * x[k]`, for one input row.
pub fn matvec(w: &Matrix, x: &[f32]) -> Vec<f32> {
    match &w.elements {
        Elements::Int(tiles) => int_matvec(w, tiles.group, x),
        Elements::Fp8(tiles) => fp8_matvec(w, tiles, x),
        _ => (0..w.n_out)
            .map(|row| (0..w.n_in).fold(0.0f32, |acc, k| w.get(row, k).mul_add(x[k], acc)))
            .collect(),
    }
}

/// One chain for each block of inputs without its scale, then one chain over the blocks.
fn fp8_matvec(w: &Matrix, tiles: &Fp8Tiles, x: &[f32]) -> Vec<f32> {
    (0..w.n_out)
        .map(|row| {
            (0..w.n_in).step_by(tiles.block).fold(0.0f32, |acc, first| {
                let end = w.n_in.min(first + tiles.block);
                let chain = (first..end)
                    .fold(0.0f32, |chain, k| tiles.value(w.n_in, row, k).mul_add(x[k], chain));
                chain.mul_add(tiles.scale(w.n_in, row, first), acc)
            })
        })
        .collect()
}

fn int_matvec(w: &Matrix, group: usize, x: &[f32]) -> Vec<f32> {
    let (q, x_scales) = quantize(x, group);
    (0..w.n_out)
        .map(|row| {
            (0..w.n_in / group).fold(0.0f32, |acc, g| {
                let dot: i32 = (g * group..(g + 1) * group)
                    .map(|k| w.quantized(row, k).0 * i32::from(q[k]))
                    .sum();
                let w_scale = w.quantized(row, g * group).1;
                (dot as f32).mul_add(w_scale * x_scales[g], acc)
            })
        })
        .collect()
}

/// Signed bytes and one scale per group.
pub fn quantize(x: &[f32], group: usize) -> (Vec<i8>, Vec<f32>) {
    let mut q = Vec::new();
    let mut scales = Vec::new();
    for x in x.chunks(group) {
        let amax =
            x.iter().fold(0.0f32, |a, v| if v.abs() > a || v.is_nan() { v.abs() } else { a });
        scales.push(amax / 127.0);
        let inverse = if amax > 0.0 { 127.0 / amax } else { 0.0 };
        q.extend(x.iter().map(|v| (v * inverse).round_ties_even() as i8));
    }
    (q, scales)
}

/// Sums `terms` as 16 strided chains, term i in chain i mod 16, added up pairwise.
pub fn strided_sum(terms: impl Iterator<Item = f32>, add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut chains = [0.0f32; 16];
    for (i, term) in terms.enumerate() {
        chains[i % 16] = add(chains[i % 16], term);
    }
    let mut chains = chains.to_vec();
    while chains.len() > 1 {
        let half = chains.len() / 2;
        chains = (0..half).map(|l| chains[l] + chains[l + half]).collect();
    }
    chains[0]
}

/// Root-mean-square normalisation.
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let squares = strided_sum(x.iter().copied(), |acc, v| v.mul_add(v, acc));
    let inverse = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    x.iter().zip(w).map(|(x, w)| x * inverse * w).collect()
}

/// Layer normalisation; squares are rounded before they are added.
pub fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32) -> Vec<f32> {
    let n = x.len() as f32;
    let mean = strided_sum(x.iter().copied(), |acc, v| acc + v) / n;
    let squares = strided_sum(x.iter().map(|v| v - mean), |acc, v| acc + v * v);
    let inverse = 1.0 / (squares / n + eps).sqrt();
    x.iter().zip(w).zip(b).map(|((x, w), b)| (x - mean) * inverse * w + b).collect()
}

/// An indexer's score of each of `keys`: over its heads, the weighted sum of what of
/// q . key * scale is positive. `q`: one query a head.
pub fn index_scores(q: &[Vec<f32>], weights: &[f32], scale: f32, keys: &[Vec<f32>]) -> Vec<f32> {
    let score = |key: &Vec<f32>| {
        q.iter().zip(weights).fold(0.0f32, |acc, (q, &weight)| {
            let dot = (0..q.len()).fold(0.0f32, |a, d| key[d].mul_add(q[d], a)) * scale;
            weight.mul_add(if dot < 0.0 { 0.0 } else { dot }, acc)
        })
    };
    keys.iter().map(score).collect()
}

/// The logistic function of each element.
pub fn sigmoid(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&v| math::sigmoid(v)).collect()
}

/// `SwiGLU`'s inner product.
pub fn silu_mul(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(&g, &u)| math::silu(g) * u).collect()
}

/// `y + weight * x`, fused.
pub fn add_scaled(y: &[f32], weight: f32, x: &[f32]) -> Vec<f32> {
    y.iter().zip(x).map(|(&y, &x)| weight.mul_add(x, y)).collect()
}

/// Unnormalised softmax at a temperature.
pub fn softmax_weights(x: &[f32], max: f32, temperature: f32) -> Vec<f32> {
    x.iter().map(|v| math::exp((v - max) / temperature)).collect()
}

/// The inner product of `SwiGLU` with a clamped gate and one added to `up`.
pub fn clamped_swiglu(gate: &[f32], up: &[f32], alpha: f32, limit: f32) -> Vec<f32> {
    let clamped = |v: f32, least: f32| match v {
        v if v > limit => limit,
        v if v < least => least,
        v => v,
    };
    let product = |(&g, &u): (&f32, &f32)| {
        let g = clamped(g, f32::NEG_INFINITY);
        (clamped(u, -limit) + 1.0) * (g * math::sigmoid(alpha * g))
    };
    gate.iter().zip(up).map(product).collect()
}

/// Attention of one query over `keys` and `values` from position `first` on, one vector per
/// position, in blocks of `block`. A `sink` is one more score, of a key without a value.
pub fn attend(
    q: &[f32],
    scale: f32,
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    block: usize,
    first: usize,
    sink: Option<f32>,
) -> Vec<f32> {
    let v_dim = values[0].len();
    let (mut max, mut sum) = sink.map_or((f32::NEG_INFINITY, 0.0f32), |sink| (sink, 1.0));
    let mut acc = vec![0.0f32; v_dim];
    for (i, (keys, values)) in keys.chunks(block).zip(values.chunks(block)).enumerate() {
        if (i + 1) * block <= first {
            continue;
        }
        let score = |(j, key): (usize, &Vec<f32>)| {
            if i * block + j < first {
                return f32::NEG_INFINITY;
            }
            (0..q.len()).fold(0.0f32, |a, d| key[d].mul_add(q[d], a)) * scale
        };
        let scores: Vec<f32> = keys.iter().enumerate().map(score).collect();
        let block_max = scores.iter().fold(f32::NEG_INFINITY, |a, &s| if s > a { s } else { a });
        let p: Vec<f32> = scores.iter().map(|s| math::exp(s - block_max)).collect();
        let block_sum = strided_sum(p.iter().copied(), |acc, v| acc + v);
        let new_max = if block_max > max { block_max } else { max };
        let (old, new) = (math::exp(max - new_max), math::exp(block_max - new_max));
        max = new_max;
        sum = sum.mul_add(old, block_sum * new);
        for (d, acc) in acc.iter_mut().enumerate() {
            let value = p.iter().zip(values).fold(0.0f32, |a, (&p, v)| v[d].mul_add(p, a));
            *acc = acc.mul_add(old, value * new);
        }
    }
    acc.iter().map(|v| v / sum).collect()
}

/// One token of the gated delta rule: S = decay S; u = beta (v - S^T k); S += k u^T; S^T q.
/// `state`: one row for each component of the key.
pub fn delta_rule(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    decay: &[f32],
    beta: f32,
    state: &mut [Vec<f32>],
) -> Vec<f32> {
    for (row, decay) in state.iter_mut().zip(decay) {
        for s in row {
            *s *= decay;
        }
    }
    let column = |state: &[Vec<f32>], x: &[f32], j: usize| {
        state.iter().zip(x).fold(0.0f32, |acc, (row, &x)| row[j].mul_add(x, acc))
    };
    (0..v.len())
        .map(|j| {
            let u = (v[j] - column(state, k, j)) * beta;
            for (row, k) in state.iter_mut().zip(k) {
                row[j] = k.mul_add(u, row[j]);
            }
            column(state, q, j)
        })
        .collect()
}

/// Convolution of each channel over its last inputs, the oldest first, and silu.
pub fn conv_silu(window: &[Vec<f32>], taps: &[Vec<f32>]) -> Vec<f32> {
    let chain = |c: usize| {
        window.iter().zip(taps).fold(0.0f32, |acc, (input, tap)| tap[c].mul_add(input[c], acc))
    };
    (0..window[0].len()).map(|c| math::silu(chain(c))).collect()
}

/// `e^(rate softplus(x + bias))`.
pub fn decays(x: &[f32], bias: &[f32], rate: &[f32]) -> Vec<f32> {
    let decay = |i: usize| math::exp(rate[i] * math::softplus(x[i] + bias[i]));
    (0..x.len()).map(decay).collect()
}

/// `sigmoid(gate) * x`.
pub fn sigmoid_mul(gate: &[f32], x: &[f32]) -> Vec<f32> {
    gate.iter().zip(x).map(|(&g, &x)| math::sigmoid(g) * x).collect()
}
