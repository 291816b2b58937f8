//! Feed-forward blocks: one `SwiGLU`, or a router over many with a shared one beside them.

use super::router::Router;
use super::{Step, check_finite};
use crate::error::Result;
use crate::experts::Routed;
use crate::kernels::Kernels;
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
        let mut gate = kernels.matmul(team, &self.gate, x);
        let up = kernels.matmul(team, &self.up, x);
        kernels.silu_mul(&mut gate, &up);
        kernels.matmul(team, &self.down, &gate)
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
    pub shared: Option<SwiGlu>,
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
            for (y, s) in y.iter_mut().zip(shared.forward(step.kernels, step.team, x)) {
                *y += s;
            }
        }
        Ok(y)
    }
}

/// A layer's feed-forward block.
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
