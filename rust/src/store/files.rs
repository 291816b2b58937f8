//! Files of a model folder, read as bytes from a stranger.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::SystemTime;

use serde_json::Value;

use crate::error::{Error, Result};

/// Largest JSON file read from a model folder.
pub(super) const MAX_JSON_BYTES: u64 = 256 << 20;

/// Opens a file of a model folder, which must be a regular one: a pipe would never end its
/// opening, and a device never its content. Checked on what was opened, so nothing can be swapped.
///
/// # Errors
/// [`Error::FileMissing`], or [`Error::BadFile`] for anything that is no regular file.
pub fn open_regular(path: &Path) -> Result<File> {
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(Error::FileMissing {
                path: path.to_owned(),
                hint: "a model folder holds config.json, tokenizer.json and *.safetensors files"
                    .into(),
            });
        }
        Err(e) => return Err(Error::io(path, e)),
    };
    if !file.metadata().map_err(|e| Error::io(path, e))?.is_file() {
        return Err(Error::bad_file(path, "is not a regular file"));
    }
    Ok(file)
}

/// Reads a file of a model folder of at most `limit` bytes, however long it claims to be.
///
/// # Errors
/// Those of [`open_regular`], and [`Error::BadFile`] for one that is longer.
pub fn read_capped(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(limit + 1).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    if bytes.len() as u64 > limit {
        return Err(Error::bad_file(path, format!("larger than {} MiB", limit >> 20)));
    }
    Ok(bytes)
}

/// Reads and parses a JSON file of a model folder.
///
/// # Errors
/// [`Error::FileMissing`], or [`Error::BadFile`] for one that is oversized or not JSON.
pub fn read_json(path: &Path) -> Result<Value> {
    let bytes = read_capped(path, MAX_JSON_BYTES)?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::bad_file(path, format!("not valid JSON: {e}")))
}

/// What tells whether a file is still the one that was opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Its length.
    pub(super) bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    /// That of `file` now.
    pub(super) fn of(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { bytes: metadata.len(), modified: metadata.modified().ok() })
    }

    /// Fails if `file` is no longer the one of this stamp. To be asked after reading: whoever writes
    /// to a file changes its stamp first.
    pub(super) fn check(self, file: &File) -> std::io::Result<()> {
        let now = Self::of(file)?;
        let what = match now.bytes.cmp(&self.bytes) {
            Ordering::Less => "the file is shorter than when it was opened",
            Ordering::Equal if now == self => return Ok(()),
            _ => "the file was changed since it was opened",
        };
        Err(std::io::Error::new(ErrorKind::InvalidData, what))
    }
}

/// Drops the pages that the system keeps of a part of `file`, where it lets one.
pub(super) fn forget(file: &File, from: u64, bytes: u64) {
    advise(file, from, bytes, libc::POSIX_FADV_DONTNEED);
}

/// Has the system read a part of `file` into its pages, while we do something else.
pub(super) fn will_need(file: &File, from: u64, bytes: u64) {
    if bytes > 0 {
        advise(file, from, bytes, libc::POSIX_FADV_WILLNEED);
    }
}

/// Whether the system keeps all of a part of `file` in memory; none where it does not say.
#[allow(unsafe_code, reason = "the standard library does not tell")]
pub(super) fn is_cached(file: &File, from: u64, bytes: u64) -> Option<bool> {
    const PAGE_BYTES: u64 = 4096;
    // Pages that are cached, dirty, being written, evicted, evicted recently.
    let mut pages = [0u64; 5];
    #[cfg(target_os = "linux")]
    // SAFETY: the system reads `range` and writes `pages`, which are as long as its structures.
    let told = unsafe {
        /// `cachestat` of Linux 6.5, a number that all architectures share.
        const CACHESTAT: libc::c_long = 451;
        let range = [from, bytes];
        libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0)
    };
    #[cfg(not(target_os = "linux"))]
    let told = -1;
    let last = from + bytes.max(1) - 1;
    (told == 0).then(|| pages[0] > last / PAGE_BYTES - from / PAGE_BYTES)
}

/// Advice costs nothing if it is not taken, so its result does not matter.
#[allow(unsafe_code, reason = "the standard library gives no such advice")]
fn advise(file: &File, from: u64, bytes: u64, advice: libc::c_int) {
    #[cfg(target_os = "linux")]
    // SAFETY: the call takes numbers only, and the descriptor is open.
    unsafe {
        let (from, bytes) = (from.cast_signed(), bytes.cast_signed());
        libc::posix_fadvise(file.as_raw_fd(), from, bytes, advice);
    }
}
