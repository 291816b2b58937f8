//! What a session says, behind a bounded queue.

use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::log::say;

/// Groups of records waiting for a reader that is slow; the model waits when they are full.
const QUEUE: usize = 1024;
/// A group that has grown to this many bytes goes out before its time.
const GROUP_BYTES: usize = 64 << 10;
/// How long records may wait for a reader that does not read, once SIGTERM has come.
const TERMINATION_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks at a reader that is slow.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// What the writer does next.
enum Piece {
    Write(Vec<u8>),
    Wait(Box<dyn FnOnce() + Send>),
}

/// Records on their way out. What is written between two calls of `flush` leaves with one write.
pub struct Output {
    queue: SyncSender<Piece>,
    writer: JoinHandle<Result<()>>,
    /// Nothing is sent here; the channel ends with the writer.
    ended: Receiver<Infallible>,
    group: Vec<u8>,
    terminating: Arc<AtomicBool>,
    closed: bool,
}

impl Output {
    /// Starts writing to `writer` on a thread; `terminating` is set once SIGTERM has come.
    pub fn start(writer: impl Write + Send + 'static, terminating: Arc<AtomicBool>) -> Self {
        let (queue, pieces) = sync_channel(QUEUE);
        let (end, ended) = sync_channel(0);
        let writer = std::thread::spawn(move || {
            let _end = end;
            write_all(writer, pieces)
        });
        Self { queue, writer, ended, group: Vec::new(), terminating, closed: false }
    }

    /// Whether the reader of our output is gone.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Adds one record to the group.
    pub fn write(&mut self, record: impl FnOnce(&mut Vec<u8>)) {
        record(&mut self.group);
        if self.group.len() >= GROUP_BYTES {
            self.flush();
        }
    }

    /// Sends the group. A full queue makes the model wait; after SIGTERM not for ever.
    pub fn flush(&mut self) {
        let group = std::mem::take(&mut self.group);
        if !group.is_empty() {
            self.send(Piece::Write(group));
        }
    }

    /// Has what is written from now on leave after `wait`, which the model does not wait for.
    pub fn after(&mut self, wait: impl FnOnce() + Send + 'static) {
        self.flush();
        self.send(Piece::Wait(Box::new(wait)));
    }

    fn send(&mut self, mut piece: Piece) {
        let mut patience = Patience::default();
        while !self.closed {
            piece = match self.queue.try_send(piece) {
                Ok(()) => return,
                Err(TrySendError::Disconnected(_)) => {
                    self.closed = true;
                    return;
                }
                Err(TrySendError::Full(piece)) => piece,
            };
            if patience.is_over(&self.terminating) {
                self.closed = true;
                return;
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Waits until all has been written; after SIGTERM not for ever.
    ///
    /// # Errors
    /// [`Error::Io`] if the reader is gone or does not read.
    pub fn finish(mut self) -> Result<()> {
        self.flush();
        drop(self.queue);
        let mut patience = Patience::default();
        while self.ended.recv_timeout(RETRY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if self.closed || patience.is_over(&self.terminating) {
                say("error: terminated while nobody reads the output");
                // The process ends without the thread that waits for a reader.
                return Err(Error::io("standard output", std::io::ErrorKind::TimedOut.into()));
            }
        }
        match self.writer.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// How long to wait for a reader: for ever, unless SIGTERM has come.
#[derive(Default)]
struct Patience {
    deadline: Option<Instant>,
}

impl Patience {
    /// Whether to give up; asked again and again while waiting.
    fn is_over(&mut self, terminating: &AtomicBool) -> bool {
        if !terminating.load(Ordering::Relaxed) {
            return false;
        }
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + TERMINATION_PATIENCE);
        Instant::now() > deadline
    }
}

/// Writes each group with one call; ends when there are no more or the reader is gone.
fn write_all(mut out: impl Write, pieces: Receiver<Piece>) -> Result<()> {
    for piece in pieces {
        match piece {
            Piece::Wait(wait) => wait(),
            Piece::Write(group) => out
                .write_all(&group)
                .and_then(|()| out.flush())
                .map_err(|e| Error::io("standard output", e))?,
        }
    }
    Ok(())
}
