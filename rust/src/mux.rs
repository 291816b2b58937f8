//! The serve protocol on stdin and stdout: a session of many requests on one engine.
//!
//! Owns: the order of reading, stepping and writing, signals, shutdown. Does not own: syntax
//! (`frame`), record contents (`emit`), what a request does (`engine`).

mod emit;
pub mod frame;
mod input;

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::engine::{Engine, Event, Request};
use crate::error::{Error, Result};
use emit::Emitter;
use frame::{Incoming, Submit};
use input::{Input, Signal};

/// Submit options this engine takes, as CAPS lists them.
pub const SUBMIT_OPTIONS: &[&str] = &["seed", "topk", "stop_ids", "ignore_eos"];

/// Records waiting for a reader that is slow; the model waits when they are full.
const OUT_QUEUE: usize = 4096;
/// A second SIGINT within this time means SIGTERM.
const DOUBLE_INTERRUPT: Duration = Duration::from_secs(2);
/// Decode steps between two HITS records.
const HITS_INTERVAL: u64 = 6;

/// How a session is served.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Name of the model for CAPS.
    pub model_name: String,
    /// Alternatives reported with each token of requests that do not say.
    pub default_topk: usize,
}

/// Exit code of a session whose frame boundary was lost.
pub const EXIT_BAD_FRAME: i32 = 3;

/// Serves requests from stdin until it ends or a signal asks to stop; returns the exit code.
///
/// # Errors
/// [`Error::Io`] if signals cannot be handled or stdout is closed.
pub fn serve(engine: Engine, options: SessionOptions) -> Result<i32> {
    let (out, queue) = sync_channel(OUT_QUEUE);
    let writer = std::thread::spawn(move || write_all(&queue));
    let input = Input::start(SUBMIT_OPTIONS, engine.runner.slots.len())?;
    let mut session = Session {
        emitter: Emitter::new(out),
        engine,
        input,
        options,
        draining: false,
        interrupted_at: None,
        hits_due: HITS_INTERVAL,
        exit_code: 0,
    };
    session.emitter.handshake(&session.engine, &session.options.model_name);
    session.run();
    let code = session.exit_code;
    drop(session);
    match writer.join() {
        Ok(result) => result.map(|()| code),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Writes each record with one call; ends when all senders are gone or stdout is closed.
fn write_all(queue: &Receiver<Vec<u8>>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for record in queue {
        out.write_all(&record)
            .and_then(|()| out.flush())
            .map_err(|e| Error::io("standard output", e))?;
    }
    Ok(())
}

struct Session {
    engine: Engine,
    input: Input,
    emitter: Emitter,
    options: SessionOptions,
    /// Nothing more is admitted; what is in flight finishes.
    draining: bool,
    interrupted_at: Option<Instant>,
    /// Count of decode steps at which the next HITS goes out.
    hits_due: u64,
    exit_code: i32,
}

impl Session {
    fn run(&mut self) {
        while !self.emitter.is_closed() {
            let idle = self.engine.active_ids().is_empty();
            if idle && self.input.is_empty() {
                if self.draining || self.input.ended() {
                    return;
                }
                self.input.wait();
            }
            self.input.poll();
            self.handle_signals();
            while let Some(incoming) = self.input.next() {
                self.handle(incoming);
            }
            let input = &mut self.input;
            let events = self.engine.step(&mut |id| {
                input.poll();
                input.concerns(id)
            });
            self.emit(events);
            let steps = self.engine.decode_steps();
            if steps >= self.hits_due && !self.engine.active_ids().is_empty() {
                self.hits_due = steps + HITS_INTERVAL;
                self.emitter.hits(&mut self.engine);
            }
        }
    }

    fn handle(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Submit(submit) => self.submit(*submit),
            Incoming::Stop(id) => match self.engine.stop(id) {
                Ok(events) => self.emit(events),
                Err(error) => self.emitter.error(id, &error),
            },
            Incoming::Cancel(id) => match self.engine.cancel(id) {
                Ok(()) => self.emitter.cancelled(id),
                Err(error) => self.emitter.error(id, &error),
            },
            Incoming::Refused { id, detail } => {
                self.emitter.error(id, &Error::BadRequest(detail));
            }
            Incoming::Lost { id, detail } => {
                eprintln!("error: frame boundary lost: {detail}");
                self.emitter.bad_frame(id, &detail);
                self.draining = true;
                self.exit_code = EXIT_BAD_FRAME;
            }
        }
    }

    fn submit(&mut self, submit: Submit) {
        let id = submit.id;
        match self.admit(submit) {
            Ok(prompt_tokens) => self.emitter.accept(id, prompt_tokens),
            Err(error) => self.emitter.error(id, &error),
        }
    }

    /// Checks, tokenises and admits; returns the prompt's tokens.
    fn admit(&mut self, submit: Submit) -> Result<usize> {
        if self.draining {
            return Err(Error::BadRequest("the engine is shutting down".into()));
        }
        let topk = submit.options.topk.map_or(self.options.default_topk, usize::from);
        let mut request = Request {
            id: submit.id,
            slot: submit.slot,
            prompt: Vec::new(),
            max_tokens: submit.max_tokens as usize,
            temperature: submit.temperature as f32,
            top_p: submit.top_p as f32,
            seed: submit.options.seed.unwrap_or_else(|| RandomState::new().hash_one(submit.id)),
            topk,
            stop_ids: submit.options.stop_ids,
            ignore_eos: submit.options.ignore_eos,
        };
        self.engine.check(&request)?;
        request.prompt = self.engine.tokenizer.encode_bytes(&submit.payload)?;
        let prompt_tokens = request.prompt.len();
        self.engine.submit(request)?;
        Ok(prompt_tokens)
    }

    /// SIGTERM ends every turn as by STOP and shuts down; SIGINT ends them and goes on, unless it
    /// is the second within two seconds.
    fn handle_signals(&mut self) {
        while let Some(signal) = self.input.take_signal() {
            let again = self.interrupted_at.is_some_and(|at| at.elapsed() < DOUBLE_INTERRUPT);
            if signal == Signal::Terminate || again {
                self.draining = true;
            }
            self.interrupted_at = Some(Instant::now());
            for id in self.engine.active_ids() {
                if let Ok(events) = self.engine.stop(id) {
                    self.emit(events);
                }
            }
        }
    }

    fn emit(&mut self, events: Vec<Event>) {
        for event in events {
            self.emitter.event(event, &mut self.engine);
        }
    }
}

/// The bounded queue to the writer.
type Out = SyncSender<Vec<u8>>;
