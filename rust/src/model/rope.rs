//! Rotary position embedding.

use std::sync::OnceLock;

/// Which components of a vector form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// i and i + dim / 2.
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
    theta: f64,
    pairs: usize,
    pairing: Pairing,
    /// `[positions / 256]` blocks of `[256][pairs]` (cosine, sine).
    blocks: Vec<OnceLock<Vec<(f32, f32)>>>,
}

impl Rope {
    /// For rotating `dim` components at positions below `positions`.
    pub fn new(dim: usize, theta: f64, positions: usize, pairing: Pairing) -> Self {
        let blocks = (0..positions.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect();
        Self { theta, pairs: dim / 2, pairing, blocks }
    }

    /// Rotates `x` `[dim]` as the vector of `position`.
    pub fn apply(&self, position: usize, x: &mut [f32]) {
        let block = position / BLOCK;
        let table = self.blocks[block].get_or_init(|| self.angles(block * BLOCK));
        let row = &table[position % BLOCK * self.pairs..][..self.pairs];
        for (i, &(cos, sin)) in row.iter().enumerate() {
            let (ia, ib) = match self.pairing {
                Pairing::Halves => (i, i + self.pairs),
                Pairing::Interleaved => (2 * i, 2 * i + 1),
            };
            let (a, b) = (x[ia], x[ib]);
            x[ia] = a * cos - b * sin;
            x[ib] = b * cos + a * sin;
        }
    }

    /// Cosines and sines of 256 positions from `first` on.
    ///
    /// The angle of pair i at position p is p * theta^(-2i / dim), computed in f64 and rounded
    /// once, so that every machine has the same table.
    fn angles(&self, first: usize) -> Vec<(f32, f32)> {
        let frequency = |i: usize| libm::pow(self.theta, -2.0 * i as f64 / (2 * self.pairs) as f64);
        let angle = |at: usize| (first + at / self.pairs) as f64 * frequency(at % self.pairs);
        (0..BLOCK * self.pairs)
            .map(|at| (libm::cos(angle(at)) as f32, libm::sin(angle(at)) as f32))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn_swaps_the_pair() {
        // theta 1 makes every pair turn by one radian a position; position 0 does not turn.
        for (pairing, pair) in [(Pairing::Halves, (0, 2)), (Pairing::Interleaved, (0, 1))] {
            let rope = Rope::new(4, 1.0, 3, pairing);
            let mut x = [1.0, 0.0, 0.0, 0.0];
            rope.apply(0, &mut x);
            assert_eq!(x, [1.0, 0.0, 0.0, 0.0]);
            rope.apply(2, &mut x);
            assert_eq!(x[pair.0], 2f64.cos() as f32);
            assert_eq!(x[pair.1], 2f64.sin() as f32);
        }
    }
}
