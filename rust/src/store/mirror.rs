//! Copies of a model's files on other drives: experts are read from the one that has them first.
//!
//! Owns: which copies are used, how fast each drive is, what becomes of one that fails. Does not own:
//! what is read, and what bytes must be (`record`). No request fails for what a copy does.

mod load;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::calls;
use super::files;
use super::folders::is_there;
use super::past_cache::Window;
use super::shard::Shard;
use crate::error::{Error, Result, human_bytes, one_line};
use crate::log::say;
use load::Load;

/// Most copies of a model, so that a word has a bit for each drive.
const MAX_MIRRORS: usize = 15;
/// Reads from here on are shared by drives that have nothing else to do.
const SPLIT_BYTES: usize = 2 << 20;
/// No share of a read is shorter.
const LEAST_SHARE: usize = 512 << 10;
/// Shares begin at multiples of this, as reads past the page cache want it.
const ALIGN: u64 = 4096;
/// Parts of each file that are compared with the model's: another revision of a model differs in
/// all of its content, and in nothing of its headers.
const SAMPLES: u64 = 16;
const SAMPLE_BYTES: usize = 4096;

/// Drives that bytes came from: bit 0 is the model's own folders.
pub(super) type Drives = u32;
/// The model's own folders.
pub(super) const OWN: Drives = 1;
/// All drives there may be.
pub(super) const ALL: Drives = Drives::MAX;

/// What came from a drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriveUse {
    /// 0 for the model's own folders, else the place of the mirror among those that were named.
    pub number: usize,
    /// Bytes of experts.
    pub bytes: u64,
    /// Bytes a second in which it was reading, of late; none if that is not known.
    pub rate: Option<f64>,
    /// Whether it is used no longer.
    pub is_dropped: bool,
}

/// The drives that hold a model.
pub(super) struct Mirrors {
    /// The first is the model's own folders.
    drives: Vec<Drive>,
}

struct Drive {
    /// See [`DriveUse::number`].
    number: usize,
    dir: PathBuf,
    /// Files as the catalogue numbers them; none where this drive lacks one. The catalogue has the
    /// first drive's.
    copies: Vec<Option<Shard>>,
    load: Mutex<Load>,
    has_failed: AtomicBool,
    bytes: AtomicU64,
}

impl Drive {
    fn new(number: usize, dir: &Path, copies: Vec<Option<Shard>>) -> Self {
        Self {
            number,
            dir: dir.to_owned(),
            copies,
            load: Mutex::default(),
            has_failed: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
        }
    }

    /// Opens what the folder `dir` has of the files `wanted` of the model.
    fn open(number: usize, dir: &Path, own: &[Shard], wanted: &[bool]) -> Result<Self, String> {
        let real = dir.canonicalize().map_err(|e| e.to_string())?;
        let mut copies = Vec::with_capacity(own.len());
        for (shard, &is_wanted) in own.iter().zip(wanted) {
            let path = dir.join(shard.path.file_name().unwrap_or_default());
            if shard.path.canonicalize().is_ok_and(|path| path.parent() == Some(&real)) {
                return Err("it is a folder of the model itself".into());
            }
            if is_wanted && is_there(&path) {
                copies.push(Some(open_copy(&path, shard).map_err(|error| error.to_string())?));
            } else {
                copies.push(None);
            }
        }
        if copies.iter().all(Option::is_none) {
            return Err("it holds none of the files that experts are in".into());
        }
        Ok(Self::new(number, dir, copies))
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        // Nothing panics while it holds the lock.
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a read of so many bytes that was begun.
    fn finish<R>(&self, bytes: usize, read: impl FnOnce() -> Result<R>) -> Result<R> {
        let done = read();
        self.load().end(bytes, Instant::now());
        if done.is_ok() {
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        done
    }

    /// Uses the drive no longer; told once.
    fn fail(&self, error: &Error) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            let dir = one_line(self.dir.display());
            say(format_args!("notice: the model mirror {dir} is used no longer: {error}"));
        }
    }
}

/// Opens a copy of `own`.
///
/// # Errors
/// [`Error::Io`], and [`Error::BadFile`] for any other file.
fn open_copy(path: &Path, own: &Shard) -> Result<Shard> {
    let (copy, _) = Shard::open(path)?;
    let differs = |what: &str| Err(Error::bad_file(path, format!("{what} of the model")));
    if copy.stamp.bytes != own.stamp.bytes || copy.header != own.header {
        return differs("its length or its header is not that");
    }
    let (mut theirs, mut ours) = ([0; SAMPLE_BYTES], [0; SAMPLE_BYTES]);
    let length = SAMPLE_BYTES.min(own.stamp.bytes as usize);
    let last = own.stamp.bytes - length as u64;
    for i in 0..SAMPLES {
        let at = (u128::from(last) * u128::from(i) / u128::from(SAMPLES - 1)) as u64;
        copy.read_exact_at(&mut theirs[..length], at, false)?;
        own.read_exact_at(&mut ours[..length], at, false)?;
        if theirs != ours {
            return differs("its weights are not those");
        }
    }
    Ok(copy)
}

impl Mirrors {
    /// The folders of `dirs` that hold copies of the files `wanted` of the model in `dir`; none if
    /// there are none. The second part is what is to be told of each.
    pub(super) fn open(
        dir: &Path,
        own: &[Shard],
        wanted: &[bool],
        dirs: &[PathBuf],
    ) -> (Option<Self>, Vec<String>) {
        let mut drives = vec![Drive::new(0, dir, Vec::new())];
        let mut told = Vec::new();
        for (i, mirror) in dirs.iter().enumerate() {
            let opened = if drives.len() > MAX_MIRRORS {
                Err(format!("at most {MAX_MIRRORS} are"))
            } else {
                Drive::open(i + 1, mirror, own, wanted)
            };
            let shown = mirror.display();
            match opened {
                Ok(drive) => {
                    let found = drive.copies.iter().flatten().count();
                    let all = wanted.iter().filter(|&&wanted| wanted).count();
                    told.push(format!(
                        "experts are read from {shown} too, which has {found} of {all} files"
                    ));
                    drives.push(drive);
                }
                Err(reason) => told.push(format!("the model mirror {shown} is not used: {reason}")),
            }
        }
        ((drives.len() > 1).then_some(Self { drives }), told)
    }

    /// Those of the drives `from` that have the file `shard` and did not fail, with their bits.
    fn having(&self, shard: usize, from: Drives) -> impl Iterator<Item = (Drives, &Drive)> {
        let has = move |(bit, drive): &(Drives, &Drive)| {
            let is_own = drive.copies.is_empty();
            let has = is_own
                || drive.copies[shard].is_some() && !drive.has_failed.load(Ordering::Relaxed);
            has && from & bit != 0
        };
        self.drives.iter().enumerate().map(|(i, drive)| (1 << i, drive)).filter(has)
    }

    /// The one of the drives `from` that is likely to have read `bytes` bytes of the file `shard` first.
    fn first(&self, shard: usize, bytes: usize, from: Drives, now: Instant) -> (Drives, &Drive) {
        let finish = |drive: &Drive| drive.load().finish_s(bytes, now);
        let first =
            self.having(shard, from).min_by(|(_, a), (_, b)| finish(a).total_cmp(&finish(b)));
        // One of those may have failed meanwhile.
        first.unwrap_or((OWN, &self.drives[0]))
    }

    /// From which drives `bytes` bytes of the file `shard` are to be read that must be compared as a
    /// whole once for each drive: all of the `checked` ones, or another one alone.
    pub(super) fn choose(&self, shard: usize, bytes: usize, checked: Drives) -> Drives {
        let (first, _) = self.first(shard, bytes, ALL, Instant::now());
        if checked & first != 0 { checked } else { first }
    }

    /// As [`Self::first`]; the bytes are waited for from now on.
    fn begin(&self, shard: usize, bytes: usize, from: Drives) -> &Drive {
        let now = Instant::now();
        let (_, first) = self.first(shard, bytes, from, now);
        first.load().begin(bytes, now);
        first
    }

    /// Drives with their shares of a read, if it is to be shared; they are waited for from now on.
    fn share(
        &self,
        shard: usize,
        at: u64,
        bytes: usize,
        from: Drives,
    ) -> Option<Vec<(&Drive, usize)>> {
        if bytes < SPLIT_BYTES {
            return None;
        }
        let now = Instant::now();
        let rates: Vec<(&Drive, f64)> = self
            .having(shard, from)
            .filter_map(|(_, drive)| {
                let load = drive.load();
                (load.running == 0).then(|| (drive, load.rate(now)))
            })
            .collect();
        let all: f64 = rates.iter().map(|(_, rate)| rate).sum();
        let (mut shares, mut end, mut sum) = (Vec::new(), 0, 0.0);
        for (i, &(drive, rate)) in rates.iter().enumerate() {
            sum += rate;
            let whole = (at as f64 + bytes as f64 * (sum / all)) as u64 / ALIGN * ALIGN;
            let until =
                if i + 1 == rates.len() { bytes } else { whole.saturating_sub(at) as usize };
            shares.push((drive, until.saturating_sub(end)));
            end = until.max(end);
        }
        if shares.len() < 2 || shares.iter().any(|&(_, share)| share < LEAST_SHARE) {
            return None;
        }
        for (drive, share) in &shares {
            drive.load().begin(*share, now);
        }
        Some(shares)
    }

    /// Fills `out` with what the file `shard`, which is `own` in the model's folders, holds from
    /// `at` on, read from some of the drives `from`. Returns the drives that it came from.
    ///
    /// # Errors
    /// [`Error::Io`], of the model's own file alone.
    pub(super) fn read_exact_at(
        &self,
        (shard, own): (usize, &Shard),
        out: &mut [u8],
        (at, from): (u64, Drives),
        past_cache: bool,
    ) -> Result<Drives> {
        let read = |drive: &Drive, out: &mut [u8], at: u64| {
            self.read_from(drive, shard, out.len(), |copy| {
                copy.unwrap_or(own).read_exact_at(out, at, past_cache)
            })
        };
        let Some(shares) = self.share(shard, at, out.len(), from) else {
            let drive = self.begin(shard, out.len(), from);
            return read(drive, out, at).map(|(drives, ())| drives);
        };
        std::thread::scope(|scope| {
            let (mut rest, mut from) = (out, at);
            let mut running = Vec::with_capacity(shares.len());
            for (drive, share) in shares {
                let (part, others) = rest.split_at_mut(share);
                let at = from;
                let watcher = calls::watcher();
                running.push(scope.spawn(move || match watcher {
                    Some((calls, task)) => calls.watch(task, || read(drive, part, at)),
                    None => read(drive, part, at),
                }));
                (rest, from) = (others, from + share as u64);
            }
            running.into_iter().try_fold(0, |all, thread| {
                let (drives, ()) = thread.join().expect("reading does not panic")?;
                Ok(all | drives)
            })
        })
    }

    /// As [`Self::read_exact_at`]; returns where in `window` the bytes are.
    ///
    /// # Errors
    /// As [`Self::read_exact_at`].
    pub(super) fn read_window(
        &self,
        (shard, own): (usize, &Shard),
        window: &mut Window,
        (at, bytes): (u64, usize),
        past_cache: bool,
    ) -> Result<Range<usize>> {
        let drive = self.begin(shard, bytes, ALL);
        let read = self.read_from(drive, shard, bytes, |copy| {
            copy.unwrap_or(own).read_window(window, at, bytes, past_cache)
        });
        read.map(|(_, range)| range)
    }

    /// Reads from `drive`, where that was begun; if that is a mirror and fails, from the model's own
    /// folders. Returns which it was. `read` is given the mirror's copy, if it is to read that.
    fn read_from<R>(
        &self,
        drive: &Drive,
        shard: usize,
        bytes: usize,
        mut read: impl FnMut(Option<&Shard>) -> Result<R>,
    ) -> Result<(Drives, R)> {
        let own = &self.drives[0];
        if !drive.copies.is_empty() {
            match drive.finish(bytes, || read(drive.copies[shard].as_ref())) {
                Ok(done) => {
                    let number = self.drives.iter().position(|other| std::ptr::eq(other, drive));
                    return Ok((1 << number.expect("one of them"), done));
                }
                Err(error) => drive.fail(&error),
            }
            own.load().begin(bytes, Instant::now());
        }
        own.finish(bytes, || read(None)).map(|done| (OWN, done))
    }

    /// Uses those of the `drives` that are mirrors no longer, whose copies of the file `own` are
    /// wrong for a reason.
    pub(super) fn fail(&self, drives: Drives, own: &Path, reason: &str) {
        for (i, drive) in self.drives.iter().enumerate().skip(1) {
            if drives & (1 << i) != 0 {
                let path = drive.dir.join(own.file_name().unwrap_or_default());
                drive.fail(&Error::bad_file(path, reason));
            }
        }
    }

    /// Uses the mirror no longer whose copy `file` is, because of an error. False if it is none's.
    pub(super) fn leave(&self, file: &Path, error: &Error) -> bool {
        let is_copy = |copy: &Shard| copy.path == file;
        let drive = self.drives.iter().find(|drive| drive.copies.iter().flatten().any(is_copy));
        drive.inspect(|drive| drive.fail(error)).is_some()
    }

    /// Drops the pages that the system keeps of a part of the copies of the file `shard`.
    pub(super) fn forget(&self, shard: usize, at: u64, bytes: u64) {
        for copy in self.drives.iter().filter_map(|drive| drive.copies.get(shard)?.as_ref()) {
            files::forget(&copy.file, at, bytes);
        }
    }

    /// What came from each drive.
    pub(super) fn uses(&self) -> Vec<DriveUse> {
        let told = |drive: &Drive| DriveUse {
            number: drive.number,
            bytes: drive.bytes.load(Ordering::Relaxed),
            rate: drive.load().known_rate(),
            is_dropped: drive.has_failed.load(Ordering::Relaxed),
        };
        self.drives.iter().map(told).collect()
    }

    /// Where experts were read from, in a line.
    pub(super) fn told(&self) -> String {
        let bytes = |drive: &Drive| drive.bytes.load(Ordering::Relaxed);
        let all: u64 = self.drives.iter().map(bytes).sum();
        let part = |drive: &Drive| {
            let share = 100.0 * bytes(drive) as f64 / all.max(1) as f64;
            format!("{share:.0} % from {}", drive.dir.display())
        };
        let parts: Vec<String> = self.drives.iter().map(part).collect();
        format!("of {} of experts that were read, {}", human_bytes(all), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{TensorView, serialize_to_file};

    use std::time::Duration;

    use super::load::{LATELY, UNKNOWN_RATE};
    use super::*;
    use crate::store::Catalog;
    use crate::store::record::Digest;

    const NAME: &str = "model.layers.0.mlp.experts.0.up_proj.weight";
    const BYTES: usize = (6 << 20) + 333;

    fn content(revision: u8) -> Vec<u8> {
        (0..BYTES).map(|i| (i ^ (i >> 9)) as u8 ^ revision).collect()
    }

    fn write(dir: &Path, name: &str, content: &[u8]) {
        let view = TensorView::new(safetensors::Dtype::U8, vec![content.len()], content);
        let tensors = [(NAME, view.expect("a view"))];
        serialize_to_file(tensors, None, &dir.join(name)).expect("a file is written");
    }

    /// A model in a folder of its own, and further folders.
    fn folders(contents: &[&[u8]]) -> Vec<tempfile::TempDir> {
        let folder = |content: &&[u8]| {
            let dir = tempfile::tempdir().expect("a folder");
            write(dir.path(), "model.safetensors", content);
            dir
        };
        contents.iter().map(folder).collect()
    }

    fn paths(dirs: &[tempfile::TempDir]) -> Vec<PathBuf> {
        dirs.iter().map(|dir| dir.path().to_owned()).collect()
    }

    fn check_reads(catalog: &Catalog, content: &[u8]) {
        let tensor = catalog.require(NAME).expect("it is there");
        for (from, bytes) in [(0, BYTES), (1, 5), (777, SPLIT_BYTES + 1), (4096, BYTES - 4096)] {
            let mut out = vec![0; bytes];
            catalog.read_at(tensor, from, &mut out).expect("it is read");
            assert!(out == content[from..from + bytes], "{bytes} bytes from {from}");
        }
        let mut all = Vec::new();
        let take = &mut |piece: &[u8]| {
            all.extend_from_slice(piece);
            Ok(())
        };
        catalog.read_pieces(tensor, 1 << 20, take).expect("it is read");
        assert!(all == content);
    }

    /// Bytes that came from each drive.
    fn bytes(catalog: &Catalog) -> Vec<u64> {
        let mirrors = catalog.mirrors.get().expect("mirrors");
        mirrors.drives.iter().map(|drive| drive.bytes.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn bytes_are_the_same_wherever_they_come_from() {
        let content = content(0);
        let dirs = folders(&[&content, &content, &content]);
        let catalog = Catalog::open(dirs[0].path()).expect("a model");
        let told = catalog.attach_mirrors(&paths(&dirs[1..]));
        assert_eq!(told.len(), 2);
        assert!(told.iter().all(|line| line.ends_with("which has 1 of 1 files")), "{told:?}");
        for _ in 0..3 {
            check_reads(&catalog, &content);
        }
        let read = bytes(&catalog);
        assert!(read.iter().all(|&bytes| bytes > 0), "{read:?}");
        assert_eq!(read.iter().sum::<u64>(), catalog.bytes_read().experts);
    }

    #[test]
    fn what_is_no_copy_is_refused_by_name() {
        let own = content(0);
        let dirs = folders(&[&own, &content(1), &own[1..]]);
        let [model, revision, shorter] = &dirs[..] else { unreachable!("three") };
        let empty = tempfile::tempdir().expect("a folder");
        let none = empty.path().join("none");
        let renamed = tempfile::tempdir().expect("a folder");
        write(renamed.path(), "other.safetensors", &own);
        for (dir, reason) in [
            (revision.path(), "model.safetensors: its weights are not those of the model"),
            (shorter.path(), "its length or its header is not that of the model"),
            (empty.path(), "it holds none of the files that experts are in"),
            (renamed.path(), "it holds none of the files that experts are in"),
            (model.path(), "it is a folder of the model itself"),
            (&none, "No such file or directory"),
        ] {
            let catalog = Catalog::open(model.path()).expect("a model");
            let told = catalog.attach_mirrors(&[dir.to_owned()]).join("\n");
            let begin = format!("the model mirror {} is not used: ", dir.display());
            assert!(told.starts_with(&begin) && told.contains(reason), "{told}");
            assert_eq!(catalog.mirrored(), None);
            check_reads(&catalog, &own);
        }
    }

    #[test]
    fn a_copy_that_changes_is_used_no_longer() {
        let content = content(0);
        let dirs = folders(&[&content, &content]);
        let catalog = Catalog::open(dirs[0].path()).expect("a model");
        catalog.attach_mirrors(&paths(&dirs[1..]));
        let copy =
            std::fs::File::options().write(true).open(dirs[1].path().join("model.safetensors"));
        copy.and_then(|file| file.set_len(1000)).expect("it is cut");
        check_reads(&catalog, &content);
        let read = bytes(&catalog);
        assert_eq!(read[1], 0);
        assert!(
            catalog.mirrors.get().expect("mirrors").drives[1].has_failed.load(Ordering::Relaxed)
        );
    }

    /// Drives of so many bytes a second, with nothing in them.
    fn drives(rates: &[f64]) -> Mirrors {
        let drives = rates.iter().map(|rate| {
            let drive = Drive::new(0, Path::new("drive"), Vec::new());
            (drive.load().done, drive.load().busy_s) = (*rate, 1.0);
            drive
        });
        Mirrors { drives: drives.collect() }
    }

    #[test]
    fn drives_get_as_much_to_do_as_they_can() {
        let mirrors = drives(&[1e8, 3e8]);
        for _ in 0..16 {
            mirrors.begin(0, 1 << 20, ALL);
        }
        let waiting: Vec<u64> = mirrors.drives.iter().map(|d| d.load().waiting >> 20).collect();
        assert_eq!(waiting, [4, 12]);
        assert!(mirrors.share(0, 0, 8 << 20, ALL).is_none(), "they have something to do");
        let (first, at) = (&mirrors.drives[0], Instant::now());
        for _ in 0..4 {
            first.load().end(1 << 20, at + Duration::from_secs(1));
        }
        assert_eq!(first.load().running, 0);
        assert!(first.load().rate(at + Duration::from_secs(1)) < 1e8, "it was slower");
        let later = at + LATELY + Duration::from_secs(2);
        assert_eq!(first.load().rate(later), UNKNOWN_RATE, "it is tried again");
    }

    #[test]
    fn what_is_compared_comes_from_one_drive_until_each_has_given_it() {
        // Copies of no file at all, so that both drives count as the model's own.
        let (mirrors, content) = (drives(&[1e8, 3e8]), b"a record");
        let digest = Digest::new("record", blake3::hash(content));
        let read = |expected: Drives| {
            let from = mirrors.choose(0, content.len(), digest.checked());
            assert_eq!(from, expected);
            let check = digest.begin(from);
            let is_compared = check.is_some();
            if let Some(mut check) = check {
                check.update(content);
                check.end(Path::new("file")).expect("they are the right bytes");
            }
            is_compared
        };
        assert!(read(0b10), "the faster one");
        assert!(!read(0b10), "no second time");
        mirrors.begin(0, 1 << 30, 0b10);
        assert!(read(0b01), "the faster one has much to do");
        assert!(!read(0b11), "parts of both are known to be right");
    }

    #[test]
    fn idle_drives_share_long_reads_by_their_rates() {
        let (at, bytes) = (3 * ALIGN + 17, 8 << 20);
        let mirrors = drives(&[1e8, 3e8]);
        let shares = mirrors.share(0, at, bytes, ALL).expect("both have nothing to do");
        let shares: Vec<usize> = shares.iter().map(|&(_, share)| share).collect();
        assert_eq!(shares.iter().sum::<usize>(), bytes);
        assert!((at + shares[0] as u64).is_multiple_of(ALIGN));
        assert!(shares[0].abs_diff(bytes / 4) <= ALIGN as usize, "{shares:?}");
        assert!(mirrors.drives.iter().all(|drive| drive.load().running == 1));
        assert!(drives(&[1e8, 3e8]).share(0, at, SPLIT_BYTES - 1, ALL).is_none());
        assert!(drives(&[1e8, 1e10]).share(0, at, bytes, ALL).is_none(), "one share is too short");
        assert!(drives(&[1e8]).share(0, at, bytes, ALL).is_none());
    }
}
