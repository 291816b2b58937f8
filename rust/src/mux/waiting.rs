//! Requests whose prompt is being tokenised.
//!
//! Short prompts are tokenised at once. Long ones, which may take seconds, go through a thread of
//! their own one after the other, so that running answers and control requests do not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use crate::engine::Request;
use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Longest prompt that is tokenised at once, in bytes; a millisecond or so.
const INLINE_BYTES: usize = 16 << 10;

/// What becomes of a request once its tokens are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is admitted.
    Admit,
    /// It is admitted and ends as by STOP.
    Stop,
}

struct Entry {
    serial: u64,
    request: Request,
    fate: Fate,
    cancelled: Arc<AtomicBool>,
}

struct Job {
    serial: u64,
    payload: Vec<u8>,
    cancelled: Arc<AtomicBool>,
}

/// The tokens of a request, or why there are none.
pub struct Tokens {
    /// Of the job; a request's id may be in use again by now.
    serial: u64,
    /// Its prompt.
    pub result: Result<Vec<u32>>,
}

/// Requests that wait for their tokens.
pub struct Waiting {
    tokenizer: Arc<Tokenizer>,
    entries: Vec<Entry>,
    jobs: Sender<Job>,
    serial: u64,
}

impl Waiting {
    /// Starts the thread; `deliver` gets the tokens, false ends the thread.
    pub fn start(
        tokenizer: Arc<Tokenizer>,
        deliver: impl Fn(Tokens) -> bool + Send + 'static,
    ) -> Self {
        let (jobs, queue) = channel::<Job>();
        let shared = Arc::clone(&tokenizer);
        std::thread::spawn(move || {
            for job in queue {
                if job.cancelled.load(Ordering::Relaxed) {
                    continue;
                }
                let result = shared.encode_bytes(&job.payload);
                if !deliver(Tokens { serial: job.serial, result }) {
                    return;
                }
            }
        });
        Self { tokenizer, entries: Vec::new(), jobs, serial: 0 }
    }

    /// The tokens of a short payload; a long one is queued and `request` kept until they come.
    pub fn tokenize(
        &mut self,
        request: Request,
        payload: Vec<u8>,
    ) -> Option<(Request, Result<Vec<u32>>)> {
        if payload.len() <= INLINE_BYTES {
            let result = self.tokenizer.encode_bytes(&payload);
            return Some((request, result));
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        self.serial += 1;
        let serial = self.serial;
        let job = Job { serial, payload, cancelled: Arc::clone(&cancelled) };
        // The thread ends only with this value, or when nobody takes its results any more.
        let _ = self.jobs.send(job);
        self.entries.push(Entry { serial, request, fate: Fate::Admit, cancelled });
        None
    }

    /// The request that `tokens` are for, unless it was cancelled meanwhile.
    pub fn take(&mut self, tokens: &Tokens) -> Option<(Request, Fate)> {
        let index = self.entries.iter().position(|entry| entry.serial == tokens.serial)?;
        let entry = self.entries.remove(index);
        Some((entry.request, entry.fate))
    }

    /// Marks a waiting request to end as by STOP; false if it does not wait.
    pub fn stop(&mut self, id: u64) -> bool {
        let entry = self.entries.iter_mut().find(|entry| entry.request.id == id);
        entry.map(|entry| entry.fate = Fate::Stop).is_some()
    }

    /// Forgets a waiting request; false if it does not wait.
    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(index) = self.entries.iter().position(|entry| entry.request.id == id) else {
            return false;
        };
        self.entries.remove(index).cancelled.store(true, Ordering::Relaxed);
        true
    }

    /// Slots and ids of the requests that wait.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.entries.iter().map(|entry| &entry.request)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
