//! Files that are either whole under their name or not there.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use blake3::{Hash, Hasher};

use crate::error::{Error, Result};
use crate::store::manifest::{Content, FileEntry};

/// What the name of a file ends with until it is whole.
pub const PARTIAL: &str = ".partial";

/// A file under construction. Unless it is finished, it is removed.
pub struct Output {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    bytes: u64,
    finished: bool,
}

impl Output {
    /// Begins the file `name` of `dir` anew.
    pub fn create(dir: &Path, name: &str) -> Result<Self> {
        let partial = dir.join(format!("{name}{PARTIAL}"));
        let file = File::create(&partial).map_err(|e| Error::io(&partial, e))?;
        Ok(Self { path: dir.join(name), partial, file, bytes: 0, finished: false })
    }

    /// Appends `bytes`.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|e| Error::io(&self.path, e))
    }

    /// Gives the file its name once all of it is on the disk; returns its length.
    pub fn finish(mut self) -> Result<u64> {
        self.file.sync_all().map_err(|e| Error::io(&self.path, e))?;
        fs::rename(&self.partial, &self.path).map_err(|e| Error::io(&self.path, e))?;
        self.finished = true;
        sync_dir(self.path.parent().unwrap_or(Path::new(".")))?;
        Ok(self.bytes)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.finished {
            // The error that brought us here is the one to report; the next run begins anew.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Makes renames and removals in `dir` lasting.
pub fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::io(dir, e))
}

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
