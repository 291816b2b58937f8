//! Weight matrices in the layout that the kernels read.
//!
//! A matrix of `n_out` rows and `n_in` columns is cut into tiles of 16 output rows. Inside a tile
//! the inputs follow one another and each holds its 16 rows side by side, so that vector lanes are
//! output rows and no sum ever runs across lanes (`docs/design/0001-numeric-contract.md`).

use crate::dtype::{Dtype, bf16_to_f32, f16_to_f32};

/// Output rows of one tile.
pub const TILE: usize = 16;

/// Elements of a matrix, tile by tile; the last tile is padded with zero rows.
#[derive(Clone, Debug)]
pub enum Elements {
    /// `[tiles][n_in][16]`
    F32(Vec<f32>),
    /// `[tiles][n_in][16]`, IEEE binary16 bits.
    F16(Vec<u16>),
    /// `[tiles][n_in][16]`, bf16 bits.
    Bf16(Vec<u16>),
    /// Signed bytes with one scale per row and group of inputs.
    Int8 {
        /// `[tiles][n_in][16]`
        q: Vec<i8>,
        /// `[tiles][n_in / group][16]`
        scales: Vec<f32>,
        /// Inputs that share a scale.
        group: usize,
    },
    /// Nibbles holding value + 8, with one scale per row and group of inputs.
    Int4 {
        /// `[tiles][n_in / 2][16]`; the low nibble is the even input.
        q: Vec<u8>,
        /// `[tiles][n_in / group][16]`
        scales: Vec<f32>,
        /// Inputs that share a scale; even.
        group: usize,
    },
}

/// A weight matrix `[n_out, n_in]` in tiles.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Output rows.
    pub n_out: usize,
    /// Inputs of each row.
    pub n_in: usize,
    /// The weights.
    pub elements: Elements,
}

impl Matrix {
    /// Lays out the row-major little-endian `bytes` of a plain tensor `[n_out, n_in]`.
    ///
    /// # Panics
    /// If `bytes` is not exactly as long as the shape says.
    pub fn from_plain(dtype: Dtype, bytes: &[u8], n_out: usize, n_in: usize) -> Self {
        assert_eq!(bytes.len(), n_out * n_in * dtype.bytes(), "plain tensor of the stated shape");
        let half = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
        let elements = match dtype {
            Dtype::F32 => Elements::F32(tiled(n_out, n_in, 0.0, |row, k| {
                let i = 4 * (row * n_in + k);
                f32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]])
            })),
            Dtype::F16 => Elements::F16(tiled(n_out, n_in, 0, |row, k| half(row * n_in + k))),
            Dtype::Bf16 => Elements::Bf16(tiled(n_out, n_in, 0, |row, k| half(row * n_in + k))),
        };
        Self { n_out, n_in, elements }
    }

    /// Lays out quantised values `q(row, k)` of `bits` (4 or 8) bits with `scales` row-major
    /// `[n_out, n_in / group]`.
    ///
    /// # Panics
    /// If `bits` is neither 4 nor 8, or `group` is odd or does not divide `n_in`.
    pub fn from_int(
        bits: u32,
        n_out: usize,
        n_in: usize,
        group: usize,
        scales: &[f32],
        q: impl Fn(usize, usize) -> i8,
    ) -> Self {
        assert!(group.is_multiple_of(2) && n_in.is_multiple_of(group), "groups divide the inputs");
        let groups = n_in / group;
        let scales = tiled(n_out, groups, 0.0, |row, g| scales[row * groups + g]);
        let elements = match bits {
            8 => Elements::Int8 { q: tiled(n_out, n_in, 0, q), scales, group },
            4 => {
                let nibble = |row: usize, k: usize| (q(row, k) + 8) as u8 & 15;
                let pair = |row, k: usize| nibble(row, 2 * k) | nibble(row, 2 * k + 1) << 4;
                // Padding rows hold the nibble of zero.
                Elements::Int4 { q: tiled(n_out, n_in / 2, 0x88, pair), scales, group }
            }
            _ => panic!("integer weights have 4 or 8 bits, not {bits}"),
        };
        Self { n_out, n_in, elements }
    }

    /// Tiles, the padded last one included.
    pub fn n_tiles(&self) -> usize {
        self.n_out.div_ceil(TILE)
    }

    /// Bytes the elements take in memory.
    pub fn bytes(&self) -> usize {
        match &self.elements {
            Elements::F32(w) => size_of_val(&w[..]),
            Elements::F16(w) | Elements::Bf16(w) => size_of_val(&w[..]),
            Elements::Int8 { q, scales, .. } => q.len() + size_of_val(&scales[..]),
            Elements::Int4 { q, scales, .. } => q.len() + size_of_val(&scales[..]),
        }
    }

    /// Name of the storage format in reports.
    pub fn format(&self) -> String {
        match &self.elements {
            Elements::F32(_) => "f32".into(),
            Elements::F16(_) => "f16".into(),
            Elements::Bf16(_) => "bf16".into(),
            Elements::Int8 { group, .. } => format!("int8-g{group}"),
            Elements::Int4 { group, .. } => format!("int4-g{group}"),
        }
    }

    /// The value of one weight, exactly as the file defines it.
    pub fn get(&self, row: usize, k: usize) -> f32 {
        let (tile, lane) = (row / TILE, row % TILE);
        let at = (tile * self.n_in + k) * TILE + lane;
        match &self.elements {
            Elements::F32(w) => w[at],
            Elements::F16(w) => f16_to_f32(w[at]),
            Elements::Bf16(w) => bf16_to_f32(w[at]),
            Elements::Int8 { .. } | Elements::Int4 { .. } => {
                let (value, scale) = self.quantized(row, k);
                value as f32 * scale
            }
        }
    }

    /// Stored integer and scale of one weight of an integer format.
    ///
    /// # Panics
    /// If the format is a float one.
    pub fn quantized(&self, row: usize, k: usize) -> (i32, f32) {
        let (tile, lane) = (row / TILE, row % TILE);
        let (value, scales, group) = match &self.elements {
            Elements::Int8 { q, scales, group } => {
                (i32::from(q[(tile * self.n_in + k) * TILE + lane]), scales, *group)
            }
            Elements::Int4 { q, scales, group } => {
                let byte = q[(tile * self.n_in / 2 + k / 2) * TILE + lane];
                let nibble = if k.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
                (i32::from(nibble) - 8, scales, *group)
            }
            _ => panic!("{} is not an integer format", self.format()),
        };
        (value, scales[(tile * (self.n_in / group) + k / group) * TILE + lane])
    }

    /// Writes row `row` `[n_in]` widened to f32, as an embedding lookup does.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        for (k, x) in out.iter_mut().enumerate() {
            *x = self.get(row, k);
        }
    }

    /// A copy of rows `from..to` as f32 `[to - from, n_in]`, transposed if asked to.
    #[must_use]
    pub fn slice_f32(&self, from: usize, to: usize, transpose: bool) -> Self {
        let (n_out, n_in) = if transpose { (self.n_in, to - from) } else { (to - from, self.n_in) };
        let elements = Elements::F32(tiled(n_out, n_in, 0.0, |row, k| {
            if transpose { self.get(from + k, row) } else { self.get(from + row, k) }
        }));
        Self { n_out, n_in, elements }
    }
}

fn tiled<T: Copy>(
    n_out: usize,
    n_in: usize,
    padding: T,
    value: impl Fn(usize, usize) -> T,
) -> Vec<T> {
    let mut out = Vec::with_capacity(n_out.div_ceil(TILE) * n_in * TILE);
    for first in (0..n_out).step_by(TILE) {
        for k in 0..n_in {
            for row in first..first + TILE {
                out.push(if row < n_out { value(row, k) } else { padding });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_gives_back_what_was_laid_out() {
        let (n_out, n_in) = (19, 8);
        let value = |row: usize, k: usize| ((row * 7 + k * 3) % 16) as i8 - 8;
        let plain: Vec<u8> = (0..n_out * n_in)
            .flat_map(|i| f32::from(value(i / n_in, i % n_in)).to_le_bytes())
            .collect();
        let scales: Vec<f32> = (0..n_out * 2).map(|i| 0.5 + i as f32).collect();
        let f32s = Matrix::from_plain(Dtype::F32, &plain, n_out, n_in);
        let int8 = Matrix::from_int(8, n_out, n_in, 4, &scales, value);
        let int4 = Matrix::from_int(4, n_out, n_in, 4, &scales, value);
        for row in 0..n_out {
            for k in 0..n_in {
                let exact = f32::from(value(row, k));
                assert_eq!(f32s.get(row, k), exact);
                assert_eq!(int8.get(row, k), exact * scales[row * 2 + k / 4]);
                assert_eq!(int4.get(row, k), exact * scales[row * 2 + k / 4]);
            }
        }
        assert_eq!(int4.bytes(), 2 * 16 * (8 / 2) + 2 * 2 * 16 * 4);
    }

    #[test]
    fn a_slice_can_be_transposed() {
        let plain: Vec<u8> = (0..6u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        let m = Matrix::from_plain(Dtype::F32, &plain, 3, 2);
        let t = m.slice_f32(1, 3, true);
        assert_eq!((t.n_out, t.n_in), (2, 2));
        assert_eq!([t.get(0, 0), t.get(0, 1), t.get(1, 0), t.get(1, 1)], [2.0, 4.0, 3.0, 5.0]);
    }
}
