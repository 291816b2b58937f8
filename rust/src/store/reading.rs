//! Reading tensors, from the model's own files and from copies of them.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::abandon;
use super::mirror::{ALL, DriveUse, Drives, Mirrors, OWN};
use super::past_cache::Window;
use super::shard::Shard;
use super::{BytesRead, Catalog, ModelPart, Tensor};
use crate::error::{Error, Result};

/// Bytes that the system is asked to read before they are wanted.
const AHEAD_BYTES: usize = 8 << 20;

thread_local! {
    /// What pieces are read into. A buffer for each tensor would leave holes between matrices.
    static PIECE: RefCell<Window> = const { RefCell::new(Window::new()) };
}

impl Catalog {
    /// Bytes of tensors read so far.
    pub fn bytes_read(&self) -> BytesRead {
        let [dense, experts] = self.read.each_ref().map(|n| n.load(Ordering::Relaxed));
        BytesRead { dense, experts }
    }

    /// Reads all bytes of `tensor`.
    pub fn read(&self, tensor: &Tensor) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; tensor.bytes];
        self.read_into(tensor, &mut [&mut bytes])?;
        Ok(bytes)
    }

    /// Reads all bytes of `tensor` into `places`, one after the other, and compares them with the
    /// manifest the first time.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::BadFile`] for damaged bytes.
    pub fn read_into(&self, tensor: &Tensor, places: &mut [&mut [u8]]) -> Result<()> {
        let mirrors = self.mirrors(tensor, tensor.digest.is_some());
        let from = match (mirrors, &tensor.digest) {
            (Some(mirrors), Some(digest)) => {
                mirrors.choose(tensor.shard, tensor.bytes, digest.checked())
            }
            _ => ALL,
        };
        let drives = self.fill(tensor, places, mirrors, from)?;
        match (self.check(tensor, drives, places), mirrors) {
            (Err(Error::BadFile { path, reason }), Some(mirrors)) if drives != OWN => {
                self.fill(tensor, places, None, OWN)?;
                self.check(tensor, OWN, places)?;
                // The model's own file is right, so the copy is not.
                mirrors.fail(drives, &path, &reason);
                Ok(())
            }
            (checked, _) => checked,
        }
    }

    /// Reads all bytes of `tensor` into `places` from the drives `allowed`; returns those that they
    /// came from.
    fn fill(
        &self,
        tensor: &Tensor,
        places: &mut [&mut [u8]],
        mirrors: Option<&Mirrors>,
        allowed: Drives,
    ) -> Result<Drives> {
        let (mut from, mut drives) = (0, 0);
        for place in places {
            drives |= self.read_from((tensor, from), place, mirrors, allowed)?;
            from += place.len();
        }
        debug_assert_eq!(from, tensor.bytes, "all of the tensor");
        Ok(drives)
    }

    fn check(&self, tensor: &Tensor, drives: Drives, places: &[&mut [u8]]) -> Result<()> {
        let Some(digest) = &tensor.digest else { return Ok(()) };
        digest.check(self.path_of(tensor), drives, places.iter().map(|place| &**place))
    }

    /// Reads the bytes of `tensor` in pieces of at most `size` bytes and gives each to `take`;
    /// compares them with the manifest the first time.
    ///
    /// # Errors
    /// As [`Catalog::read_into`], and those of `take`.
    pub fn read_pieces(
        &self,
        tensor: &Tensor,
        size: usize,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let shard = &self.shards[tensor.shard];
        let past_cache = self.is_past_cache(tensor.part());
        let advise = |from: usize, bytes: usize| {
            let from = from.min(tensor.bytes);
            let bytes = bytes.min(tensor.bytes - from);
            shard.will_need(tensor.offset + from as u64, bytes, past_cache);
        };
        // Taken, so that `take` may read too.
        let mut window = PIECE.take();
        advise(0, AHEAD_BYTES);
        let mut check = tensor.digest.as_ref().and_then(|digest| digest.begin(OWN));
        let mut from = 0;
        while from < tensor.bytes {
            let n = size.min(tensor.bytes - from);
            advise(from + AHEAD_BYTES, n);
            let piece = self.read_window(tensor, from, n, &mut window)?;
            if let Some(check) = &mut check {
                check.update(piece);
            }
            take(piece)?;
            from += n;
        }
        PIECE.replace(window);
        check.map_or(Ok(()), |check| check.end(self.path_of(tensor)))
    }

    /// Reads `bytes` bytes of `tensor` from byte `from` on, to wherever in `window` suits best.
    fn read_window<'a>(
        &self,
        tensor: &Tensor,
        from: usize,
        bytes: usize,
        window: &'a mut Window,
    ) -> Result<&'a [u8]> {
        abandon::check()?;
        self.count(tensor, bytes);
        let (shard, at) = (&self.shards[tensor.shard], tensor.offset + from as u64);
        let past_cache = self.is_past_cache(tensor.part());
        let range = match self.mirrors(tensor, false) {
            Some(mirrors) => {
                mirrors.read_window((tensor.shard, shard), window, (at, bytes), past_cache)?
            }
            None => shard.read_window(window, at, bytes, past_cache)?,
        };
        Ok(&window.bytes(0)[range])
    }

    /// Reads the bytes of `tensor` from byte `from` on, compared with nothing.
    pub fn read_at(&self, tensor: &Tensor, from: usize, out: &mut [u8]) -> Result<()> {
        let mirrors = self.mirrors(tensor, false);
        self.read_from((tensor, from), out, mirrors, ALL).map(|_| ())
    }

    /// As [`Self::read_at`], from whatever drive is likely to be the first: to measure them, not to
    /// compute with.
    pub fn read_somewhere(&self, tensor: &Tensor, from: usize, out: &mut [u8]) -> Result<()> {
        let mirrors = self.mirrors(tensor, true);
        self.read_from((tensor, from), out, mirrors, ALL).map(|_| ())
    }

    fn read_from(
        &self,
        (tensor, from): (&Tensor, usize),
        out: &mut [u8],
        mirrors: Option<&Mirrors>,
        allowed: Drives,
    ) -> Result<Drives> {
        let (shard, mut at) = (&self.shards[tensor.shard], tensor.offset + from as u64);
        let past_cache = self.is_past_cache(tensor.part());
        let mut drives = 0;
        for piece in out.chunks_mut(abandon::piece_bytes()) {
            abandon::check()?;
            self.count(tensor, piece.len());
            drives |= match mirrors {
                Some(mirrors) => {
                    let place = (at, allowed);
                    mirrors.read_exact_at((tensor.shard, shard), piece, place, past_cache)?
                }
                None => shard.read_exact_at(piece, at, past_cache).map(|()| OWN)?,
            };
            at += piece.len() as u64;
        }
        Ok(drives)
    }

    /// The mirrors that `tensor` may be read from. Where a manifest tells what bytes must be, only
    /// what is compared with it may.
    fn mirrors(&self, tensor: &Tensor, is_compared: bool) -> Option<&Mirrors> {
        let may = tensor.routed && (is_compared || !self.has_manifest);
        self.mirrors.get().filter(|_| may)
    }

    /// Has experts read from copies of the model in the folders `dirs` too, which may lack files of
    /// it. A folder with anything else under the name of one is not used. Returns what is to be told.
    ///
    /// # Panics
    /// If that was said before.
    pub fn attach_mirrors(&self, dirs: &[PathBuf]) -> Vec<String> {
        let mut wanted = vec![false; self.shards.len()];
        for tensor in self.tensors.values().filter(|tensor| tensor.routed) {
            wanted[tensor.shard] = true;
        }
        let (mirrors, told) = Mirrors::open(&self.dir, &self.shards, &wanted, dirs);
        if let Some(mirrors) = mirrors {
            assert!(self.mirrors.set(mirrors).is_ok(), "mirrors are named once");
        }
        told
    }

    /// Uses the mirror no longer whose copy `file` is, because of an error. False if it is none's.
    pub fn leave_mirror(&self, file: &Path, error: &Error) -> bool {
        self.mirrors.get().is_some_and(|mirrors| mirrors.leave(file, error))
    }

    /// What came from each drive; nothing without mirrors.
    pub fn drives(&self) -> Vec<DriveUse> {
        self.mirrors.get().map(Mirrors::uses).unwrap_or_default()
    }

    /// Where experts were read from, if there are mirrors.
    pub fn mirrored(&self) -> Option<String> {
        self.mirrors.get().map(Mirrors::told)
    }

    fn count(&self, tensor: &Tensor, bytes: usize) {
        self.read[tensor.part() as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Says whether what is not in the system's page cache is to be read past it from now on, where
    /// that is possible.
    pub fn read_past_cache(&self, part: ModelPart, is_past_cache: bool) {
        let is_past_cache = is_past_cache && self.shards.iter().any(Shard::has_past_cache);
        self.is_past_cache[part as usize].store(is_past_cache, Ordering::Relaxed);
    }

    /// Whether it is.
    pub fn is_past_cache(&self, part: ModelPart) -> bool {
        self.is_past_cache[part as usize].load(Ordering::Relaxed)
    }
}
