//! Reading experts beside the computation.
//!
//! Owns: the threads that read, and what they have read until it is taken. Does not own: which
//! expert is read when, and where it stays.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Expert, ExpertSource};
use crate::error::{Error, Result};
use crate::store::Catalog;

/// Reads at once: what keeps a drive busy, which orders and joins them by itself.
const THREADS: usize = 8;
/// A read that failed is tried once more: what a cable or a network lost once may come the next time.
const TRIES: usize = 2;

/// An expert that was read, or why not.
pub struct Landed {
    /// Which one.
    pub index: usize,
    /// The expert.
    pub expert: Result<Expert>,
    /// How long reading took.
    pub service: Duration,
}

/// The threads that read experts. They end when this is dropped.
pub struct Reader {
    wanted: Sender<usize>,
    landed: Receiver<thread::Result<Landed>>,
    pending: usize,
}

impl Reader {
    /// Starts the threads.
    ///
    /// # Panics
    /// If the system refuses to start a thread.
    pub fn new(catalog: &Arc<Catalog>, sources: &Arc<[ExpertSource]>) -> Self {
        let (wanted, requests) = channel();
        let (finished, landed) = channel();
        let requests = Arc::new(Mutex::new(requests));
        for _ in 0..THREADS.min(sources.len()) {
            let (requests, finished) = (Arc::clone(&requests), finished.clone());
            let (catalog, sources) = (Arc::clone(catalog), Arc::clone(sources));
            thread::Builder::new()
                .name("read-experts".into())
                .spawn(move || {
                    loop {
                        // The lock is held while waiting: whoever has it is the next to read.
                        let next = requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok(index) = next else { return };
                        let read = || read(&catalog, &sources, index);
                        if finished.send(catch_unwind(AssertUnwindSafe(read))).is_err() {
                            return;
                        }
                    }
                })
                .expect("the system starts a thread");
        }
        Self { wanted, landed, pending: 0 }
    }

    /// Asks for an expert.
    pub fn request(&mut self, index: usize) {
        self.pending += 1;
        self.wanted.send(index).expect("the threads live as long as this");
    }

    /// Experts asked for that [`Self::landed`] has not returned yet.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Those that were read by now; waits for the first if `wait` says so and one is pending.
    pub fn landed(&mut self, wait: bool) -> Vec<Landed> {
        let first = (wait && self.pending > 0)
            .then(|| self.landed.recv().expect("the threads live as long as this"));
        let landed: Vec<_> = first.into_iter().chain(self.landed.try_iter()).collect();
        self.pending -= landed.len();
        landed.into_iter().map(|read| read.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }
}

fn read(catalog: &Catalog, sources: &[ExpertSource], index: usize) -> Landed {
    let start = Instant::now();
    let mut expert = sources[index].load(catalog);
    for _ in 1..TRIES {
        if matches!(expert, Err(Error::Io { .. })) {
            expert = sources[index].load(catalog);
        }
    }
    Landed { index, expert, service: start.elapsed() }
}
