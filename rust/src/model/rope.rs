//! Rotary position embedding.

use std::f64::consts::TAU;
use std::sync::OnceLock;

use crate::config::{RopeConfig, RopeScaling, Yarn};

/// Which components of a vector form a rotated pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairing {
    /// i and i + dim / 2.
    #[default]
    Halves,
    /// 2i and 2i + 1.
    Interleaved,
}

/// Positions whose angles are computed at once, when the first of them is needed.
const BLOCK: usize = 256;

/// Cosines and sines by position and pair.
///
/// They are computed as sequences grow, so that a context of millions of tokens costs nothing until
/// it is used.
pub struct Rope {
    /// Radians a position turns each pair.
    frequencies: Vec<f64>,
    /// Factor on cosines and sines.
    amplitude: f64,
    pairing: Pairing,
    /// `[positions / 256]` blocks of `[256][pairs]` (cosine, sine).
    blocks: Vec<OnceLock<Vec<(f32, f32)>>>,
}

impl Rope {
    /// For rotating `dim` components at positions below `positions`.
    pub fn new(dim: usize, config: &RopeConfig, positions: usize, pairing: Pairing) -> Self {
        let amplitude = match &config.scaling {
            RopeScaling::Yarn(yarn) => yarn.amplitude,
            RopeScaling::None | RopeScaling::Llama3(_) => 1.0,
        };
        let blocks = (0..positions.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect();
        Self { frequencies: frequencies(dim, config), amplitude, pairing, blocks }
    }

    /// Rotates `x` `[dim]` as the vector of `position`.
    pub fn apply(&self, position: usize, x: &mut [f32]) {
        let block = position / BLOCK;
        let table = self.blocks[block].get_or_init(|| self.angles(block * BLOCK));
        let pairs = self.frequencies.len();
        let row = &table[position % BLOCK * pairs..][..pairs];
        for (i, &(cos, sin)) in row.iter().enumerate() {
            let (ia, ib) = match self.pairing {
                Pairing::Halves => (i, i + pairs),
                Pairing::Interleaved => (2 * i, 2 * i + 1),
            };
            let (a, b) = (x[ia], x[ib]);
            x[ia] = a * cos - b * sin;
            x[ib] = b * cos + a * sin;
        }
    }

    /// Cosines and sines of 256 positions from `first` on.
    ///
    /// They are computed in f64 and rounded once, so that every machine has the same table.
    fn angles(&self, first: usize) -> Vec<(f32, f32)> {
        let pairs = self.frequencies.len();
        let angle = |at: usize| (first + at / pairs) as f64 * self.frequencies[at % pairs];
        let scaled = |x: f64| (x * self.amplitude) as f32;
        (0..BLOCK * pairs)
            .map(|at| (scaled(libm::cos(angle(at))), scaled(libm::sin(angle(at)))))
            .collect()
    }
}

/// Radians a position turns each pair of `dim` components: theta^(-2i / dim) for pair i, less for
/// the long waves of a scaled embedding.
fn frequencies(dim: usize, config: &RopeConfig) -> Vec<f64> {
    let plain = |i: usize| libm::pow(config.theta, -2.0 * i as f64 / dim as f64);
    let pairs = 0..dim / 2;
    match &config.scaling {
        RopeScaling::None => pairs.map(plain).collect(),
        RopeScaling::Yarn(yarn) => {
            let (low, high) = yarn_bounds(dim, config.theta, yarn);
            let stretched = |i: usize| {
                let share = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                plain(i) * (1.0 - share) + plain(i) / yarn.factor * share
            };
            pairs.map(stretched).collect()
        }
        RopeScaling::Llama3(llama3) => {
            let stretched = |i: usize| {
                let turns = llama3.original * plain(i) / TAU;
                let kept = ((turns - llama3.low) / (llama3.high - llama3.low)).clamp(0.0, 1.0);
                plain(i) * kept + plain(i) / llama3.factor * (1.0 - kept)
            };
            pairs.map(stretched).collect()
        }
    }
}

/// Pairs up to which waves are left alone and from which on they are stretched by the whole factor:
/// those that turn `beta_fast` and `beta_slow` times within the first context.
fn yarn_bounds(dim: usize, theta: f64, yarn: &Yarn) -> (f64, f64) {
    let pair = |turns: f64| {
        dim as f64 * libm::log(yarn.original / (TAU * turns)) / (2.0 * libm::log(theta))
    };
    let (mut low, mut high) = (pair(yarn.beta_fast), pair(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min((dim - 1) as f64));
    // A ramp of no width would divide by zero.
    if low == high {
        high += 0.001;
    }
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Llama3;

    fn config(theta: f64, scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta, partial: None, scaling }
    }

    #[test]
    fn a_quarter_turn_swaps_the_pair() {
        // theta 1 makes every pair turn by one radian a position; position 0 does not turn.
        for (pairing, pair) in [(Pairing::Halves, (0, 2)), (Pairing::Interleaved, (0, 1))] {
            let rope = Rope::new(4, &config(1.0, RopeScaling::None), 3, pairing);
            let mut x = [1.0, 0.0, 0.0, 0.0];
            rope.apply(0, &mut x);
            assert_eq!(x, [1.0, 0.0, 0.0, 0.0]);
            rope.apply(2, &mut x);
            assert_eq!(x[pair.0], 2f64.cos() as f32);
            assert_eq!(x[pair.1], 2f64.sin() as f32);
        }
    }

    #[test]
    fn yarn_stretches_the_waves_that_turn_seldom() {
        let yarn = |truncate| {
            RopeScaling::Yarn(Yarn {
                factor: 8.0,
                original: 4096.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate,
                amplitude: 1.5,
                latent_scores: 1.0,
            })
        };
        let plain = frequencies(64, &config(150_000.0, RopeScaling::None));
        for truncate in [false, true] {
            let scaled = frequencies(64, &config(150_000.0, yarn(truncate)));
            let ratio: Vec<f64> = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
            // 64 ln(4096 / (2 pi 32)) / (2 ln 150000) = 8.09; with one turn 17.40.
            assert!(ratio[..=8].iter().all(|r| (r - 1.0).abs() < 1e-12), "{ratio:?}");
            assert!(ratio[18..].iter().all(|r| (r - 8.0).abs() < 1e-12), "{ratio:?}");
            assert!(ratio.windows(2).all(|r| r[0] <= r[1] + 1e-12), "{ratio:?}");
            let (low, high) = if truncate { (8.0, 18.0) } else { (8.0929, 17.3981) };
            let share = (10.0 - low) / (high - low);
            assert!((ratio[10] - 1.0 / (1.0 - share + share / 8.0)).abs() < 1e-4, "{ratio:?}");
        }
        let mut x = [1.0, 0.0];
        Rope::new(2, &config(150_000.0, yarn(true)), 1, Pairing::Halves).apply(0, &mut x);
        assert_eq!(x, [1.5, 0.0]);
    }

    #[test]
    fn llama3_stretches_long_waves() {
        let llama3 = Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
        let theta = 500_000.0;
        let plain = frequencies(16, &config(theta, RopeScaling::None));
        let scaled = frequencies(16, &config(theta, RopeScaling::Llama3(llama3)));
        for (p, s) in plain.iter().zip(scaled) {
            let wavelength = TAU / p;
            let expected = if wavelength > 64.0 {
                p / 8.0
            } else if wavelength < 16.0 {
                *p
            } else {
                let smooth = (64.0 / wavelength - 1.0) / 3.0;
                (1.0 - smooth) * p / 8.0 + smooth * p
            };
            assert!((s / expected - 1.0).abs() < 1e-12, "{p}: {s}, not {expected}");
        }
    }
}
