//! Requests whose prompt is being tokenised.
//!
//! Short prompts are tokenised at once, and one whose length alone rules it out never is. Long ones
//! go through threads of their own one after the other, so that running answers and control
//! requests do not wait; the huge, which may take many seconds, have another than the long.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Request;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// Longest prompt that is tokenised at once, in bytes; a millisecond or so.
const INLINE_BYTES: usize = 16 << 10;
/// Longest prompt that is not huge, in bytes; a second or so.
const LONG_BYTES: usize = 1 << 20;

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
    payload: Payload,
}

/// A prompt; none once a thread has taken it or nobody wants its tokens any more.
type Payload = Arc<Mutex<Option<Vec<u8>>>>;

fn take(payload: &Payload) -> Option<Vec<u8>> {
    // Nothing panics while it holds the lock.
    payload.lock().unwrap_or_else(PoisonError::into_inner).take()
}

struct Job {
    serial: u64,
    payload: Payload,
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
    /// Most tokens of a prompt.
    limit: usize,
    entries: Vec<Entry>,
    long: Sender<Job>,
    huge: Sender<Job>,
    serial: u64,
}

impl Waiting {
    /// Starts the threads; `deliver` gets the tokens, false ends a thread.
    pub fn start(
        tokenizer: Arc<Tokenizer>,
        limit: usize,
        deliver: impl Fn(Tokens) -> bool + Clone + Send + 'static,
    ) -> Self {
        let long = start_thread(Arc::clone(&tokenizer), deliver.clone());
        let huge = start_thread(Arc::clone(&tokenizer), deliver);
        Self { tokenizer, limit, entries: Vec::new(), long, huge, serial: 0 }
    }

    /// The tokens of a short payload, or the refusal of a hopeless one; another is queued and
    /// `request` kept until its tokens come.
    pub fn tokenize(
        &mut self,
        request: Request,
        payload: Vec<u8>,
    ) -> Option<(Request, Result<Vec<u32>>)> {
        let least = self.tokenizer.least_tokens(payload.len());
        if least > self.limit {
            let error = Error::ContextExceeded { tokens: least, counted: false, limit: self.limit };
            return Some((request, Err(error)));
        }
        if payload.len() <= INLINE_BYTES {
            let result = self.tokenizer.encode_bytes(&payload);
            return Some((request, result));
        }
        let queue = if payload.len() <= LONG_BYTES { &self.long } else { &self.huge };
        self.serial += 1;
        let serial = self.serial;
        let payload: Payload = Arc::new(Mutex::new(Some(payload)));
        // A thread ends only with this value, or when nobody takes its results any more.
        let _ = queue.send(Job { serial, payload: Arc::clone(&payload) });
        self.entries.push(Entry { serial, request, fate: Fate::Admit, payload });
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
        take(&self.entries.remove(index).payload);
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

fn start_thread(
    tokenizer: Arc<Tokenizer>,
    deliver: impl Fn(Tokens) -> bool + Send + 'static,
) -> Sender<Job> {
    let (jobs, queue) = channel::<Job>();
    std::thread::spawn(move || {
        for job in queue {
            let Some(payload) = take(&job.payload) else { continue };
            let result = tokenizer.encode_bytes(&payload);
            if !deliver(Tokens { serial: job.serial, result }) {
                return;
            }
        }
    });
    jobs
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sample::Sampling;

    fn request(id: u64) -> Request {
        Request {
            id,
            slot: 0,
            prompt: Vec::new(),
            max_tokens: 1,
            sampling: Sampling::default(),
            topk: 0,
            stop_ids: Vec::new(),
            ignore_eos: false,
        }
    }

    #[test]
    fn a_cancelled_prompt_keeps_no_bytes_while_its_turn_has_not_come() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/oracle/glm4_moe_lite/tokenizer.json");
        let tokenizer = Arc::new(Tokenizer::load(path).expect("the fixture loads"));
        let (began, begun) = channel();
        let (go_on, wait) = channel();
        let wait = Arc::new(Mutex::new(wait));
        let mut waiting = Waiting::start(tokenizer, usize::MAX, move |_| {
            began.send(()).expect("the test listens");
            wait.lock().expect("one thread waits").recv().is_ok()
        });
        let prompt = || vec![b'a'; INLINE_BYTES + 1];
        assert!(waiting.tokenize(request(1), prompt()).is_none());
        begun.recv().expect("the thread is with the first prompt");
        assert!(waiting.tokenize(request(2), prompt()).is_none());
        let payload = Arc::clone(&waiting.entries[1].payload);
        assert!(waiting.cancel(2));
        assert!(take(&payload).is_none());
        go_on.send(()).expect("the thread goes on");
    }

    #[test]
    fn a_hopeless_prompt_is_refused_without_a_look_at_it() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/oracle/glm4_moe_lite/tokenizer.json");
        let tokenizer = Arc::new(Tokenizer::load(path).expect("the fixture loads"));
        let mut waiting = Waiting::start(tokenizer, 63, |_| true);
        let (_, result) = waiting.tokenize(request(1), vec![b'a'; 1 << 20]).expect("at once");
        let error = result.expect_err("refused").to_string();
        assert!(error.starts_with("the prompt has at least "), "{error}");
    }
}
