//! One expert's weights in memory, and what they compute.
//!
//! Owns: the arithmetic of an expert, on the CPU; what a device computes must be the same bits. Does
//! not own: which experts a row takes, where they are (`experts`), where they were read (`store`).

use crate::kernels::{Kernels, add_bias};
use crate::matrix::Matrix;
use crate::threads::Team;

/// What an expert does between its products.
#[derive(Clone, Copy, Debug)]
pub enum Activation {
    /// silu(gate) up
    SwiGlu,
    /// (up + 1) gate sigmoid(alpha gate), where gate is at most `limit` and up within it.
    Clamped {
        /// Steepness of the gate.
        alpha: f32,
        /// Bound of both.
        limit: f32,
    },
}

/// What is added to each product of an expert.
#[derive(Clone, Debug)]
pub struct Biases<T> {
    /// To [`Expert::gate`], `[expert width]`.
    pub gate: T,
    /// To [`Expert::up`], `[expert width]`.
    pub up: T,
    /// To [`Expert::down`], `[hidden]`.
    pub down: T,
}

/// One expert's weights in memory.
#[derive(Clone)]
pub struct Expert {
    /// `[expert width, hidden]`
    pub gate: Matrix,
    /// `[expert width, hidden]`
    pub up: Matrix,
    /// `[hidden, expert width]`
    pub down: Matrix,
    /// What is added to the products, if anything is.
    pub biases: Option<Biases<Vec<f32>>>,
    /// What is done between them.
    pub activation: Activation,
}

impl Expert {
    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        let biases = self.biases.as_ref().map_or(0, |b| b.gate.len() + b.up.len() + b.down.len());
        let matrices = self.gate.bytes() + self.up.bytes() + self.down.bytes();
        (matrices + biases * size_of::<f32>()) as u64
    }

    /// The expert's output for `rows` of `x` `[any rows][hidden]`, in the order of `rows`:
    /// `[rows][hidden]`.
    ///
    /// # Panics
    /// If `x` has no such row.
    pub fn forward(
        &self,
        kernels: &Kernels,
        x: &[f32],
        rows: impl Iterator<Item = usize>,
    ) -> Vec<f32> {
        let solo = Team::new(1);
        let hidden = self.gate.n_in;
        let mut input = Vec::with_capacity(rows.size_hint().0 * hidden);
        for row in rows {
            input.extend_from_slice(&x[row * hidden..(row + 1) * hidden]);
        }
        let inner = match (&self.activation, &self.biases) {
            (Activation::SwiGlu, None) => kernels.gated(&solo, &self.gate, &self.up, &input),
            (activation, biases) => {
                let mut gate = kernels.matmul(&solo, &self.gate, &input);
                let mut up = kernels.matmul(&solo, &self.up, &input);
                if let Some(biases) = biases {
                    add_bias(&mut gate, &biases.gate);
                    add_bias(&mut up, &biases.up);
                }
                match *activation {
                    Activation::SwiGlu => kernels.silu_mul(&mut gate, &up),
                    Activation::Clamped { alpha, limit } => {
                        kernels.clamped_swiglu(&mut gate, &up, alpha, limit);
                    }
                }
                gate
            }
        };
        let mut y = kernels.matmul(&solo, &self.down, &inner);
        if let Some(biases) = &self.biases {
            add_bias(&mut y, &biases.down);
        }
        y
    }
}
