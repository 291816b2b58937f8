//! Drafts by the model's own layer: when it is asked, and what it is told of conversations.
//!
//! The states that it needs are kept until it is: of answers it takes them in together with the next
//! draft, of prompts after each wave, unless its drafts do not pay. Then it knows less, which
//! decides how often it is right and nothing else.

use std::time::Instant;

use super::Engine;
use super::draft::Source;
use super::step::Part;
use crate::error::{Error, one_line};
use crate::log::say;
use crate::model::Row;

/// Most states of an answer that are kept while the layer is not asked.
const MOST_UNREAD: usize = 64;

impl Engine {
    /// Has the layer draft: a place in `parts`, and how many tokens for it at most.
    pub(super) fn predict(
        &mut self,
        parts: &mut [Part],
        asked: &[(usize, usize)],
        interrupted: &mut dyn FnMut() -> bool,
    ) {
        if asked.is_empty() {
            return;
        }
        let lengths: Vec<usize> = asked.iter().map(|&(_, length)| length).collect();
        let of = |&(part, _): &(usize, usize)| parts[part].index;
        let unread: Vec<_> =
            asked.iter().map(|asked| self.active[of(asked)].unread(&self.runner, true)).collect();
        let start = Instant::now();
        let drafts = self.runner.predict(&unread, &lengths, interrupted);
        match drafts {
            Ok(drafts) => {
                let drafted = lengths.iter().sum();
                self.drafting.end_drafting(parts.len(), drafted, start.elapsed());
                for (&(part, _), draft) in asked.iter().zip(drafts) {
                    let Part { index, rows, source, .. } = &mut parts[part];
                    self.active[*index].unread.clear();
                    *source = Source::Layer;
                    let first = rows[0];
                    let row = |(position, token)| Row { position, token, ..first };
                    rows.extend((first.position + 1..).zip(draft).map(row));
                }
            }
            Err(Error::Interrupted) => {}
            Err(error) => {
                self.drafting.lose_layer();
                let reason = one_line(&error);
                say(format_args!(
                    "notice: the model's own layer for drafts is not used any more: {reason}"
                ));
            }
        }
    }

    /// Keeps of the `states` `[n][hidden]` after the tokens that the sequence in place `index` has
    /// now what the layer has to take in.
    pub(super) fn keep_states(&mut self, index: usize, states: &[f32]) {
        let hidden = self.runner.model.decoder.embed.n_in;
        let sequence = &mut self.active[index];
        sequence.unread.extend_from_slice(states);
        sequence.keep_unread(MOST_UNREAD.max(states.len() / hidden + 1), hidden);
    }

    /// Has the layer take in all of the sequences in these places but their last tokens, if it pays.
    pub(super) fn take_in(&mut self, prompts: &[usize]) {
        let hidden = self.runner.model.decoder.embed.n_in;
        if self.drafting.layer_pays() {
            let unread = |&index: &usize| self.active[index].unread(&self.runner, false);
            let unread: Vec<_> = prompts.iter().map(unread).collect();
            self.runner.take_in(&unread);
        }
        for &index in prompts {
            self.active[index].keep_unread(1, hidden);
        }
    }
}
