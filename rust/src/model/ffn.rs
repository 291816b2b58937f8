//! Feed-forward blocks: one `SwiGLU`, or a router over many with a shared one beside them.

use super::router::Router;
use super::{Step, check_finite};
use crate::error::Result;
use crate::experts::Routed;
use crate::kernels::{Kernels, math};
use crate::matrix::Matrix;
use crate::threads::Team;

/// `down(silu(gate x) * up x)`.
pub struct SwiGlu {
    /// `[width, hidden]`
    pub gate: Matrix,
    /// `[width, hidden]`
    pub up: Matrix,
    /// `[hidden, width]`
    pub down: Matrix,
}

impl SwiGlu {
    /// `[rows][hidden]` in and out.
    pub fn forward(&self, kernels: &Kernels, team: &Team, x: &[f32]) -> Vec<f32> {
        kernels.matmul(team, &self.down, &kernels.gated(team, &self.gate, &self.up, x))
    }
}

/// A sparse layer's feed-forward block.
pub struct Moe {
    /// Row of the expert map.
    pub map_row: usize,
    /// Router weights `[experts, hidden]`, f32.
    pub gate: Matrix,
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
    /// Adds its output for `x` to `y`, both `[rows][hidden]`.
    fn add(&self, kernels: &Kernels, team: &Team, x: &[f32], y: &mut [f32]) {
        let hidden = self.mlp.down.n_out;
        let shares = self.gate.as_ref().map(|gate| kernels.matmul(team, gate, x));
        let out = self.mlp.forward(kernels, team, x);
        for (row, (y, s)) in y.chunks_exact_mut(hidden).zip(out.chunks_exact(hidden)).enumerate() {
            let share = shares.as_ref().map_or(1.0, |shares| math::sigmoid(shares[row]));
            kernels.add_scaled(y, share, s);
        }
    }
}

impl Moe {
    fn route(&self, layer: usize, x: &[f32], step: &Step) -> Result<Vec<Routed>> {
        let logits = step.kernels.matmul(step.team, &self.gate, x);
        check_finite("router logit", &logits, self.gate.n_out, layer, step.rows)?;
        Ok(logits.chunks_exact(self.gate.n_out).map(|row| self.router.choose(row)).collect())
    }

    fn forward(&self, layer: usize, x: &[f32], step: &mut Step) -> Result<Vec<f32>> {
        let routed = self.route(layer, x, step)?;
        if let Some(trace) = &mut step.trace {
            trace.choices.push(routed.clone());
        }
        let mut y =
            step.experts.run(self.map_row, x, &routed, step.kernels, step.team, step.phases)?;
        if let Some(shared) = &self.shared {
            shared.add(step.kernels, step.team, x, &mut y);
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
    /// `[rows][hidden]` in and out.
    pub fn forward(&self, layer: usize, x: &[f32], step: &mut Step) -> Result<Vec<f32>> {
        match self {
            Self::Dense(mlp) => Ok(mlp.forward(step.kernels, step.team, x)),
            Self::Sparse(moe) => moe.forward(layer, x, step),
        }
    }
}
