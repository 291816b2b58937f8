//! The serve protocol on stdin and stdout: a session of many requests on one engine.
//!
//! Owns: the order of reading, stepping and writing, signals, shutdown. Does not own: syntax
//! (`frame`), record contents (`emit`), what a request does (`engine`).

mod emit;
pub mod frame;
mod waiting;
mod wire;

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::sync::Arc;

use crate::engine::{Engine, Event, Request};
use crate::error::{Error, Result};
use crate::log::say;
use crate::sample::Sampling;
use crate::stdio::{Input, Interrupts, Output, Parser, Signal};
use emit::Emitter;
pub(crate) use emit::{rss_gb, tiers_record};
use frame::{Incoming, RequestReader, Submit};
use waiting::{Fate, Tokens, Waiting};
pub use wire::Wire;

/// Submit options this engine takes, as CAPS lists them.
pub const SUBMIT_OPTIONS: &[&str] = &[
    "seed",
    "top_k",
    "min_p",
    "topk",
    "stop_ids",
    "ignore_eos",
    "presence",
    "frequency",
    "repetition",
    "bias",
];

/// Decode steps between two HITS records.
const HITS_INTERVAL: u64 = 6;

/// How a session is served.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Name of the model for CAPS.
    pub model_name: String,
    /// Alternatives reported with each token of requests that do not say.
    pub default_topk: usize,
    /// Seed of requests that name none; `None` draws one for each.
    pub default_seed: Option<u64>,
    /// Which records are sent.
    pub wire: Wire,
}

/// Exit code of a session whose frame boundary was lost.
pub const EXIT_BAD_FRAME: i32 = 3;

impl Parser for RequestReader {
    type Item = Incoming;

    fn feed(&mut self, bytes: &[u8]) {
        Self::feed(self, bytes);
    }

    fn finish(&mut self) {
        Self::finish(self);
    }

    fn next(&mut self) -> Option<Incoming> {
        Self::next(self)
    }
}

/// Serves requests from stdin until it ends or a signal asks to stop; returns the exit code.
///
/// # Errors
/// [`Error::Io`] if signals cannot be handled or stdout is closed.
pub fn serve(engine: &mut Engine, options: &SessionOptions) -> Result<i32> {
    let session = Session::start(engine, options, std::io::stdin(), std::io::stdout());
    session.input.catch_signals(Interrupts::EndWhenDoubled)?;
    session.serve()
}

/// Serves requests from `reader` until it ends; returns the exit code a process would have.
/// Signals are left alone, and the engine is idle again afterwards.
///
/// # Errors
/// [`Error::Io`] if `writer` fails.
pub fn serve_streams(
    engine: &mut Engine,
    options: &SessionOptions,
    reader: impl Read + Send + 'static,
    writer: impl Write + Send + 'static,
) -> Result<i32> {
    Session::start(engine, options, reader, writer).serve()
}

struct Session<'a> {
    engine: &'a mut Engine,
    input: Input<RequestReader, Tokens>,
    waiting: Waiting,
    emitter: Emitter,
    options: &'a SessionOptions,
    /// Nothing more is admitted; what is in flight finishes.
    draining: bool,
    /// Count of decode steps at which the next HITS goes out.
    hits_due: u64,
    exit_code: i32,
}

impl<'a> Session<'a> {
    fn start(
        engine: &'a mut Engine,
        options: &'a SessionOptions,
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
    ) -> Self {
        let slots = engine.runner.slots.len();
        let input = Input::start(RequestReader::new(options.wire.submit_options(), slots), reader);
        let output = Output::start(writer, input.terminating());
        let mailbox = input.mailbox();
        let tokenizer = Arc::clone(&engine.tokenizer);
        Self {
            waiting: Waiting::start(tokenizer, engine.runner.ctx - 1, move |tokens| {
                mailbox.deliver(tokens)
            }),
            emitter: Emitter::new(output, options.wire),
            hits_due: engine.decode_steps() + HITS_INTERVAL,
            engine,
            input,
            options,
            draining: false,
            exit_code: 0,
        }
    }

    fn serve(mut self) -> Result<i32> {
        self.emitter.handshake(self.engine, &self.options.model_name);
        self.run();
        // Nobody reads what is still in flight.
        for id in self.engine.active_ids() {
            self.engine.cancel(id)?;
        }
        self.emitter.finish().map(|()| self.exit_code)
    }

    fn run(&mut self) {
        while !self.emitter.is_closed() {
            if self.engine.is_idle() && self.input.is_empty() {
                if self.waiting.is_empty() && (self.draining || self.input.ended()) {
                    return;
                }
                self.input.wait();
            }
            self.input.poll();
            self.handle_signals();
            while let Some(tokens) = self.input.take_mail() {
                self.tokenized(tokens);
            }
            while let Some(incoming) = self.input.take() {
                self.handle(incoming);
            }
            self.emitter.flush();
            let input = &mut self.input;
            let events = self.engine.step(&mut |id| {
                input.poll();
                input.has_signal() || input.waiting().any(|incoming| ends(incoming, id))
            });
            self.emit(events);
            let steps = self.engine.decode_steps();
            if steps >= self.hits_due && !self.engine.active_ids().is_empty() {
                self.hits_due = steps + HITS_INTERVAL;
                self.emitter.hits_within_turn(self.engine);
            }
            self.emitter.flush();
        }
    }

    fn handle(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Submit(submit) => self.submit(*submit),
            Incoming::Stop(id) if self.waiting.stop(id) => {}
            Incoming::Stop(id) => match self.engine.stop(id) {
                Ok(events) => self.emit(events),
                Err(error) => self.emitter.error(id, &error),
            },
            Incoming::Cancel(id) if self.waiting.cancel(id) => self.emitter.cancelled(id),
            Incoming::Cancel(id) => match self.engine.cancel(id) {
                Ok(events) => self.emit(events),
                Err(error) => self.emitter.error(id, &error),
            },
            Incoming::Refused { id, detail } => {
                self.emitter.error(id, &Error::BadRequest(detail));
            }
            Incoming::Lost { id, detail } => {
                say(format_args!("error: frame boundary lost: {detail}"));
                self.emitter.bad_frame(id, &detail);
                self.draining = true;
                self.exit_code = EXIT_BAD_FRAME;
            }
        }
    }

    fn submit(&mut self, submit: Submit) {
        let id = submit.id;
        let options = submit.options;
        let seed = options.seed.or(self.options.default_seed);
        let sampling = Sampling {
            temperature: submit.temperature as f32,
            top_p: submit.top_p as f32,
            top_k: options.top_k.unwrap_or(0) as usize,
            min_p: options.min_p.unwrap_or(0.0) as f32,
            repetition: options.repetition.unwrap_or(1.0),
            presence: options.presence.unwrap_or(0.0),
            frequency: options.frequency.unwrap_or(0.0),
            bias: options.bias,
            seed: seed.unwrap_or_else(|| RandomState::new().hash_one(id)),
        };
        let request = Request {
            id,
            slot: submit.slot,
            prompt: Vec::new(),
            max_tokens: submit.max_tokens as usize,
            sampling,
            topk: options.topk.map_or(self.options.default_topk, usize::from),
            stop_ids: options.stop_ids,
            ignore_eos: options.ignore_eos,
        };
        let checked = self.engine.check_tokens(&request).and_then(|()| self.check(&request));
        if let Err(error) = checked {
            self.emitter.error(id, &error);
        } else if let Some((request, tokens)) = self.waiting.tokenize(request, submit.payload) {
            self.admit(request, tokens, Fate::Admit);
        }
    }

    /// The checks that come before the prompt is tokenised.
    fn check(&self, request: &Request) -> Result<()> {
        if self.draining {
            return Err(Error::BadRequest("the engine is shutting down".into()));
        }
        if self.waiting.requests().any(|other| other.slot == request.slot) {
            return Err(Error::SlotBusy(request.slot));
        }
        self.engine.check(request)?;
        if self.waiting.requests().any(|other| other.id == request.id) {
            return Err(Error::DuplicateId(request.id));
        }
        Ok(())
    }

    fn tokenized(&mut self, tokens: Tokens) {
        // A request that was cancelled meanwhile is not waiting any more.
        if let Some((request, fate)) = self.waiting.take(&tokens) {
            self.admit(request, tokens.result, fate);
        }
    }

    fn admit(&mut self, mut request: Request, tokens: Result<Vec<u32>>, fate: Fate) {
        let id = request.id;
        let admitted = tokens.and_then(|tokens| {
            request.prompt = tokens;
            let prompt_tokens = request.prompt.len();
            self.engine.submit(request).map(|()| prompt_tokens)
        });
        match admitted {
            Ok(prompt_tokens) => self.emitter.accept(id, prompt_tokens),
            Err(error) => return self.emitter.error(id, &error),
        }
        if fate == Fate::Stop
            && let Ok(events) = self.engine.stop(id)
        {
            self.emit(events);
        }
    }

    /// SIGTERM ends every turn as by STOP and shuts down; SIGINT ends them and goes on.
    fn handle_signals(&mut self) {
        while let Some(signal) = self.input.take_signal() {
            if signal == Signal::Terminate {
                self.draining = true;
            }
            let waiting: Vec<u64> = self.waiting.requests().map(|request| request.id).collect();
            for id in waiting {
                self.waiting.cancel(id);
                self.emitter.cancelled(id);
            }
            for id in self.engine.active_ids() {
                if let Ok(events) = self.engine.stop(id) {
                    self.emit(events);
                }
            }
            if self.draining {
                // What is not written yet is as the process ends, if the drive answers.
                let events = self.engine.tell_all();
                self.emit(events);
            }
        }
    }

    fn emit(&mut self, events: Vec<Event>) {
        for event in events {
            self.emitter.event(event, self.engine);
        }
    }
}

/// Whether a request that waits ends request `id`.
fn ends(incoming: &Incoming, id: u64) -> bool {
    matches!(incoming, Incoming::Stop(other) | Incoming::Cancel(other) if *other == id)
}
