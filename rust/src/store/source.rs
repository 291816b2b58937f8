//! Where a weight matrix lies on disk and in which format, so that it can be read at any time.

pub mod fp8;
mod fused;
mod mxfp4;

use std::ops::Range;
use std::sync::Arc;

use super::record::{
    IntLayout, MAX_ELEMENTS, MAX_GROUP, Part, RECORD_ALIGN, format_name, load_record,
};
use super::{Catalog, READ_BYTES, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::matrix::{Bits, Matrix, PlainRows, TILE};
use fp8::Fp8;
use fused::Columns;
pub use fused::{StackedRows, VectorSource};
use mxfp4::Mxfp4;

/// Groups that the C engine tries, in this order, where there are more scales than rows.
const C_ENGINE_GROUPS: [usize; 8] = [16, 32, 48, 64, 96, 128, 192, 256];

/// A weight matrix `[n_out, n_in]` on disk.
#[derive(Clone, Debug)]
pub struct MatrixSource {
    pub(crate) n_out: usize,
    pub(crate) n_in: usize,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// One float tensor.
    Plain { dtype: Dtype, weight: Tensor },
    /// Integers packed from the lowest bits up with one scale per group of inputs:
    /// compressed-tensors "pack-quantized", whose integers are all offset to unsigned, or the C
    /// engine's, whose bytes are signed.
    Packed {
        bits: Bits,
        signed_bytes: bool,
        group: usize,
        words: Tensor,
        scale_dtype: Dtype,
        scales: Tensor,
    },
    /// e4m3 with scales beside it.
    Fp8(Fp8),
    /// Rows of a fused pair of MXFP4 tensors.
    Mxfp4(Mxfp4),
    /// Columns of a tensor of all experts.
    Columns(Columns),
    /// A part of a record, as the kernels read it.
    Tiles { record: Tensor, parts: Arc<[Part]>, index: usize },
}

/// Rows of one expert in a tensor that holds all experts of a layer, `[experts, rows, inputs]`.
#[derive(Clone, Copy, Debug)]
pub struct FusedRows {
    /// Experts that the tensor holds.
    pub n_experts: usize,
    /// The one that is meant.
    pub expert: usize,
    /// Its first row.
    pub first: usize,
    /// From there on each `step`-th row: 2 where two matrices are interleaved, else 1.
    pub step: usize,
}

impl MatrixSource {
    /// Finds the matrix `[n_out, n_in]` that `rows` of `{name}_blocks` and `{name}_scales` are.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a missing tensor or another shape or type than expected.
    ///
    /// # Panics
    /// If `rows` names an expert or a first row that there is not.
    pub fn find_mxfp4(
        catalog: &Catalog,
        name: &str,
        rows: FusedRows,
        n_out: usize,
        n_in: usize,
    ) -> Result<Self> {
        check_size(catalog, name, n_out, n_in)?;
        let form = Form::Mxfp4(Mxfp4::find(catalog, name, rows, n_out, n_in)?);
        Ok(Self { n_out, n_in, form })
    }

    /// Finds the matrix `name` (without `.weight`) and checks its stored form.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a missing tensor or another shape or type than expected.
    pub fn find(catalog: &Catalog, name: &str, n_out: usize, n_in: usize) -> Result<Self> {
        check_size(catalog, name, n_out, n_in)?;
        let packed = format!("{name}.weight_packed");
        let form = if let Some((record, parts, index)) = catalog.part(name) {
            let IntLayout { n_out: rows, n_in: inputs, .. } = parts[index].layout;
            if (rows, inputs) != (n_out, n_in) {
                return Err(Error::bad_file(
                    catalog.path_of(record),
                    format!(
                        "matrix {name} has shape [{rows}, {inputs}], the configuration says \
                         [{n_out}, {n_in}]"
                    ),
                ));
            }
            Form::Tiles { record: record.clone(), parts: Arc::clone(parts), index }
        } else if catalog.get(&packed).is_some() {
            Self::find_packed(catalog, name, n_out, n_in)?
        } else if let Some(scales) = catalog.get(&format!("{name}.weight.qs")) {
            Self::find_flat(catalog, name, n_out, n_in, scales)?
        } else {
            let full = format!("{name}.weight");
            let weight = catalog.require(&full)?;
            if weight.shape != [n_out, n_in] {
                return Err(catalog.wrong_shape(&full, weight, &[n_out, n_in]));
            }
            if weight.dtype == safetensors::Dtype::F8_E4M3 {
                Form::Fp8(Fp8::find(catalog, name, weight)?)
            } else {
                Form::Plain { dtype: catalog.float_dtype(&full, weight)?, weight: weight.clone() }
            }
        };
        Ok(Self { n_out, n_in, form })
    }

    /// Whether a matrix `name` is there in any form, whole or not.
    pub fn exists(catalog: &Catalog, name: &str) -> bool {
        catalog.part(name).is_some()
            || [".weight", ".weight_packed"]
                .iter()
                .any(|end| catalog.get(&format!("{name}{end}")).is_some())
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
            [rows, groups]
                if rows == n_out
                    && groups > 0
                    && n_in.is_multiple_of(groups)
                    && n_in / groups <= MAX_GROUP =>
            {
                groups
            }
            _ => return Err(refuse(format!("tensor {scale_name} has shape {:?}", scales.shape))),
        };
        let group = n_in / groups;
        check_shape(catalog, name, [n_out, n_in])?;
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
            signed_bytes: false,
            group,
            words: words.clone(),
            scale_dtype: catalog.float_dtype(&scale_name, scales)?,
            scales: scales.clone(),
        })
    }

    /// The C engine's form: flat bytes, their format told by how many there are of them and of
    /// their scales.
    fn find_flat(
        catalog: &Catalog,
        name: &str,
        n_out: usize,
        n_in: usize,
        scales: &Tensor,
    ) -> Result<Form> {
        let full = format!("{name}.weight");
        let words = catalog.require(&full)?;
        let refuse = |what: &str| {
            Err(Error::bad_file(
                catalog.path_of(words),
                format!(
                    "tensor {full} is {:?} of {} bytes with {} {:?} scales for [{n_out}, {n_in}]; {what}",
                    words.dtype,
                    words.bytes,
                    scales.shape.iter().product::<usize>(),
                    scales.dtype,
                ),
            ))
        };
        let is_bytes = matches!(words.dtype, safetensors::Dtype::U8 | safetensors::Dtype::I8);
        if !is_bytes || scales.dtype != safetensors::Dtype::F32 {
            return refuse("bytes with f32 scales are expected");
        }
        let n_scales = scales.bytes / Dtype::F32.bytes();
        let by_row = n_scales == n_out;
        let (bits, group) = if by_row && words.bytes == n_out * n_in {
            (Bits::Eight, n_in)
        } else if words.bytes != n_out * n_in.div_ceil(2) {
            return refuse("int8 or int4 is expected");
        } else if by_row {
            (Bits::Four, n_in)
        } else {
            let fits = |group: &usize| n_out * n_in.div_ceil(*group) == n_scales;
            let Some(group) = C_ENGINE_GROUPS.into_iter().find(fits) else {
                return refuse("a scale per row or group is expected");
            };
            (Bits::Four, group)
        };
        if group > MAX_GROUP || !n_in.is_multiple_of(group) {
            return refuse("groups that divide the inputs are expected");
        }
        Ok(Form::Packed {
            bits,
            signed_bytes: true,
            group,
            words: words.clone(),
            scale_dtype: Dtype::F32,
            scales: scales.clone(),
        })
    }

    /// Bytes read from disk to load the matrix; the first one of a record has its padding.
    pub fn disk_bytes(&self) -> usize {
        match &self.form {
            Form::Plain { weight, .. } => weight.bytes,
            Form::Columns(columns) => self.n_elements() * columns.dtype.bytes(),
            Form::Packed { words, scales, .. } => words.bytes + scales.bytes,
            Form::Fp8(fp8) => fp8.disk_bytes(),
            Form::Mxfp4(mxfp4) => mxfp4.disk_bytes(),
            Form::Tiles { record, parts, index } => {
                let bytes = |part: &Part| part.layout.record_bytes();
                let padding = record.bytes - parts.iter().map(bytes).sum::<usize>();
                bytes(&parts[*index]) + if *index == 0 { padding } else { 0 }
            }
        }
    }

    /// Bytes the loaded matrix takes in memory.
    pub fn ram_bytes(&self) -> usize {
        match (&self.form, self.int_layout()) {
            (_, Some(layout)) => layout.ram_bytes(),
            (Form::Plain { dtype, .. } | Form::Columns(Columns { dtype, .. }), _) => {
                self.n_out.next_multiple_of(TILE) * self.n_in * dtype.bytes()
            }
            (Form::Fp8(fp8), _) => fp8.ram_bytes(),
            _ => unreachable!("all other forms are integers"),
        }
    }

    /// Most bytes that loading the matrix takes at a time besides the matrix itself.
    pub fn passing_bytes(&self) -> usize {
        let window = self.disk_bytes().min(READ_BYTES) + 2 * RECORD_ALIGN;
        match &self.form {
            // In pieces of whole tiles, or what is not aligned by way of a window; of whole pages.
            Form::Plain { .. } | Form::Tiles { .. } => {
                let piece = READ_BYTES.max(TILE * self.n_in * size_of::<f32>());
                self.disk_bytes().min(piece) + 2 * RECORD_ALIGN
            }
            Form::Packed { .. } | Form::Fp8(_) => self.disk_bytes() + window,
            // With what lies between its rows, and laid out anew.
            Form::Mxfp4(_) | Form::Columns(_) => 3 * self.disk_bytes() + window,
        }
    }

    /// Shape and storage once loaded, if it has integers.
    pub fn int_layout(&self) -> Option<IntLayout> {
        match &self.form {
            Form::Plain { .. } | Form::Fp8(_) | Form::Columns(_) => None,
            Form::Mxfp4(mxfp4) => Some(mxfp4.layout()),
            &Form::Packed { bits, group, scale_dtype: scales, .. } => {
                Some(IntLayout { n_out: self.n_out, n_in: self.n_in, bits, group, scales })
            }
            Form::Tiles { parts, index, .. } => Some(parts[*index].layout),
        }
    }

    /// Output rows and inputs.
    pub fn shape(&self) -> [usize; 2] {
        [self.n_out, self.n_in]
    }

    /// Number of weights.
    pub fn n_elements(&self) -> usize {
        self.n_out * self.n_in
    }

    /// Whether it is a part of a record.
    pub fn is_record(&self) -> bool {
        matches!(self.form, Form::Tiles { .. })
    }

    /// Name of the storage format in reports.
    pub fn format(&self) -> String {
        match &self.form {
            Form::Plain { dtype, .. } | Form::Columns(Columns { dtype, .. }) => dtype.name().into(),
            Form::Packed { bits, group, .. } => format_name(*bits, *group),
            Form::Fp8(_) => "fp8-e4m3".into(),
            Form::Mxfp4(mxfp4) => mxfp4.layout().format(),
            Form::Tiles { parts, index, .. } => parts[*index].layout.format(),
        }
    }

    /// Reads the matrix and lays it out for the kernels.
    ///
    /// # Errors
    /// [`Error::Io`] where reading fails, [`Error::BadFile`] for damaged bytes.
    pub fn load(&self, catalog: &Catalog) -> Result<Matrix> {
        match &self.form {
            Form::Plain { dtype, weight } => {
                let mut rows = PlainRows::new(*dtype, self.n_out, self.n_in);
                // Whole tiles, so that the tensor need not be in memory twice.
                let tile_bytes = TILE * self.n_in * dtype.bytes();
                let size = (READ_BYTES / tile_bytes).max(1) * tile_bytes;
                catalog.read_pieces(weight, size, &mut |piece| {
                    rows.push(piece);
                    Ok(())
                })?;
                Ok(rows.finish())
            }
            Form::Columns(columns) => {
                Ok(columns.lay_out(&columns.read(catalog)?, self.n_out, self.n_in))
            }
            Form::Packed { words, scales, signed_bytes, .. } => {
                let (words, scales) = (catalog.read(words)?, catalog.read(scales)?);
                Ok(self.unpack(self.n_out, &words, *signed_bytes, &scales))
            }
            Form::Fp8(fp8) => fp8.load(catalog),
            Form::Mxfp4(mxfp4) => {
                Ok(mxfp4.lay_out(self.n_out, &mxfp4.read(catalog, 0..self.n_out)?))
            }
            Form::Tiles { record, parts, index } => {
                Ok(load_record(catalog, record, parts)?.swap_remove(*index))
            }
        }
    }

    /// Reads matrices that are used together; those that make up a record, at once, and what
    /// interleaved neighbours share, once.
    ///
    /// # Errors
    /// As [`MatrixSource::load`].
    pub fn load_all<const N: usize>(sources: [&Self; N], catalog: &Catalog) -> Result<[Matrix; N]> {
        if let Some((record, parts)) = Self::whole_record(&sources) {
            let matrices = load_record(catalog, record, parts)?;
            return Ok(matrices.try_into().expect("as many as the record has"));
        }
        let mut matrices = Vec::with_capacity(N);
        // What the next source may lie in as well.
        let (mut last_codes, mut last_columns) = (None, None);
        for source in sources {
            matrices.push(match &source.form {
                Form::Mxfp4(mxfp4) => {
                    let (_, slab) = match last_codes.take() {
                        Some((before, slab)) if mxfp4.shares_slab(before) => {
                            last_codes.insert((mxfp4, slab))
                        }
                        _ => last_codes.insert((mxfp4, mxfp4.read(catalog, 0..source.n_out)?)),
                    };
                    mxfp4.lay_out(source.n_out, slab)
                }
                Form::Columns(columns) => {
                    let (_, bytes) = match last_columns.take() {
                        Some((before, bytes)) if columns.shares_slab(before) => {
                            last_columns.insert((columns, bytes))
                        }
                        _ => last_columns.insert((columns, columns.read(catalog)?)),
                    };
                    columns.lay_out(bytes, source.n_out, source.n_in)
                }
                _ => source.load(catalog)?,
            });
        }
        Ok(matrices.try_into().expect("one of each source"))
    }

    /// The record whose parts are exactly `sources`, in this order.
    fn whole_record<'a>(sources: &[&'a Self]) -> Option<(&'a Tensor, &'a [Part])> {
        let Form::Tiles { record, parts, .. } = &sources[0].form else { return None };
        let is_part = |(i, source): (usize, &&Self)| match &source.form {
            Form::Tiles { parts: others, index, .. } => Arc::ptr_eq(parts, others) && *index == i,
            _ => false,
        };
        (parts.len() == sources.len() && sources.iter().enumerate().all(is_part))
            .then_some((record, &**parts))
    }

    /// Reads some rows of a matrix that is not in a record, as a matrix of its own.
    ///
    /// # Errors
    /// [`Error::Io`] where reading fails.
    pub fn load_rows(&self, catalog: &Catalog, rows: Range<usize>) -> Result<Matrix> {
        let read = |tensor: &Tensor| {
            let row_bytes = tensor.bytes / self.n_out;
            let mut bytes = vec![0; rows.len() * row_bytes];
            catalog.read_at(tensor, rows.start * row_bytes, &mut bytes).map(|()| bytes)
        };
        match &self.form {
            Form::Plain { dtype, weight } => {
                Ok(Matrix::from_plain(*dtype, &read(weight)?, rows.len(), self.n_in))
            }
            Form::Packed { words, scales, signed_bytes, .. } => {
                Ok(self.unpack(rows.len(), &read(words)?, *signed_bytes, &read(scales)?))
            }
            Form::Fp8(fp8) => fp8.load_rows(catalog, rows),
            Form::Mxfp4(mxfp4) => {
                Ok(mxfp4.lay_out(rows.len(), &mxfp4.read(catalog, rows.clone())?))
            }
            Form::Columns(columns) => columns.load_rows(catalog, rows, self.n_in),
            Form::Tiles { .. } => unreachable!("the converter refuses sources with records"),
        }
    }

    /// Lays out `n_rows` rows of packed integers.
    fn unpack(&self, n_rows: usize, bytes: &[u8], signed_bytes: bool, scales: &[u8]) -> Matrix {
        let Some(IntLayout { bits, group, scales: dtype, .. }) = self.int_layout() else {
            unreachable!("packed words are integers")
        };
        let row_bytes = bytes.len() / n_rows;
        // Little-endian words packed from the low bits up are little-endian bytes.
        let offset = if signed_bytes { 0 } else { 128 };
        let q = |row: usize, k: usize| match bits {
            Bits::Eight => bytes[row * row_bytes + k].wrapping_sub(offset) as i8,
            Bits::Four => {
                let byte = bytes[row * row_bytes + k / 2];
                (if k.is_multiple_of(2) { byte & 15 } else { byte >> 4 }) as i8 - 8
            }
            Bits::Mxfp4 => unreachable!("those are fused, not packed"),
        };
        Matrix::from_int(bits, n_rows, self.n_in, group, dtype, scales, q)
    }
}

impl Catalog {
    /// `[n_out, n_in]` of the packed matrix `name`, from the tensor that holds its shape.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a tensor that is missing or holds no shape.
    pub fn packed_shape(&self, name: &str) -> Result<[usize; 2]> {
        let name = format!("{name}.weight_shape");
        let tensor = self.require(&name)?;
        let refuse = |found: String| {
            Error::bad_file(
                self.path_of(tensor),
                format!("tensor {name} is {found}; i64 [2] is expected"),
            )
        };
        if tensor.dtype != safetensors::Dtype::I64 || tensor.shape != [2] {
            return Err(refuse(format!("{:?} of shape {:?}", tensor.dtype, tensor.shape)));
        }
        let bytes = self.read(tensor)?;
        let (dims, _) = bytes.as_chunks::<8>();
        let [n_out, n_in] = [dims[0], dims[1]].map(i64::from_le_bytes);
        let shape = [n_out, n_in].map(|n| usize::try_from(n).ok());
        match shape {
            [Some(n_out), Some(n_in)] if n_out.checked_mul(n_in).is_some() => Ok([n_out, n_in]),
            _ => Err(refuse(format!("[{n_out}, {n_in}]"))),
        }
    }
}

/// Refuses a matrix that no model has.
fn check_size(catalog: &Catalog, name: &str, n_out: usize, n_in: usize) -> Result<()> {
    if n_out.checked_mul(n_in).is_none_or(|n| n > MAX_ELEMENTS) {
        let reason = format!("{name}: {n_out} x {n_in} is too large");
        return Err(Error::bad_file(catalog.dir(), reason));
    }
    Ok(())
}

/// Refuses a tensor that gives a packed matrix another shape than it has; it may be missing.
fn check_shape(catalog: &Catalog, name: &str, expected: [usize; 2]) -> Result<()> {
    let full = format!("{name}.weight_shape");
    let Some(tensor) = catalog.get(&full) else { return Ok(()) };
    match catalog.packed_shape(name)? {
        shape if shape == expected => Ok(()),
        shape => Err(Error::bad_file(
            catalog.path_of(tensor),
            format!("tensor {full} is {shape:?}; {expected:?} is expected"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::Dtype::{F32, I32, I64, U8};
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

    /// What is found of `n_bytes` and `n_scales` of the C engine's form, and the values.
    fn flat(
        n_out: usize,
        n_in: usize,
        n_bytes: usize,
        n_scales: usize,
        scale_dtype: safetensors::Dtype,
    ) -> Result<Matrix> {
        let dir = tempfile::tempdir().expect("a folder");
        let bytes: Vec<u8> = (0..n_bytes).map(|i| (i * 37) as u8).collect();
        let scales: Vec<u8> = (0..n_scales).flat_map(|i| (i as f32 + 0.5).to_le_bytes()).collect();
        let tensors = [
            ("m.weight", TensorView::new(U8, vec![n_bytes], &bytes).expect("bytes")),
            ("m.weight.qs", TensorView::new(scale_dtype, vec![n_scales], &scales).expect("scales")),
        ];
        serialize_to_file(tensors, None, &dir.path().join("model.safetensors")).expect("a file");
        let catalog = Catalog::open(dir.path())?;
        MatrixSource::find(&catalog, "m", n_out, n_in)?.load(&catalog)
    }

    #[test]
    fn the_c_engines_integers_are_told_by_their_number() {
        for (n_out, n_in, four, group) in [
            (17usize, 24usize, false, 24),
            (17, 24, true, 24),
            (3, 21, true, 21),
            (17, 64, true, 16),
            (2, 128, true, 64),
            (2, 512, true, 256),
        ] {
            let row_bytes = if four { n_in.div_ceil(2) } else { n_in };
            let groups = n_in / group;
            let m = flat(n_out, n_in, n_out * row_bytes, n_out * groups, F32).expect("known");
            assert_eq!(m.format(), format!("int{}-g{group}", if four { 4 } else { 8 }));
            for i in 0..n_out * n_in {
                let (row, k) = (i / n_in, i % n_in);
                let byte = |at: usize| ((row * row_bytes + at) * 37) as u8;
                let value = match (four, k % 2) {
                    (false, _) => i32::from(byte(k) as i8),
                    (true, 0) => i32::from(byte(k / 2) & 15) - 8,
                    (true, _) => i32::from(byte(k / 2) >> 4) - 8,
                };
                let scale = (row * groups + k / group) as f32 + 0.5;
                assert_eq!(m.get(row, k), value as f32 * scale, "{row}, {k} of {n_in}");
            }
        }
    }

    #[test]
    fn what_is_none_of_the_c_engines_integers_is_refused() {
        for (n_bytes, n_scales) in [
            (16 * 64 - 1, 16),  // too few bytes
            (16 * 16, 16),      // int2
            (16 * 24, 16),      // int3
            (16 * 64, 1),       // fp8 in blocks
            (16 * 32, 15),      // no whole number of groups
            (16 * 32, 16 * 64), // groups of one
            (16 * 32, 0),
        ] {
            assert!(flat(16, 64, n_bytes, n_scales, F32).is_err(), "{n_bytes}, {n_scales}");
        }
        // Groups of 48 do not divide 64 inputs; nor are scales anything but f32.
        assert!(flat(16, 100, 16 * 50, 16 * 3, F32).is_err());
        assert!(flat(16, 64, 16 * 64, 16, I32).is_err());
    }
}
