//! Feed-forward blocks: one `SwiGLU`, or a router over many with a shared one beside them.

use std::time::Duration;

use super::router::Router;
use super::{Step, check_finite};
use crate::error::Result;
use crate::experts::prefetch::{Guess, Stage};
use crate::experts::{Course, Routed, Tools};
use crate::kernels::{Kernels, add_bias};
use crate::matrix::Matrix;
use crate::telemetry::timed;
use crate::threads::Team;

/// `down(silu(gate x) * up x)`.
pub struct SwiGlu {
    /// Gate and up.
    pub inner: Inner,
    /// `[hidden, width]`
    pub down: Matrix,
}

/// How the matrices gate and up are stored.
pub enum Inner {
    /// Each by itself, `[width, hidden]`.
    Apart {
        /// Through silu.
        gate: Matrix,
        /// Its factor.
        up: Matrix,
    },
    /// `[2 * width, hidden]`: the rows of gate, then those of up.
    Joined(Matrix),
}

impl SwiGlu {
    /// `[rows][hidden]` in and out.
    pub fn forward(&self, kernels: &Kernels, team: &Team, x: &[f32]) -> Vec<f32> {
        let gated = match &self.inner {
            Inner::Apart { gate, up } => kernels.gated(team, gate, up, x),
            Inner::Joined(matrix) => {
                let (mut gate, up) = halves(&kernels.matmul(team, matrix, x), matrix.n_out);
                kernels.silu_mul(&mut gate, &up);
                gate
            }
        };
        kernels.matmul(team, &self.down, &gated)
    }
}

/// The first and the second half of each of `rows` of `width` elements.
pub(super) fn halves(rows: &[f32], width: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for row in rows.chunks_exact(width) {
        let (a, b) = row.split_at(width / 2);
        first.extend_from_slice(a);
        second.extend_from_slice(b);
    }
    (first, second)
}

/// A sparse layer's feed-forward block.
pub struct Moe {
    /// Row of the expert map.
    pub map_row: usize,
    /// Router weights `[experts, hidden]`, f32.
    pub gate: Matrix,
    /// Added to the router's logits, `[experts]`.
    pub gate_bias: Option<Vec<f32>>,
    /// How experts are chosen.
    pub router: Router,
    /// The expert every row takes.
    pub shared: Option<Shared>,
}

/// The expert that every row takes.
pub struct Shared {
    /// Its weights.
    pub mlp: SwiGlu,
    /// `[1, hidden]`, f32: a row takes the sigmoid of this product of it; none for all of it.
    pub gate: Option<Matrix>,
}

impl Shared {
    /// Its output for `x`, both `[rows][hidden]`, and the share of it that each row takes.
    fn forward(&self, kernels: &Kernels, team: &Team, x: &[f32]) -> (Vec<f32>, Option<Vec<f32>>) {
        let shares = self.gate.as_ref().map(|gate| {
            let mut shares = kernels.matmul(team, gate, x);
            kernels.sigmoid(&mut shares);
            shares
        });
        (self.mlp.forward(kernels, team, x), shares)
    }
}

impl Moe {
    /// Of the router, `[rows][experts]`.
    fn logits(&self, kernels: &Kernels, team: &Team, x: &[f32]) -> Vec<f32> {
        let mut logits = kernels.matmul(team, &self.gate, x);
        if let Some(bias) = &self.gate_bias {
            add_bias(&mut logits, bias);
        }
        logits
    }

    fn route(&self, layer: usize, x: &[f32], step: &Step) -> Result<Vec<Routed>> {
        let logits = self.logits(step.kernels, step.team, x);
        check_finite("router logit", &logits, self.gate.n_out, layer, step.rows)?;
        let rows = logits.chunks_exact(self.gate.n_out);
        Ok(rows.map(|row| self.router.choose(step.kernels, row)).collect())
    }

    /// What the rows would take if `x` `[rows][hidden]` were the layer's input; none if that is no
    /// answer.
    pub(super) fn guess(
        &self,
        stage: Stage,
        kernels: &Kernels,
        team: &Team,
        x: &[f32],
    ) -> Option<Guess> {
        let logits = self.logits(kernels, team, x);
        if !logits.iter().all(|logit| logit.is_finite()) {
            return None;
        }
        let rows = logits.chunks_exact(self.gate.n_out);
        let choices = rows.map(|row| self.router.choose(kernels, row)).collect();
        Some(Guess { map_row: self.map_row, stage, choices })
    }

    fn forward(
        &self,
        layer: usize,
        x: &[f32],
        step: &mut Step,
        next: impl FnOnce() -> Option<Guess>,
    ) -> Result<Vec<f32>> {
        let routed = self.route(layer, x, step)?;
        if let Some(trace) = &mut step.trace {
            trace.choices.push(routed.clone());
        }
        let tools = Tools { kernels: step.kernels, team: step.team };
        let (mut shared, mut shared_time) = (None, Duration::ZERO);
        let beside = || {
            shared = timed(&mut shared_time, || {
                self.shared.as_ref().map(|s| s.forward(tools.kernels, tools.team, x))
            });
            next()
        };
        let course = Course { phases: step.phases, interrupted: step.interrupted };
        let mut y = step.experts.run(self.map_row, x, &routed, tools, course, beside)?;
        step.phases.ffn += shared_time;
        if let Some((out, shares)) = shared {
            let hidden = x.len() / routed.len();
            for (row, y) in y.chunks_exact_mut(hidden).enumerate() {
                let share = shares.as_ref().map_or(1.0, |shares| shares[row]);
                tools.kernels.add_scaled(y, share, &out[row * hidden..][..hidden]);
            }
        }
        Ok(y)
    }
}

/// A layer's feed-forward block.
#[allow(clippy::large_enum_variant, reason = "there is one a layer")]
pub enum Ffn {
    /// The same weights for every row.
    Dense(SwiGlu),
    /// Routed experts.
    Sparse(Moe),
}

impl Ffn {
    /// `[rows][hidden]` in and out; `next` guesses what the next layer takes.
    pub fn forward(
        &self,
        layer: usize,
        x: &[f32],
        step: &mut Step,
        next: impl FnOnce() -> Option<Guess>,
    ) -> Result<Vec<f32>> {
        match self {
            Self::Dense(mlp) => {
                let (kernels, team) = (step.kernels, step.team);
                Ok(timed(&mut step.phases.ffn, || mlp.forward(kernels, team, x)))
            }
            Self::Sparse(moe) => moe.forward(layer, x, step, next),
        }
    }
}
