//! MXFP4 matrices on disk: parts of a tensor with the codes of all experts and one with their scales.

use std::ops::Range;

use super::super::record::IntLayout;
use super::super::{Catalog, Tensor};
use super::FusedRows;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::matrix::{Bits, MXFP4_GROUP, Matrix, mxfp4_scale};

/// Bytes of the codes of a group.
const GROUP_BYTES: usize = MXFP4_GROUP / 2;

/// Where an MXFP4 matrix and its scales lie.
#[derive(Clone, Debug)]
pub struct Mxfp4 {
    blocks: Tensor,
    scales: Tensor,
    rows: FusedRows,
    n_out: usize,
    n_in: usize,
}

/// Codes and scales of consecutive rows of a tensor.
pub struct Slab {
    blocks: Vec<u8>,
    scales: Vec<u8>,
}

impl Mxfp4 {
    /// `rows` of the tensors `{name}_blocks` and `{name}_scales` as a matrix `[n_out, n_in]`.
    ///
    /// # Errors
    /// [`Error::BadFile`] for tensors that are missing or have another shape or type.
    pub fn find(
        catalog: &Catalog,
        name: &str,
        rows: FusedRows,
        n_out: usize,
        n_in: usize,
    ) -> Result<Self> {
        let all_rows = n_out.saturating_mul(rows.step);
        let groups = n_in / MXFP4_GROUP;
        let find = |end: &str, shape: &[usize]| {
            let full = format!("{name}_{end}");
            let tensor = catalog.require(&full)?;
            if n_in.is_multiple_of(MXFP4_GROUP)
                && tensor.dtype == safetensors::Dtype::U8
                && tensor.shape == shape
            {
                return Ok(tensor.clone());
            }
            Err(Error::bad_file(
                catalog.path_of(tensor),
                format!(
                    "tensor {full} is {:?} {:?}; U8 {shape:?} is expected for {n_in} inputs in \
                     groups of {MXFP4_GROUP}",
                    tensor.dtype, tensor.shape
                ),
            ))
        };
        let blocks = find("blocks", &[rows.n_experts, all_rows, groups, GROUP_BYTES])?;
        let scales = find("scales", &[rows.n_experts, all_rows, groups])?;
        assert!(rows.expert < rows.n_experts && rows.first < rows.step, "rows of the tensor");
        Ok(Self { blocks, scales, rows, n_out, n_in })
    }

    /// Bytes read to load it; its share where others with rows in between are loaded with it.
    pub fn disk_bytes(&self) -> usize {
        self.n_out * self.n_in / MXFP4_GROUP * (GROUP_BYTES + 1)
    }

    /// Shape and storage once loaded.
    pub fn layout(&self) -> IntLayout {
        IntLayout {
            n_out: self.n_out,
            n_in: self.n_in,
            bits: Bits::Mxfp4,
            group: MXFP4_GROUP,
            scales: Dtype::Bf16,
        }
    }

    /// Whether `other` is made of the same slab.
    pub fn shares_slab(&self, other: &Self) -> bool {
        let place = |m: &Self| (m.blocks.shard, m.blocks.offset, m.rows.expert, m.rows.step);
        place(self) == place(other)
    }

    /// Reads what holds the matrix' rows `rows` and the ones between them.
    pub fn read(&self, catalog: &Catalog, rows: Range<usize>) -> Result<Slab> {
        let groups = self.n_in / MXFP4_GROUP;
        let first = (self.rows.expert * self.n_out + rows.start) * self.rows.step * groups;
        let n = rows.len() * self.rows.step * groups;
        let read = |tensor, size| {
            let mut bytes = vec![0; n * size];
            catalog.read_at(tensor, first * size, &mut bytes).map(|()| bytes)
        };
        Ok(Slab { blocks: read(&self.blocks, GROUP_BYTES)?, scales: read(&self.scales, 1)? })
    }

    /// Lays out the `n_rows` rows that `slab` holds.
    pub fn lay_out(&self, n_rows: usize, slab: &Slab) -> Matrix {
        let FusedRows { first, step, .. } = self.rows;
        let groups = self.n_in / MXFP4_GROUP;
        let scales: Vec<u8> = (0..n_rows)
            .flat_map(|row| &slab.scales[(row * step + first) * groups..][..groups])
            .flat_map(|&exponent| mxfp4_scale(exponent).to_le_bytes())
            .collect();
        let row_bytes = groups * GROUP_BYTES;
        let code = |row: usize, k: usize| {
            let byte = slab.blocks[(row * step + first) * row_bytes + k / 2];
            (if k.is_multiple_of(2) { byte & 15 } else { byte >> 4 }) as i8
        };
        let (dtype, group) = (Dtype::Bf16, MXFP4_GROUP);
        Matrix::from_int(Bits::Mxfp4, n_rows, self.n_in, group, dtype, &scales, code)
    }
}

#[cfg(test)]
mod tests {
    use super::super::MatrixSource;
    use super::*;
    use safetensors::Dtype::{I8, U8};
    use safetensors::tensor::{TensorView, serialize_to_file};

    /// Experts, rows of each, inputs.
    const SHAPE: [usize; 3] = [3, 38, 96];

    fn block(i: usize) -> u8 {
        (i * 37 + i / 256) as u8
    }

    fn exponent(i: usize) -> u8 {
        (117 + i % 20) as u8
    }

    /// A folder with `fused_blocks` and `fused_scales`.
    fn folder(dtype: safetensors::Dtype, scale_shape: &[usize]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        let [experts, rows, n_in] = SHAPE;
        let blocks: Vec<u8> = (0..experts * rows * n_in / 2).map(block).collect();
        let scales: Vec<u8> = (0..scale_shape.iter().product()).map(exponent).collect();
        let shape = vec![experts, rows, n_in / 32, 16];
        let blocks = TensorView::new(dtype, shape, &blocks).expect("blocks");
        let scales = TensorView::new(U8, scale_shape.to_vec(), &scales).expect("scales");
        let tensors = [("fused_blocks", blocks), ("fused_scales", scales)];
        serialize_to_file(tensors, None, &dir.path().join("model.safetensors")).expect("a file");
        dir
    }

    /// The weight by the format's definition.
    fn expected(expert: usize, row: usize, k: usize) -> f32 {
        let [_, rows, n_in] = SHAPE;
        let at = (expert * rows + row) * n_in + k;
        let code = if at.is_multiple_of(2) { block(at / 2) & 15 } else { block(at / 2) >> 4 };
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
        let sign = if code < 8 { 1.0 } else { -1.0 };
        sign * magnitude * 2f32.powi(i32::from(exponent(at / 32)) - 127)
    }

    #[test]
    fn an_experts_rows_are_found_in_the_fused_tensors() {
        let [n_experts, rows, n_in] = SHAPE;
        let dir = folder(U8, &[n_experts, rows, n_in / 32]);
        let catalog = Catalog::open(dir.path()).expect("a catalogue");
        for (expert, first, step) in [(0, 0, 1), (2, 0, 1), (1, 0, 2), (2, 1, 2)] {
            let fused = FusedRows { n_experts, expert, first, step };
            let n_out = rows / step;
            let source =
                MatrixSource::find_mxfp4(&catalog, "fused", fused, n_out, n_in).expect("found");
            let m = source.load(&catalog).expect("loaded");
            assert_eq!((source.ram_bytes(), &*source.format()), (m.bytes(), "mxfp4"));
            let part = source.load_rows(&catalog, 16..n_out).expect("rows");
            for (row, k) in (0..n_out).flat_map(|row| (0..n_in).map(move |k| (row, k))) {
                let expected = expected(expert, row * step + first, k);
                assert_eq!(m.get(row, k), expected, "{fused:?}: {row}, {k}");
                if row >= 16 {
                    assert_eq!(part.get(row - 16, k), expected, "{fused:?}: {row}, {k}");
                }
            }
        }
    }

    #[test]
    fn interleaved_matrices_that_are_loaded_together_are_those_loaded_alone() {
        let [n_experts, rows, n_in] = SHAPE;
        let dir = folder(U8, &[n_experts, rows, n_in / 32]);
        let catalog = Catalog::open(dir.path()).expect("a catalogue");
        let find = |expert, first, step| {
            let fused = FusedRows { n_experts, expert, first, step };
            MatrixSource::find_mxfp4(&catalog, "fused", fused, rows / step, n_in).expect("found")
        };
        let sources = [find(1, 0, 2), find(1, 1, 2), find(2, 1, 2), find(2, 0, 1)];
        let together =
            MatrixSource::load_all(sources.each_ref(), &catalog).expect("loaded together");
        for (source, m) in sources.iter().zip(&together) {
            let alone = source.load(&catalog).expect("loaded alone");
            for i in 0..m.n_out * n_in {
                assert_eq!(m.get(i / n_in, i % n_in), alone.get(i / n_in, i % n_in));
            }
        }
    }

    #[test]
    fn other_shapes_and_types_are_refused_by_name() {
        let [n_experts, rows, n_in] = SHAPE;
        let refused = |dir: &tempfile::TempDir, n_experts, n_out, n_in| {
            let catalog = Catalog::open(dir.path()).expect("a catalogue");
            let fused = FusedRows { n_experts, expert: 0, first: 0, step: 1 };
            MatrixSource::find_mxfp4(&catalog, "fused", fused, n_out, n_in)
                .expect_err("refused")
                .to_string()
        };
        let dir = folder(U8, &[n_experts, rows, n_in / 32]);
        for (n_experts, n_out, n_in) in
            [(2, rows, n_in), (n_experts, 37, n_in), (n_experts, rows, 64), (n_experts, rows, 97)]
        {
            let error = refused(&dir, n_experts, n_out, n_in);
            assert!(error.contains("fused_blocks"), "{error}");
        }
        let error = refused(&folder(I8, &[n_experts, rows, n_in / 32]), n_experts, rows, n_in);
        assert!(error.contains("fused_blocks"), "{error}");
        let error = refused(&folder(U8, &[n_experts, rows, 1]), n_experts, rows, n_in);
        assert!(error.contains("fused_scales"), "{error}");
    }
}
