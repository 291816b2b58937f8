//! The layer that predicts further tokens, on the slots: what it takes in, and drafts made by it.

use super::Runner;
use crate::error::Result;
use crate::kernels::top_k;
use crate::model::Row;

/// What the layer that predicts has not taken in of a conversation.
pub struct Unread<'a> {
    /// The conversation's slot.
    pub slot: usize,
    /// States of successive tokens, `[n][hidden]`.
    pub states: &'a [f32],
    /// The token after each of them.
    pub next: Vec<u32>,
}

impl Unread<'_> {
    /// Rows of the layer, which counts by itself.
    fn rows(&self, runner: &Runner) -> Vec<Row> {
        let first = runner.slots[self.slot].drafting();
        let row = |(i, &token)| Row { slot: self.slot, position: first + i, token };
        self.next.iter().enumerate().map(row).collect()
    }
}

impl Runner {
    /// Has the layer that predicts take in what it has not, of slots that are all different.
    ///
    /// # Panics
    /// If the model has no such layer.
    pub fn take_in(&mut self, unread: &[Unread]) {
        let rows: Vec<Row> = unread.iter().flat_map(|unread| unread.rows(self)).collect();
        let states: Vec<&[f32]> = unread.iter().map(|unread| unread.states).collect();
        self.write_keys(&rows, &states.concat());
        for Unread { slot, next, .. } in unread {
            self.slots[*slot].commit_drafting(next.len());
        }
    }

    fn write_keys(&mut self, rows: &[Row], states: &[f32]) {
        if rows.is_empty() {
            return;
        }
        self.make_room(&[], rows.len(), 0);
        let mut never = || false;
        self.with_step(rows, None, None, &mut never, |decoder, step| decoder.take_in(step, states));
    }

    /// As [`Self::take_in`]; and predicts what follows each, `lengths` tokens. All of one take part
    /// in what is predicted for it next, as if they had been said.
    ///
    /// # Errors
    /// Those of [`crate::model::Decoder::forward`]; nothing was taken in then.
    ///
    /// # Panics
    /// If the model has no such layer, or there is nothing to be taken in of a conversation.
    pub fn predict(
        &mut self,
        unread: &[Unread],
        lengths: &[usize],
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Vec<u32>>> {
        let (hidden, vocab) = (self.model.decoder.embed.n_in, self.model.decoder.vocab());
        let (mut known, mut rows) = (Vec::new(), Vec::new());
        let (mut known_states, mut states) = (Vec::new(), Vec::new());
        for unread in unread {
            known.extend(unread.rows(self));
            rows.extend(known.pop());
            let (before, last) = unread.states.split_at(unread.states.len() - hidden);
            known_states.extend_from_slice(before);
            states.extend_from_slice(last);
        }
        self.write_keys(&known, &known_states);
        let mut drafts = vec![Vec::new(); unread.len()];
        // Whose drafts the rows are of.
        let mut of: Vec<usize> = (0..unread.len()).collect();
        loop {
            let more = |i: usize| drafts[i].len() < lengths[i];
            let going: Vec<usize> = (0..of.len()).filter(|&row| more(of[row])).collect();
            states =
                going.iter().flat_map(|&row| &states[row * hidden..][..hidden]).copied().collect();
            rows = going.iter().map(|&row| rows[row]).collect();
            of = going.iter().map(|&row| of[row]).collect();
            if of.is_empty() {
                break;
            }
            self.make_room(&[], rows.len(), rows.len());
            let predicted = self.with_step(&rows, None, None, interrupted, |decoder, step| {
                decoder.predict(step, &states)
            })?;
            states = predicted.states;
            for (row, (&i, logits)) in
                rows.iter_mut().zip(of.iter().zip(predicted.logits.chunks_exact(vocab)))
            {
                let token = top_k(logits, 1)[0] as u32;
                drafts[i].push(token);
                *row = Row { position: row.position + 1, token, ..*row };
            }
        }
        for Unread { slot, next, .. } in unread {
            self.slots[*slot].commit_drafting(next.len());
        }
        Ok(drafts)
    }
}

#[cfg(test)]
mod tests;
