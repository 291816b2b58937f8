//! Comparing files with what a manifest or journal says about them.

use std::path::Path;

use blake3::Hasher;
use std::os::unix::fs::FileExt as _;

use super::Progress;
use crate::error::{Error, Result};
use crate::store::manifest::{Content, FileEntry, MANIFEST, Manifest};
use crate::store::open_regular;

/// Bytes read at a time.
const CHUNK: usize = 4 << 20;

/// Compares every file of the converted model `dir` with its manifest; one line for each file or
/// tensor that differs.
///
/// # Errors
/// [`Error::FileMissing`] where there is no manifest, [`Error::Io`] where reading fails.
pub fn verify(dir: &Path, progress: &mut dyn FnMut(&str, u64, u64) -> bool) -> Result<Vec<String>> {
    let manifest = Manifest::open(dir)?.ok_or_else(|| Error::FileMissing {
        path: dir.join(MANIFEST),
        hint: "only folders that 'colibri convert' has written can be verified".into(),
    })?;
    let total = manifest.files.values().map(|entry| entry.bytes).sum();
    let mut progress = Progress::new("verifying", total, progress);
    let mut problems = Vec::new();
    for (name, entry) in &manifest.files {
        for problem in compare(&dir.join(name), entry, &mut progress)? {
            problems.push(format!("{name}: {problem}"));
        }
    }
    Ok(problems)
}

/// What differs between the file at `path` and `entry`.
pub fn compare(path: &Path, entry: &FileEntry, progress: &mut Progress) -> Result<Vec<String>> {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(Error::FileMissing { .. }) => return Ok(vec!["is missing".into()]),
        Err(other) => return Err(other),
    };
    let bytes = file.metadata().map_err(|e| Error::io(path, e))?.len();
    if bytes != entry.bytes {
        return Ok(vec![format!("has {bytes} bytes instead of {}", entry.bytes)]);
    }
    let mut buffer = vec![0; CHUNK];
    let mut hash = |from: u64, to: u64, progress: &mut Progress| -> Result<blake3::Hash> {
        let mut hasher = Hasher::new();
        let mut at = from;
        while at < to {
            let n = (to - at).min(CHUNK as u64) as usize;
            file.read_exact_at(&mut buffer[..n], at).map_err(|e| Error::io(path, e))?;
            hasher.update(&buffer[..n]);
            at += n as u64;
            progress.add(n as u64)?;
        }
        Ok(hasher.finalize())
    };
    match &entry.content {
        Content::Whole(expected) => {
            let same = hash(0, bytes, progress)? == *expected;
            Ok(if same { Vec::new() } else { vec!["is damaged".into()] })
        }
        Content::Tensors { header, tensors } => {
            let damaged = || vec!["the header is damaged".into()];
            let mut prefix = [0; 8];
            if bytes < 8 {
                return Ok(damaged());
            }
            file.read_exact_at(&mut prefix, 0).map_err(|e| Error::io(path, e))?;
            let Some(start) = u64::from_le_bytes(prefix).checked_add(8).filter(|n| *n <= bytes)
            else {
                return Ok(damaged());
            };
            if hash(0, start, progress)? != *header {
                return Ok(damaged());
            }
            let mut text = vec![0; start as usize - 8];
            file.read_exact_at(&mut text, 8).map_err(|e| Error::io(path, e))?;
            let metadata: safetensors::tensor::Metadata = serde_json::from_slice(&text)
                .map_err(|e| Error::bad_file(path, format!("invalid header: {e}")))?;
            let mut problems = Vec::new();
            for (name, expected) in tensors {
                let Some(info) = metadata.info(name) else {
                    problems.push(format!("tensor {name} is missing"));
                    continue;
                };
                let (from, to) = info.data_offsets;
                if hash(start + from as u64, start + to as u64, progress)? != *expected {
                    problems.push(format!("tensor {name} is damaged"));
                }
            }
            Ok(problems)
        }
    }
}
