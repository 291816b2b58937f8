//! Files that are either whole under their name or not there.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

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
        Self::open(dir, name, 0o666)
    }

    /// Like [`Self::create`], for a file that others may not read.
    pub fn create_private(dir: &Path, name: &str) -> Result<Self> {
        Self::open(dir, name, 0o600)
    }

    fn open(dir: &Path, name: &str, mode: u32) -> Result<Self> {
        let partial = dir.join(format!("{name}{PARTIAL}"));
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode);
        let file = options.open(&partial).map_err(|e| Error::io(&partial, e))?;
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
