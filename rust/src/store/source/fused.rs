//! Experts whose matrices lie in tensors of all experts of a layer, stored transposed.

use std::ops::Range;

use super::{Form, FusedRows, MatrixSource, check_size};
use crate::dtype::{Dtype, widen};
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::store::{Catalog, Tensor};

/// Columns of one expert's part of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    pub(super) dtype: Dtype,
    /// `[n_in, columns]`
    slab: Tensor,
    first: usize,
    step: usize,
}

impl MatrixSource {
    /// Finds one expert's matrix `[n_out, n_in]` in what all experts share under `name`: MXFP4, or
    /// floats as for [`Self::of_columns`].
    ///
    /// # Errors
    /// [`Error::BadFile`] for a missing tensor or another shape or type than expected.
    pub fn of_fused(
        catalog: &Catalog,
        name: &str,
        rows: FusedRows,
        n_out: usize,
        n_in: usize,
    ) -> Result<Self> {
        if catalog.get(&format!("{name}_blocks")).is_some() {
            Self::find_mxfp4(catalog, name, rows, n_out, n_in)
        } else {
            Self::of_columns(catalog, name, rows, n_out, n_in)
        }
    }

    /// Finds the matrix `[n_out, n_in]` whose output rows `rows` are columns of the tensor `name`
    /// `[experts, n_in, n_out * step]`.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a missing tensor or another shape or type than expected.
    pub fn of_columns(
        catalog: &Catalog,
        name: &str,
        rows: FusedRows,
        n_out: usize,
        n_in: usize,
    ) -> Result<Self> {
        check_size(catalog, name, n_out, n_in)?;
        let FusedRows { n_experts, expert, first, step } = rows;
        let tensor = catalog.require(name)?;
        let shape = [n_experts, n_in, n_out * step];
        if tensor.shape != shape {
            return Err(catalog.wrong_shape(name, tensor, &shape));
        }
        let dtype = shared_dtype(catalog, name, tensor)?;
        let slab = tensor.slab(expert);
        Ok(Self { n_out, n_in, form: Form::Columns(Columns { dtype, slab, first, step }) })
    }
}

/// The type of a tensor of all experts.
fn shared_dtype(catalog: &Catalog, name: &str, tensor: &Tensor) -> Result<Dtype> {
    if tensor.dtype == safetensors::Dtype::F8_E4M3 {
        return Err(Error::Unsupported {
            what: format!("fp8 in {name}, a tensor of all experts"),
            hint: "fp8 files as published have tensors for each expert; take those, or bf16".into(),
        });
    }
    catalog.float_dtype(name, tensor)
}

/// One of several matrices of an expert that lie one after the other in a tensor of all experts,
/// `[experts, parts * rows, inputs]`.
#[derive(Clone, Copy, Debug)]
pub struct StackedRows {
    /// Experts that the tensor holds.
    pub n_experts: usize,
    /// The one that is meant.
    pub expert: usize,
    /// Matrices of it.
    pub parts: usize,
    /// The one that is meant.
    pub part: usize,
}

impl MatrixSource {
    /// Finds the matrix `[n_out, n_in]` that is the part `rows` of the tensor `name`.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a missing tensor or another shape or type than expected.
    ///
    /// # Panics
    /// If `rows` names an expert or a part that there is not.
    pub fn of_rows(
        catalog: &Catalog,
        name: &str,
        rows: StackedRows,
        n_out: usize,
        n_in: usize,
    ) -> Result<Self> {
        check_size(catalog, name, n_out, n_in)?;
        let StackedRows { n_experts, expert, parts, part } = rows;
        assert!(expert < n_experts && part < parts, "expert {expert}, part {part}");
        let tensor = catalog.require(name)?;
        let shape = [n_experts, parts * n_out, n_in];
        if tensor.shape != shape {
            return Err(catalog.wrong_shape(name, tensor, &shape));
        }
        let dtype = shared_dtype(catalog, name, tensor)?;
        let (slab, bytes) = (tensor.slab(expert), n_out * n_in * dtype.bytes());
        let offset = slab.offset + (part * bytes) as u64;
        let weight = Tensor { shape: vec![n_out, n_in], offset, bytes, ..slab };
        Ok(Self { n_out, n_in, form: Form::Plain { dtype, weight } })
    }
}

impl Columns {
    pub(super) fn read(&self, catalog: &Catalog) -> Result<Vec<u8>> {
        catalog.read(&self.slab)
    }

    /// Whether `other` is made of the same slab.
    pub(super) fn shares_slab(&self, other: &Self) -> bool {
        (self.slab.shard, self.slab.offset) == (other.slab.shard, other.slab.offset)
    }

    /// The matrix in the bytes that were read.
    pub(super) fn lay_out(&self, bytes: &[u8], n_out: usize, n_in: usize) -> Matrix {
        self.transpose(bytes, self.slab.shape[1], self.first, [n_out, n_in])
    }

    /// Reads some rows of the matrix, as a matrix of its own.
    pub(super) fn load_rows(
        &self,
        catalog: &Catalog,
        rows: Range<usize>,
        n_in: usize,
    ) -> Result<Matrix> {
        let (all, size) = (self.slab.shape[1], self.dtype.bytes());
        let first = self.first + rows.start * self.step;
        let width = (rows.len() - 1) * self.step + 1;
        let mut bytes = vec![0; n_in * width * size];
        for (k, part) in bytes.chunks_exact_mut(width * size).enumerate() {
            catalog.read_at(&self.slab, (k * all + first) * size, part)?;
        }
        Ok(self.transpose(&bytes, width, 0, [rows.len(), n_in]))
    }

    /// The matrix whose rows are each `step`-th column from `first` on of `bytes` `[n_in, width]`.
    fn transpose(
        &self,
        bytes: &[u8],
        width: usize,
        first: usize,
        [n_out, n_in]: [usize; 2],
    ) -> Matrix {
        let size = self.dtype.bytes();
        let mut rows = Vec::with_capacity(n_out * n_in * size);
        for row in 0..n_out {
            let column = first + row * self.step;
            for k in 0..n_in {
                rows.extend_from_slice(&bytes[(k * width + column) * size..][..size]);
            }
        }
        Matrix::from_plain(self.dtype, &rows, n_out, n_in)
    }
}

/// One expert's vector in a tensor of all experts.
#[derive(Clone, Debug)]
pub struct VectorSource {
    dtype: Dtype,
    n: usize,
    slab: Tensor,
    first: usize,
    step: usize,
}

impl VectorSource {
    /// Finds the `n` elements `rows` of the tensor `name` `[experts, n * step]`.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a missing tensor or another shape or type than expected.
    pub fn find(catalog: &Catalog, name: &str, rows: FusedRows, n: usize) -> Result<Self> {
        let FusedRows { n_experts, expert, first, step } = rows;
        let tensor = catalog.require(name)?;
        let shape = [n_experts, n * step];
        if tensor.shape != shape {
            return Err(catalog.wrong_shape(name, tensor, &shape));
        }
        let dtype = catalog.float_dtype(name, tensor)?;
        Ok(Self { dtype, n, slab: tensor.slab(expert), first, step })
    }

    /// Reads the vector, widened to f32.
    ///
    /// # Errors
    /// [`Error::Io`] where reading fails.
    pub fn load(&self, catalog: &Catalog) -> Result<Vec<f32>> {
        let all = widen(self.dtype, &catalog.read(&self.slab)?);
        Ok(all.into_iter().skip(self.first).step_by(self.step).collect())
    }

    /// Bytes in memory once loaded.
    pub fn ram_bytes(&self) -> usize {
        self.n * size_of::<f32>()
    }

    /// Bytes that loading adds to what is read.
    pub fn disk_bytes(&self) -> usize {
        self.n * self.dtype.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{TensorView, serialize_to_file};

    #[test]
    fn an_experts_matrices_lie_one_after_the_other() {
        let dir = tempfile::tempdir().expect("a folder");
        // [3 experts, 4 rows, 2 inputs]
        let bytes: Vec<u8> = (0..24u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        let view = TensorView::new(safetensors::Dtype::F32, vec![3, 4, 2], &bytes);
        serialize_to_file(
            [("m", view.expect("a tensor"))],
            None,
            &dir.path().join("model.safetensors"),
        )
        .expect("a file");
        let catalog = Catalog::open(dir.path()).expect("a catalogue");
        let find = |n_experts, parts, part, n_out, n_in| {
            let rows = StackedRows { n_experts, expert: 1, parts, part };
            MatrixSource::of_rows(&catalog, "m", rows, n_out, n_in)
        };
        for (part, first) in [(0, 8.0), (1, 12.0)] {
            let source = find(3, 2, part, 2, 2).expect("a half");
            assert_eq!(source.disk_bytes(), 16);
            let matrix = source.load(&catalog).expect("rows");
            assert_eq!([matrix.get(0, 0), matrix.get(1, 1)], [first, first + 3.0]);
            let row = source.load_rows(&catalog, 1..2).expect("a row");
            assert_eq!(row.get(0, 0), first + 2.0);
        }
        for (n_experts, parts, n_out, n_in) in [(2, 2, 2, 2), (3, 3, 2, 2), (3, 2, 1, 4)] {
            assert!(find(n_experts, parts, 0, n_out, n_in).is_err());
        }
        assert!(find(3, 2, 0, usize::MAX / 2, 2).is_err());
    }

    #[test]
    fn an_experts_columns_are_its_output_rows() {
        let dir = tempfile::tempdir().expect("a folder");
        // [3 experts, 2 inputs, 4 columns]
        let bytes: Vec<u8> = (0..24u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        let view = |shape: &[usize]| {
            TensorView::new(safetensors::Dtype::F32, shape.to_vec(), &bytes).expect("a tensor")
        };
        serialize_to_file(
            [("m", view(&[3, 2, 4])), ("v", view(&[4, 6]))],
            None,
            &dir.path().join("model.safetensors"),
        )
        .expect("a file");
        let catalog = Catalog::open(dir.path()).expect("a catalogue");
        let rows = |n_experts, expert, first, step| FusedRows { n_experts, expert, first, step };
        let find = |rows, n_out, n_in| MatrixSource::of_columns(&catalog, "m", rows, n_out, n_in);
        let even = find(rows(3, 1, 0, 2), 2, 2).expect("even columns");
        let odds = find(rows(3, 1, 1, 2), 2, 2).expect("odd columns");
        let whole = find(rows(3, 2, 0, 1), 4, 2).expect("all columns");
        assert_eq!((even.disk_bytes(), whole.disk_bytes()), (16, 32));
        let loaded = MatrixSource::load_all([&even, &odds, &whole], &catalog).expect("matrices");
        for row in 0..2 {
            for k in 0..2 {
                let first = (8 + 4 * k + 2 * row) as f32;
                assert_eq!([loaded[0].get(row, k), loaded[1].get(row, k)], [first, first + 1.0]);
            }
        }
        assert_eq!(loaded[2].get(3, 1), 23.0);
        for (source, whole) in [&even, &odds, &whole].into_iter().zip(&loaded) {
            for first in 0..whole.n_out {
                let rows = source.load_rows(&catalog, first..whole.n_out).expect("rows");
                for (row, k) in (first..whole.n_out).flat_map(|row| [(row, 0), (row, 1)]) {
                    assert_eq!(rows.get(row - first, k), whole.get(row, k), "{first}: {row}, {k}");
                }
            }
        }
        assert_eq!(odds.load(&catalog).expect("by itself").get(1, 0), 11.0);
        let vector = VectorSource::find(&catalog, "v", rows(4, 2, 1, 2), 3).expect("a vector");
        assert_eq!(vector.load(&catalog).expect("elements"), [13.0, 15.0, 17.0]);
        assert!(find(rows(3, 0, 0, 1), 2, 2).is_err());
        assert!(find(rows(3, 0, 0, 1), usize::MAX, 2).is_err());
        assert!(VectorSource::find(&catalog, "v", rows(3, 0, 1, 2), 3).is_err());
    }
}
