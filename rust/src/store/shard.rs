//! One file of tensors: positional reads that say what they could not read.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::calls::calling;
use super::files::{self, Stamp, open_regular};
use super::header::{Header, read_header};
use super::past_cache::{PastCache, Window};
use crate::error::{Error, Result};

/// A file that was opened, and what tells whether it is still that one.
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) file: File,
    past_cache: Option<PastCache>,
    pub(super) stamp: Stamp,
    /// Of everything before the first tensor.
    pub(super) header: blake3::Hash,
}

impl Shard {
    /// Opens the file and reads its header.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::BadFile`]
    pub(super) fn open(path: &Path) -> Result<(Self, Header)> {
        let file = open_regular(path)?;
        let stamp = Stamp::of(&file).map_err(|e| Error::io(path, e))?;
        let header = read_header(path, &file, stamp.bytes)?;
        let past_cache = PastCache::of(&file);
        let shard = Self { path: path.to_owned(), file, past_cache, stamp, header: header.hash };
        Ok((shard, header))
    }

    /// Whether there is a way past the page cache.
    pub(super) fn has_past_cache(&self) -> bool {
        self.past_cache.is_some()
    }

    /// The way past the page cache, if that is the better one to these bytes.
    fn past_cache(&self, at: u64, bytes: usize, is_wanted: bool) -> Option<&PastCache> {
        self.past_cache.as_ref().filter(|way| is_wanted && way.suits(at, bytes))
    }

    /// Has the system read a part of the file, unless that goes past its pages.
    pub(super) fn will_need(&self, at: u64, bytes: usize, is_past_cache: bool) {
        if self.past_cache(at, bytes, is_past_cache).is_none() {
            files::will_need(&self.file, at, bytes as u64);
        }
    }

    /// Fills `out` with what the file holds from `at` on.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub(super) fn read_exact_at(&self, out: &mut [u8], at: u64, past_cache: bool) -> Result<()> {
        calling(&self.path, || {
            let way = self.past_cache(at, out.len(), past_cache);
            let read = match way.map(|way| way.read_exact_at(out, at)) {
                Some(Ok(())) => Ok(()),
                // What goes wrong past the cache is tried the plain way, which tells what is the
                // matter.
                Some(Err(_)) | None => self.read_plain(out, at),
            };
            self.end_read(read, at, out.len())
        })
    }

    /// Reads `bytes` bytes from `at` on; returns where in `window` they are.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub(super) fn read_window(
        &self,
        window: &mut Window,
        at: u64,
        bytes: usize,
        past_cache: bool,
    ) -> Result<Range<usize>> {
        calling(&self.path, || {
            let way = self.past_cache(at, bytes, past_cache);
            if let Some(Ok(range)) = way.map(|way| way.read_window(window, at, bytes)) {
                self.end_read(Ok(()), at, bytes)?;
                return Ok(range);
            }
            let piece = &mut window.bytes(bytes)[..bytes];
            let read = self.read_plain(piece, at);
            self.end_read(read, at, bytes)?;
            Ok(0..bytes)
        })
    }

    /// A read that failed is tried once more: a drive or a network may have lost it by chance.
    fn read_plain(&self, out: &mut [u8], at: u64) -> std::io::Result<()> {
        match self.file.read_exact_at(out, at) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
                self.file.read_exact_at(out, at)
            }
            read => read,
        }
    }

    /// What came of a `read`, if the file is still the one that was opened.
    fn end_read(&self, read: std::io::Result<()>, at: u64, bytes: usize) -> Result<()> {
        self.stamp.check(&self.file).map_err(|e| Error::io(&self.path, e))?;
        read.map_err(|e| {
            let what = format!("bytes {at} to {} cannot be read: {e}", at + bytes as u64);
            Error::io(&self.path, std::io::Error::new(e.kind(), what))
        })
    }
}
