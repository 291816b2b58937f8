//! Rounding weights to integers with one scale per row and group of inputs.
//!
//! A tile's 16 rows are quantised side by side, as they will lie. Every operation is a binary32 one
//! in a fixed order, so the bytes are the same on every machine. For each group a few scales are
//! tried and the one with the least squared error is taken; among equals, the first.

use crate::dtype::{bf16_to_f32, e4m3_to_f32, f16_to_f32};
use crate::matrix::{Bits, Elements, IntTiles, Matrix, Scales, TILE, padded_group};

type Lanes = [f32; TILE];

/// Scales tried: the value of the largest magnitude, with its sign, divided by each of these.
///
/// A divisor of -8 puts it on the integer -8, whatever its sign was; one a little off puts the
/// others closer to integers. With 8 bits nothing is gained by trying more than one.
const DIVISORS_4: [f32; 8] = [-8.0, 7.0, -7.5, -7.75, -8.25, -8.5, -8.75, -9.0];
const DIVISORS_8: [f32; 1] = [127.0];

/// Adding and taking away this rounds to an integer, ties to even, up to 2^22.
const ROUND: f32 = 12_582_912.0;

const NO_MXFP4: &str = "conversions make int4 and int8";

/// Smallest and largest integer.
fn range(bits: Bits) -> (f32, f32) {
    match bits {
        Bits::Four => (-8.0, 7.0),
        Bits::Eight => (-127.0, 127.0),
        Bits::Mxfp4 => unreachable!("{NO_MXFP4}"),
    }
}

/// Quantises `matrix` with f16 scales; `None` if it has values that are not finite or beyond what
/// an f16 scale reaches.
///
/// # Panics
/// If `group` does not divide the inputs.
pub fn quantize(matrix: &Matrix, bits: Bits, group: usize) -> Option<Matrix> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has what the function is compiled for.
        #[allow(unsafe_code, reason = "calls into a function compiled for a detected CPU")]
        return unsafe { quantize_avx2(matrix, bits, group) };
    }
    quantize_lanes(matrix, bits, group)
}

/// The same operations, of which more fit into an instruction.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantize_avx2(matrix: &Matrix, bits: Bits, group: usize) -> Option<Matrix> {
    quantize_lanes(matrix, bits, group)
}

#[inline(always)]
fn quantize_lanes(matrix: &Matrix, bits: Bits, group: usize) -> Option<Matrix> {
    let Matrix { n_out, n_in, .. } = *matrix;
    assert!(group > 0 && n_in.is_multiple_of(group), "groups divide the inputs");
    let per_line = bits.inputs_per_line();
    let n_groups = matrix.n_tiles() * (n_in / group);
    let mut lines = Vec::with_capacity(n_groups * padded_group(group) / per_line);
    let mut scales = Vec::with_capacity(n_groups * TILE);
    let mut x = vec![[0.0; TILE]; group];
    let mut q = vec![[0i8; TILE]; padded_group(group)];
    for tile in 0..matrix.n_tiles() {
        for first in (0..n_in).step_by(group) {
            for (k, x) in x.iter_mut().enumerate() {
                *x = column(matrix, tile, first + k);
            }
            scales.extend(quantize_group(bits, &x, &mut q)?);
            for q in q.chunks_exact(per_line) {
                lines.push(bits.line(|lane, i| q[i][lane]));
            }
        }
    }
    let scales = Scales::F16(scales);
    Some(Matrix { n_out, n_in, elements: Elements::Int(IntTiles { bits, group, lines, scales }) })
}

/// The 16 weights of one tile for input `k`.
#[inline(always)]
fn column(matrix: &Matrix, tile: usize, k: usize) -> Lanes {
    let at = (tile * matrix.n_in + k) * TILE;
    match &matrix.elements {
        Elements::F32(w) => std::array::from_fn(|lane| w[at + lane]),
        Elements::F16(w) => std::array::from_fn(|lane| f16_to_f32(w[at + lane])),
        Elements::Bf16(w) => std::array::from_fn(|lane| bf16_to_f32(w[at + lane])),
        Elements::Fp8(w) => {
            let block = tile * matrix.n_in.div_ceil(w.block) + k / w.block;
            let scales = &w.scales[block * TILE..][..TILE];
            std::array::from_fn(|lane| e4m3_to_f32(w.codes[at + lane]) * scales[lane])
        }
        Elements::Int(_) => std::array::from_fn(|lane| {
            let row = tile * TILE + lane;
            if row < matrix.n_out { matrix.get(row, k) } else { 0.0 }
        }),
    }
}

/// Quantises one group `[k][16]` into `q`; gives the scales as f16 bits.
#[inline(always)]
fn quantize_group(bits: Bits, x: &[Lanes], q: &mut [[i8; TILE]]) -> Option<[u16; TILE]> {
    let mut extreme = [0.0f32; TILE];
    let mut finite = true;
    for x in x {
        for lane in 0..TILE {
            finite &= x[lane].is_finite();
            if x[lane].abs() > extreme[lane].abs() {
                extreme[lane] = x[lane];
            }
        }
    }
    let divisors: &[f32] = match bits {
        Bits::Four => &DIVISORS_4,
        Bits::Eight => &DIVISORS_8,
        Bits::Mxfp4 => unreachable!("{NO_MXFP4}"),
    };
    let mut best = [0u16; TILE];
    let mut least = [f32::INFINITY; TILE];
    for divisor in divisors {
        let stored = extreme.map(|m| half::f16::from_f32(m / divisor).to_bits());
        let scale = stored.map(f16_to_f32);
        finite &= scale.iter().all(|s| s.is_finite());
        let error = squared_error(bits, x, &scale);
        for lane in 0..TILE {
            if error[lane] < least[lane] {
                (least[lane], best[lane]) = (error[lane], stored[lane]);
            }
        }
    }
    if !finite {
        return None;
    }
    let scale = best.map(f16_to_f32);
    let inverse = scale.map(reciprocal);
    for (x, q) in x.iter().zip(q) {
        for lane in 0..TILE {
            q[lane] = nearest(bits, x[lane] * inverse[lane]) as i8;
        }
    }
    Some(best)
}

#[inline(always)]
fn squared_error(bits: Bits, x: &[Lanes], scale: &Lanes) -> Lanes {
    let inverse = scale.map(reciprocal);
    let mut sum = [0.0f32; TILE];
    for x in x {
        for lane in 0..TILE {
            let error = x[lane] - nearest(bits, x[lane] * inverse[lane]) * scale[lane];
            sum[lane] += error * error;
        }
    }
    sum
}

/// A scale of zero makes zeros of all.
#[inline(always)]
fn reciprocal(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

#[inline(always)]
fn nearest(bits: Bits, x: f32) -> f32 {
    let (low, high) = range(bits);
    ((x + ROUND) - ROUND).max(low).min(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use proptest::prelude::*;

    fn matrix(n_out: usize, n_in: usize, values: &[f32]) -> Matrix {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Matrix::from_plain(Dtype::F32, &bytes, n_out, n_in)
    }

    fn values(m: &Matrix) -> Vec<f32> {
        (0..m.n_out * m.n_in).map(|i| m.get(i / m.n_in, i % m.n_in)).collect()
    }

    /// Roughly normal weights.
    fn weights(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..n).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 0.03).collect()
    }

    fn rms(values: impl Iterator<Item = f32>) -> f32 {
        let (mut n, mut sum) = (0, 0.0);
        for x in values {
            n += 1;
            sum += f64::from(x) * f64::from(x);
        }
        (sum / f64::from(n)).sqrt() as f32
    }

    #[test]
    fn the_record_is_what_from_int_makes_of_the_same_integers() {
        for (bits, n_out, n_in, group) in
            [(Bits::Four, 19, 128, 64), (Bits::Eight, 16, 96, 32), (Bits::Four, 3, 20, 20)]
        {
            let m = quantize(&matrix(n_out, n_in, &weights(n_out * n_in, 3)), bits, group)
                .expect("finite");
            let groups = n_in / group;
            let scales: Vec<u8> = (0..n_out * groups)
                .flat_map(|i| m.quantized(i / groups, i % groups * group).1.to_le_bytes())
                .collect();
            let same = Matrix::from_int(bits, n_out, n_in, group, Dtype::F32, &scales, |row, k| {
                m.quantized(row, k).0 as i8
            });
            let (Elements::Int(a), Elements::Int(b)) = (&m.elements, &same.elements) else {
                panic!("integers")
            };
            assert_eq!(a.lines, b.lines);
            assert_eq!(values(&m), values(&same));
        }
    }

    #[test]
    fn wide_instructions_make_the_same_bytes() {
        let w = matrix(33, 192, &weights(33 * 192, 9));
        for (bits, group) in [(Bits::Four, 64), (Bits::Eight, 64), (Bits::Four, 24)] {
            let [a, b] = [quantize(&w, bits, group), quantize_lanes(&w, bits, group)]
                .map(|m| m.expect("finite"));
            assert_eq!(values(&a), values(&b));
        }
    }

    #[test]
    fn errors_are_those_of_the_format_and_searching_pays() {
        let (n_out, n_in) = (64, 1024);
        let w = weights(n_out * n_in, 1);
        let plain = |levels: f32| -> Vec<f32> {
            w.chunks_exact(64)
                .flat_map(|group| {
                    let most = group.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                    let s = half::f16::from_f32(most / levels).to_f32();
                    group.iter().map(move |x| (x / s).round_ties_even() * s).collect::<Vec<_>>()
                })
                .collect()
        };
        let error =
            |other: &[f32]| rms(w.iter().zip(other).map(|(a, b)| a - b)) / rms(w.iter().copied());
        for (bits, levels, bound, gain) in
            [(Bits::Four, 7.0, 0.095, 0.86), (Bits::Eight, 127.0, 0.006, 1.001)]
        {
            let ours =
                error(&values(&quantize(&matrix(n_out, n_in, &w), bits, 64).expect("finite")));
            let theirs = error(&plain(levels));
            assert!(ours < bound && ours <= theirs * gain, "{bits:?}: {ours}, {theirs}");
        }
    }

    #[test]
    fn what_no_f16_scale_reaches_is_refused() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9] {
            for at in [0, 63, 64 * 17 - 1] {
                let mut w = weights(17 * 64, 5);
                w[at] = wrong;
                for bits in [Bits::Four, Bits::Eight] {
                    assert!(quantize(&matrix(17, 64, &w), bits, 64).is_none(), "{wrong} at {at}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn values_that_were_quantised_once_stay_as_they_are(
            seed in any::<u64>(), exponent in -4i32..12, four in any::<bool>(),
            zeros in prop::collection::vec(any::<bool>(), 32),
        ) {
            let bits = if four { Bits::Four } else { Bits::Eight };
            let mut w = weights(16 * 32, seed);
            for (i, w) in w.iter_mut().enumerate() {
                *w = if zeros[i % 32] { 0.0 } else { *w * 2f32.powi(exponent) };
            }
            let once = values(&quantize(&matrix(16, 32, &w), bits, 32).expect("finite"));
            let twice = values(&quantize(&matrix(16, 32, &once), bits, 32).expect("finite"));
            prop_assert_eq!(once, twice);
        }

        #[test]
        fn no_group_is_worse_than_plain_rounding(
            w in prop::collection::vec(-1e3f32..1e3, 32), four in any::<bool>(),
        ) {
            let (bits, levels) = if four { (Bits::Four, 7.0) } else { (Bits::Eight, 127.0) };
            let m = quantize(&matrix(1, 32, &w), bits, 32).expect("finite");
            let s = half::f16::from_f32(w.iter().fold(0.0f32, |m, x| m.max(x.abs())) / levels);
            let s = s.to_f32();
            let plain = w.iter().map(|x| (x / s).round_ties_even() * s);
            let square = |(a, b): (f32, f32)| f64::from(a - b).powi(2);
            let theirs: f64 = w.iter().copied().zip(plain).map(square).sum();
            let ours: f64 = w.iter().copied().zip(values(&m)).map(square).sum();
            prop_assert!(ours <= theirs * 1.00001 + 1e-9, "{ours}, {theirs}");
        }
    }
}
