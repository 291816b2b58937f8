//! Weight matrices in the layout that the kernels read.
//!
//! A matrix of `n_out` rows and `n_in` columns is cut into tiles of 16 output rows. Inside a tile
//! the inputs follow one another and each holds its 16 rows side by side, so that vector lanes are
//! output rows and no sum ever runs across lanes (`docs/design/0001-numeric-contract.md`).

mod fp8;
mod mxfp4;

use crate::dtype::{Dtype, bf16_to_f32, f16_to_f32};
pub use fp8::Fp8Tiles;
pub use mxfp4::{MXFP4_BIAS, MXFP4_GROUP, MXFP4_UNSIGNED, mxfp4_scale};

/// Output rows of one tile.
pub const TILE: usize = 16;

/// Bytes of one line: 16 rows by 4 bytes, one vector register of the widest machines.
pub const LINE: usize = 64;

/// A cache line of integer weights: 16 rows side by side, 4 bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub struct Line(pub [[u8; 4]; TILE]);

impl Line {
    /// All bytes zero.
    pub const ZERO: Self = Self([[0; 4]; TILE]);
}

/// Elements of a matrix, tile by tile; the last tile is padded with zero rows.
#[derive(Clone, Debug)]
pub enum Elements {
    /// `[tiles][n_in][16]`
    F32(Vec<f32>),
    /// `[tiles][n_in][16]`, IEEE binary16 bits.
    F16(Vec<u16>),
    /// `[tiles][n_in][16]`, bf16 bits.
    Bf16(Vec<u16>),
    /// 8-bit floats with one scale per row and block of inputs.
    Fp8(Fp8Tiles),
    /// Integers with one scale per row and group of inputs.
    Int(IntTiles),
}

/// Integer weights. A group of inputs is padded with zeros to a multiple of 8.
#[derive(Clone, Debug)]
pub struct IntTiles {
    /// How one weight is stored.
    pub bits: Bits,
    /// Inputs that share a scale.
    pub group: usize,
    /// `[tiles][groups][lines of a group]`
    pub lines: Vec<Line>,
    /// `[tiles][groups][16]`
    pub scales: Scales,
}

/// How one integer weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// Nibbles that hold value + 8. The line n of a group has inputs 8n..8n+4 in its low nibbles
    /// and 8n+4..8n+8 in its high ones.
    Four,
    /// Signed bytes. The line n of a group has inputs 4n..4n+4.
    Eight,
    /// Nibbles that hold e2m1 codes, in the places that `Four` has. Twice their values are integers:
    /// those are what is multiplied, with half the scale.
    Mxfp4,
}

impl Bits {
    /// Inputs that one line covers.
    pub fn inputs_per_line(self) -> usize {
        match self {
            Self::Four | Self::Mxfp4 => 8,
            Self::Eight => 4,
        }
    }

    /// A line of the values `q(lane, input of the line)`; those of `Mxfp4` are codes.
    #[inline(always)]
    pub fn line(self, q: impl Fn(usize, usize) -> i8) -> Line {
        Line(std::array::from_fn(|lane| {
            std::array::from_fn(|i| match self {
                Self::Eight => q(lane, i) as u8,
                Self::Four => {
                    let nibble = |i| (q(lane, i) + 8) as u8 & 15;
                    nibble(i) | nibble(i + 4) << 4
                }
                Self::Mxfp4 => q(lane, i) as u8 & 15 | (q(lane, i + 4) as u8 & 15) << 4,
            })
        }))
    }
}

/// Scales in the precision of their file.
#[derive(Clone, Debug)]
pub enum Scales {
    /// Binary32.
    F32(Vec<f32>),
    /// IEEE binary16 bits.
    F16(Vec<u16>),
    /// bf16 bits.
    Bf16(Vec<u16>),
}

impl Scales {
    /// The scale at `index`.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Self::F32(s) => s[index],
            Self::F16(s) => f16_to_f32(s[index]),
            Self::Bf16(s) => bf16_to_f32(s[index]),
        }
    }

    /// As they lie in memory.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::F32(s) => bytemuck::cast_slice(s),
            Self::F16(s) | Self::Bf16(s) => bytemuck::cast_slice(s),
        }
    }
}

impl IntTiles {
    /// Inputs of a group with its padding.
    pub fn padded_group(&self) -> usize {
        padded_group(self.group)
    }

    /// Lines of one group of one tile.
    pub fn lines_per_group(&self) -> usize {
        self.padded_group() / self.bits.inputs_per_line()
    }
}

/// Inputs of a group with its padding.
pub fn padded_group(group: usize) -> usize {
    group.next_multiple_of(8)
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
        let mut rows = PlainRows::new(dtype, n_out, n_in);
        rows.push(bytes);
        rows.finish()
    }

    /// Lays out quantised values `q(row, k)`, codes in the case of `Mxfp4`, with `scales`,
    /// little-endian bytes of row-major `[n_out, n_in / group]`.
    ///
    /// # Panics
    /// If `group` does not divide `n_in` or `scales` is not as long as the shape says.
    pub fn from_int(
        bits: Bits,
        n_out: usize,
        n_in: usize,
        group: usize,
        scale_dtype: Dtype,
        scales: &[u8],
        q: impl Fn(usize, usize) -> i8,
    ) -> Self {
        assert!(group > 0 && n_in.is_multiple_of(group), "groups divide the inputs");
        let groups = n_in / group;
        let Self { elements: scales, .. } = Self::from_plain(scale_dtype, scales, n_out, groups);
        let scales = match scales {
            Elements::F32(s) => Scales::F32(s),
            Elements::F16(s) => Scales::F16(s),
            Elements::Bf16(s) => Scales::Bf16(s),
            _ => unreachable!("from_plain gives plain floats"),
        };
        let value = |row: usize, g: usize, k: usize| {
            if row < n_out && k < group { q(row, g * group + k) } else { 0 }
        };
        let per_line = bits.inputs_per_line();
        let lines_per_group = padded_group(group) / per_line;
        let mut lines = Vec::with_capacity(n_out.div_ceil(TILE) * groups * lines_per_group);
        for first in (0..n_out).step_by(TILE) {
            for g in 0..groups {
                for k in (0..lines_per_group).map(|line| line * per_line) {
                    lines.push(bits.line(|lane, i| value(first + lane, g, k + i)));
                }
            }
        }
        Self { n_out, n_in, elements: Elements::Int(IntTiles { bits, group, lines, scales }) }
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
            Elements::Fp8(w) => size_of_val(&w.codes[..]) + size_of_val(&w.scales[..]),
            Elements::Int(w) => size_of_val(&w.lines[..]) + w.scales.as_bytes().len(),
        }
    }

    /// Inputs that share a scale, of an integer format.
    pub fn group(&self) -> Option<usize> {
        match &self.elements {
            Elements::Int(w) => Some(w.group),
            _ => None,
        }
    }

    /// Name of the storage format in reports.
    pub fn format(&self) -> String {
        match &self.elements {
            Elements::F32(_) => "f32".into(),
            Elements::F16(_) => "f16".into(),
            Elements::Bf16(_) => "bf16".into(),
            Elements::Fp8(_) => "fp8-e4m3".into(),
            Elements::Int(w) => match w.bits {
                Bits::Four => format!("int4-g{}", w.group),
                Bits::Eight => format!("int8-g{}", w.group),
                Bits::Mxfp4 => "mxfp4".into(),
            },
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
            Elements::Fp8(w) => w.value(self.n_in, row, k) * w.scale(self.n_in, row, k),
            Elements::Int(_) => {
                let (value, scale) = self.quantized(row, k);
                value as f32 * scale
            }
        }
    }

    /// Integer and scale of one weight of an integer format; their product is its value.
    ///
    /// # Panics
    /// If the format is a float one.
    pub fn quantized(&self, row: usize, k: usize) -> (i32, f32) {
        let Elements::Int(w) = &self.elements else {
            panic!("{} is not an integer format", self.format());
        };
        let (tile, lane) = (row / TILE, row % TILE);
        let (g, k) = (k / w.group, k % w.group);
        let at = tile * (self.n_in / w.group) + g;
        let line = w.lines[at * w.lines_per_group() + k / w.bits.inputs_per_line()];
        let value = match w.bits {
            Bits::Eight => i32::from(line.0[lane][k % 4] as i8),
            Bits::Four => i32::from(nibble(line.0[lane], k)) - 8,
            Bits::Mxfp4 => {
                let code = nibble(line.0[lane], k);
                i32::from(MXFP4_UNSIGNED[usize::from(code)]) - MXFP4_BIAS
            }
        };
        (value, w.scales.get(at * TILE + lane))
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

/// A matrix of floats that is laid out while its rows come.
pub struct PlainRows {
    matrix: Matrix,
    /// Rows that have come.
    n_rows: usize,
}

impl PlainRows {
    /// Before the first row of `[n_out, n_in]`.
    pub fn new(dtype: Dtype, n_out: usize, n_in: usize) -> Self {
        let n = n_out.next_multiple_of(TILE) * n_in;
        let elements = match dtype {
            Dtype::F32 => Elements::F32(Vec::with_capacity(n)),
            Dtype::F16 => Elements::F16(Vec::with_capacity(n)),
            Dtype::Bf16 => Elements::Bf16(Vec::with_capacity(n)),
        };
        Self { matrix: Matrix { n_out, n_in, elements }, n_rows: 0 }
    }

    /// Takes the next rows, row-major and little-endian: whole tiles, or the last of all.
    ///
    /// # Panics
    /// If they are neither, or not whole rows.
    pub fn push(&mut self, bytes: &[u8]) {
        assert!(self.n_rows.is_multiple_of(TILE), "rows after the last");
        let n_in = self.matrix.n_in;
        self.n_rows += match &mut self.matrix.elements {
            Elements::F32(out) => push_tiles(bytes, n_in, out, f32::from_le_bytes),
            Elements::F16(out) | Elements::Bf16(out) => {
                push_tiles(bytes, n_in, out, u16::from_le_bytes)
            }
            Elements::Fp8(_) | Elements::Int(_) => unreachable!("made of plain floats"),
        };
    }

    /// The matrix.
    ///
    /// # Panics
    /// If rows are missing or too many.
    pub fn finish(self) -> Matrix {
        assert_eq!(self.n_rows, self.matrix.n_out, "plain tensor of the stated shape");
        self.matrix
    }
}

/// Inputs that are laid out for all rows of a tile before the next ones: what is written so stays in
/// the nearest cache.
const INPUT_BLOCK: usize = 64;

/// Appends the rows in `bytes` to `out` tile by tile; returns how many they are.
fn push_tiles<T: Copy + Default, const N: usize>(
    bytes: &[u8],
    n_in: usize,
    out: &mut Vec<T>,
    value: impl Fn([u8; N]) -> T,
) -> usize {
    let (values, rest) = bytes.as_chunks::<N>();
    assert!(rest.is_empty() && values.len().is_multiple_of(n_in), "whole rows");
    for rows in values.chunks(TILE * n_in) {
        for first in (0..n_in).step_by(INPUT_BLOCK) {
            let inputs = first..n_in.min(first + INPUT_BLOCK);
            // Lanes without a row stay zero.
            let mut block = [[T::default(); TILE]; INPUT_BLOCK];
            for (lane, row) in rows.chunks_exact(n_in).enumerate() {
                for (bytes, lanes) in row[inputs.clone()].iter().zip(&mut block) {
                    lanes[lane] = value(*bytes);
                }
            }
            out.extend_from_slice(block[..inputs.len()].as_flattened());
        }
    }
    values.len() / n_in
}

/// The nibble of input `k` of a group among the `bytes` that a line has for a row.
fn nibble(bytes: [u8; 4], k: usize) -> u8 {
    if k % 8 < 4 { bytes[k % 4] & 15 } else { bytes[k % 4] >> 4 }
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
        let bytes: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        let f32s = Matrix::from_plain(Dtype::F32, &plain, n_out, n_in);
        let int = |bits| Matrix::from_int(bits, n_out, n_in, 4, Dtype::F32, &bytes, value);
        let (int8, int4) = (int(Bits::Eight), int(Bits::Four));
        for row in 0..n_out {
            for k in 0..n_in {
                let exact = f32::from(value(row, k));
                assert_eq!(f32s.get(row, k), exact);
                assert_eq!(int8.get(row, k), exact * scales[row * 2 + k / 4]);
                assert_eq!(int4.get(row, k), exact * scales[row * 2 + k / 4]);
            }
        }
        // Two tiles of two groups, each group padded to one line of nibbles.
        assert_eq!(int4.bytes(), 2 * 2 * LINE + 2 * 2 * 16 * 4);
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
