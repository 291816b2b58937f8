//! Reading files past the pages that the system keeps of them.
//!
//! Going through those pages takes processor time, which laying out weights wants as well, and
//! memory, which experts want. What the system has there already is taken from there.

use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use super::files;

/// What drives and file systems want memory, offsets and lengths to be multiples of, at most.
const ALIGN: usize = 4096;
/// Shorter reads are no faster past the cache, and many of them lie in pages that others share.
const MIN_BYTES: usize = 128 << 10;
/// Most bytes that go through a window where they could not be read in place.
const WINDOW_BYTES: usize = 1 << 20;

#[cfg(target_os = "linux")]
const DIRECT: libc::c_int = libc::O_DIRECT;
/// Others have no such flag, nor the folder that files are opened anew by.
#[cfg(not(target_os = "linux"))]
const DIRECT: libc::c_int = 0;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; ALIGN]);

thread_local! {
    static WINDOW: RefCell<Window> = const { RefCell::new(Window::new()) };
}

/// What a tensor belongs to.
#[derive(Clone, Copy, Debug)]
pub enum ModelPart {
    /// Everything that is read at loading.
    Dense,
    /// Routed experts.
    Experts,
}

/// Whether files are read by way of the system's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Reads {
    /// Not where that is faster.
    #[default]
    Auto,
    /// Always.
    Cached,
    /// Never, but for what is in it already.
    Direct,
}

/// Memory that whole pages of a file can be read into.
#[derive(Default)]
pub struct Window(Vec<Page>);

impl Window {
    /// No memory yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The memory, at least so many bytes of it.
    pub fn bytes(&mut self, at_least: usize) -> &mut [u8] {
        if self.0.len() * ALIGN < at_least {
            self.0.resize(at_least.div_ceil(ALIGN), Page([0; ALIGN]));
        }
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// A second way to read a file.
pub struct PastCache(File);

impl PastCache {
    /// None where the system or the file system has no such way.
    pub fn of(file: &File) -> Option<Self> {
        // By its descriptor, so that it is the same file whatever its name means by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = std::fs::OpenOptions::new().read(true).custom_flags(DIRECT).open(path);
        opened.ok().map(Self)
    }

    /// Whether that is the better way to `bytes` bytes from `at` on.
    pub fn suits(&self, at: u64, bytes: usize) -> bool {
        bytes >= MIN_BYTES && files::is_cached(&self.0, at, bytes as u64) != Some(true)
    }

    /// Fills `out` with what the file holds from `at` on.
    pub fn read_exact_at(&self, mut out: &mut [u8], mut at: u64) -> Result<()> {
        while !out.is_empty() {
            let whole = out.len() - out.len() % ALIGN;
            let is_aligned =
                at.is_multiple_of(ALIGN as u64) && out.as_ptr().addr().is_multiple_of(ALIGN);
            let n = if is_aligned && whole > 0 {
                self.0.read_at(&mut out[..whole], at)?
            } else {
                let n = out.len().min(WINDOW_BYTES);
                WINDOW.with_borrow_mut(|window| {
                    let range = self.read_window(window, at, n)?;
                    out[..n].copy_from_slice(&window.bytes(0)[range]);
                    Result::Ok(n)
                })?
            };
            if n == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            (out, at) = (&mut out[n..], at + n as u64);
        }
        Ok(())
    }

    /// Reads what the file holds from `at` on, and the rest of the pages it lies in; returns where
    /// in `window` those `bytes` bytes are.
    pub fn read_window(&self, window: &mut Window, at: u64, bytes: usize) -> Result<Range<usize>> {
        let first = (at % ALIGN as u64) as usize;
        let wanted = first..first + bytes;
        let length = wanted.end.next_multiple_of(ALIGN);
        let pages = &mut window.bytes(length)[..length];
        let mut done = 0;
        while done < wanted.end {
            match self.0.read_at(&mut pages[done..], at - first as u64 + done as u64)? {
                // Also where it ends within a page: what comes next is not aligned.
                n if n % ALIGN != 0 && done + n < wanted.end => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_alignment_the_bytes_are_the_files() {
        let content: Vec<u8> = (0..3 * WINDOW_BYTES + 777).map(|i| ((i * i) >> 7) as u8).collect();
        let mut file = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut file, &content).expect("room");
        // The plain file stands for file systems that have no other way.
        let plain = PastCache(file.try_clone().expect("a descriptor"));
        let ways = [Some(plain), PastCache::of(&file)];
        let mut memory = Window::default();
        for way in ways.into_iter().flatten() {
            for (at, n) in [
                (0, 0),
                (0, 1),
                (0, content.len()),
                (4096, 2 * 4096),
                (4095, 4098),
                (1, WINDOW_BYTES),
                (4096, 2 * WINDOW_BYTES + 5),
                (content.len() - 1, 1),
                (8192, content.len() - 8192),
            ] {
                for shift in [0, 1, 4095] {
                    let out = &mut memory.bytes(content.len() + ALIGN)[shift..shift + n];
                    out.fill(0);
                    way.read_exact_at(out, at as u64).expect("it is there");
                    assert!(out == &content[at..at + n], "{at}, {n}, {shift}");
                }
                let mut window = Window::default();
                let range = way.read_window(&mut window, at as u64, n).expect("it is there");
                assert!(window.bytes(0)[range] == content[at..at + n], "{at}, {n}");
            }
            for (at, n) in [(0, content.len() + 1), (4096, content.len()), (1 << 30, 1)] {
                let out = &mut memory.bytes(content.len() + ALIGN)[..n];
                let error = way.read_exact_at(out, at).expect_err("beyond the end");
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                assert!(way.read_window(&mut Window::default(), at, n).is_err());
            }
        }
    }

    #[test]
    fn what_was_just_written_is_in_the_page_cache() {
        let mut file = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut file, &vec![1; 2 * MIN_BYTES]).expect("room");
        let way = PastCache(file);
        // Old systems do not say; then nothing counts as cached.
        let told = files::is_cached(&way.0, 0, MIN_BYTES as u64);
        assert_ne!(told, Some(false));
        for at in [0, 77] {
            assert_eq!(way.suits(at, MIN_BYTES), told.is_none());
        }
        assert!(!way.suits(0, MIN_BYTES - 1));
        // Beyond the end there is nothing to be cached.
        assert!(way.suits(1 << 30, MIN_BYTES));
    }
}
