//! Requests on a loaded model: admission, prefill, batched decode, and what each turn cost.
//!
//! Owns: sequences in flight and their KV slots' use. Does not own: bytes on a wire (`mux`), the
//! forward pass (`model`).

mod draft;
mod sequence;
#[cfg(test)]
mod tests;
mod wave;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::kv::LayerLayout;
use crate::model::{Logits, Row};
use crate::runner::{Runner, RunnerOptions};
use crate::sample::Sampling;
use crate::tokenizer::Tokenizer;
use draft::{Drafting, continuation};
pub use sequence::{Decode, Drafts, Turn};
use sequence::{Sequence, Stage};
use wave::{Waves, shares};

/// How long prompts may hold up answers where nobody says otherwise, in milliseconds.
pub const DEFAULT_STALL_MS: u32 = 250;
/// A step of answers that takes no longer ends, whoever asks for what; its experts may hang on a drive.
const PATIENCE: Duration = Duration::from_secs(1);
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
    waves: Waves,
    drafting: Drafting,
}

/// What one sequence has in a step.
struct Part {
    /// Place in [`Engine::active`].
    index: usize,
    rows: Vec<Row>,
    /// Of how many of the rows, the last ones, the logits are wanted.
    wanted: usize,
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
        let mut drafting = Drafting::default();
        // A state that took in a draft cannot be had without it.
        if runner.model.layouts().iter().any(|layout| matches!(layout, LayerLayout::State(_))) {
            drafting.turn_off();
        }
        Ok(Self {
            runner,
            tokenizer: Arc::new(tokenizer),
            active: Vec::new(),
            decode_steps: 0,
            waves: Waves::new(Duration::from_millis(DEFAULT_STALL_MS.into())),
            drafting,
        })
    }

    /// Prefills at most `tokens` in one step, whatever else is under way.
    ///
    /// # Panics
    /// If that is not from 1 to [`MAX_PREFILL_CHUNK`].
    pub fn set_prefill_chunk(&mut self, tokens: usize) {
        assert!((1..=MAX_PREFILL_CHUNK).contains(&tokens), "a chunk of {tokens} tokens");
        self.waves.fixed = Some(tokens);
    }

    /// What [`Self::set_prefill_chunk`] was told.
    pub fn prefill_chunk(&self) -> Option<usize> {
        self.waves.fixed
    }

    /// Holds up answers for about as long at most, whatever prompts come.
    pub fn set_stall(&mut self, stall: Duration) {
        self.waves.stall = stall;
    }

    /// Computes no token before it is certain that it is needed.
    pub fn never_draft(&mut self) {
        self.drafting.turn_off();
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

    /// One step: the next tokens of every sequence past its prompt, and a wave of prompt tokens.
    ///
    /// `interrupted(id)` is asked about each request between the layers and while experts are waited
    /// for, unless an answer is under way and has not waited for long; true abandons the step, which
    /// a later one begins anew.
    pub fn step(&mut self, interrupted: &mut dyn FnMut(u64) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        let answers = self.answers();
        let prompts = self.prompts(answers.iter().map(|part| part.rows.len()).sum());
        for part in &prompts {
            let sequence = &self.active[part.index];
            if part.rows[0].position == sequence.reused {
                events.push(sequence.prefill_event(sequence.reused));
            }
        }
        self.decode_steps += u64::from(!answers.is_empty());
        let n_answers = answers.len();
        let parts: Vec<Part> = answers.into_iter().chain(prompts).collect();
        if parts.is_empty() {
            return events;
        }
        let ids: Vec<u64> = parts.iter().map(|part| self.active[part.index].request.id).collect();
        let start = Instant::now();
        let mut is_over = || {
            let is_asked = n_answers == 0 || start.elapsed() > PATIENCE;
            is_asked && ids.iter().any(|&id| interrupted(id))
        };
        match self.forward(&parts, &mut is_over) {
            Ok(logits) => {
                self.note_time(&parts, n_answers, start.elapsed());
                self.go_on(&parts, &logits, &mut events);
            }
            Err(Error::Interrupted) => {}
            // One sequence's fault must not end the others': each is tried alone.
            Err(_) if parts.len() > 1 => {
                for part in parts.chunks(1) {
                    match self.forward(part, &mut is_over) {
                        Err(Error::Interrupted) => break,
                        Ok(logits) => self.go_on(part, &logits, &mut events),
                        Err(error) => self.active[part[0].index].fail(error, &mut events),
                    }
                }
            }
            Err(error) => self.active[parts[0].index].fail(error, &mut events),
        }
        self.active.retain(|seq| !matches!(seq.stage, Stage::Ended));
        if events.iter().any(|event| matches!(event, Event::Done { .. })) {
            self.runner.save_history();
        }
        events
    }

    /// The next row of every answer, and those of its draft.
    fn answers(&mut self) -> Vec<Part> {
        let decoding = |seq: &Sequence| matches!(seq.stage, Stage::Decode { .. });
        let answers = self.active.iter().filter(|seq| decoding(seq)).count();
        self.drafting.begin_step();
        let active = self.active.iter().enumerate().filter(|(_, seq)| decoding(seq));
        active
            .map(|(index, seq)| {
                let first = seq.next_row(&self.runner);
                let most = self.drafting.most(seq.luck, answers).min(seq.left() - 1);
                let mut rows = vec![first];
                if most > 0 {
                    let mut said = self.runner.slots[first.slot].tokens().to_vec();
                    said.push(first.token);
                    let draft = (first.position + 1..).zip(continuation(&said, most));
                    rows.extend(draft.map(|(position, &token)| Row { position, token, ..first }));
                }
                Part { index, wanted: rows.len(), rows }
            })
            .collect()
    }

    /// Notes how long a step took whose first parts are answers.
    fn note_time(&mut self, parts: &[Part], answers: usize, time: Duration) {
        let (answering, prompts) = parts.split_at(answers);
        let rows = |parts: &[Part]| parts.iter().map(|part| part.rows.len()).sum::<usize>();
        if prompts.is_empty() {
            self.drafting.end_step(answers, rows(answering) - answers, time);
        } else {
            self.waves.end_step(rows(prompts), time);
        }
    }

    /// The wave of prompt tokens beside so many rows of answers.
    fn prompts(&self, answers: usize) -> Vec<Part> {
        let waiting: Vec<usize> = (0..self.active.len())
            .filter(|&index| matches!(self.active[index].stage, Stage::Prefill))
            .collect();
        if waiting.is_empty() {
            return Vec::new();
        }
        let done = |index: usize| self.runner.slots[self.active[index].request.slot].tokens().len();
        let left: Vec<usize> = waiting
            .iter()
            .map(|&index| self.active[index].request.prompt.len() - done(index))
            .collect();
        let wanted = self.waves.most_tokens(answers, !self.runner.experts.holds_all());
        let rows = self.runner.most_rows(answers + wanted);
        let shares = shares(&left, rows.saturating_sub(answers).max(1));
        let parts = waiting.iter().zip(shares).filter(|&(_, share)| share > 0);
        parts
            .map(|(&index, share)| {
                let request = &self.active[index].request;
                let (slot, done) = (request.slot, done(index));
                let tokens = &request.prompt[done..done + share];
                let row = |(position, &token)| Row { slot, position, token };
                Part {
                    index,
                    rows: (done..).zip(tokens).map(row).collect(),
                    wanted: usize::from(done + share == request.prompt.len()),
                }
            })
            .collect()
    }

    /// Computes the parts together; the logits `[rows that they are wanted of][vocab]`.
    fn forward(
        &mut self,
        parts: &[Part],
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>> {
        let mut rows = Vec::new();
        let mut wanted = Vec::new();
        for part in parts {
            rows.extend_from_slice(&part.rows);
            wanted.extend(rows.len() - part.wanted..rows.len());
        }
        self.runner.forward(&rows, Logits::Of(&wanted), None, interrupted)
    }

    /// Lets the sequences go on with what was computed for them.
    fn go_on(&mut self, parts: &[Part], logits: &[f32], events: &mut Vec<Event>) {
        let mut logits = logits.chunks_exact(self.runner.model.decoder.vocab());
        for part in parts {
            let sequence = &mut self.active[part.index];
            let mut logits = logits.by_ref().take(part.wanted);
            if matches!(sequence.stage, Stage::Prefill) {
                let done = part.rows[part.rows.len() - 1].position + 1;
                events.push(sequence.prefill_event(done));
                if let Some(logits) = logits.next() {
                    sequence.take_logits(logits, done, &self.tokenizer, &self.runner, events);
                }
                continue;
            }
            // A row serves as long as its token is the one that was drawn.
            let mut kept = 0;
            for (row, logits) in part.rows.iter().zip(&mut logits) {
                if !matches!(sequence.stage, Stage::Decode { token } if token == row.token) {
                    break;
                }
                kept += 1;
                let done = row.position + 1;
                sequence.take_logits(logits, done, &self.tokenizer, &self.runner, events);
            }
            logits.for_each(drop);
            if part.rows.len() > 1 {
                sequence.note_draft(kept - 1, part.rows.len() - 1);
                let slot = &mut self.runner.slots[sequence.request.slot];
                slot.truncate_to(part.rows[0].position + kept);
            }
        }
    }
}
