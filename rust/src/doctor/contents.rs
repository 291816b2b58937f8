//! Every byte of a model's files, read once: hashes where there are any, numbers that are none.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Finding;
use crate::cpu;
use crate::error::{Error, Result};
use crate::store::manifest::{Content, Manifest};
use crate::store::{Catalog, READ_BYTES, Tensor, read_capped};

/// Time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Reads all tensors of `catalog` and the small files of its manifest; compares what has a hash with
/// it and looks for values that are not finite in the floats that have none. `progress` gets bytes
/// done and in all; false ends it.
///
/// # Errors
/// [`Error::Interrupted`] if `progress` said so.
pub fn check_contents(
    catalog: &Catalog,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Vec<Finding>> {
    let mut tensors: Vec<(&String, &Tensor)> = catalog.tensors().iter().collect();
    tensors.sort_by_key(|(_, tensor)| (tensor.shard, tensor.offset));
    let total = tensors.iter().map(|(_, tensor)| tensor.bytes as u64).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (stopped, found) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let tell = |place: usize, error: Error| {
        found.lock().unwrap_or_else(PoisonError::into_inner).push((place, error));
    };
    let read_next = || {
        let place = next.fetch_add(1, Ordering::Relaxed);
        let Some((name, tensor)) = tensors.get(place) else { return false };
        let mut count = 0;
        // The one exponent of MXFP4 that stands for NaN.
        let matrix = name.strip_suffix("_scales").map(|matrix| format!("{matrix}_blocks"));
        let has_exponents = matrix.is_some_and(|blocks| catalog.get(&blocks).is_some());
        let read = catalog.read_pieces(tensor, READ_BYTES, &mut |piece| {
            if stopped.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            if !catalog.has_digest(tensor) {
                count += if has_exponents {
                    piece.iter().map(|byte| usize::from(*byte == 0xff)).sum()
                } else {
                    not_finite(tensor.dtype, piece)
                };
            }
            done.fetch_add(piece.len() as u64, Ordering::Relaxed);
            Ok(())
        });
        match read {
            Err(Error::Interrupted) => return false,
            Err(error) => tell(place, error),
            Ok(()) if count > 0 => {
                let reason = format!("tensor {name} has {count} values that are not finite");
                tell(place, Error::bad_file(catalog.path_of(tensor), reason));
            }
            Ok(()) => {}
        }
        true
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..cpu::n_threads().clamp(2, 16))
            .map(|_| scope.spawn(|| while read_next() {}))
            .collect();
        loop {
            if !progress(done.load(Ordering::Relaxed), total) {
                stopped.store(true, Ordering::Relaxed);
            }
            if readers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            std::thread::sleep(REPORT_INTERVAL);
        }
    });
    if stopped.into_inner() {
        return Err(Error::Interrupted);
    }
    progress(total, total);
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(place, _)| *place);
    let mut errors: Vec<Error> = found.into_iter().map(|(_, error)| error).collect();
    // Other folders may have a manifest.json that is not ours; loading does not look at it either.
    if tensors.iter().any(|(_, tensor)| catalog.has_digest(tensor))
        && let Some(manifest) = Manifest::open(catalog.dir())?
    {
        errors.extend(differing_files(catalog.dir(), &manifest));
    }
    Ok(errors.iter().map(Finding::of).collect())
}

/// Small files of a converted model that are not those that were written.
fn differing_files(dir: &Path, manifest: &Manifest) -> Vec<Error> {
    let differs = |(name, entry): (&String, &crate::store::manifest::FileEntry)| {
        let Content::Whole(hash) = &entry.content else { return None };
        let path = dir.join(name);
        match read_capped(&path, entry.bytes) {
            Ok(bytes) if blake3::hash(&bytes) == *hash => None,
            Ok(_) => Some(Error::bad_file(path, "is not the file that the manifest describes")),
            Err(error) => Some(error),
        }
    };
    manifest.files.iter().filter_map(differs).collect()
}

/// How many of the values in `bytes` are infinite or none at all; 0 for types without such.
fn not_finite(dtype: safetensors::Dtype, bytes: &[u8]) -> usize {
    let halves = |exponent: u16| {
        let (values, _) = bytes.as_chunks::<2>();
        values.iter().filter(|b| u16::from_le_bytes(**b) & exponent == exponent).count()
    };
    match dtype {
        safetensors::Dtype::F32 => {
            let (values, _) = bytes.as_chunks::<4>();
            values.iter().filter(|b| !f32::from_le_bytes(**b).is_finite()).count()
        }
        safetensors::Dtype::F16 => halves(0x7c00),
        safetensors::Dtype::BF16 => halves(0x7f80),
        safetensors::Dtype::F8_E4M3 => bytes.iter().filter(|b| **b & 0x7f == 0x7f).count(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::Dtype::{BF16, F8_E4M3, F16, F32, U8};

    #[test]
    fn values_that_are_not_finite_are_counted_in_every_type() {
        let f32s: Vec<u8> = [1.0, f32::NAN, f32::MAX, f32::NEG_INFINITY]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        assert_eq!(not_finite(F32, &f32s), 2);
        let halves = |v: &[u16]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(not_finite(F16, &halves(&[0x3c00, 0x7c00, 0xfe01, 0x7bff])), 2);
        assert_eq!(not_finite(BF16, &halves(&[0x3f80, 0x7f80, 0xffc0, 0x7f7f])), 2);
        assert_eq!(not_finite(F8_E4M3, &[0x7f, 0xff, 0x7e, 0]), 2);
        assert_eq!(not_finite(U8, &[0xff; 8]), 0);
    }
}
