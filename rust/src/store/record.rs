//! Records: quantised matrices as one tensor each, in the very bytes that the kernels read.
//!
//! A record holds the lines of a matrix and then its scales; the three matrices of an expert follow
//! one another. Which matrices they are stands in the header of the file (`docs/formats.md`), so
//! that a file can be read without any other.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::mirror::Drives;
use super::{Catalog, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::matrix::{Bits, Elements, IntTiles, LINE, Line, Matrix, Scales, TILE, padded_group};

/// Records begin at multiples of this in their file, and are padded to it.
pub const RECORD_ALIGN: usize = 4096;
/// Key of the description of records in the header of a safetensors file.
pub const RECORDS_KEY: &str = "colibri.records";
/// Largest number of elements one matrix may have; a cap on allocations that files can cause.
pub const MAX_ELEMENTS: usize = 1 << 34;
/// Most inputs that may share a scale: products of this many bytes still fit an i32.
pub const MAX_GROUP: usize = 1 << 16;

/// Shape and storage of a matrix of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntLayout {
    /// Output rows.
    pub n_out: usize,
    /// Inputs of each row.
    pub n_in: usize,
    /// How one weight is stored.
    pub bits: Bits,
    /// Inputs that share a scale; divides `n_in`.
    pub group: usize,
    /// How a scale is stored.
    pub scales: Dtype,
}

impl IntLayout {
    /// Lines of all tiles.
    pub fn n_lines(&self) -> usize {
        let per_group = padded_group(self.group) / self.bits.inputs_per_line();
        self.n_out.div_ceil(TILE) * (self.n_in / self.group) * per_group
    }

    /// Scales of all tiles.
    pub fn n_scales(&self) -> usize {
        self.n_out.next_multiple_of(TILE) * (self.n_in / self.group)
    }

    /// Bytes in memory.
    pub fn ram_bytes(&self) -> usize {
        self.n_lines() * LINE + self.n_scales() * self.scales.bytes()
    }

    /// Bytes in a record: each matrix begins at a line.
    pub fn record_bytes(&self) -> usize {
        self.ram_bytes().next_multiple_of(LINE)
    }

    /// Name of the format in reports and headers, as `int4-g64`.
    pub fn format(&self) -> String {
        format_name(self.bits, self.group)
    }
}

/// Name of an integer format, as `int4-g64`.
pub fn format_name(bits: Bits, group: usize) -> String {
    match bits {
        Bits::Four => format!("int4-g{group}"),
        Bits::Eight => format!("int8-g{group}"),
        Bits::Mxfp4 => "mxfp4".into(),
    }
}

/// One matrix of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The matrix, as its family names it, without `.weight`.
    pub name: String,
    /// Shape and storage.
    pub layout: IntLayout,
}

/// A [`Part`] as the header has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPart {
    name: String,
    shape: [usize; 2],
    format: String,
    scales: String,
}

impl Part {
    fn stored(&self) -> StoredPart {
        let IntLayout { n_out, n_in, scales, .. } = self.layout;
        StoredPart {
            name: self.name.clone(),
            shape: [n_out, n_in],
            format: self.layout.format(),
            scales: scales.name().to_owned(),
        }
    }

    fn parse(stored: StoredPart) -> Result<Self, String> {
        let StoredPart { name, shape: [n_out, n_in], format, scales } = stored;
        let refuse = |what: &str| Err(format!("matrix {name} has {what}"));
        if n_out == 0 || n_in == 0 || n_out.checked_mul(n_in).is_none_or(|n| n > MAX_ELEMENTS) {
            return refuse(&format!("the shape [{n_out}, {n_in}]"));
        }
        let known = [Bits::Four, Bits::Eight].into_iter().find_map(|bits| {
            let group = format.rsplit_once("-g").and_then(|(_, group)| group.parse().ok())?;
            (format_name(bits, group) == format).then_some((bits, group))
        });
        let Some((bits, group)) = known else {
            return refuse(&format!("the unknown format {format:?}"));
        };
        if group == 0 || group > MAX_GROUP || !n_in.is_multiple_of(group) {
            return refuse(&format!("{n_in} inputs in groups of {group}"));
        }
        let Some(scales) = Dtype::parse(&scales) else {
            return refuse(&format!("scales of the unknown type {scales:?}"));
        };
        Ok(Self { name, layout: IntLayout { n_out, n_in, bits, group, scales } })
    }
}

/// Bytes of a record of `parts`.
pub fn record_bytes(parts: &[Part]) -> usize {
    parts.iter().map(|p| p.layout.record_bytes()).sum::<usize>().next_multiple_of(RECORD_ALIGN)
}

/// The header's description of the records of a file, from tensor names to matrices.
pub fn describe_records<'a>(records: impl Iterator<Item = (&'a str, &'a [Part])>) -> String {
    let map: serde_json::Map<_, _> = records
        .map(|(tensor, parts)| {
            let parts: Vec<StoredPart> = parts.iter().map(Part::stored).collect();
            (tensor.to_owned(), serde_json::to_value(parts).expect("plain values"))
        })
        .collect();
    serde_json::Value::Object(map).to_string()
}

/// Reads what [`describe_records`] wrote.
///
/// # Errors
/// What is wrong, in a few words.
pub fn parse_records(text: &str) -> Result<Vec<(String, Vec<Part>)>, String> {
    let map: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|e| e.to_string())?;
    map.into_iter()
        .map(|(tensor, parts)| {
            let parts: Vec<StoredPart> =
                serde_json::from_value(parts).map_err(|e| format!("tensor {tensor}: {e}"))?;
            let parts: Vec<Part> = parts.into_iter().map(Part::parse).collect::<Result<_, _>>()?;
            if parts.is_empty() {
                return Err(format!("tensor {tensor} holds no matrix"));
            }
            Ok((tensor, parts))
        })
        .collect()
}

/// Whether `tensor` can be a record of `parts`: bytes, as many as they take, at an aligned offset.
pub fn check_record(name: &str, tensor: &Tensor, parts: &[Part]) -> Result<(), String> {
    // Parts are capped, so only their number could overflow the sum.
    let expected = parts
        .iter()
        .try_fold(0usize, |sum, part| sum.checked_add(part.layout.record_bytes()))
        .and_then(|sum| sum.checked_next_multiple_of(RECORD_ALIGN));
    if tensor.dtype != safetensors::Dtype::U8 || Some(tensor.bytes) != expected {
        return Err(format!(
            "tensor {name} is {:?} of {} bytes; u8 of {} bytes is expected",
            tensor.dtype,
            tensor.bytes,
            expected.unwrap_or(usize::MAX)
        ));
    }
    if !tensor.offset.is_multiple_of(RECORD_ALIGN as u64) {
        return Err(format!(
            "tensor {name} begins at byte {}, not at a multiple of {RECORD_ALIGN}",
            tensor.offset
        ));
    }
    Ok(())
}

/// Reads all matrices of a record, each straight into its place.
///
/// # Errors
/// [`Error::Io`], and [`Error::BadFile`] for damaged bytes.
pub fn load_record(catalog: &Catalog, tensor: &Tensor, parts: &[Part]) -> Result<Vec<Matrix>> {
    let spare = catalog.spare();
    let mut matrices: Vec<Matrix> = parts.iter().map(|part| empty(part.layout, spare)).collect();
    let used: usize = parts.iter().map(|part| part.layout.record_bytes()).sum();
    let mut ends: Vec<Vec<u8>> = parts
        .iter()
        .map(|part| vec![0; part.layout.record_bytes() - part.layout.ram_bytes()])
        .collect();
    let mut padding = vec![0; tensor.bytes - used];
    let mut places: Vec<&mut [u8]> = Vec::with_capacity(3 * parts.len() + 1);
    for (matrix, end) in matrices.iter_mut().zip(&mut ends) {
        let Elements::Int(tiles) = &mut matrix.elements else { unreachable!("made by `empty`") };
        places.push(bytemuck::cast_slice_mut(&mut tiles.lines));
        places.push(match &mut tiles.scales {
            Scales::F32(s) => bytemuck::cast_slice_mut(s),
            Scales::F16(s) | Scales::Bf16(s) => bytemuck::cast_slice_mut(s),
        });
        places.push(end);
    }
    places.push(&mut padding);
    catalog.read_into(tensor, &mut places)?;
    Ok(matrices)
}

/// Memory of matrices that are not needed any more, for others of the same size: it need not be
/// cleared before it is read into, which takes about a quarter of the time that reading takes.
#[derive(Default)]
pub struct Spare(Mutex<Vec<Vec<Line>>>);

impl Spare {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Line>>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the memory of a matrix of integers.
    pub fn keep(&self, matrix: Matrix) {
        if let Elements::Int(tiles) = matrix.elements {
            self.lock().push(tiles.lines);
        }
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.lock().iter().map(|lines| (lines.len() * LINE) as u64).sum()
    }

    /// Lets go of all of it.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Memory of so many lines, whatever is in it; what does not fit is let go.
    fn take(&self, n: usize) -> Option<Vec<Line>> {
        let mut spare = self.lock();
        let found = spare.iter().position(|lines| lines.len() == n);
        if found.is_none() {
            spare.clear();
        }
        found.map(|place| spare.swap_remove(place))
    }
}

fn empty(layout: IntLayout, spare: &Spare) -> Matrix {
    let IntLayout { n_out, n_in, bits, group, scales } = layout;
    let n = layout.n_scales();
    let scales = match scales {
        Dtype::F32 => Scales::F32(vec![0.0; n]),
        Dtype::F16 => Scales::F16(vec![0; n]),
        Dtype::Bf16 => Scales::Bf16(vec![0; n]),
    };
    let n_lines = layout.n_lines();
    let lines = spare.take(n_lines).unwrap_or_else(|| bytemuck::zeroed_vec(n_lines));
    Matrix { n_out, n_in, elements: Elements::Int(IntTiles { bits, group, lines, scales }) }
}

/// What a tensor's bytes must hash to.
#[derive(Debug)]
pub struct Digest {
    name: String,
    expected: blake3::Hash,
    /// Drives from which all of them once did; they are not hashed again.
    checked: AtomicU32,
}

impl Digest {
    /// The digest of the tensor `name`.
    pub fn new(name: &str, expected: blake3::Hash) -> Self {
        Self { name: name.to_owned(), expected, checked: AtomicU32::new(0) }
    }

    /// Compares `parts`, one after the other, which came from `drives`, unless that was done before.
    ///
    /// # Errors
    /// [`Error::BadFile`] about `path` for other bytes.
    pub(super) fn check<'a>(
        &self,
        path: &std::path::Path,
        drives: Drives,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Result<()> {
        let Some(mut check) = self.begin(drives) else { return Ok(()) };
        for part in parts {
            check.update(part);
        }
        check.end(path)
    }

    /// Drives that once gave all the bytes, and the right ones.
    pub(super) fn checked(&self) -> Drives {
        self.checked.load(Ordering::Relaxed)
    }

    /// A comparison of bytes that come one after the other from `drives`, unless each of these once
    /// gave all of them: what several gave together, one of them may never have given.
    pub(super) fn begin(&self, drives: Drives) -> Option<Check<'_>> {
        let is_known = drives & !self.checked() == 0;
        (!is_known).then(|| Check { digest: self, drives, hasher: blake3::Hasher::new() })
    }
}

/// A comparison that is under way.
pub struct Check<'a> {
    digest: &'a Digest,
    drives: Drives,
    hasher: blake3::Hasher,
}

impl Check<'_> {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// Tells whether the bytes that were taken are the right ones.
    ///
    /// # Errors
    /// [`Error::BadFile`] about `path` for other bytes.
    pub fn end(self, path: &std::path::Path) -> Result<()> {
        if self.hasher.finalize() != self.digest.expected {
            return Err(damaged(path, &self.digest.name));
        }
        if self.drives.is_power_of_two() {
            self.digest.checked.fetch_or(self.drives, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The error for a tensor whose bytes are not those that were written.
pub fn damaged(path: &std::path::Path, tensor: &str) -> Error {
    Error::bad_file(path, format!("tensor {tensor} is damaged: its blake3 is not the manifest's"))
}
