//! The pre-norm residual decoder that nearly all families are.

use super::attention::Attention;
use super::ffn::Ffn;
use super::mtp::Mtp;
use super::{Step, check_finite};
use crate::error::{Error, Result};
use crate::experts::prefetch::{Guess, Stage};
use crate::kv::LayerLayout;
use crate::matrix::Matrix;
use crate::telemetry::timed;

/// Most rows by which is guessed what a layer takes.
const GUESSING_ROWS: usize = 16;

/// One decoder block.
pub struct Layer {
    /// `[hidden]`
    pub input_norm: Vec<f32>,
    /// Attention.
    pub attention: Attention,
    /// Norm of what attention gives, where a family has it, `[hidden]`.
    pub attention_out_norm: Option<Vec<f32>>,
    /// `[hidden]`
    pub post_norm: Vec<f32>,
    /// Feed-forward block.
    pub ffn: Ffn,
    /// Norm of what the feed-forward block gives, where a family has it, `[hidden]`.
    pub ffn_out_norm: Option<Vec<f32>>,
}

/// Embedding, blocks and output head.
pub struct Decoder {
    /// `[vocab, hidden]`
    pub embed: Matrix,
    /// The blocks in order.
    pub layers: Vec<Layer>,
    /// `[hidden]`
    pub norm: Vec<f32>,
    /// `[vocab, hidden]`; none where the embedding serves.
    pub head: Option<Matrix>,
    /// Added to the mean square in every norm but the latent ones.
    pub eps: f32,
    /// The layer that predicts a token more, if it is there and wanted. Its number is that of
    /// `layers`, and [`Self::forward`] does without it.
    pub mtp: Option<Box<Mtp>>,
}

/// For which rows of a step logits are wanted.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// Every row.
    All,
    /// These rows, by index into the step's rows.
    Of(&'a [usize]),
}

impl Decoder {
    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.embed.n_out
    }

    /// What each layer keeps of a conversation.
    pub fn layouts(&self) -> Vec<LayerLayout> {
        self.all_layers().map(|layer| layer.attention.layout()).collect()
    }

    /// The blocks and, behind them, the one that predicts a token more.
    pub fn all_layers(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().chain(self.mtp.as_ref().map(|mtp| &mtp.layer))
    }

    /// Runs the step's rows through the model and returns logits `[wanted rows][vocab]`.
    ///
    /// Keys and values are written to the slots; the caller commits the tokens.
    ///
    /// # Errors
    /// [`Error::NonFinite`], [`Error::Io`] from reading experts, or [`Error::Interrupted`].
    pub fn forward(&self, step: &mut Step, wanted: Logits) -> Result<Vec<f32>> {
        let hidden = self.embed.n_in;
        let mut x = vec![0.0f32; step.rows.len() * hidden];
        for (row, x) in step.rows.iter().zip(x.chunks_exact_mut(hidden)) {
            self.embed.copy_row(row.token as usize, x);
        }
        let sparse = |layer: &Layer| match &layer.ffn {
            Ffn::Sparse(moe) => Some(moe.map_row),
            Ffn::Dense(_) => None,
        };
        if let Some(map_row) = self.layers.iter().find_map(sparse) {
            step.experts.begin_wave(map_row, step.rows.len());
        }
        for (i, layer) in self.layers.iter().enumerate() {
            if (step.interrupted)() {
                return Err(Error::Interrupted);
            }
            self.run_layer(i, layer, self.layers.get(i + 1), &mut x, step)?;
        }
        self.logits(&x, step, wanted)
    }

    /// Adds what layer `i` makes of it to the state `x` `[rows][hidden]`; `next` is the layer after it.
    pub(super) fn run_layer(
        &self,
        i: usize,
        layer: &Layer,
        next: Option<&Layer>,
        x: &mut [f32],
        step: &mut Step,
    ) -> Result<()> {
        let router = self.router_to_ask(Some(layer), Stage::BeforeAttention, step);
        if let Some(guess) = router.and_then(|router| router(x)) {
            step.experts.expect(&guess, &[]);
        }
        let normed = step.kernels.rms_norm(step.team, x, &layer.input_norm, self.eps);
        let y = layer.attention.forward(i, &normed, step)?;
        self.add(x, y, layer.attention_out_norm.as_deref(), step);
        let normed = step.kernels.rms_norm(step.team, x, &layer.post_norm, self.eps);
        let router = self.router_to_ask(next, Stage::BesideExperts, step);
        let y = layer.ffn.forward(i, &normed, step, || router.and_then(|router| router(x)))?;
        self.add(x, y, layer.ffn_out_norm.as_deref(), step);
        Ok(())
    }

    /// What tells, by the state `[rows][hidden]` there is, which experts the layer will probably take;
    /// none if that is not wanted now, or the layer has none.
    fn router_to_ask<'a, 'b>(
        &'a self,
        layer: Option<&'a Layer>,
        stage: Stage,
        step: &mut Step<'b>,
    ) -> Option<impl FnOnce(&[f32]) -> Option<Guess> + use<'a, 'b>> {
        let layer = layer?;
        let Ffn::Sparse(moe) = &layer.ffn else { return None };
        let (kernels, team, hidden) = (step.kernels, step.team, self.embed.n_in);
        step.experts.wants_guess(stage).then_some(move |x: &[f32]| {
            let stride = (x.len() / hidden).div_ceil(GUESSING_ROWS);
            let some: Vec<f32> =
                x.chunks_exact(hidden).step_by(stride).flatten().copied().collect();
            let normed = kernels.rms_norm(team, &some, &layer.post_norm, self.eps);
            moe.guess(stage, kernels, team, &normed)
        })
    }

    /// Adds `y`, normed if there is a norm, to `x`; both are `[rows][hidden]`.
    fn add(&self, x: &mut [f32], mut y: Vec<f32>, norm: Option<&[f32]>, step: &Step) {
        if let Some(norm) = norm {
            y = step.kernels.rms_norm(step.team, &y, norm, self.eps);
        }
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }

    fn logits(&self, x: &[f32], step: &mut Step, wanted: Logits) -> Result<Vec<f32>> {
        let hidden = self.embed.n_in;
        let picked: Vec<f32>;
        if let Some(states) = &mut step.states {
            **states = step.kernels.rms_norm(step.team, x, &self.norm, self.eps);
        }
        let (x, rows) = match wanted {
            Logits::All => (x, step.rows.to_vec()),
            Logits::Of(rows) => {
                picked =
                    rows.iter().flat_map(|&r| &x[r * hidden..(r + 1) * hidden]).copied().collect();
                (&picked[..], rows.iter().map(|&r| step.rows[r]).collect())
            }
        };
        let head = self.head.as_ref().unwrap_or(&self.embed);
        let logits = timed(&mut step.phases.head, || {
            let normed = step.kernels.rms_norm(step.team, x, &self.norm, self.eps);
            step.kernels.matmul(step.team, head, &normed)
        });
        check_finite("logit", &logits, self.vocab(), self.layers.len(), &rows)?;
        Ok(logits)
    }
}
