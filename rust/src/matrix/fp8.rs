//! Matrices of e4m3 floats with a scale for each row and block of inputs.

use super::{Elements, Matrix, TILE, tiled};
use crate::dtype::{e4m3_to_f32, is_e4m3_nan};

/// 8-bit floats with scales. A file has one scale for a block of rows and inputs; here each row has
/// its own, so that blocks may have any number of rows.
#[derive(Clone, Debug)]
pub struct Fp8Tiles {
    /// Inputs that share a scale; the last block of a row may have fewer.
    pub block: usize,
    /// `[tiles][n_in][16]`, e4m3 codes.
    pub codes: Vec<u8>,
    /// `[tiles][blocks of a row][16]`; NaN where a code of the row and block is, which the kernels
    /// take for a number.
    pub scales: Vec<f32>,
}

impl Fp8Tiles {
    /// The weight of `row` and input `k` without its scale.
    pub fn value(&self, n_in: usize, row: usize, k: usize) -> f32 {
        e4m3_to_f32(self.codes[(row / TILE * n_in + k) * TILE + row % TILE])
    }

    /// The scale of that weight.
    pub fn scale(&self, n_in: usize, row: usize, k: usize) -> f32 {
        let blocks = n_in.div_ceil(self.block);
        self.scales[(row / TILE * blocks + k / self.block) * TILE + row % TILE]
    }
}

impl Matrix {
    /// Lays out the row-major e4m3 `codes` `[n_out, n_in]`; `scale(row, b)` is that of the inputs
    /// from `b * block` on. A code that is NaN makes NaN of its scale too.
    ///
    /// # Panics
    /// If `codes` is not exactly as long as the shape says, or `block` is 0.
    pub fn from_fp8(
        codes: &[u8],
        n_out: usize,
        n_in: usize,
        block: usize,
        scale: impl Fn(usize, usize) -> f32,
    ) -> Self {
        assert_eq!(codes.len(), n_out * n_in, "codes of the stated shape");
        let scales = tiled(n_out, n_in.div_ceil(block), 0.0, |row, b| {
            let codes = &codes[row * n_in..][b * block..n_in.min((b + 1) * block)];
            if codes.iter().any(|&code| is_e4m3_nan(code)) { f32::NAN } else { scale(row, b) }
        });
        let codes = tiled(n_out, n_in, 0, |row, k| codes[row * n_in + k]);
        Self { n_out, n_in, elements: Elements::Fp8(Fp8Tiles { block, codes, scales }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_codes_times_the_scale_of_their_block() {
        let (n_out, n_in, block) = (19, 11, 4);
        let codes: Vec<u8> = (0..n_out * n_in).map(|i| (i * 7 % 127) as u8).collect();
        let scale = |row: usize, b: usize| 0.25 + (row * 3 + b) as f32;
        let m = Matrix::from_fp8(&codes, n_out, n_in, block, scale);
        for (i, &code) in codes.iter().enumerate() {
            let (row, k) = (i / n_in, i % n_in);
            assert_eq!(m.get(row, k), e4m3_to_f32(code) * scale(row, k / block), "{row}, {k}");
        }
        let mut row = vec![0.0; n_in];
        m.copy_row(17, &mut row);
        assert_eq!(row[10], m.get(17, 10));
        // Two tiles of 11 inputs and of three scales.
        assert_eq!(m.bytes(), 2 * 16 * 11 + 2 * 16 * 3 * 4);
    }
}
