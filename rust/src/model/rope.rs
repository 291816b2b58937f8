//! Rotary position embedding.

/// Which components of a vector form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// i and i + dim / 2.
    Halves,
    /// 2i and 2i + 1.
    Interleaved,
}

/// Cosines and sines of every position and pair.
pub struct Rope {
    pairs: usize,
    pairing: Pairing,
    /// `[positions][pairs]` of (cosine, sine).
    table: Vec<(f32, f32)>,
}

impl Rope {
    /// Tables for rotating `dim` components at positions below `positions`.
    ///
    /// The angle of pair i at position p is p * theta^(-2i / dim), computed in f64 and rounded
    /// once, so that every machine has the same table.
    pub fn new(dim: usize, theta: f64, positions: usize, pairing: Pairing) -> Self {
        let pairs = dim / 2;
        let frequency = |i: usize| libm::pow(theta, -2.0 * i as f64 / dim as f64);
        let table = (0..positions * pairs)
            .map(|at| {
                let angle = (at / pairs) as f64 * frequency(at % pairs);
                (libm::cos(angle) as f32, libm::sin(angle) as f32)
            })
            .collect();
        Self { pairs, pairing, table }
    }

    /// Rotates `x` `[dim]` as the vector of `position`.
    pub fn apply(&self, position: usize, x: &mut [f32]) {
        let row = &self.table[position * self.pairs..(position + 1) * self.pairs];
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
