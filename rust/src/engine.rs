//! Requests on a loaded model: admission, prefill, batched decode, and what each turn cost.
//!
//! Owns: sequences in flight and their KV slots' use. Does not own: bytes on a wire (`mux`), the
//! forward pass (`model`).

mod sequence;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::model::{Logits, Row};
use crate::runner::{Runner, RunnerOptions};
use crate::sample::Sampling;
use crate::tokenizer::Tokenizer;
pub use sequence::{Decode, Turn};
use sequence::{Sequence, Stage};

/// Tokens prefilled in one step where nobody says otherwise: each expert is read once a step.
const PREFILL_CHUNK: usize = 512;
/// The same while answers are under way, which wait for that long.
const PREFILL_CHUNK_BESIDE: usize = 64;
/// A decode step that takes no longer ends, whoever asks for what; its experts may hang on a drive.
const DECODE_PATIENCE: Duration = Duration::from_secs(1);
/// Most tokens that may be asked for: what a step computes is in memory at once.
pub const MAX_PREFILL_CHUNK: usize = 1 << 16;

/// One generation request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Unique among the requests in flight.
    pub id: u64,
    /// KV slot.
    pub slot: usize,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// How its tokens are drawn.
    pub sampling: Sampling,
    /// Alternatives reported with each token.
    pub topk: usize,
    /// Tokens that end the turn besides the model's own.
    pub stop_ids: Vec<u32>,
    /// Whether the model's end tokens are generated like any other.
    pub ignore_eos: bool,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Its id.
    pub token: u32,
    /// Its text: whole characters, unless the output is invalid or ends within one.
    pub text: Vec<u8>,
    /// Logarithm of its probability at temperature 1; only where alternatives were asked for.
    pub logprob: Option<f32>,
    /// Most likely tokens, best first, with the logarithms of their probabilities.
    pub top: Vec<(u32, f32)>,
}

/// What a step brought about.
#[derive(Debug)]
pub enum Event {
    /// `done` of `total` prompt tokens are in the slot.
    Prefill {
        /// Request.
        id: u64,
        /// Tokens in the slot.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token.
    Token {
        /// Request.
        id: u64,
        /// The token.
        token: Generated,
    },
    /// The turn ended well.
    Done {
        /// Request.
        id: u64,
        /// What it cost.
        turn: Box<Turn>,
    },
    /// A fault ended the turn.
    Failed {
        /// Request.
        id: u64,
        /// The fault.
        error: Error,
    },
}

/// The tokenizer of the model folder `dir`.
///
/// # Errors
/// [`Error::FileMissing`], or what [`Tokenizer::load`] refuses.
pub fn load_tokenizer(dir: &Path) -> Result<Tokenizer> {
    let path = dir.join("tokenizer.json");
    if crate::store::is_there(&path) {
        return Tokenizer::load(&path);
    }
    if dir.join("tiktoken.model").is_file() {
        return Err(Error::Unsupported {
            what: "tiktoken.model as the only tokenizer".into(),
            hint: "put a tokenizer.json that was made from it into the folder".into(),
        });
    }
    Err(Error::FileMissing {
        path,
        hint: "copy the tokenizer.json that belongs to the model into the folder".into(),
    })
}

/// Refuses a tokenizer of `dir` with tokens outside the model's vocabulary.
///
/// # Errors
/// [`Error::BadFile`]
pub fn check_vocabulary(dir: &Path, tokenizer: &Tokenizer, vocab: usize) -> Result<()> {
    if tokenizer.vocab_size() <= vocab {
        return Ok(());
    }
    Err(Error::bad_file(
        dir.join("tokenizer.json"),
        format!(
            "has token ids up to {}, the model's vocabulary is {vocab}; it belongs to another model",
            tokenizer.vocab_size() - 1
        ),
    ))
}

/// A model that answers requests.
pub struct Engine {
    /// The model and its memory.
    pub runner: Runner,
    /// Text to tokens and back; shared with whoever encodes long prompts meanwhile.
    pub tokenizer: Arc<Tokenizer>,
    /// In order of admission.
    active: Vec<Sequence>,
    decode_steps: u64,
    /// Tokens prefilled in one step, if that was said.
    prefill_chunk: Option<usize>,
}

impl Engine {
    /// Loads the model folder `dir`; `progress` gets bytes done and in all.
    ///
    /// # Errors
    /// Those of [`Runner::load`], or a tokenizer that is unusable or knows ids the model has not.
    pub fn load(
        dir: &Path,
        options: &RunnerOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        // Small files first: a wrong tokenizer is told before the long read.
        crate::config::Config::open(dir)?;
        let tokenizer = load_tokenizer(dir)?;
        let runner = Runner::load(dir, options, progress)?;
        check_vocabulary(dir, &tokenizer, runner.model.decoder.vocab())?;
        Ok(Self {
            runner,
            tokenizer: Arc::new(tokenizer),
            active: Vec::new(),
            decode_steps: 0,
            prefill_chunk: None,
        })
    }

    /// Prefills at most `tokens` in one step, whatever else is under way.
    ///
    /// # Panics
    /// If that is not from 1 to [`MAX_PREFILL_CHUNK`].
    pub fn set_prefill_chunk(&mut self, tokens: usize) {
        assert!((1..=MAX_PREFILL_CHUNK).contains(&tokens), "a chunk of {tokens} tokens");
        self.prefill_chunk = Some(tokens);
    }

    /// What [`Self::set_prefill_chunk`] was told.
    pub fn prefill_chunk(&self) -> Option<usize> {
        self.prefill_chunk
    }

    /// Admits a request; the slot keeps what it shares with the prompt, as far as it can be gone back
    /// to, and forgets the rest.
    ///
    /// # Errors
    /// [`Error::BadRequest`], [`Error::SlotBusy`], [`Error::DuplicateId`],
    /// [`Error::EmptyPrompt`] or [`Error::ContextExceeded`], checked in this order; nothing has
    /// changed then.
    pub fn submit(&mut self, request: Request) -> Result<()> {
        self.check(&request)?;
        let ctx = self.runner.ctx;
        if request.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if request.prompt.len() > ctx - 1 {
            let tokens = request.prompt.len();
            return Err(Error::ContextExceeded { tokens, counted: true, limit: ctx - 1 });
        }
        let slot = &mut self.runner.slots[request.slot];
        let reused = slot.truncate_to(slot.common_prefix(&request.prompt));
        self.active.push(Sequence::new(request, reused, &self.runner));
        Ok(())
    }

    /// The checks that need no token count.
    ///
    /// # Errors
    /// See [`Self::submit`].
    pub fn check(&self, request: &Request) -> Result<()> {
        if request.slot >= self.runner.slots.len() {
            return Err(Error::BadRequest(format!("slot {} does not exist", request.slot)));
        }
        self.check_tokens(request)?;
        if self.active.iter().any(|seq| seq.request.slot == request.slot) {
            return Err(Error::SlotBusy(request.slot));
        }
        if self.active.iter().any(|seq| seq.request.id == request.id) {
            return Err(Error::DuplicateId(request.id));
        }
        Ok(())
    }

    /// Whether every token the request names is in the vocabulary: a check of its fields alone.
    ///
    /// # Errors
    /// [`Error::BadRequest`]
    pub fn check_tokens(&self, request: &Request) -> Result<()> {
        let vocab = self.runner.model.decoder.vocab();
        let biased = request.sampling.bias.iter().map(|(id, _)| id);
        let mut named = request.prompt.iter().chain(&request.stop_ids).chain(biased);
        match named.find(|&&id| id as usize >= vocab) {
            Some(id) => {
                Err(Error::BadRequest(format!("token {id} is outside the vocabulary of {vocab}")))
            }
            None => Ok(()),
        }
    }

    /// Ends a turn as a success.
    ///
    /// # Errors
    /// [`Error::NotFound`]
    pub fn stop(&mut self, id: u64) -> Result<Vec<Event>> {
        let sequence = self.take(id)?;
        let events = sequence.finish(&self.runner, false);
        self.runner.save_history();
        Ok(events)
    }

    /// Ends a turn without a result.
    ///
    /// # Errors
    /// [`Error::NotFound`]
    pub fn cancel(&mut self, id: u64) -> Result<()> {
        self.take(id).map(|_| ())
    }

    fn take(&mut self, id: u64) -> Result<Sequence> {
        let index = self.active.iter().position(|seq| seq.request.id == id);
        index.map(|index| self.active.remove(index)).ok_or(Error::NotFound(id))
    }

    /// Ids of the requests in flight, in order of admission.
    pub fn active_ids(&self) -> Vec<u64> {
        self.active.iter().map(|seq| seq.request.id).collect()
    }

    /// Decode steps since the engine started.
    pub fn decode_steps(&self) -> u64 {
        self.decode_steps
    }

    /// One decode step of every sequence past its prompt, then one prefill chunk of the first
    /// that is not.
    ///
    /// `interrupted(id)` is asked between the layers of a prefill chunk of request `id`, while experts
    /// are waited for, and in a decode step that takes long for each request in it; true abandons the
    /// chunk or the step, which a later one begins anew.
    pub fn step(&mut self, interrupted: &mut dyn FnMut(u64) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        if self.decode(&mut events, interrupted) {
            self.prefill(&mut events, interrupted);
        }
        if events.iter().any(|event| matches!(event, Event::Done { .. })) {
            self.runner.save_history();
        }
        events
    }

    /// False if it was abandoned.
    fn decode(
        &mut self,
        events: &mut Vec<Event>,
        interrupted: &mut dyn FnMut(u64) -> bool,
    ) -> bool {
        let decoding: Vec<usize> = (0..self.active.len())
            .filter(|&i| matches!(self.active[i].stage, Stage::Decode { .. }))
            .collect();
        if decoding.is_empty() {
            return true;
        }
        self.decode_steps += 1;
        let rows: Vec<Row> =
            decoding.iter().map(|&i| self.active[i].next_row(&self.runner)).collect();
        let vocab = self.runner.model.decoder.vocab();
        let ids: Vec<u64> = decoding.iter().map(|&i| self.active[i].request.id).collect();
        let began = Instant::now();
        let mut interrupted =
            || began.elapsed() > DECODE_PATIENCE && ids.iter().any(|&id| interrupted(id));
        match self.runner.forward(&rows, Logits::All, None, &mut interrupted) {
            Err(Error::Interrupted) => return false,
            Ok(logits) => {
                for (&i, logits) in decoding.iter().zip(logits.chunks_exact(vocab)) {
                    self.active[i].take_logits(logits, &self.tokenizer, &self.runner, events);
                }
            }
            // One sequence's fault must not end the others': each is tried alone.
            Err(_) if rows.len() > 1 => {
                for (&i, row) in decoding.iter().zip(rows) {
                    match self.runner.forward(&[row], Logits::All, None, &mut interrupted) {
                        Err(Error::Interrupted) => break,
                        Ok(logits) => self.active[i].take_logits(
                            &logits,
                            &self.tokenizer,
                            &self.runner,
                            events,
                        ),
                        Err(error) => self.active[i].fail(error, events),
                    }
                }
            }
            Err(error) => self.active[decoding[0]].fail(error, events),
        }
        self.active.retain(|seq| !matches!(seq.stage, Stage::Ended));
        true
    }

    fn prefill(&mut self, events: &mut Vec<Event>, interrupted: &mut dyn FnMut(u64) -> bool) {
        let answers = self.active.iter().any(|seq| matches!(seq.stage, Stage::Decode { .. }));
        let usual = if answers { PREFILL_CHUNK_BESIDE } else { PREFILL_CHUNK };
        let Some(seq) = self.active.iter_mut().find(|seq| matches!(seq.stage, Stage::Prefill))
        else {
            return;
        };
        let id = seq.request.id;
        let done = self.runner.slots[seq.request.slot].tokens().len();
        if done == seq.reused {
            events.push(seq.prefill_event(done));
        }
        let chunk = self.runner.most_rows(self.prefill_chunk.unwrap_or(usual));
        let end = seq.request.prompt.len().min(done + chunk);
        let rows: Vec<Row> = (done..end)
            .map(|position| Row {
                slot: seq.request.slot,
                position,
                token: seq.request.prompt[position],
            })
            .collect();
        let last = [rows.len() - 1];
        let is_last = end == seq.request.prompt.len();
        let wanted = if is_last { Logits::Of(&last) } else { Logits::Of(&[]) };
        match self.runner.forward(&rows, wanted, None, &mut || interrupted(id)) {
            Ok(logits) => {
                events.push(seq.prefill_event(end));
                if is_last {
                    seq.take_logits(&logits, &self.tokenizer, &self.runner, events);
                }
            }
            Err(Error::Interrupted) => {}
            Err(error) => seq.fail(error, events),
        }
        self.active.retain(|seq| !matches!(seq.stage, Stage::Ended));
    }
}
