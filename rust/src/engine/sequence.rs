//! One request in flight: its stage, its text, its statistics.

use std::time::Instant;

use super::draft::{Luck, Source};
use super::{Event, Generated, Request};
use crate::error::Error;
use crate::kernels::top_k;
use crate::model::Row;
use crate::runner::{Runner, Unread};
use crate::sample::{logprobs, sample};
use crate::store::DriveUse;
use crate::telemetry::{Phases, Traffic, entropy_bits};
use crate::tokenizer::{Tokenizer, Utf8Stream};

/// Where a sequence stands.
pub enum Stage {
    /// Part of the prompt is not in the slot yet.
    Prefill,
    /// The next forward takes this token.
    Decode {
        /// Sampled last.
        token: u32,
    },
    /// Its last event is out.
    Ended,
}

/// A request in flight.
pub struct Sequence {
    pub request: Request,
    pub stage: Stage,
    /// Prompt tokens that were in the slot already.
    pub reused: usize,
    /// Most tokens to generate, context considered.
    limit: usize,
    emitted: usize,
    /// How often drafts of what was said are right.
    pub luck: Luck,
    /// The same of those by the model's own layer, once it has been asked.
    pub layer_luck: Option<Luck>,
    /// States of the last tokens of the slot, `[n][hidden]`, that the layer has not taken in.
    pub unread: Vec<f32>,
    drafts: Drafts,
    text: Utf8Stream,
    /// A token whose text ends within a character; it goes out once its successor is known, so
    /// that the last token of a turn can carry what is left.
    held: Option<Generated>,
    start: Snapshot,
    /// Set when the prompt is in the slot.
    decode_start: Option<DecodeStart>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// Counters when the turn began.
struct Snapshot {
    time: Instant,
    phases: Phases,
    traffic: Traffic,
    drives: Vec<DriveUse>,
    counts: Vec<u64>,
}

impl Snapshot {
    fn take(runner: &Runner) -> Self {
        Self {
            time: Instant::now(),
            phases: runner.phases,
            traffic: runner.experts.traffic(),
            drives: runner.model.catalog.drives(),
            counts: runner.experts.heat().counts().to_vec(),
        }
    }
}

/// Counters when the prompt was in the slot.
struct DecodeStart {
    time: Instant,
    phases: Phases,
    forwards: u64,
}

impl DecodeStart {
    fn take(runner: &Runner) -> Self {
        Self { time: Instant::now(), phases: runner.phases, forwards: runner.forwards }
    }
}

/// What a turn cost after its prompt; nothing if it ended before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decode {
    /// Seconds.
    pub wall_s: f64,
    /// Time by phase, engine-wide.
    pub phases: Phases,
    /// Forward passes, engine-wide.
    pub forwards: u64,
}

/// Tokens that were computed before it was certain that they are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    /// Of all.
    pub drafted: u64,
    /// Of those that were needed.
    pub right: u64,
}

/// What a finished turn was and cost.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Generated tokens.
    pub emitted: usize,
    /// Tokens a second between the first and the last token.
    pub decode_tps: f64,
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// Whether the token limit or the context ended the turn.
    pub length_limited: bool,
    /// Seconds from admission to the end.
    pub wall_s: f64,
    /// Time by phase, engine-wide over the turn.
    pub phases: Phases,
    /// How uses of experts were served, engine-wide over the turn.
    pub traffic: Traffic,
    /// What experts were read from over the turn; nothing without mirrors.
    pub drives: Vec<DriveUse>,
    /// The part after the prompt.
    pub decode: Decode,
    /// What was drafted for it.
    pub drafts: Drafts,
    /// Entropy in bits of each sparse layer's routed selections over the turn.
    pub entropy: Vec<f64>,
}

impl Sequence {
    pub fn new(request: Request, reused: usize, runner: &Runner) -> Self {
        Self {
            limit: request.max_tokens.min(runner.ctx - request.prompt.len()),
            request,
            stage: Stage::Prefill,
            reused,
            emitted: 0,
            luck: Luck::default(),
            layer_luck: None,
            unread: Vec::new(),
            drafts: Drafts::default(),
            text: Utf8Stream::new(),
            held: None,
            start: Snapshot::take(runner),
            decode_start: None,
            first_token: None,
            last_token: None,
        }
    }

    /// The row that continues a sequence past its prompt.
    pub fn next_row(&self, runner: &Runner) -> Row {
        let Stage::Decode { token } = self.stage else {
            panic!("only a decoding sequence has a next row");
        };
        let slot = self.request.slot;
        Row { slot, position: runner.slots[slot].tokens().len(), token }
    }

    pub fn prefill_event(&self, done: usize) -> Event {
        Event::Prefill { id: self.request.id, done, total: self.request.prompt.len() }
    }

    /// Tokens that are still to be generated at most, the one drawn last not counted.
    pub fn left(&self) -> usize {
        self.limit - self.emitted
    }

    /// What the layer that drafts has not taken in, with the tokens after it: those of the slot and, of
    /// an answer whose last state is to be taken in too, the one drawn last.
    pub fn unread(&self, runner: &Runner, with_last: bool) -> Unread<'_> {
        let hidden = runner.model.decoder.embed.n_in;
        let slot = self.request.slot;
        let tokens = runner.slots[slot].tokens();
        let first = tokens.len() + 1 - self.unread.len() / hidden;
        let mut next = tokens.get(first..).unwrap_or_default().to_vec();
        if let Stage::Decode { token } = self.stage
            && with_last
        {
            next.push(token);
        }
        Unread { slot, states: &self.unread[..next.len() * hidden], next }
    }

    /// Forgets what the layer has not taken in, but for the last `n` tokens.
    pub fn keep_unread(&mut self, n: usize, hidden: usize) {
        self.unread.drain(..self.unread.len().saturating_sub(n * hidden));
    }

    /// Notes that `right` of `drafted` tokens were needed.
    pub fn note_draft(&mut self, source: Source, right: usize, drafted: usize) {
        match (source, &mut self.layer_luck) {
            (Source::Layer, Some(luck)) => luck.note(right, drafted),
            _ => self.luck.note(right, drafted),
        }
        self.drafts.right += right as u64;
        self.drafts.drafted += drafted as u64;
    }

    /// Draws the next token from the logits `[vocab]` of the last of the first `done` tokens of its
    /// slot, and emits it or ends the turn.
    pub fn take_logits(
        &mut self,
        logits: &[f32],
        done: usize,
        tokenizer: &Tokenizer,
        runner: &Runner,
        events: &mut Vec<Event>,
    ) {
        self.decode_start.get_or_insert_with(|| DecodeStart::take(runner));
        let request = &self.request;
        let answer = &runner.slots[request.slot].tokens()[request.prompt.len()..done];
        let token = sample(runner.kernels(), logits, &request.sampling, &request.prompt, answer);
        let is_eos = !request.ignore_eos && runner.model.eos_ids.contains(&token);
        if is_eos || request.stop_ids.contains(&token) {
            self.end(runner, false, events);
            return;
        }
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.emitted += 1;
        let (logprob, top) = alternatives(logits, token, request.topk);
        let id = request.id;
        events.extend(self.held.take().map(|token| Event::Token { id, token }));
        let text = self.text.push(tokenizer.token_bytes(token));
        let generated = Generated { token, text, logprob, top };
        if self.text.is_empty() {
            events.push(Event::Token { id, token: generated });
        } else {
            self.held = Some(generated);
        }
        if self.emitted == self.limit {
            self.end(runner, true, events);
        } else {
            self.stage = Stage::Decode { token };
        }
    }

    /// The last events of a turn that ends as a success.
    pub fn finish(mut self, runner: &Runner, length_limited: bool) -> Vec<Event> {
        let mut events = Vec::new();
        self.end(runner, length_limited, &mut events);
        events
    }

    pub fn fail(&mut self, error: Error, events: &mut Vec<Event>) {
        self.stage = Stage::Ended;
        events.push(Event::Failed { id: self.request.id, error });
    }

    fn end(&mut self, runner: &Runner, length_limited: bool, events: &mut Vec<Event>) {
        self.stage = Stage::Ended;
        let id = self.request.id;
        if let Some(mut token) = self.held.take() {
            token.text.extend(self.text.flush());
            events.push(Event::Token { id, token });
        }
        events.push(Event::Done { id, turn: Box::new(self.turn(runner, length_limited)) });
    }

    fn turn(&self, runner: &Runner, length_limited: bool) -> Turn {
        let now = Snapshot::take(runner);
        let decode_s = match (self.first_token, self.last_token) {
            (Some(first), Some(last)) => (last - first).as_secs_f64(),
            _ => 0.0,
        };
        let since: Vec<u64> =
            now.counts.iter().zip(&self.start.counts).map(|(now, then)| now - then).collect();
        let (_, cols) = runner.experts.geometry();
        Turn {
            emitted: self.emitted,
            decode_tps: if self.emitted > 1 && decode_s > 0.0 {
                (self.emitted - 1) as f64 / decode_s
            } else {
                0.0
            },
            prompt_tokens: self.request.prompt.len(),
            length_limited,
            wall_s: (now.time - self.start.time).as_secs_f64(),
            phases: now.phases.since(&self.start.phases),
            traffic: now.traffic.since(&self.start.traffic),
            drives: now
                .drives
                .iter()
                .zip(&self.start.drives)
                .map(|(now, then)| DriveUse { bytes: now.bytes - then.bytes, ..*now })
                .collect(),
            decode: self.decode_start.as_ref().map_or_else(Decode::default, |start| Decode {
                wall_s: (now.time - start.time).as_secs_f64(),
                phases: now.phases.since(&start.phases),
                forwards: runner.forwards - start.forwards,
            }),
            drafts: self.drafts,
            entropy: since
                .chunks(cols.max(1))
                .map(|row| entropy_bits(row.iter().copied()))
                .collect(),
        }
    }
}

/// Log-probabilities of the drawn token and of the `k` most likely ones; nothing for k = 0.
fn alternatives(logits: &[f32], token: u32, k: usize) -> (Option<f32>, Vec<(u32, f32)>) {
    if k == 0 {
        return (None, Vec::new());
    }
    let best = top_k(logits, k);
    let ids = std::iter::once(token).chain(best.iter().map(|&i| i as u32));
    let mut logprobs = logprobs(logits, ids).into_iter();
    let own = logprobs.next();
    (own, best.into_iter().map(|i| i as u32).zip(logprobs).collect())
}
