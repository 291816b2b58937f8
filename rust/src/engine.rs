//! Requests on a loaded model: admission, prefill, batched decode, and what each turn cost.
//!
//! Owns: sequences in flight and their KV slots' use. Does not own: bytes on a wire (`mux`), the
//! forward pass (`model`).

mod draft;
mod predict;
mod sequence;
mod step;
#[cfg(test)]
mod tests;
mod wave;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::kv::{self, LayerLayout};
use crate::runner::{Runner, RunnerOptions};
use crate::sample::Sampling;
use crate::tokenizer::Tokenizer;
use draft::Drafting;
use sequence::Sequence;
pub use sequence::{Decode, Drafts, Turn};
use wave::Waves;

/// How long prompts may hold up answers where nobody says otherwise, in milliseconds.
pub const DEFAULT_STALL_MS: u32 = 250;
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
    /// A fault ended the turn, or [`Error::Interrupted`]: it was cancelled.
    Failed {
        /// Request.
        id: u64,
        /// The fault.
        error: Error,
    },
}

impl Event {
    /// Whether it is the last one of request `id`.
    fn ends(&self, id: u64) -> bool {
        match self {
            Self::Prefill { .. } | Self::Token { .. } => false,
            Self::Done { id: of, .. } | Self::Failed { id: of, .. } => *of == id,
        }
    }
}

/// A turn that has ended, whose conversation is being written.
struct Closing {
    id: u64,
    slot: usize,
    /// Of the saver.
    ticket: u64,
    /// What tells that it has ended.
    event: Event,
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
    /// In order of their ends.
    closing: Vec<Closing>,
    /// Slots whose conversation has come from another, and is not written yet.
    moved: Vec<usize>,
    decode_steps: u64,
    waves: Waves,
    drafting: Drafting,
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
        let mut drafting = Drafting::new(runner.model.decoder.mtp.is_some());
        // A state that took in a draft cannot be had without it.
        if runner.model.layouts().iter().any(|layout| matches!(layout, LayerLayout::State(_))) {
            drafting.turn_off();
        }
        Ok(Self {
            runner,
            tokenizer: Arc::new(tokenizer),
            active: Vec::new(),
            closing: Vec::new(),
            moved: Vec::new(),
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

    /// Admits a request; its slot keeps what it or another shares with the prompt, as far as it can
    /// be gone back to, and forgets the rest.
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
        let reused = self.reuse(request.slot, &request.prompt);
        self.active.push(Sequence::new(request, reused, &self.runner));
        Ok(())
    }

    /// Leaves in `slot` what any slot knows of the beginning of `prompt`; how many tokens.
    fn reuse(&mut self, slot: usize, prompt: &[u32]) -> usize {
        let active = &self.active;
        let is_idle = |slot| active.iter().all(|seq| seq.request.slot != slot);
        let reuse = kv::reuse(&mut self.runner.slots, slot, prompt, is_idle);
        if let Some(other) = reuse.exchanged.filter(|other| !self.moved.contains(other)) {
            self.moved.push(other);
        }
        reuse.tokens
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
        let slots = self.active.iter().map(|seq| seq.request.slot);
        if slots.chain(self.closing.iter().map(|turn| turn.slot)).any(|slot| slot == request.slot) {
            return Err(Error::SlotBusy(request.slot));
        }
        let ids = self.active.iter().map(|seq| seq.request.id);
        if ids.chain(self.closing.iter().map(|turn| turn.id)).any(|id| id == request.id) {
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

    /// Ends a turn as a success. Its last event may come with a later step.
    ///
    /// # Errors
    /// [`Error::NotFound`]
    pub fn stop(&mut self, id: u64) -> Result<Vec<Event>> {
        let sequence = self.take(id)?;
        let slot = sequence.request.slot;
        let mut events = sequence.finish(&self.runner, false);
        self.runner.save_history();
        self.close(&[(id, slot)], &mut events);
        Ok(events)
    }

    /// Ends a turn without a result. The event that tells so may come with a later step.
    ///
    /// # Errors
    /// [`Error::NotFound`]
    pub fn cancel(&mut self, id: u64) -> Result<Vec<Event>> {
        let slot = self.take(id)?.request.slot;
        let mut events = vec![Event::Failed { id, error: Error::Interrupted }];
        self.close(&[(id, slot)], &mut events);
        Ok(events)
    }

    /// Forgets the conversation of an idle slot, in its file too.
    pub fn forget(&mut self, slot: usize) {
        self.runner.slots[slot].truncate_to(0);
        if let Some(saver) = &mut self.runner.saver {
            let ticket = saver.save(slot, &self.runner.slots[slot]);
            saver.wait_for(ticket);
        }
    }

    fn take(&mut self, id: u64) -> Result<Sequence> {
        let index = self.active.iter().position(|seq| seq.request.id == id);
        index.map(|index| self.active.remove(index)).ok_or(Error::NotFound(id))
    }

    /// Whether nothing is in flight and nothing is left to tell.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty() && self.closing.is_empty()
    }

    /// Ids of the requests in flight, in order of admission.
    pub fn active_ids(&self) -> Vec<u64> {
        self.active.iter().map(|seq| seq.request.id).collect()
    }

    /// Decode steps since the engine started.
    pub fn decode_steps(&self) -> u64 {
        self.decode_steps
    }

    /// What is left to tell of turns that ended, though their conversations are not written yet.
    pub fn tell_all(&mut self) -> Vec<Event> {
        self.closing.drain(..).map(|turn| turn.event).collect()
    }

    /// Has what is complete of a conversation under way written, so that the end of its turn has
    /// little to wait for: of the one that has most of it, unless any is being written.
    fn save_ahead(&mut self) {
        let Some(saver) = &mut self.runner.saver else { return };
        let slots = &self.runner.slots;
        let under_way = self.active.iter().map(|seq| {
            let (slot, prompt) = (seq.request.slot, seq.request.prompt.len());
            (saver.blocks_ahead(slot, slots[slot].tokens().len()), slot, prompt)
        });
        let Some((1.., slot, prompt)) = under_way.max() else { return };
        // What the file holds may be all that there is of one that was exchanged for this.
        for moved in self.moved.drain(..) {
            saver.save(moved, &slots[moved]);
        }
        saver.save_ahead(slot, &slots[slot], prompt);
    }

    /// Has the conversations of turns that `ended` (id and slot) written, and takes what tells so out
    /// of `events` until they are. While nothing else is under way, that is waited for.
    fn close(&mut self, ended: &[(u64, usize)], events: &mut Vec<Event>) {
        let Some(saver) = &mut self.runner.saver else { return };
        for &(id, slot) in ended {
            for moved in self.moved.drain(..).filter(|&moved| moved != slot) {
                saver.save(moved, &self.runner.slots[moved]);
            }
            let ticket = saver.save(slot, &self.runner.slots[slot]);
            let last = events.iter().rposition(|event| event.ends(id));
            let event = events.remove(last.expect("a turn that ended tells so"));
            self.closing.push(Closing { id, slot, ticket, event });
        }
        while let Some(first) = self.closing.first() {
            if self.active.is_empty() && !saver.is_written(first.ticket) {
                saver.wait_briefly();
            }
            if !saver.is_written(first.ticket) {
                return;
            }
            events.push(self.closing.remove(0).event);
        }
    }
}
