//! Conversations are written to their files on a thread, while answers go on.
//!
//! Owns: the folder's lock, when what is written, what becomes of faults and of drives that hang: one
//! notice, and nothing is saved any more. Does not own: what a file looks like (`file`).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::KvSlot;
use super::file::{self, Contents, Format};
use crate::error::{Error, Result, one_line};
use crate::store::is_there;
use crate::store::output::Output;

/// The file that an engine locks while it keeps its conversations in a folder.
const LOCK: &str = ".coli_kv.lock";
/// A drive on which no write and no sync has come to an end for so long hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same when the process ends: what was written is with the system then, which goes on.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// Longest time between two looks at whether it does.
const INTERVAL: Duration = Duration::from_millis(20);

/// A conversation to be written.
struct Job {
    ticket: u64,
    slot: usize,
    conversation: Arc<KvSlot>,
}

/// The way to the thread that writes.
pub struct Saver {
    jobs: Sender<Job>,
    /// Tickets of what has been written, in order.
    written: Receiver<u64>,
    thread: JoinHandle<()>,
    last: u64,
    /// What has not been written.
    pending: Vec<(u64, Arc<KvSlot>)>,
    /// Writes and syncs of the thread that came to an end.
    ended: Arc<AtomicU64>,
    /// How many had when it was last seen that there were more, or that there was nothing to do.
    seen: (u64, Instant),
    /// The thread is not waited for any more.
    hangs: bool,
}

impl Saver {
    /// Takes up the conversations that are in `dir` into `slots`, as far as `ctx` tokens each, and
    /// saves there from now on; `progress` gets bytes read and in all of a file.
    ///
    /// Files that are of no use are told in `notices` and replaced when there is something to save.
    ///
    /// # Errors
    /// Why conversations cannot be kept in `dir`, where another engine may keep its own.
    pub fn start(
        dir: &Path,
        format: Format,
        slots: &mut [KvSlot],
        ctx: usize,
        notices: &mut Vec<String>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, String> {
        let lock = lock(dir)?;
        let mut contents = Vec::with_capacity(slots.len());
        for (i, slot) in slots.iter_mut().enumerate() {
            let path = file::path(dir, i);
            *slot = format.empty_slot();
            contents.push(match format.read(&path, slot, ctx, progress) {
                Ok(None) => None,
                Ok(Some(loaded)) => {
                    if loaded.torn {
                        let tokens = slot.tokens().len();
                        notices.push(format!(
                            "{} ends within a turn; its first {tokens} tokens are used",
                            path.display()
                        ));
                    }
                    Some(loaded.contents)
                }
                Err(reason) => {
                    *slot = format.empty_slot();
                    notices.push(format!(
                        "{} is of no use and will be replaced: {reason}",
                        path.display()
                    ));
                    None
                }
            });
        }
        let (jobs, queue) = channel();
        let (done, written) = channel();
        let ended = Arc::new(AtomicU64::new(0));
        let folder = Folder {
            dir: dir.to_owned(),
            format,
            contents,
            unsynced: Vec::new(),
            ended: Arc::clone(&ended),
            _lock: lock,
        };
        let thread = std::thread::spawn(move || folder.serve(&queue, &done));
        Ok(Self {
            jobs,
            written,
            thread,
            last: 0,
            pending: Vec::new(),
            ended,
            seen: (0, Instant::now()),
            hangs: false,
        })
    }

    /// Has the conversation of `slot` written as it is now; returns the ticket by which to ask for it.
    pub fn save(&mut self, slot: usize, conversation: &KvSlot) -> u64 {
        self.last += 1;
        if self.hangs {
            return self.last;
        }
        if self.pending.is_empty() {
            self.seen.1 = Instant::now();
        }
        let conversation = Arc::new(conversation.snapshot());
        self.pending.push((self.last, Arc::clone(&conversation)));
        // The thread ends with this value.
        let _ = self.jobs.send(Job { ticket: self.last, slot, conversation });
        self.last
    }

    /// Whether the job with this ticket is done, which it is too if nothing can be written any more.
    pub fn is_written(&mut self, ticket: u64) -> bool {
        loop {
            match self.written.try_recv() {
                Ok(written) => self.forget(written),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.forget(self.last),
            }
            if self.pending.is_empty() {
                break;
            }
        }
        if !self.pending.is_empty() && self.has_hung(PATIENCE) {
            self.pending.clear();
        }
        self.pending.iter().all(|(pending, _)| *pending != ticket)
    }

    /// Waits for the job with this ticket, unless the drive hangs.
    pub fn wait_for(&mut self, ticket: u64) {
        while !self.is_written(ticket) {
            self.wait_briefly();
        }
    }

    /// Waits for a job to be done, but not so long that anybody could notice.
    pub fn wait_briefly(&mut self) {
        match self.written.recv_timeout(INTERVAL) {
            Ok(written) => self.forget(written),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.forget(self.last),
        }
    }

    /// Whether the thread, which has something to do, has waited for the drive too long; that is
    /// told once.
    fn has_hung(&mut self, patience: Duration) -> bool {
        let ended = self.ended.load(Ordering::Relaxed);
        if ended != self.seen.0 {
            self.seen = (ended, Instant::now());
        } else if !self.hangs && self.seen.1.elapsed() > patience {
            self.hangs = true;
            eprintln!(
                "notice: conversations are not saved any more: the drive has not answered for {} s",
                patience.as_secs()
            );
        }
        self.hangs
    }

    fn forget(&mut self, written: u64) {
        self.pending.retain(|(ticket, _)| *ticket > written);
    }

    /// Bytes that are in memory only because they have not been written yet.
    pub fn held_bytes(&self) -> u64 {
        // Jobs of the same conversation share what they hold.
        let holders = self.pending.len();
        self.pending.iter().map(|(_, conversation)| conversation.held_bytes(holders)).sum()
    }

    /// Waits until everything is on the disk, unless the drive hangs.
    pub fn finish(mut self) {
        let (nothing, _) = channel();
        drop(std::mem::replace(&mut self.jobs, nothing));
        self.seen.1 = Instant::now();
        while !self.thread.is_finished() {
            if self.has_hung(LAST_PATIENCE) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Takes the lock of `dir`, which ends with the file that is returned.
fn lock(dir: &Path) -> Result<File, String> {
    let path = dir.join(LOCK);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(format!("{} is no regular file", path.display()));
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(format!("another engine keeps its own in {}", dir.display()))
        }
        // File systems without locks serve one engine at a time.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// The files of a folder.
struct Folder {
    dir: PathBuf,
    format: Format,
    /// What the file of each slot holds; none where there is none that is of use.
    contents: Vec<Option<Contents>>,
    /// Files that were written to and not synced yet.
    unsynced: Vec<(PathBuf, File)>,
    /// Writes and syncs that came to an end.
    ended: Arc<AtomicU64>,
    _lock: File,
}

impl Folder {
    /// Writes what comes; syncs when there is nothing to write, so that nobody waits for that.
    fn serve(mut self, jobs: &Receiver<Job>, done: &Sender<u64>) {
        let mut fault = None;
        while let Some(job) = self.next(jobs, &mut fault) {
            if fault.is_none() {
                fault = self.save(job.slot, &job.conversation).err();
                tell(fault.as_ref());
            }
            drop(job.conversation);
            // Nobody may be waiting for it.
            let _ = done.send(job.ticket);
        }
    }

    /// The next job, after a sync if there is none yet.
    fn next(&mut self, jobs: &Receiver<Job>, fault: &mut Option<Error>) -> Option<Job> {
        match jobs.try_recv() {
            Ok(job) => return Some(job),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        for (path, file) in std::mem::take(&mut self.unsynced) {
            if fault.is_none() {
                *fault = file.sync_all().map_err(|e| Error::io(&path, e)).err();
                self.ended.fetch_add(1, Ordering::Relaxed);
                tell(fault.as_ref());
            }
        }
        jobs.recv().ok()
    }

    /// Writes what the file of `slot` lacks of `conversation`.
    fn save(&mut self, slot: usize, conversation: &KvSlot) -> Result<()> {
        let path = file::path(&self.dir, slot);
        if let Some(contents) = &mut self.contents[slot]
            && let Some(file) = open_as_left(&path, contents.bytes())
            && let Some(addition) = self.format.continuation(contents, conversation)
        {
            let io = |e| Error::io(&path, e);
            let mut file = file;
            if file.metadata().map_err(io)?.len() != contents.bytes() {
                file.set_len(contents.bytes()).map_err(io)?;
            } else if addition.is_empty() {
                return Ok(());
            }
            file.seek(SeekFrom::End(0)).map_err(io)?;
            let write = &mut |bytes: &[u8]| {
                let written = file.write_all(bytes).map_err(io);
                self.ended.fetch_add(1, Ordering::Relaxed);
                written
            };
            let appended = self.format.append(contents, conversation, &addition, write);
            if appended.is_err() {
                // The fault is told; half a record that stays is told at the next start.
                let _ = file.set_len(contents.bytes());
            }
            self.unsynced.push((path, file));
            return appended;
        }
        if conversation.tokens().is_empty() && !is_there(&path) {
            return Ok(());
        }
        self.contents[slot] = None;
        let mut output = Output::create_private(&self.dir, &file::name(slot))?;
        let contents = self.format.write_whole(conversation, &mut |bytes| {
            let written = output.write(bytes);
            self.ended.fetch_add(1, Ordering::Relaxed);
            written
        })?;
        output.finish()?;
        self.contents[slot] = Some(contents);
        Ok(())
    }
}

/// Opens a file to which `bytes` bytes were written; none if it is no longer there, or another.
fn open_as_left(path: &Path, bytes: u64) -> Option<File> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.len() >= bytes).then_some(file)
}

fn tell(fault: Option<&Error>) {
    if let Some(error) = fault {
        let hint = match error {
            Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull => {
                "; make room and start the engine again"
            }
            _ => "",
        };
        eprintln!(
            "notice: {}",
            one_line(format!("conversations are not saved any more: {error}{hint}"))
        );
    }
}
