//! Where a weight matrix lies on disk and in which format, so that it can be read at any time.

use super::{Catalog, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::matrix::{Bits, LINE, Matrix, TILE, padded_group};

/// Largest number of elements one matrix may have; a cap on allocations that files can cause.
const MAX_ELEMENTS: usize = 1 << 34;

/// A weight matrix `[n_out, n_in]` on disk.
#[derive(Clone, Debug)]
pub struct MatrixSource {
    n_out: usize,
    n_in: usize,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// One float tensor.
    Plain { dtype: Dtype, weight: Tensor },
    /// compressed-tensors "pack-quantized": signed integers offset to unsigned, packed into
    /// little-endian 32-bit words from the lowest bits up, with one scale per group of inputs.
    Packed { bits: Bits, group: usize, words: Tensor, scale_dtype: Dtype, scales: Tensor },
}

impl MatrixSource {
    /// Finds the matrix `name` (without `.weight`) and checks its stored form.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a missing tensor or another shape or type than expected.
    pub fn find(catalog: &Catalog, name: &str, n_out: usize, n_in: usize) -> Result<Self> {
        if n_out.checked_mul(n_in).is_none_or(|n| n > MAX_ELEMENTS) {
            return Err(Error::bad_file(
                catalog.dir(),
                format!("{name}: {n_out} x {n_in} is too large"),
            ));
        }
        let packed = format!("{name}.weight_packed");
        let form = if catalog.get(&packed).is_some() {
            Self::find_packed(catalog, name, n_out, n_in)?
        } else {
            let full = format!("{name}.weight");
            let weight = catalog.require(&full)?;
            if weight.shape != [n_out, n_in] {
                return Err(catalog.wrong_shape(&full, weight, &[n_out, n_in]));
            }
            Form::Plain { dtype: catalog.float_dtype(&full, weight)?, weight: weight.clone() }
        };
        Ok(Self { n_out, n_in, form })
    }

    fn find_packed(catalog: &Catalog, name: &str, n_out: usize, n_in: usize) -> Result<Form> {
        let packed_name = format!("{name}.weight_packed");
        let scale_name = format!("{name}.weight_scale");
        let words = catalog.require(&packed_name)?;
        let scales = catalog.require(&scale_name)?;
        let refuse = |reason: String| Error::bad_file(catalog.path_of(words), reason);
        let bits = [(4, Bits::Four), (8, Bits::Eight)].into_iter().find_map(|(n, bits)| {
            let fits = words.shape == [n_out, n_in * n / 32] && (n_in * n).is_multiple_of(32);
            fits.then_some(bits)
        });
        let Some(bits) = bits.filter(|_| words.dtype == safetensors::Dtype::I32) else {
            return Err(refuse(format!(
                "tensor {packed_name} is {:?} {:?}; 4 or 8 bits of [{n_out}, {n_in}] in i32 are expected",
                words.dtype, words.shape
            )));
        };
        let groups = match scales.shape[..] {
            [rows, groups] if rows == n_out && groups > 0 && n_in.is_multiple_of(groups) => groups,
            _ => return Err(refuse(format!("tensor {scale_name} has shape {:?}", scales.shape))),
        };
        let group = n_in / groups;
        check_shape(catalog, &format!("{name}.weight_shape"), [n_out, n_in])?;
        for unsupported in ["weight_zero_point", "weight_g_idx"] {
            if catalog.get(&format!("{name}.{unsupported}")).is_some() {
                return Err(Error::Unsupported {
                    what: format!("{name}.{unsupported} (asymmetric or reordered quantisation)"),
                    hint: "use a symmetric, group-wise quantised or an unquantised model".into(),
                });
            }
        }
        Ok(Form::Packed {
            bits,
            group,
            words: words.clone(),
            scale_dtype: catalog.float_dtype(&scale_name, scales)?,
            scales: scales.clone(),
        })
    }

    /// Bytes read from disk to load the matrix.
    pub fn disk_bytes(&self) -> usize {
        match &self.form {
            Form::Plain { weight, .. } => weight.bytes,
            Form::Packed { words, scales, .. } => words.bytes + scales.bytes,
        }
    }

    /// Bytes the loaded matrix takes in memory.
    pub fn ram_bytes(&self) -> usize {
        let rows = self.n_out.next_multiple_of(TILE);
        match &self.form {
            Form::Plain { dtype, .. } => rows * self.n_in * dtype.bytes(),
            Form::Packed { bits, group, scale_dtype, .. } => {
                let lines = padded_group(*group) / bits.inputs_per_line();
                let groups = rows / TILE * (self.n_in / group);
                groups * (lines * LINE + TILE * scale_dtype.bytes())
            }
        }
    }

    /// Number of weights.
    pub fn n_elements(&self) -> usize {
        self.n_out * self.n_in
    }

    /// Name of the storage format in reports.
    pub fn format(&self) -> String {
        match &self.form {
            Form::Plain { dtype, .. } => dtype.name().into(),
            Form::Packed { bits: Bits::Four, group, .. } => format!("int4-g{group}"),
            Form::Packed { bits: Bits::Eight, group, .. } => format!("int8-g{group}"),
        }
    }

    /// Reads the matrix and lays it out for the kernels.
    ///
    /// # Errors
    /// [`Error::Io`] where reading fails.
    pub fn load(&self, catalog: &Catalog) -> Result<Matrix> {
        match &self.form {
            Form::Plain { dtype, weight } => {
                Ok(Matrix::from_plain(*dtype, &catalog.read(weight)?, self.n_out, self.n_in))
            }
            Form::Packed { bits, group, words, scale_dtype, scales } => {
                let (dtype, scales) = (*scale_dtype, catalog.read(scales)?);
                let bytes = catalog.read(words)?;
                let row_bytes = bytes.len() / self.n_out;
                // Little-endian words packed from the low bits up are little-endian bytes.
                let q = |row: usize, k: usize| match bits {
                    Bits::Eight => bytes[row * row_bytes + k].wrapping_sub(128) as i8,
                    Bits::Four => {
                        let byte = bytes[row * row_bytes + k / 2];
                        (if k.is_multiple_of(2) { byte & 15 } else { byte >> 4 }) as i8 - 8
                    }
                };
                Ok(Matrix::from_int(*bits, self.n_out, self.n_in, *group, dtype, &scales, q))
            }
        }
    }
}

/// Refuses a tensor that gives a packed matrix another shape than it has; it may be missing.
fn check_shape(catalog: &Catalog, name: &str, expected: [usize; 2]) -> Result<()> {
    let Some(tensor) = catalog.get(name) else { return Ok(()) };
    let refuse = |found: String| {
        Err(Error::bad_file(
            catalog.path_of(tensor),
            format!("tensor {name} is {found}; i64 {expected:?} is expected"),
        ))
    };
    if tensor.dtype != safetensors::Dtype::I64 || tensor.shape != [2] {
        return refuse(format!("{:?} of shape {:?}", tensor.dtype, tensor.shape));
    }
    let bytes = catalog.read(tensor)?;
    let (dims, _) = bytes.as_chunks::<8>();
    if !dims.iter().map(|dim| u64::from_le_bytes(*dim)).eq(expected.map(|n| n as u64)) {
        return refuse(format!(
            "{:?}",
            dims.iter().map(|d| i64::from_le_bytes(*d)).collect::<Vec<_>>()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::Dtype::{F32, I32, I64};
    use safetensors::tensor::{TensorView, serialize_to_file};

    #[test]
    fn the_shape_beside_a_packed_matrix_must_be_its_own() {
        let dir = tempfile::tempdir().expect("a folder");
        let find = |shape: Option<(safetensors::Dtype, &[u8])>| {
            let (words, scales) = ([0; 4 * 8 / 2], [0; 4 * 4]);
            let mut tensors = vec![
                ("m.weight_packed", TensorView::new(I32, vec![4, 1], &words).expect("words")),
                ("m.weight_scale", TensorView::new(F32, vec![4, 1], &scales).expect("scales")),
            ];
            if let Some((dtype, bytes)) = shape {
                let length = bytes.len() / if dtype == I64 { 8 } else { 4 };
                let view = TensorView::new(dtype, vec![length], bytes).expect("a shape");
                tensors.push(("m.weight_shape", view));
            }
            serialize_to_file(tensors, None, &dir.path().join("model.safetensors"))
                .expect("a file");
            MatrixSource::find(&Catalog::open(dir.path()).expect("a catalogue"), "m", 4, 8)
        };
        let bytes = |dims: &[i64]| dims.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        assert!(find(None).is_ok());
        assert!(find(Some((I64, &bytes(&[4, 8])))).is_ok());
        for wrong in [&[8, 4][..], &[4, -8], &[4, 8, 1], &[4], &[], &[i64::MAX, 2]] {
            let error = find(Some((I64, &bytes(wrong)))).expect_err("refused").to_string();
            assert!(error.contains("m.weight_shape"), "{error}");
        }
        assert!(find(Some((I32, &[4, 0, 0, 0, 8, 0, 0, 0]))).is_err());
    }
}
