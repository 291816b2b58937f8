//! Files of a converted model, with their hashes.

use std::path::Path;

use blake3::{Hash, Hasher};

use crate::error::Result;
use crate::store::manifest::{Content, FileEntry};
pub use crate::store::output::{Output, PARTIAL, sync_dir};

/// Writes a small file.
pub fn write_whole(dir: &Path, name: &str, bytes: &[u8]) -> Result<FileEntry> {
    let mut output = Output::create(dir, name)?;
    output.write(bytes)?;
    let content = Content::Whole(blake3::hash(bytes));
    Ok(FileEntry { bytes: output.finish()?, content })
}

/// A safetensors file under construction.
pub struct TensorOutput {
    output: Output,
    header: Hash,
    hasher: Hasher,
    tensors: Vec<(String, Hash)>,
}

impl TensorOutput {
    /// Begins the file `name` with its header.
    pub fn create(dir: &Path, name: &str, header: &[u8]) -> Result<Self> {
        let mut output = Output::create(dir, name)?;
        output.write(header)?;
        let (header, hasher) = (blake3::hash(header), Hasher::new());
        Ok(Self { output, header, hasher, tensors: Vec::new() })
    }

    /// Appends bytes of the current tensor.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.output.write(bytes)
    }

    /// Ends the current tensor.
    pub fn end_tensor(&mut self, name: &str) {
        self.tensors.push((name.to_owned(), self.hasher.finalize()));
        self.hasher.reset();
    }

    /// See [`Output::finish`].
    pub fn finish(self) -> Result<FileEntry> {
        let content = Content::Tensors { header: self.header, tensors: self.tensors };
        Ok(FileEntry { bytes: self.output.finish()?, content })
    }
}
