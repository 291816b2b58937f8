//! What the fuzz targets share.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use colibri::engine::Engine;
use colibri::error::Error;
use colibri::runner::RunnerOptions;

/// Most bytes of an error's text, beside the path that is in it; several may be told in one.
const MAX_ERROR: usize = 4096;
/// Stands between the files that make up an input.
const BETWEEN_FILES: &[u8] = b"\n%%\n";

/// Folders of models, one for each family or form.
pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/oracle")
}

/// Folder of the model that sessions run on.
pub fn oracle_dir() -> PathBuf {
    models().join("glm4_moe_lite")
}

/// The oracle model on one thread; `ctx` bounds prompts and answers, and so the time they take.
pub fn oracle(slots: usize, ctx: usize) -> Engine {
    let options =
        RunnerOptions { slots, ctx: Some(ctx), threads: Some(1), ..RunnerOptions::default() };
    Engine::load(&oracle_dir(), &options, &mut |_, _| {}).expect("the model loads")
}

/// The files that an input stands for.
pub fn files(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(data);
    std::iter::from_fn(move || {
        let data = rest?;
        let at = data.windows(BETWEEN_FILES.len()).position(|window| window == BETWEEN_FILES);
        rest = at.map(|at| &data[at + BETWEEN_FILES.len()..]);
        Some(&data[..at.unwrap_or(data.len())])
    })
}

/// A model folder of this process, written anew for each input.
pub struct Folder(PathBuf);

impl Folder {
    /// An empty one.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("there is room for a folder");
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, or removes it.
    pub fn set(&self, name: &str, content: Option<&[u8]>) {
        let path = self.0.join(name);
        match content {
            Some(bytes) => std::fs::write(path, bytes).expect("there is room for a file"),
            None => drop(std::fs::remove_file(path)),
        }
    }
}

/// An error is one line of moderate length, whatever the files hold.
pub fn check_error(error: &Error) {
    for text in [error.to_string(), error.hint().unwrap_or("no hint").to_owned()] {
        let is_line = !text.is_empty() && !text.contains(char::is_control);
        assert!(is_line && text.len() <= MAX_ERROR, "{text:?}");
    }
}

/// Collects what a session writes.
#[derive(Clone, Default)]
pub struct Output(Arc<(Mutex<Vec<u8>>, Condvar)>);

impl Output {
    /// Waits for the next write, or until enough time is over.
    pub fn wait(&self, longest: Duration) {
        let (written, more) = &*self.0;
        let written = written.lock().expect("no holder panics");
        drop(more.wait_timeout(written, longest).expect("no holder panics"));
    }

    /// Everything so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.0.lock().expect("no holder panics").clone()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.0.lock().expect("no holder panics").extend_from_slice(bytes);
        self.0.1.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Gives one piece of input with each read, the later ones after so many writes or pauses.
pub struct Input {
    pieces: std::vec::IntoIter<Vec<u8>>,
    rest: Vec<u8>,
    waits: u64,
    longest: Duration,
    output: Output,
}

impl Input {
    /// None of `pieces` may be empty: that is the end of input.
    pub fn new(pieces: Vec<Vec<u8>>, waits: u64, longest: Duration, output: &Output) -> Self {
        let output = output.clone();
        Self { pieces: pieces.into_iter(), rest: Vec::new(), waits, longest, output }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.is_empty() {
            (0..self.waits).for_each(|_| self.output.wait(self.longest));
            self.rest = self.pieces.next().unwrap_or_default();
        }
        let taken = self.rest.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&self.rest[..taken]);
        self.rest.drain(..taken);
        Ok(taken)
    }
}

/// Cuts `data` into pieces of lengths that follow from its bytes, so that inputs stay plain wire
/// text and every one has a split of its own.
pub fn pieces(data: &[u8]) -> Vec<&[u8]> {
    let mut state = digest(data);
    let mut rest = data;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let longest = match state >> 62 {
            0 => 1,
            1 => 4,
            2 => 64,
            _ => 1024,
        };
        let length = (1 + (state >> 32) as usize % longest).min(rest.len());
        let (piece, others) = rest.split_at(length);
        pieces.push(piece);
        rest = others;
    }
    pieces
}

/// FNV-1a.
pub fn digest(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The system's allocator, which counts what is in use.
pub struct Counting {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl Counting {
    /// Nothing is in use yet.
    #[expect(clippy::new_without_default, reason = "made once, for a static")]
    pub const fn new() -> Self {
        Self { live: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// The most bytes that were in use at once during `work`, beyond what was in use before.
    pub fn peak_of(&self, work: impl FnOnce()) -> usize {
        let before = self.live.load(Ordering::Relaxed);
        self.peak.store(before, Ordering::Relaxed);
        work();
        self.peak.load(Ordering::Relaxed) - before
    }

    /// Does `work`, which may have no more than `most` bytes in use at once.
    pub fn bounded<T>(&self, most: usize, work: impl FnOnce() -> T) -> T {
        let mut result = None;
        let peak = self.peak_of(|| result = Some(work()));
        assert!(peak <= most, "{peak} bytes in use where {most} are the most");
        result.expect("the work was done")
    }

    fn grow(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.grow(layout.size());
        // SAFETY: the caller's promises are those of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new exist at once while bytes move.
        self.grow(size);
        self.live.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `realloc`.
        unsafe { System.realloc(at, layout, size) }
    }
}
