//! The legacy protocol on stdin and stdout: one answer at a time, for terminals and old clients.
//!
//! Owns: the conversation of slot 0, what a line does, which STAT ends it. Does not own: syntax
//! (`read`), prompts from messages (`chat`), what a request does (`engine`), threads (`stdio`).
//! What was decided where the protocol leaves a choice: `docs/design/0007-legacy-mode.md`.

mod chat;
mod read;

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};

use crate::engine::{Engine, Event, Request, Turn};
use crate::error::{Error, Result};
use crate::experts::history::SAVE_LIMIT;
use crate::log::say;
use crate::mux::frame::{self, StatRecord, TurnRecord};
use crate::mux::{EXIT_BAD_FRAME, rss_gb, tiers_record};
use crate::sample::Sampling;
use crate::stdio::{Input, Interrupts, Output, Signal};
pub use chat::Chat;
use chat::{Message, stop_ids};
use read::{Incoming, LineReader, Prompt};

/// Most tokens of an answer where nothing else is asked for.
pub const DEFAULT_NGEN: u32 = 256;
/// What ends every answer.
const END: &[u8] = b"\x01\x01END\x01\x01\n";
/// Taken out of the model's text, so that it can never spell END.
const RESERVED: u8 = 0x01;
/// The one request in flight.
const REQUEST: u64 = 1;

/// How a session is served.
#[derive(Clone, Copy, Debug)]
pub struct LegacyOptions {
    /// Most tokens of an answer.
    pub ngen: u32,
    /// Temperature of text lines; none takes what the model suggests.
    pub temperature: Option<f64>,
    /// Probability mass of text lines; none takes what the model suggests.
    pub top_p: Option<f64>,
    /// Makes the draws of the session repeatable: the first turn's seed, then one more each.
    pub seed: Option<u64>,
}

/// Serves lines from stdin until it ends or SIGTERM comes; returns the exit code.
///
/// # Errors
/// [`Error::Io`] if signals cannot be handled or stdout is closed.
pub fn serve(engine: &mut Engine, chat: &Chat, options: &LegacyOptions) -> Result<i32> {
    let session = Session::start(engine, chat, options, std::io::stdin(), std::io::stdout());
    session.input.catch_signals(Interrupts::Single)?;
    session.serve()
}

/// Serves lines from `reader` until it ends; returns the exit code a process would have. Signals
/// are left alone, and the engine is idle again afterwards.
///
/// # Errors
/// [`Error::Io`] if `writer` fails.
pub fn serve_streams(
    engine: &mut Engine,
    chat: &Chat,
    options: &LegacyOptions,
    reader: impl Read + Send + 'static,
    writer: impl Write + Send + 'static,
) -> Result<i32> {
    Session::start(engine, chat, options, reader, writer).serve()
}

struct Session<'a> {
    engine: &'a mut Engine,
    chat: &'a Chat,
    options: &'a LegacyOptions,
    input: Input<LineReader, Infallible>,
    output: Output,
    /// What text lines and their answers said, in slot 0.
    conversation: Vec<Message>,
    /// The slot last addressed.
    active: usize,
    /// What MORE does.
    unfinished: Option<Request>,
    next_seed: u64,
    /// Set once the session has to end.
    exit_code: Option<i32>,
}

/// A turn that ended well.
struct Answer {
    text: Vec<u8>,
    turn: Box<Turn>,
    /// The request that goes on with it, unless the model has ended it.
    rest: Option<Request>,
}

impl<'a> Session<'a> {
    fn start(
        engine: &'a mut Engine,
        chat: &'a Chat,
        options: &'a LegacyOptions,
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
    ) -> Self {
        let input = Input::start(LineReader::new(engine.runner.slots.len()), reader);
        Self {
            output: Output::start(writer, input.terminating()),
            next_seed: options.seed.unwrap_or_else(|| RandomState::new().hash_one(REQUEST)),
            engine,
            chat,
            options,
            input,
            conversation: Vec::new(),
            active: 0,
            unfinished: None,
            exit_code: None,
        }
    }

    fn serve(mut self) -> Result<i32> {
        self.output.write(frame::write_ready);
        self.output.write(|out| frame::write_stat(out, &idle_stat()));
        let tiers = tiers_record(self.engine);
        self.output.write(|out| frame::write_tiers(out, &tiers));
        let code = self.run();
        self.output.finish().map(|()| code)
    }

    fn run(&mut self) -> i32 {
        loop {
            self.output.flush();
            self.input.poll();
            // There is no answer that SIGINT could end.
            while let Some(signal) = self.input.take_signal() {
                self.heed(signal);
            }
            if let Some(code) = self.exit_code {
                return code;
            }
            if self.output.is_closed() {
                return 0;
            }
            match self.input.take() {
                Some(incoming) => self.handle(incoming),
                None if self.input.ended() => return 0,
                None => self.input.wait(),
            }
        }
    }

    fn heed(&mut self, signal: Signal) {
        if signal == Signal::Terminate {
            self.exit_code = Some(0);
        }
    }

    fn handle(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Text(line) => self.text(line),
            Incoming::Prompt(prompt) => self.prompt(prompt),
            Incoming::More => self.more(),
            Incoming::Nothing => self.end(b"", |out| frame::write_stat(out, &idle_stat())),
            Incoming::Reset => {
                self.engine.forget(self.active);
                if self.active == 0 {
                    self.conversation.clear();
                }
                self.unfinished = None;
                self.end(b"", |out| frame::write_stat(out, &idle_stat()));
            }
            Incoming::RefusedTurn(detail) => self.refuse_turn(&Error::BadRequest(detail)),
            Incoming::RefusedCommand(detail) => self.refuse_command(&Error::BadRequest(detail)),
            Incoming::Lost(detail) => {
                say(format_args!("error: frame boundary lost: {detail}"));
                self.exit_code = Some(EXIT_BAD_FRAME);
            }
        }
    }

    fn text(&mut self, line: Vec<u8>) {
        self.conversation.push(Message { role: "user", content: line });
        let answer =
            self.chat.prompt(&self.conversation, &self.engine.tokenizer).and_then(|prompt| {
                let temperature = self.options.temperature.unwrap_or(self.chat.temperature);
                let top_p = self.options.top_p.unwrap_or(self.chat.top_p);
                let request = self.request(0, prompt, self.options.ngen, temperature, top_p);
                self.answer(request)
            });
        match answer {
            Ok(Answer { text, turn, rest }) => {
                self.conversation.push(Message { role: "assistant", content: text });
                self.active = 0;
                self.unfinished = rest;
                self.end(b"\n", |out| frame::write_turn_stat(out, &turn_record(&turn)));
            }
            Err(error) => {
                self.conversation.pop();
                self.refuse_turn(&error);
            }
        }
    }

    fn prompt(&mut self, prompt: Prompt) {
        let Prompt { slot, max_tokens, temperature, top_p, payload } = prompt;
        let max_tokens = max_tokens.min(self.options.ngen);
        let answer = self.engine.tokenizer.encode_bytes(&payload).and_then(|tokens| {
            let request = self.request(slot, tokens, max_tokens, temperature, top_p);
            self.answer(request)
        });
        match answer {
            Ok(Answer { turn, rest, .. }) => {
                if slot == 0 {
                    self.conversation.clear();
                }
                self.active = slot;
                self.unfinished = rest;
                self.end(b"", |out| frame::write_turn_stat(out, &turn_record(&turn)));
            }
            Err(error) => self.refuse_turn(&error),
        }
    }

    fn more(&mut self) {
        let Some(request) = self.unfinished.clone() else {
            return self.end(b"", |out| frame::write_stat(out, &idle_stat()));
        };
        match self.answer(Request { max_tokens: self.options.ngen as usize, ..request }) {
            Ok(Answer { text, turn, rest }) => {
                // An exact prompt in slot 0 leaves no conversation, one elsewhere is active itself.
                if self.active == 0
                    && let Some(message) = self.conversation.last_mut()
                {
                    message.content.extend(text);
                }
                self.unfinished = rest;
                self.end(b"\n", |out| frame::write_stat(out, &turn_record(&turn).stat));
            }
            Err(error) => self.refuse_command(&error),
        }
    }

    fn request(
        &mut self,
        slot: usize,
        prompt: Vec<u32>,
        max_tokens: u32,
        temperature: f64,
        top_p: f64,
    ) -> Request {
        let seed = self.next_seed;
        self.next_seed = seed.wrapping_add(1);
        Request {
            id: REQUEST,
            slot,
            prompt,
            max_tokens: max_tokens as usize,
            sampling: Sampling {
                temperature: temperature as f32,
                top_p: top_p as f32,
                seed,
                ..Sampling::default()
            },
            topk: 0,
            stop_ids: stop_ids(&self.engine.runner.model, &self.engine.tokenizer),
            ignore_eos: false,
        }
    }

    /// Runs a request and writes its text as it comes.
    ///
    /// # Errors
    /// Those of [`Engine::submit`], or the fault that ended it.
    fn answer(&mut self, request: Request) -> Result<Answer> {
        let mut rest = request.clone();
        self.engine.submit(request)?;
        let mut text = Vec::new();
        let mut stopped = false;
        loop {
            self.input.poll();
            let events = if let Some(signal) = self.input.take_signal() {
                self.heed(signal);
                stopped = true;
                self.engine.stop(REQUEST)?
            } else if self.output.is_closed() {
                stopped = true;
                self.engine.stop(REQUEST)?
            } else {
                let input = &mut self.input;
                self.engine.step(&mut |_| {
                    input.poll();
                    input.has_signal()
                })
            };
            for event in events {
                match event {
                    Event::Prefill { .. } => {}
                    Event::Token { token, .. } => {
                        rest.prompt.push(token.token);
                        let mut shown = token.text;
                        shown.retain(|byte| *byte != RESERVED);
                        self.output.write(|out| out.extend_from_slice(&shown));
                        self.output.flush();
                        text.extend(shown);
                    }
                    Event::Done { turn, .. } => {
                        if let Some(saved) = self.engine.runner.saved_history() {
                            self.output.after(move || saved.wait(SAVE_LIMIT));
                        }
                        let goes_on = stopped || turn.length_limited;
                        return Ok(Answer { text, turn, rest: goes_on.then_some(rest) });
                    }
                    Event::Failed { error, .. } => return Err(error),
                }
            }
        }
    }

    /// Ends what a line brought about.
    fn end(&mut self, before: &[u8], stat: impl FnOnce(&mut Vec<u8>)) {
        self.output.write(|out| {
            out.extend_from_slice(before);
            out.extend_from_slice(END);
            stat(out);
        });
    }

    fn refuse_turn(&mut self, error: &Error) {
        report(error);
        let record = TurnRecord { stat: idle_stat(), prompt_tokens: 0, length_limited: false };
        self.end(b"", |out| frame::write_turn_stat(out, &record));
    }

    fn refuse_command(&mut self, error: &Error) {
        report(error);
        self.end(b"", |out| frame::write_stat(out, &idle_stat()));
    }
}

/// Says on stderr why there is no answer; the protocol has no words for it. "request" tells it from
/// errors that end the process.
fn report(error: &Error) {
    say(format_args!("error: request: {error}"));
}

fn idle_stat() -> StatRecord {
    StatRecord { emitted: 0, tok_s: 0.0, hit_pct: 0.0, rss_gb: rss_gb() }
}

/// What a turn was; tokens a second count the prompt's time too, as old clients are used to.
fn turn_record(turn: &Turn) -> TurnRecord {
    let emitted = turn.emitted;
    let tok_s = if turn.wall_s > 0.0 { emitted as f64 / turn.wall_s } else { 0.0 };
    TurnRecord {
        stat: StatRecord {
            emitted: emitted as u64,
            tok_s,
            hit_pct: turn.traffic.uses.hit_pct(),
            rss_gb: rss_gb(),
        },
        prompt_tokens: turn.prompt_tokens as u64,
        length_limited: turn.length_limited,
    }
}
