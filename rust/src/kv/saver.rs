//! Conversations are written to their files on a thread, while answers go on.
//!
//! Owns: the folder's lock, when what is written, what becomes of faults and of drives that hang: one
//! notice, and nothing is saved any more. Does not own: what a file looks like (`file`).
//!
//! Somebody waits for what is written at the end of a turn. So that this is little, whole blocks are
//! written ahead of it, a conversation at a time; that gives way to anything else between two records.

use std::collections::HashMap;
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
use super::file::{self, Contents, Format, Part};
use crate::error::{Error, Result, one_line};
use crate::kernels::KV_BLOCK;
use crate::log::say;
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
    /// Whether its turn goes on.
    is_ahead: bool,
}

/// What is still to be written.
struct Pending {
    ticket: u64,
    conversation: Arc<KvSlot>,
    is_ahead: bool,
}

/// The way to the thread that writes.
pub struct Saver {
    jobs: Sender<Job>,
    /// Tickets of what has been written, in order.
    written: Receiver<u64>,
    thread: JoinHandle<()>,
    last: u64,
    /// What has not been written, in order.
    pending: Vec<Pending>,
    /// How many blocks of the conversation in each slot have been handed over.
    handed: Vec<usize>,
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
                    if let Some(fault) = loaded.fault {
                        let (path, tokens) = (path.display(), slot.tokens().len());
                        notices.push(format!("{path} {fault}; its first {tokens} tokens are used"));
                    }
                    Some(loaded.contents)
                }
                Err(reason) => {
                    *slot = format.empty_slot();
                    let fate = if path.is_dir() {
                        "stands in the way and has to be removed"
                    } else {
                        "is of no use and will be replaced"
                    };
                    notices.push(format!("{} {fate}: {reason}", path.display()));
                    None
                }
            });
        }
        let (jobs, received) = channel();
        let (done, written) = channel();
        let handed = slots.iter().map(|slot| slot.tokens().len() / KV_BLOCK).collect();
        let ended = Arc::new(AtomicU64::new(0));
        let folder = Folder {
            dir: dir.to_owned(),
            format,
            contents,
            unsynced: Vec::new(),
            ended: Arc::clone(&ended),
            _lock: lock,
        };
        let queue = Queue { received, first: None };
        let thread = std::thread::spawn(move || folder.serve(queue, &done));
        Ok(Self {
            jobs,
            written,
            thread,
            last: 0,
            pending: Vec::new(),
            handed,
            ended,
            seen: (0, Instant::now()),
            hangs: false,
        })
    }

    /// Has the conversation of `slot` written as it is now; returns the ticket by which to ask for it.
    pub fn save(&mut self, slot: usize, conversation: &KvSlot) -> u64 {
        self.hand_over(slot, conversation.snapshot(), false)
    }

    /// How many blocks could be written ahead of a conversation of `len` tokens in `slot`: those that
    /// have been completed since it was last handed over. None while any are being written.
    pub fn blocks_ahead(&mut self, slot: usize, len: usize) -> usize {
        self.look();
        if self.hangs || self.pending.iter().any(|job| job.is_ahead) {
            return 0;
        }
        let (blocks, handed) = (len / KV_BLOCK, self.handed[slot]);
        // One that has fewer than before has gone back, and on from there.
        if blocks < handed { blocks } else { blocks - handed }
    }

    /// Has whole blocks of the conversation of `slot` written, which goes on for `len` tokens in all
    /// or more; returns the ticket by which to ask for it. They are not written to any more, so
    /// nothing is copied for it; of states those are written that it still has after `len` tokens.
    pub fn save_ahead(&mut self, slot: usize, conversation: &KvSlot, len: usize) -> u64 {
        self.hand_over(slot, conversation.whole_blocks(len), true)
    }

    fn hand_over(&mut self, slot: usize, conversation: KvSlot, is_ahead: bool) -> u64 {
        self.last += 1;
        if self.hangs {
            return self.last;
        }
        if self.pending.is_empty() {
            self.seen.1 = Instant::now();
        }
        self.handed[slot] = conversation.tokens().len() / KV_BLOCK;
        let (ticket, conversation) = (self.last, Arc::new(conversation));
        self.pending.push(Pending { ticket, conversation: Arc::clone(&conversation), is_ahead });
        // The thread ends with this value.
        let _ = self.jobs.send(Job { ticket, slot, conversation, is_ahead });
        ticket
    }

    /// Whether the job with this ticket is done, which it is too if nothing can be written any more.
    pub fn is_written(&mut self, ticket: u64) -> bool {
        self.look();
        self.pending.iter().all(|job| job.ticket != ticket)
    }

    /// Takes note of what has been written, and of a drive that hangs.
    fn look(&mut self) {
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
            say(format_args!(
                "notice: conversations are not saved any more: the drive has not answered for {} s",
                patience.as_secs()
            ));
        }
        self.hangs
    }

    fn forget(&mut self, written: u64) {
        self.pending.retain(|job| job.ticket > written);
    }

    /// Bytes that are in memory only because they have not been written yet.
    pub fn held_bytes(&self) -> u64 {
        // Several jobs may hold the same.
        let mut held = HashMap::new();
        for job in &self.pending {
            job.conversation.for_each_shared(&mut |shared| {
                held.entry(shared.at).or_insert((0, shared)).0 += 1;
            });
        }
        let only_here = held.into_values().filter(|(jobs, shared)| shared.holders <= *jobs);
        only_here.map(|(_, shared)| shared.bytes).sum()
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
    fn serve(mut self, mut queue: Queue, done: &Sender<u64>) {
        let mut fault = None;
        while let Some(job) = self.next(&mut queue, &mut fault) {
            if fault.is_none() {
                let saved = if job.is_ahead {
                    self.save_ahead(job.slot, &job.conversation, &mut queue)
                } else {
                    self.save(job.slot, &job.conversation)
                };
                fault = saved.err();
                tell(fault.as_ref());
            }
            drop(job.conversation);
            // Nobody may be waiting for it.
            let _ = done.send(job.ticket);
        }
    }

    /// The next job, after a sync if there is none yet.
    fn next(&mut self, queue: &mut Queue, fault: &mut Option<Error>) -> Option<Job> {
        if queue.is_empty() {
            for (path, file) in std::mem::take(&mut self.unsynced) {
                if fault.is_none() {
                    *fault = file.sync_all().map_err(|e| Error::io(&path, e)).err();
                    self.ended.fetch_add(1, Ordering::Relaxed);
                    tell(fault.as_ref());
                }
            }
        }
        queue.next()
    }

    /// Writes what the file of `slot` lacks of `conversation`.
    fn save(&mut self, slot: usize, conversation: &KvSlot) -> Result<()> {
        if let Some(left) = self.open(slot)
            && let Some(parts) = left.format.continuation(left.contents, conversation)
        {
            let appended = left.append(conversation, &parts, &mut || true)?;
            self.unsynced.push(appended);
            return Ok(());
        }
        if conversation.tokens().is_empty() && !is_there(&file::path(&self.dir, slot)) {
            return Ok(());
        }
        self.write_whole(slot, conversation)
    }

    /// Writes what the file of `slot` lacks of a `conversation` that goes on, until something else is
    /// to be written. It stays the beginning of what is to come, however far that gets.
    fn save_ahead(&mut self, slot: usize, conversation: &KvSlot, queue: &mut Queue) -> Result<()> {
        if queue.is_empty() && self.open(slot).is_none() {
            // To be appended to, so that each record counts as soon as it is there.
            self.write_whole(slot, &self.format.empty_slot())?;
        }
        if let Some(left) = self.open(slot) {
            let parts = left.contents.lacks(conversation);
            let appended = left.append(conversation, &parts, &mut || queue.is_empty())?;
            self.unsynced.push(appended);
        }
        Ok(())
    }

    /// The file of `slot` as it was left; none if it is no longer there or of no use.
    fn open(&mut self, slot: usize) -> Option<Left<'_>> {
        let path = file::path(&self.dir, slot);
        let contents = self.contents[slot].as_mut()?;
        let file = open_as_left(&path, contents.bytes())?;
        Some(Left { path, file, contents, format: &self.format, ended: &self.ended })
    }

    /// Writes the file of `slot` anew.
    fn write_whole(&mut self, slot: usize, conversation: &KvSlot) -> Result<()> {
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

/// What is to be written, in order.
struct Queue {
    received: Receiver<Job>,
    /// The first of it, if that has been looked at.
    first: Option<Job>,
}

impl Queue {
    /// Whether there is nothing yet.
    fn is_empty(&mut self) -> bool {
        if self.first.is_none() {
            self.first = self.received.try_recv().ok();
        }
        self.first.is_none()
    }

    /// Waits for the next; none if nothing can come any more.
    fn next(&mut self) -> Option<Job> {
        self.first.take().or_else(|| self.received.recv().ok())
    }
}

/// A file as it was left.
struct Left<'a> {
    path: PathBuf,
    file: File,
    /// What it holds of use, which it begins with.
    contents: &'a mut Contents,
    format: &'a Format,
    ended: &'a AtomicU64,
}

impl Left<'_> {
    /// Cuts off what is of no use and appends `parts` of `conversation`, as long as it `goes_on`
    /// before each; returns the file, which is to be synced.
    fn append(
        mut self,
        conversation: &KvSlot,
        parts: &[Part],
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<(PathBuf, File)> {
        let io = |e| Error::io(&self.path, e);
        if self.file.metadata().map_err(io)?.len() != self.contents.bytes() {
            self.file.set_len(self.contents.bytes()).map_err(io)?;
        }
        self.file.seek(SeekFrom::End(0)).map_err(io)?;
        for &part in parts {
            if !goes_on() {
                break;
            }
            let write = &mut |bytes: &[u8]| {
                let written = self.file.write_all(bytes).map_err(io);
                self.ended.fetch_add(1, Ordering::Relaxed);
                written
            };
            let appended = self.format.append(self.contents, conversation, part, write);
            if appended.is_err() {
                // The fault is told; half a record that stays is told at the next start.
                let _ = self.file.set_len(self.contents.bytes());
                appended?;
            }
        }
        Ok((self.path, self.file))
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
        say(format_args!(
            "notice: {}",
            one_line(format!("conversations are not saved any more: {error}{hint}"))
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::LayerLayout;
    use crate::kv::tests::{LAYOUTS, assert_holds, compute};

    fn conversation(tokens: usize) -> KvSlot {
        let mut slot = KvSlot::new(&LAYOUTS);
        let tokens: Vec<u32> = (0..tokens as u32).collect();
        compute(&mut slot, &tokens, 0);
        slot.commit(&tokens);
        slot
    }

    #[test]
    fn what_is_written_ahead_gives_way_to_everything_else() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut folder = Folder {
            dir: dir.path().to_owned(),
            format: Format::new([7; 32], LAYOUTS.to_vec()),
            contents: vec![None, None],
            unsynced: Vec::new(),
            ended: Arc::default(),
            _lock: lock(dir.path()).expect("nobody else's"),
        };
        let (jobs, received) = channel();
        let mut queue = Queue { received, first: None };
        let slot = Arc::new(conversation(1024));
        let job = |slot, conversation: &Arc<KvSlot>| {
            let conversation = Arc::clone(conversation);
            Job { ticket: 1, slot, conversation, is_ahead: false }
        };
        let written = |folder: &Folder| folder.contents[0].as_ref().map(|c| c.tokens.len());

        jobs.send(job(1, &slot)).expect("received");
        folder.save_ahead(0, &slot, &mut queue).expect("room");
        assert_eq!(written(&folder), None);
        assert_eq!(queue.next().expect("it is still there").slot, 1);
        folder.save_ahead(0, &slot.whole_blocks(512).fork(512), &mut queue).expect("room");
        assert_eq!(written(&folder), Some(512));
        jobs.send(job(1, &slot)).expect("received");
        folder.save_ahead(0, &slot, &mut queue).expect("room");
        assert_eq!(written(&folder), Some(512), "no more than was there");
        queue.next();
        folder.save_ahead(0, &slot, &mut queue).expect("room");
        let bytes = folder.contents[0].as_ref().map(Contents::bytes);
        // Less than is there is no reason to give any of it up.
        folder.save_ahead(0, &slot.fork(512), &mut queue).expect("room");
        assert_eq!(folder.contents[0].as_ref().map(Contents::bytes), bytes);
        let mut found = KvSlot::new(&LAYOUTS);
        let path = file::path(dir.path(), 0);
        folder.format.read(&path, &mut found, 2000, &mut |_, _| {}).expect("readable");
        assert_holds(&found, slot.tokens());
    }

    #[test]
    fn only_what_nobody_else_holds_counts_as_held() {
        let (jobs, queue) = channel();
        let (_done, written) = channel();
        let mut saver = Saver {
            jobs,
            written,
            thread: std::thread::spawn(|| {}),
            last: 0,
            pending: Vec::new(),
            handed: vec![0; 3],
            ended: Arc::default(),
            seen: (0, Instant::now()),
            hangs: false,
        };
        let mut slots = [conversation(700), conversation(700), conversation(700)];
        assert_eq!(saver.blocks_ahead(0, 700), 2);
        saver.save_ahead(0, &slots[0], 700);
        assert_eq!(saver.blocks_ahead(1, 700), 0, "one conversation at a time");
        saver.save(1, &slots[1]);
        saver.save(2, &slots[2]);
        saver.save(2, &slots[2]);
        assert_eq!(saver.held_bytes(), 0);
        let blocks = |n: usize| -> u64 {
            let bytes = |layout: &LayerLayout| match layout {
                LayerLayout::Positions(kv) => (n * KV_BLOCK * kv.bytes_per_position()) as u64,
                LayerLayout::State(_) => 0,
            };
            LAYOUTS.iter().map(bytes).sum()
        };
        let states = |conversation: &KvSlot| -> u64 {
            let LayerLayout::State(state) = LAYOUTS[2] else { panic!("the last has states") };
            (conversation.known_states().len() * state.elements() * size_of::<f32>()) as u64
        };
        let ahead = states(&saver.pending[0].conversation);
        slots[0].truncate_to(0);
        assert_eq!(saver.held_bytes(), blocks(2) + ahead);
        let whole = states(&slots[2]);
        slots[2].truncate_to(0);
        assert_eq!(saver.held_bytes(), blocks(2) + ahead + blocks(3) + whole);
        queue.iter().take(3).for_each(drop::<Job>);
        saver.forget(3);
        assert_eq!(saver.held_bytes(), blocks(3) + whole);
        assert_eq!(saver.blocks_ahead(0, 300), 1, "it has gone back");
    }
}
