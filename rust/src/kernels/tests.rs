//! One suite for every instruction set this machine has: bit equality with `scalar`.

use super::*;
use crate::dtype::{Dtype, bf16_to_f32, f32_to_bf16};
use crate::matrix::{Bits, MXFP4_GROUP, mxfp4_scale};

/// A small generator with a fixed sequence; values of mixed magnitude and sign.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn float(&mut self) -> f32 {
        (self.next() as f32 / 2f32.powi(30) - 1.0) * 2f32.powi(self.next() as i32 % 6)
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

fn every_isa(check: impl Fn(&Kernels)) {
    for isa in Isa::available() {
        check(&Kernels::new(isa));
    }
}

fn assert_same_bits(ours: &[f32], scalar: &[f32], what: &str) {
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(ours), bits(scalar), "{what}");
}

fn plain(random: &mut Random, dtype: Dtype, n_out: usize, n_in: usize) -> Matrix {
    let bytes: Vec<u8> = random
        .floats(n_out * n_in)
        .into_iter()
        .flat_map(|x| match dtype {
            Dtype::F32 => x.to_le_bytes().to_vec(),
            Dtype::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
            Dtype::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
        })
        .collect();
    Matrix::from_plain(dtype, &bytes, n_out, n_in)
}

/// e4m3 weights of every code but NaN; a fifth of the scales is extreme.
fn fp8(random: &mut Random, n_out: usize, n_in: usize, block: usize) -> Matrix {
    let codes: Vec<u8> = (0..n_out * n_in)
        .map(|_| random.next() as u8)
        .map(|code| if code & 0x7f == 0x7f { 0x7e } else { code })
        .collect();
    let scales: Vec<f32> = (0..n_out * n_in.div_ceil(block))
        .map(|_| match random.next() % 10 {
            0 => 1e-38,
            1 => -1e30,
            _ => random.float(),
        })
        .collect();
    Matrix::from_fp8(&codes, n_out, n_in, block, |row, b| scales[row * n_in.div_ceil(block) + b])
}

/// mxfp4 weights of every code, every third one with the largest magnitude, and all scales.
fn mxfp4(random: &mut Random, n_out: usize, n_in: usize) -> Matrix {
    let codes: Vec<i8> = (0..n_out * n_in)
        .map(|i| if i.is_multiple_of(3) { 7 } else { (random.next() % 16) as i8 })
        .collect();
    let scales: Vec<u8> = (0..n_out * n_in / MXFP4_GROUP)
        .flat_map(|_| {
            let exponent = if random.next().is_multiple_of(8) { random.next() % 255 } else { 120 };
            mxfp4_scale(exponent as u8).to_le_bytes()
        })
        .collect();
    let code = |row, k| codes[row * n_in + k];
    Matrix::from_int(Bits::Mxfp4, n_out, n_in, MXFP4_GROUP, Dtype::Bf16, &scales, code)
}

fn int(
    random: &mut Random,
    bits: Bits,
    scale_dtype: Dtype,
    (n_out, n_in): (usize, usize),
    group: usize,
) -> Matrix {
    let scales: Vec<u8> = random
        .floats(n_out * n_in / group)
        .into_iter()
        .flat_map(|x| match scale_dtype {
            Dtype::F32 => x.to_le_bytes().to_vec(),
            Dtype::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
            Dtype::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
        })
        .collect();
    let half = if bits == Bits::Four { 8 } else { 128 };
    // Every fourth weight is extreme: that is where narrow sums would overflow.
    let q: Vec<i8> = (0..n_out * n_in)
        .map(|i| match (i % 4, random.next() % 2) {
            (0, 0) => -half,
            (0, _) => half - 1,
            _ => (random.next() % (2 * half as u32)) as i32 - half,
        })
        .map(|v| v as i8)
        .collect();
    Matrix::from_int(bits, n_out, n_in, group, scale_dtype, &scales, |row, k| q[row * n_in + k])
}

/// Matrices of every format of this shape.
fn matrices(random: &mut Random, n_out: usize, n_in: usize) -> Vec<Matrix> {
    let dtypes = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    let mut matrices: Vec<Matrix> =
        dtypes.into_iter().map(|dtype| plain(random, dtype, n_out, n_in)).collect();
    let groups = [1, 2, 12, 32, 64, n_in].into_iter().filter(|g| n_in.is_multiple_of(*g));
    for (i, group) in groups.enumerate() {
        for bits in [Bits::Four, Bits::Eight] {
            matrices.push(int(random, bits, dtypes[i % 3], (n_out, n_in), group));
        }
    }
    for block in [1, 16, 24, 128, 200] {
        matrices.push(fp8(random, n_out, n_in, block));
    }
    if n_in.is_multiple_of(MXFP4_GROUP) {
        matrices.push(mxfp4(random, n_out, n_in));
    }
    matrices
}

fn products_equal_scalar(shapes: &[(usize, usize)]) {
    let team = Team::new(2);
    let levels: Vec<Kernels> = Isa::available().into_iter().map(Kernels::new).collect();
    let mut random = Random(1);
    for &(n_out, n_in) in shapes {
        for w in matrices(&mut random, n_out, n_in) {
            let x = random.floats(17 * n_in);
            let scalar: Vec<f32> = x.chunks(n_in).flat_map(|x| scalar::matvec(&w, x)).collect();
            for n_rows in [1, 2, 3, 4, 5, 8, 11, 17] {
                for kernels in &levels {
                    let what = format!(
                        "{} {n_out}x{n_in}, {n_rows} rows, {}",
                        w.format(),
                        kernels.isa().name()
                    );
                    let ours = kernels.matmul(&team, &w, &x[..n_rows * n_in]);
                    assert_same_bits(&ours, &scalar[..n_rows * n_out], &what);
                }
            }
        }
    }
}

#[test]
fn products_equal_scalar_bit_for_bit() {
    products_equal_scalar(&[(1, 1), (16, 32), (17, 36), (100, 64)]);
}

#[test]
fn large_products_equal_scalar_bit_for_bit() {
    products_equal_scalar(&[(129, 128), (33, 1024)]);
}

#[test]
fn a_gated_product_is_two_products_and_their_gate() {
    every_isa(|kernels| {
        let mut random = Random(5);
        let (n_out, n_in) = (83, 128);
        let up = int(&mut random, Bits::Four, Dtype::F16, (n_out, n_in), 32);
        let gates = [
            int(&mut random, Bits::Four, Dtype::F16, (n_out, n_in), 32),
            int(&mut random, Bits::Eight, Dtype::F16, (n_out, n_in), 64),
            plain(&mut random, Dtype::Bf16, n_out, n_in),
        ];
        for (gate, team) in gates.iter().zip([Team::new(1), Team::new(2), Team::new(3)]) {
            let x: Vec<f32> = random.floats(5 * n_in).iter().map(|x| x / 64.0).collect();
            let scalar: Vec<f32> = x
                .chunks(n_in)
                .flat_map(|x| scalar::silu_mul(&scalar::matvec(gate, x), &scalar::matvec(&up, x)))
                .collect();
            let ours = kernels.gated(&team, gate, &up, &x);
            assert_same_bits(
                &ours,
                &scalar,
                &format!("{}, {}", gate.format(), kernels.isa().name()),
            );
        }
    });
}

#[test]
fn a_large_product_is_the_same_on_any_number_of_threads() {
    let mut random = Random(2);
    let w = plain(&mut random, Dtype::F32, 1000, 512);
    let x = random.floats(3 * 512);
    let kernels = Kernels::new(Isa::detect());
    let one = kernels.matmul(&Team::new(1), &w, &x);
    for n in [2, 3, 7] {
        assert_same_bits(&kernels.matmul(&Team::new(n), &w, &x), &one, "threads");
    }
}

#[test]
fn a_value_that_is_not_finite_is_never_quantised_away() {
    let mut random = Random(3);
    let w = int(&mut random, Bits::Eight, Dtype::F32, (16, 64), 32);
    every_isa(|kernels| {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 64];
            x[40] = bad;
            let y = kernels.matmul(&Team::new(1), &w, &x);
            assert!(y.iter().all(|v| !v.is_finite()), "{bad}: {y:?}");
        }
    });
}

#[test]
fn largest_sums_of_mxfp4_fit() {
    every_isa(|kernels| {
        for code in [7, 15] {
            let one = mxfp4_scale(128).to_le_bytes().repeat(64 * 2);
            let w =
                Matrix::from_int(Bits::Mxfp4, 64, 64, MXFP4_GROUP, Dtype::Bf16, &one, |_, _| code);
            for n_rows in [1, 2, 3, 4, 5, 8, 17] {
                let x = vec![-127.0; n_rows * 64];
                let y = kernels.matmul(&Team::new(1), &w, &x);
                let sign = if code == 7 { -1.0 } else { 1.0 };
                assert!(y.iter().all(|y| *y == sign * 12.0 * 127.0 * 64.0), "{n_rows}: {y:?}");
            }
        }
    });
}

#[test]
fn weights_and_scales_that_are_no_numbers_make_their_rows_none() {
    let team = Team::new(1);
    let mut codes = vec![0x38; 32 * 64];
    codes[5 * 64 + 40] = 0xff;
    let fp8 = Matrix::from_fp8(&codes, 32, 64, 16, |_, _| 1.0);
    let scales: Vec<u8> = (0..32 * 2)
        .flat_map(|i| mxfp4_scale(if i == 5 * 2 + 1 { 255 } else { 127 }).to_le_bytes())
        .collect();
    let mxfp4 = Matrix::from_int(Bits::Mxfp4, 32, 64, MXFP4_GROUP, Dtype::Bf16, &scales, |_, _| 2);
    every_isa(|kernels| {
        for w in [&fp8, &mxfp4] {
            for value in [0.0, 1.0] {
                for (i, y) in kernels.matmul(&team, w, &[value; 2 * 64]).iter().enumerate() {
                    assert_eq!(y.is_nan(), i % 32 == 5, "{} row {i}: {y}", w.format());
                }
            }
        }
    });
}

#[test]
fn norms_and_activations_equal_scalar_bit_for_bit() {
    every_isa(|kernels| {
        let mut random = Random(4);
        for n in 1..130 {
            let (x, w) = (random.floats(n), random.floats(n));
            let out = kernels.rms_norm(&Team::new(1), &x, &w, 1e-5);
            assert_same_bits(&out, &scalar::rms_norm(&x, &w, 1e-5), "rms_norm");
            let b = random.floats(n);
            let mut out = vec![0.0; n];
            kernels.layer_norm(&x, &w, &b, 1e-6, &mut out);
            assert_same_bits(&out, &scalar::layer_norm(&x, &w, &b, 1e-6), "layer_norm");
            let mut shares = x.clone();
            kernels.sigmoid(&mut shares);
            assert_same_bits(&shares, &scalar::sigmoid(&x), "sigmoid");
            let mut gate = x.clone();
            kernels.silu_mul(&mut gate, &w);
            assert_same_bits(&gate, &scalar::silu_mul(&x, &w), "silu_mul");
            let mut sum = w.clone();
            kernels.add_scaled(&mut sum, 0.3, &x);
            assert_same_bits(&sum, &scalar::add_scaled(&w, 0.3, &x), "add_scaled");
            let mut gate = x.clone();
            kernels.clamped_swiglu(&mut gate, &w, 1.702, 7.0);
            assert_same_bits(&gate, &scalar::clamped_swiglu(&x, &w, 1.702, 7.0), "clamped");
            let mut weights = x.clone();
            kernels.softmax_weights(&mut weights, 32.0, 0.7);
            assert_same_bits(&weights, &scalar::softmax_weights(&x, 32.0, 0.7), "softmax_weights");
        }
    });
}

/// Every exponent and sign, subnormal ones and infinities included: what vector code may flush,
/// clamp or convert in another way than plain code.
#[test]
fn activations_equal_scalar_at_every_magnitude() {
    let all: Vec<f32> = (0..1 << 16)
        .map(|high| f32::from_bits(high << 16 | high))
        .filter(|x| !x.is_nan())
        .collect();
    let ones = vec![1.0; all.len()];
    every_isa(|kernels| {
        let check = |name: &str, scalar: &[f32], f: &dyn Fn(&mut [f32])| {
            let mut ours = all.clone();
            f(&mut ours);
            for ((x, ours), scalar) in all.iter().zip(&ours).zip(scalar) {
                let same = ours.to_bits() == scalar.to_bits() || ours.is_nan() && scalar.is_nan();
                assert!(same, "{name}({x}) on {}: {ours}, not {scalar}", kernels.isa().name());
            }
        };
        check("sigmoid", &scalar::sigmoid(&all), &|x| kernels.sigmoid(x));
        check("silu", &scalar::silu_mul(&all, &ones), &|x| kernels.silu_mul(x, &ones));
        check("clamped", &scalar::clamped_swiglu(&all, &ones, 1.702, 7.0), &|x| {
            kernels.clamped_swiglu(x, &ones, 1.702, 7.0);
        });
        check("exp", &scalar::softmax_weights(&all, 0.0, 1.0), &|x| {
            kernels.softmax_weights(x, 0.0, 1.0);
        });
    });
}

/// Keys of one block as the kernels read them.
fn tiled(keys: &[Vec<f32>]) -> Vec<f32> {
    let dim = keys[0].len();
    let mut tiled = vec![0.0; KV_BLOCK * dim];
    for (j, key) in keys.iter().enumerate() {
        for (d, v) in key.iter().enumerate() {
            tiled[(j / TILE * dim + d) * TILE + j % TILE] = *v;
        }
    }
    tiled
}

/// Numbers as a conversation keeps them.
enum Stored {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

impl Stored {
    fn all(&self) -> Kept<'_> {
        match self {
            Self::F32(x) => Kept::F32(x),
            Self::Bf16(x) => Kept::Bf16(x),
        }
    }
}

/// In what keys and values can be kept, and as what.
const KINDS: [fn(Vec<f32>) -> Stored; 2] =
    [Stored::F32, |x| Stored::Bf16(x.into_iter().map(f32_to_bf16).collect())];

/// `x` as it comes back from where it is kept.
fn kept(kind: fn(Vec<f32>) -> Stored, x: Vec<f32>) -> Vec<f32> {
    match kind(x) {
        Stored::F32(x) => x,
        Stored::Bf16(x) => x.into_iter().map(bf16_to_f32).collect(),
    }
}

#[test]
fn index_scores_equal_scalar_bit_for_bit() {
    every_isa(|kernels| {
        let mut random = Random(6);
        for (n_heads, dim) in [(1, 3), (3, 16), (4, 8), (8, 20), (13, 16)] {
            for len in [1, 15, 16, 17, 100, 256] {
                let q: Vec<Vec<f32>> = (0..n_heads).map(|_| random.floats(dim)).collect();
                let weights = random.floats(n_heads);
                for kind in KINDS {
                    let keys: Vec<_> = (0..len).map(|_| kept(kind, random.floats(dim))).collect();
                    let mut scores = vec![0.0; len];
                    let tiles = kind(tiled(&keys));
                    kernels.index_scores(&q.concat(), &weights, 0.25, tiles.all(), &mut scores);
                    let expected = scalar::index_scores(&q, &weights, 0.25, &keys);
                    assert_same_bits(&scores, &expected, "index scores");
                }
            }
        }
        let mut scores = [0.0];
        let keys = tiled(&[vec![1.0]]);
        kernels.index_scores(&[f32::NAN], &[1.0], 1.0, Kept::F32(&keys), &mut scores);
        assert!(scores[0].is_nan(), "a NaN is not taken for a score of zero");
    });
}

#[test]
fn layer_norms_have_mean_and_spread_of_their_weights() {
    let mut random = Random(7);
    for n in [2, 16, 100] {
        let (x, w, b) = (random.floats(n), random.floats(n), random.floats(n));
        let exact: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        let mean = exact.iter().sum::<f64>() / n as f64;
        let spread = exact.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        let out = scalar::layer_norm(&x, &w, &b, 1e-6);
        for i in 0..n {
            let normed = (exact[i] - mean) / (spread + 1e-6).sqrt();
            let expected = normed * f64::from(w[i]) + f64::from(b[i]);
            assert!((f64::from(out[i]) - expected).abs() < 1e-4, "{n}, {i}");
        }
    }
}

#[test]
fn attention_equals_scalar_bit_for_bit_at_every_length_and_window() {
    every_isa(|kernels| {
        let mut random = Random(5);
        let shapes = [(16, 16, 1), (40, 32, 2), (24, 20, 7), (24, 100, 1)];
        for ((k_dim, v_dim, n), kind) in shapes.into_iter().flat_map(|s| KINDS.map(|k| (s, k))) {
            for len in [1, 2, 15, 16, 17, 100, 255, 256, 257, 600] {
                let mut floats = |dim| (0..len).map(|_| kept(kind, random.floats(dim))).collect();
                let (keys, values): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (floats(k_dim), floats(v_dim));
                let q: Vec<Vec<f32>> = (0..n).map(|_| random.floats(k_dim)).collect();
                let queries: Vec<&[f32]> = q.iter().map(|q| &q[..]).collect();
                let firsts = [0usize, 1, 15, 16, 33, 255, 256, 300, len - 1];
                for first in firsts.into_iter().filter(|first| *first < len) {
                    let sink = first.is_multiple_of(2).then(|| random.float());
                    let mut states = vec![sink.map_or(Softmax::EMPTY, Softmax::sink); n];
                    let mut acc = vec![vec![0.0; v_dim]; n];
                    for block in first / KV_BLOCK..len.div_ceil(KV_BLOCK) {
                        let start = block * KV_BLOCK;
                        let part = start..len.min(start + KV_BLOCK);
                        let positions = first.saturating_sub(start)..part.len();
                        let keys = kind(tiled(&keys[part.clone()]));
                        let values = kind(values[part].concat());
                        let inputs = BlockInputs {
                            queries: &queries,
                            scale: 0.25,
                            keys: keys.all(),
                            values: values.all(),
                            positions,
                        };
                        // What was there before does not matter.
                        let mut found = vec![Softmax::sink(f32::NAN); n];
                        let mut sums = vec![f32::NAN; n * v_dim];
                        kernels.attend_block(inputs, &mut found, &mut sums);
                        for i in 0..n {
                            let sums = &sums[i * v_dim..(i + 1) * v_dim];
                            kernels.merge_block(found[i], sums, &mut states[i], &mut acc[i]);
                        }
                    }
                    for i in 0..n {
                        let out: Vec<f32> = acc[i].iter().map(|v| v / states[i].sum).collect();
                        let expected =
                            scalar::attend(&q[i], 0.25, &keys, &values, KV_BLOCK, first, sink);
                        assert_same_bits(&out, &expected, "attention");
                    }
                }
            }
        }
    });
}

#[test]
fn clamped_activations_keep_a_nan_and_nothing_beyond_the_limit() {
    every_isa(|kernels| {
        for (gate, up) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            let mut y = [gate];
            kernels.clamped_swiglu(&mut y, &[up], 1.702, 7.0);
            assert!(y[0].is_nan());
        }
        let mut y = [9.0, 7.0, -200.0];
        kernels.clamped_swiglu(&mut y, &[-100.0, -7.0, 3.0], 1.702, 7.0);
        assert_eq!(y[0], y[1]);
        assert!((f64::from(y[1]) - -6.0 * 7.0 / (1.0 + (-1.702f64 * 7.0).exp())).abs() < 1e-4);
        assert_eq!(y[2], 0.0);
    });
}

#[test]
fn the_largest_come_first_and_ties_go_to_the_lower_index() {
    assert_eq!(top_k(&[1.0, 3.0, 2.0, 3.0, 0.0], 3), [1, 3, 2]);
    assert_eq!(top_k(&[5.0, 5.0, 5.0], 2), [0, 1]);
    assert_eq!(top_k(&[0.0, -0.5], 5), [0, 1]);
}

#[test]
fn the_delta_rule_equals_scalar_bit_for_bit_in_any_parts() {
    every_isa(|kernels| {
        let mut random = Random(8);
        for (k_dim, v_dim) in [(1, 1), (16, 16), (8, 20), (24, 64), (32, 130)] {
            let n = 11;
            let (q, k) = (random.floats(n * k_dim), random.floats(n * k_dim));
            let v = random.floats(n * v_dim);
            let decay: Vec<f32> =
                (0..n * k_dim).map(|_| random.next() as f32 / 2f32.powi(31)).collect();
            let beta: Vec<f32> = (0..n).map(|_| random.next() as f32 / 2f32.powi(31)).collect();
            let mut state = vec![vec![0.0; v_dim]; k_dim];
            let rows = |x: &[f32], t: usize| x[t * k_dim..(t + 1) * k_dim].to_vec();
            let expected: Vec<f32> = (0..n)
                .flat_map(|t| {
                    let (q, k, decay) = (rows(&q, t), rows(&k, t), rows(&decay, t));
                    let v = &v[t * v_dim..(t + 1) * v_dim];
                    scalar::delta_rule(&q, &k, v, &decay, beta[t], &mut state)
                })
                .collect();
            for part in [1, 4, n] {
                let mut tiles = vec![0.0; v_dim.next_multiple_of(TILE) * k_dim];
                let mut out = vec![0.0; n * v_dim];
                for first in (0..n).step_by(part) {
                    let end = n.min(first + part);
                    let keys = first * k_dim..end * k_dim;
                    let values = first * v_dim..end * v_dim;
                    let inputs = HeadInputs {
                        q: &q[keys.clone()],
                        k: &k[keys.clone()],
                        v: &v[values.clone()],
                        decay: &decay[keys],
                        beta: &beta[first..end],
                    };
                    kernels.delta_rule(inputs, &mut tiles, &mut out[values]);
                }
                assert_same_bits(&out, &expected, &format!("{k_dim}x{v_dim} by {part}"));
                for (i, row) in state.iter().enumerate() {
                    let column = |j: usize| tiles[(j / TILE * k_dim + i) * TILE + j % TILE];
                    let ours: Vec<f32> = (0..v_dim).map(column).collect();
                    assert_same_bits(&ours, row, "state");
                }
            }
        }
    });
}

#[test]
fn the_delta_rule_is_what_its_matrices_say() {
    let (k_dim, v_dim, n) = (6, 5, 9);
    let mut random = Random(9);
    let mut state = vec![vec![0.0f32; v_dim]; k_dim];
    let mut exact = vec![vec![0.0f64; v_dim]; k_dim];
    for _ in 0..n {
        let unit = |x: Vec<f32>| {
            let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
            x.iter().map(|x| x / norm).collect::<Vec<f32>>()
        };
        let (q, k) = (unit(random.floats(k_dim)), unit(random.floats(k_dim)));
        let (v, beta) = (random.floats(v_dim), 0.7f32);
        let decay: Vec<f32> = (0..k_dim).map(|i| 0.5 + 0.05 * i as f32).collect();
        let ours = scalar::delta_rule(&q, &k, &v, &decay, beta, &mut state);
        // S = (I - beta k k^T) diag(decay) S + beta k v^T
        let decayed: Vec<Vec<f64>> = (0..k_dim)
            .map(|i| exact[i].iter().map(|s| s * f64::from(decay[i])).collect())
            .collect();
        for i in 0..k_dim {
            for j in 0..v_dim {
                let taken: f64 = (0..k_dim).map(|m| f64::from(k[m]) * decayed[m][j]).sum();
                exact[i][j] =
                    decayed[i][j] + f64::from(beta) * f64::from(k[i]) * (f64::from(v[j]) - taken);
            }
        }
        for (j, ours) in ours.iter().enumerate() {
            let expected: f64 = (0..k_dim).map(|i| f64::from(q[i]) * exact[i][j]).sum();
            assert!((f64::from(*ours) - expected).abs() < 1e-4, "{ours} {expected}");
        }
    }
}

#[test]
fn what_stands_around_the_delta_rule_equals_scalar_bit_for_bit() {
    every_isa(|kernels| {
        let mut random = Random(10);
        for n in [1, 7, 16, 33, 100] {
            for taps in [1, 2, 4] {
                let inputs: Vec<Vec<f32>> = (0..taps).map(|_| random.floats(n)).collect();
                let weights: Vec<Vec<f32>> = (0..taps).map(|_| random.floats(n)).collect();
                let mut out = vec![9.0; n];
                kernels.conv_silu(&inputs.concat(), &weights.concat(), &mut out);
                assert_same_bits(&out, &scalar::conv_silu(&inputs, &weights), "conv_silu");
            }
            let (x, bias) = (random.floats(n), random.floats(n));
            let rate: Vec<f32> = random.floats(n).iter().map(|x| -x.abs()).collect();
            let mut decays = x.clone();
            kernels.decays(&mut decays, &bias, &rate);
            assert_same_bits(&decays, &scalar::decays(&x, &bias, &rate), "decays");
            assert!(decays.iter().all(|d| (0.0..=1.0).contains(d)));
            let mut gate = x.clone();
            kernels.sigmoid_mul(&mut gate, &bias);
            assert_same_bits(&gate, &scalar::sigmoid_mul(&x, &bias), "sigmoid_mul");
        }
    });
}
