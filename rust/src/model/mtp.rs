//! The layer behind the last one that predicts a token more (multi-token prediction, `DeepSeek-V3`,
//! 2024, section 2.2): from the state at a token and the token after it, the one after that.
//!
//! x = proj [norm(embedding of the next token) | norm(state)]    state: after the final norm
//! y = one decoder layer                                         with keys of its own
//! logits = head . norm(y)
//!
//! Its layer counts positions by itself, in each slot: what it was not asked for is left out, and
//! the others follow one another ([`crate::kv::KvSlot::drafting`]). It needs of a token that it does
//! not draft for the keys alone, which take neither its attention nor its experts. Owns: its
//! arithmetic. Does not own: when it is asked (`engine`).

use super::decoder::{Decoder, Layer};
use super::ffn::Ffn;
use super::loader::{Loader, MAX_LAYERS, Pass};
use super::survey::Findings;
use super::{Step, check_finite};
use crate::error::Result;
use crate::experts::ExpertSource;
use crate::matrix::Matrix;
use crate::telemetry::timed;

/// Weights of the layer and what is around it.
pub struct Mtp {
    /// Norm of the next token's embedding, `[hidden]`.
    pub embed_norm: Vec<f32>,
    /// Norm of the state, `[hidden]`.
    pub state_norm: Vec<f32>,
    /// `[hidden, 2 * hidden]`, the embedding's half first.
    pub proj: Matrix,
    /// The layer.
    pub layer: Layer,
    /// Norm before the output head, `[hidden]`.
    pub norm: Vec<f32>,
}

/// What the layer makes of rows.
pub struct Predicted {
    /// Takes the place of the state where a further token is predicted, `[rows][hidden]`.
    pub states: Vec<f32>,
    /// `[rows][vocab]`
    pub logits: Vec<f32>,
}

impl Decoder {
    /// Adds the rows to what the layer that predicts knows of their slots. A row's token is the one
    /// that follows its state, of `states` `[rows][hidden]`; its position is the layer's own.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn take_in(&self, step: &mut Step, states: &[f32]) {
        let mtp = self.mtp.as_ref().expect("a layer that predicts");
        let x = self.join(mtp, step, states);
        let normed = step.kernels.rms_norm(step.team, &x, &mtp.layer.input_norm, self.eps);
        mtp.layer.attention.write_keys(self.layers.len(), &normed, step);
    }

    /// As [`Self::take_in`], and predicts what follows each row's token.
    ///
    /// # Errors
    /// Those of [`Self::forward`].
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn predict(&self, step: &mut Step, states: &[f32]) -> Result<Predicted> {
        let mtp = self.mtp.as_ref().expect("a layer that predicts");
        let mut x = self.join(mtp, step, states);
        if let Ffn::Sparse(moe) = &mtp.layer.ffn {
            step.experts.begin_wave(moe.map_row, step.rows.len());
        }
        self.run_layer(self.layers.len(), &mtp.layer, None, &mut x, step)?;
        let head = self.head.as_ref().unwrap_or(&self.embed);
        let logits = timed(&mut step.phases.head, || {
            let normed = step.kernels.rms_norm(step.team, &x, &mtp.norm, self.eps);
            step.kernels.matmul(step.team, head, &normed)
        });
        check_finite("drafted logit", &logits, self.vocab(), self.layers.len(), step.rows)?;
        Ok(Predicted { states: x, logits })
    }

    /// What goes into the layer, `[rows][hidden]`.
    fn join(&self, mtp: &Mtp, step: &Step, states: &[f32]) -> Vec<f32> {
        let hidden = self.embed.n_in;
        let mut embeddings = vec![0.0f32; states.len()];
        for (row, x) in step.rows.iter().zip(embeddings.chunks_exact_mut(hidden)) {
            self.embed.copy_row(row.token as usize, x);
        }
        let norm = |x: &[f32], weights| step.kernels.rms_norm(step.team, x, weights, self.eps);
        let embeddings = norm(&embeddings, &mtp.embed_norm);
        let states = norm(states, &mtp.state_norm);
        let halves = embeddings.chunks_exact(hidden).zip(states.chunks_exact(hidden));
        let joined: Vec<f32> = halves.flat_map(|(a, b)| [a, b].concat()).collect();
        step.kernels.matmul(step.team, &mtp.proj, &joined)
    }
}

impl Loader<'_> {
    /// Loads the layer behind the `n_layers` others that predicts a token more, if it is wanted and
    /// the configuration has one; `load` loads the layer itself and adds its experts to `experts`.
    /// Without all of its tensors the model is complete, and drafts without it.
    ///
    /// # Errors
    /// What reading finds, and a configuration that is wrong.
    pub fn prediction_layer(
        &mut self,
        n_layers: usize,
        hidden: usize,
        experts: &mut Vec<ExpertSource>,
        load: impl FnOnce(&mut Self, &mut Vec<ExpertSource>) -> Result<Layer>,
    ) -> Result<()> {
        let key = "num_nextn_predict_layers";
        if !self.wants_mtp || self.config.count_or(key, 0, MAX_LAYERS)? == 0 {
            return Ok(());
        }
        let found = experts.len();
        let before = self.findings().map(|findings| findings.mark());
        let loaded = self.load_prediction_layer(n_layers, hidden, experts, load);
        let fault = match self.findings().zip(before) {
            None => None,
            Some((findings, mark)) => findings.take_fault_since(mark),
        };
        match (fault, loaded) {
            (None, Ok(mtp)) => self.mtp = Some(Box::new(mtp)),
            (None, Err(error)) if self.findings().is_none() => return Err(error),
            (fault, loaded) => {
                experts.truncate(found);
                self.left_out = Some(prefix(n_layers));
                self.mtp_fault = fault.or(loaded.err()).map(|fault| fault.to_string());
            }
        }
        Ok(())
    }

    fn load_prediction_layer(
        &mut self,
        n_layers: usize,
        hidden: usize,
        experts: &mut Vec<ExpertSource>,
        load: impl FnOnce(&mut Self, &mut Vec<ExpertSource>) -> Result<Layer>,
    ) -> Result<Mtp> {
        let prefix = prefix(n_layers);
        // Copies of the model's own.
        self.used
            .extend(["embed_tokens", "shared_head.head"].map(|name| format!("{prefix}{name}")));
        Ok(Mtp {
            embed_norm: self.norm(&format!("{prefix}enorm"), hidden)?,
            state_norm: self.norm(&format!("{prefix}hnorm"), hidden)?,
            proj: self.matrix(&format!("{prefix}eh_proj"), hidden, 2 * hidden)?,
            layer: load(self, experts)?,
            norm: self.norm(&format!("{prefix}shared_head.norm"), hidden)?,
        })
    }

    fn findings(&mut self) -> Option<&mut Findings> {
        match &mut self.pass {
            Pass::Survey(findings) => Some(&mut **findings),
            Pass::Config | Pass::Load(..) => None,
        }
    }
}

/// What the names of the layer's tensors begin with.
fn prefix(n_layers: usize) -> String {
    format!("model.layers.{n_layers}.")
}
