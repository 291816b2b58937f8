//! One step of an engine: which rows it computes, and what comes of them.

use std::time::{Duration, Instant};

use super::draft::{Source, continuation};
use super::sequence::{Sequence, Stage};
use super::wave::shares;
use super::{Engine, Event};
use crate::error::{Error, Result};
use crate::model::{Logits, Row};

/// A step of answers that takes no longer ends, whoever asks for what; its experts may hang on a drive.
const PATIENCE: Duration = Duration::from_secs(1);
/// Tokens that a prompt waits for if another is about to compute them.
const WORTH_WAITING: usize = 32;

/// What one sequence has in a step.
pub(super) struct Part {
    /// Place in [`Engine::active`].
    pub(super) index: usize,
    pub(super) rows: Vec<Row>,
    /// Of how many of the rows, the last ones, the logits are wanted.
    wanted: usize,
    /// Where the rows behind an answer's first come from.
    pub(super) source: Source,
}

/// What was computed for some parts.
struct Computed {
    /// `[rows that they are wanted of][vocab]`
    logits: Vec<f32>,
    /// `[rows][hidden]`, if the layer that drafts needs them.
    states: Vec<f32>,
}

impl Engine {
    /// One step: the next tokens of every sequence past its prompt, and a wave of prompt tokens.
    ///
    /// `interrupted(id)` is asked about each request between the layers and while experts are waited
    /// for, unless an answer is under way and has not waited for long; true abandons the step, which
    /// a later one begins anew.
    pub fn step(&mut self, interrupted: &mut dyn FnMut(u64) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        let mut ended: Vec<(u64, usize)> =
            self.active.iter().map(|seq| (seq.request.id, seq.request.slot)).collect();
        let answers = self.answers(interrupted);
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
        if !parts.is_empty() {
            self.compute(&parts, n_answers, &mut events, interrupted);
        }
        if events.iter().any(|event| matches!(event, Event::Done { .. })) {
            self.runner.save_history();
        }
        ended.retain(|(id, _)| self.active.iter().all(|seq| seq.request.id != *id));
        self.close(&ended, &mut events);
        self.save_ahead();
        events
    }

    /// Computes the parts, of which the first are so many answers, and lets their sequences go on.
    fn compute(
        &mut self,
        parts: &[Part],
        n_answers: usize,
        events: &mut Vec<Event>,
        interrupted: &mut dyn FnMut(u64) -> bool,
    ) {
        let ids: Vec<u64> = parts.iter().map(|part| self.active[part.index].request.id).collect();
        let start = Instant::now();
        let mut is_over = || {
            let is_asked = n_answers == 0 || start.elapsed() > PATIENCE;
            is_asked && ids.iter().any(|&id| interrupted(id))
        };
        match self.forward(parts, &mut is_over) {
            Ok(computed) => {
                self.note_time(parts, n_answers, start.elapsed());
                self.go_on(parts, &computed, events);
            }
            Err(Error::Interrupted) => {}
            // One sequence's fault must not end the others': each is tried alone.
            Err(_) if parts.len() > 1 => {
                for part in parts.chunks(1) {
                    match self.forward(part, &mut is_over) {
                        Err(Error::Interrupted) => break,
                        Ok(computed) => self.go_on(part, &computed, events),
                        Err(error) => self.active[part[0].index].fail(error, events),
                    }
                }
            }
            Err(error) => self.active[parts[0].index].fail(error, events),
        }
        self.active.retain(|seq| !matches!(seq.stage, Stage::Ended));
    }

    /// The next row of every answer, and those of its draft.
    fn answers(&mut self, interrupted: &mut dyn FnMut(u64) -> bool) -> Vec<Part> {
        let decoding = |seq: &Sequence| matches!(seq.stage, Stage::Decode { .. });
        let answers = self.active.iter().filter(|seq| decoding(seq)).count();
        self.drafting.begin_step();
        let (mut parts, mut asked, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for (index, seq) in self.active.iter_mut().enumerate().filter(|(_, seq)| decoding(seq)) {
            let first = seq.next_row(&self.runner);
            let layer_luck = *seq.layer_luck.get_or_insert_with(|| self.drafting.layer_luck());
            let most = self.drafting.most(seq.luck, layer_luck, answers);
            let left = seq.left() - 1;
            let mut rows = vec![first];
            if most.said.min(left) > 0 {
                let mut said = self.runner.slots[first.slot].tokens().to_vec();
                said.push(first.token);
                let draft = (first.position + 1..).zip(continuation(&said, most.said.min(left)));
                rows.extend(draft.map(|(position, &token)| Row { position, token, ..first }));
            }
            if rows.len() == 1 && most.layer.min(left) > 0 && !seq.unread.is_empty() {
                asked.push((parts.len(), most.layer.min(left)));
                ids.push(seq.request.id);
            }
            parts.push(Part { index, wanted: 1, rows, source: Source::Said });
        }
        let start = Instant::now();
        let mut is_over = || start.elapsed() > PATIENCE && ids.iter().any(|&id| interrupted(id));
        self.predict(&mut parts, &asked, &mut is_over);
        for part in &mut parts {
            part.wanted = part.rows.len();
        }
        parts
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

    /// Takes over what others have computed of a prompt since it was admitted, unless it has begun:
    /// prompts that start alike often come at the same time.
    fn reuse_again(&mut self, index: usize) {
        if self.done(index) == self.active[index].reused {
            let slot = self.active[index].request.slot;
            let prompt = std::mem::take(&mut self.active[index].request.prompt);
            self.active[index].reused = self.reuse(slot, &prompt);
            self.active[index].request.prompt = prompt;
        }
    }

    /// Tokens of a sequence that are in its slot.
    fn done(&self, index: usize) -> usize {
        self.runner.slots[self.active[index].request.slot].tokens().len()
    }

    /// Whether an older prompt is about to compute much of what this one begins with.
    fn is_computed_by_another(&self, index: usize) -> bool {
        let prompt = &self.active[index].request.prompt;
        let mut older = (0..index).filter(|&i| matches!(self.active[i].stage, Stage::Prefill));
        older.any(|other| {
            let pairs = prompt.iter().zip(&self.active[other].request.prompt);
            let shared = pairs.take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
            self.done(other) < shared && self.done(index) + WORTH_WAITING <= shared
        })
    }

    /// The wave of prompt tokens beside so many rows of answers.
    fn prompts(&mut self, answers: usize) -> Vec<Part> {
        let mut waiting: Vec<usize> = (0..self.active.len())
            .filter(|&index| matches!(self.active[index].stage, Stage::Prefill))
            .collect();
        if waiting.is_empty() {
            return Vec::new();
        }
        for &index in &waiting {
            self.reuse_again(index);
        }
        waiting.retain(|&index| !self.is_computed_by_another(index));
        let left: Vec<usize> = waiting
            .iter()
            .map(|&index| self.active[index].request.prompt.len() - self.done(index))
            .collect();
        let wanted = self.waves.most_tokens(answers, !self.runner.experts.holds_all());
        let rows = self.runner.most_rows(answers + wanted);
        let shares = shares(&left, rows.saturating_sub(answers).max(1));
        let parts = waiting.iter().zip(shares).filter(|&(_, share)| share > 0);
        parts
            .map(|(&index, share)| {
                let request = &self.active[index].request;
                let (slot, done) = (request.slot, self.done(index));
                let tokens = &request.prompt[done..done + share];
                let row = |(position, &token)| Row { slot, position, token };
                Part {
                    index,
                    rows: (done..).zip(tokens).map(row).collect(),
                    wanted: usize::from(done + share == request.prompt.len()),
                    source: Source::Said,
                }
            })
            .collect()
    }

    /// Computes the parts together.
    fn forward(
        &mut self,
        parts: &[Part],
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Computed> {
        let mut rows = Vec::new();
        let mut wanted = Vec::new();
        for part in parts {
            rows.extend_from_slice(&part.rows);
            wanted.extend(rows.len() - part.wanted..rows.len());
        }
        let mut states = Vec::new();
        let kept = self.drafting.has_layer().then_some(&mut states);
        let wanted = Logits::Of(&wanted);
        let logits = self.runner.forward_with_states(&rows, wanted, None, kept, interrupted)?;
        Ok(Computed { logits, states })
    }

    /// Lets the sequences go on with what was computed for them.
    fn go_on(&mut self, parts: &[Part], computed: &Computed, events: &mut Vec<Event>) {
        let decoder = &self.runner.model.decoder;
        let (hidden, vocab) = (decoder.embed.n_in, decoder.vocab());
        let mut logits = computed.logits.chunks_exact(vocab);
        let mut states = &computed.states[..];
        let mut prompts = Vec::new();
        for part in parts {
            let of_rows = states.split_off(..(part.rows.len() * hidden).min(states.len()));
            let of_rows = of_rows.unwrap_or_default();
            let sequence = &mut self.active[part.index];
            let mut logits = logits.by_ref().take(part.wanted);
            if matches!(sequence.stage, Stage::Prefill) {
                let done = part.rows[part.rows.len() - 1].position + 1;
                events.push(sequence.prefill_event(done));
                if let Some(logits) = logits.next() {
                    sequence.take_logits(logits, done, &self.tokenizer, &self.runner, events);
                }
                self.keep_states(part.index, of_rows);
                prompts.push(part.index);
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
                sequence.note_draft(part.source, kept - 1, part.rows.len() - 1);
                let slot = &mut self.runner.slots[sequence.request.slot];
                slot.truncate_to(part.rows[0].position + kept);
                if part.source == Source::Layer {
                    self.drafting.note_layer(kept - 1, part.rows.len() - 1);
                }
            }
            self.keep_states(part.index, &of_rows[..(kept * hidden).min(of_rows.len())]);
        }
        if self.drafting.has_layer() {
            self.take_in(&prompts);
        }
    }
}
