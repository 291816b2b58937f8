//! Recurrent (linear) attention by the gated delta rule: Gated `DeltaNet` and Kimi Delta Attention.
//!
//! A head has no keys and values of earlier positions but a matrix that every token changes, and a
//! token's queries, keys and values are mixed with those of the few tokens before it. Tokens are taken
//! in one by one, whatever step they are part of, so that a token's bits do not depend on it.

use super::attention::Linear;
use super::{Row, Step};
use crate::kernels::{HeadInputs, Kernels, math};
use crate::kv::{Snapshot, StateLayout};
use crate::telemetry::timed;
use crate::threads::Team;

/// Added to the sum of squares of a head's query or key, by whose root it is divided.
const UNIT_EPS: f32 = 1e-6;
/// What an element of a convolution costs, in multiply-adds.
const CONV_WORK: usize = 16;

/// Weights and geometry of one layer.
pub struct LinearAttention {
    /// Geometry.
    pub heads: LinearHeads,
    /// What is made of the hidden state.
    pub projection: Projection,
    /// Weights of the convolution, the oldest input's first, `[taps][channels]`.
    pub conv: Vec<f32>,
    /// Added before the softplus of the decays, `[decays]`.
    pub dt_bias: Vec<f32>,
    /// -e^`A_log`, by which it is multiplied, `[decays]`.
    pub rate: Vec<f32>,
    /// Weight of the norm of a head's result, `[v_dim]`.
    pub norm: Vec<f32>,
    /// Epsilon of it.
    pub eps: f32,
    /// What is done to the gates.
    pub gate: Gate,
    /// `[hidden, v_heads * v_dim]`
    pub out_proj: Linear,
}

/// Geometry of a layer.
#[derive(Clone, Copy)]
pub struct LinearHeads {
    /// Heads of queries and keys.
    pub k_heads: usize,
    /// Heads of values, each with a state; so many of them in a row share a key head.
    pub v_heads: usize,
    /// Elements of a query or key.
    pub k_dim: usize,
    /// Elements of a value.
    pub v_dim: usize,
}

impl LinearHeads {
    /// Elements of all queries of a row, and of all keys.
    pub fn k_width(self) -> usize {
        self.k_heads * self.k_dim
    }

    /// Elements of all values of a row.
    pub fn v_width(self) -> usize {
        self.v_heads * self.v_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn channels(self) -> usize {
        2 * self.k_width() + self.v_width()
    }
}

/// What is done to the gates before they multiply the normed result.
#[derive(Clone, Copy)]
pub enum Gate {
    /// x sigmoid(x)
    Silu,
    /// sigmoid(x)
    Sigmoid,
}

/// How a row's inputs are made of its hidden state.
#[allow(clippy::large_enum_variant, reason = "there is one a layer")]
pub enum Projection {
    /// In the order of key heads.
    Grouped {
        /// For each key head its query, its key, the values and the gates of its value heads.
        qkvz: Linear,
        /// For each key head the betas and the decays of its value heads.
        ba: Linear,
    },
    /// One matrix for each purpose.
    Split {
        /// Queries, keys, values.
        qkv: Linear,
        /// Gates.
        z: Linear,
        /// Betas.
        b: Linear,
        /// Decays.
        a: Linear,
    },
    /// Decays of each channel, which like the gates come from a narrow layer between.
    Kimi {
        /// Queries.
        q: Linear,
        /// Keys.
        k: Linear,
        /// Values.
        v: Linear,
        /// Betas.
        b: Linear,
        /// Decays, down and up.
        f: [Linear; 2],
        /// Gates, down and up.
        g: [Linear; 2],
    },
}

/// Inputs of some rows.
struct Inputs {
    /// Queries, keys and values before the convolution, `[rows][channels]`.
    mixed: Vec<f32>,
    /// `[rows][v_heads * v_dim]`
    gates: Vec<f32>,
    /// Before the sigmoid, `[rows][v_heads]`.
    betas: Vec<f32>,
    /// Before bias and softplus: one a value head, or one for each element of its key.
    decays: Vec<f32>,
}

impl Projection {
    fn forward(&self, heads: LinearHeads, kernels: &Kernels, team: &Team, x: &[f32]) -> Inputs {
        let of = |linear: &Linear, x: &[f32]| linear.forward(kernels, team, x);
        match self {
            Self::Grouped { qkvz, ba } => regroup(heads, &of(qkvz, x), &of(ba, x)),
            Self::Split { qkv, z, b, a } => {
                Inputs { mixed: of(qkv, x), gates: of(z, x), betas: of(b, x), decays: of(a, x) }
            }
            Self::Kimi { q, k, v, b, f, g } => {
                let parts = [of(q, x), of(k, x), of(v, x)];
                Inputs {
                    mixed: side_by_side(&parts, x.len() / q.weight.n_in),
                    gates: of(&g[1], &of(&g[0], x)),
                    betas: of(b, x),
                    decays: of(&f[1], &of(&f[0], x)),
                }
            }
        }
    }
}

/// From the order of key heads to one of purposes.
fn regroup(heads: LinearHeads, qkvz: &[f32], ba: &[f32]) -> Inputs {
    let LinearHeads { k_heads, v_heads, k_dim, v_dim } = heads;
    let shared = v_heads / k_heads;
    let n_rows = ba.len() / (2 * v_heads);
    // Column `from..from + width` of what each key head has, for all rows.
    let take = |x: &[f32], from: usize, width: usize| -> Vec<f32> {
        let groups = x.chunks_exact(x.len() / (n_rows * k_heads));
        groups.flat_map(|group| &group[from..from + width]).copied().collect()
    };
    let values = shared * v_dim;
    let parts = [take(qkvz, 0, k_dim), take(qkvz, k_dim, k_dim), take(qkvz, 2 * k_dim, values)];
    Inputs {
        mixed: side_by_side(&parts, n_rows),
        gates: take(qkvz, 2 * k_dim + values, values),
        betas: take(ba, 0, shared),
        decays: take(ba, shared, shared),
    }
}

/// Rows of several matrices of `n_rows` rows, each row after its like.
fn side_by_side(parts: &[Vec<f32>], n_rows: usize) -> Vec<f32> {
    let row =
        |r: usize| parts.iter().flat_map(move |x| &x[r * x.len() / n_rows..][..x.len() / n_rows]);
    (0..n_rows).flat_map(row).copied().collect()
}

impl LinearAttention {
    /// What the layer keeps of a conversation.
    pub fn state_layout(&self) -> StateLayout {
        let LinearHeads { v_heads, k_dim, v_dim, .. } = self.heads;
        let conv = self.conv.len() - self.heads.channels();
        StateLayout { heads: v_heads, k_dim, v_dim, conv }
    }

    /// See [`super::attention::Attention::forward`].
    pub fn forward(&self, layer: usize, x: &[f32], step: &mut Step) -> Vec<f32> {
        let mut elapsed = std::time::Duration::ZERO;
        let y = timed(&mut elapsed, || {
            let (kernels, team) = (step.kernels, step.team);
            let Inputs { mixed, mut gates, mut betas, mut decays } =
                self.projection.forward(self.heads, kernels, team, x);
            for beta in &mut betas {
                *beta = math::sigmoid(*beta);
            }
            let (n_decays, work) = (self.rate.len(), decays.len() * CONV_WORK);
            team.for_each_chunk(&mut decays, n_decays, work, |_, decays| {
                kernels.decays(decays, &self.dt_bias, &self.rate);
            });
            let mut out = Vec::with_capacity(gates.len());
            let mut first = 0;
            for rows in step.rows.chunk_by(|a, b| a.slot == b.slot) {
                let part = first..first + rows.len();
                first = part.end;
                let of = |x: &[f32]| {
                    let width = x.len() / step.rows.len();
                    x[part.start * width..part.end * width].to_vec()
                };
                let (mixed, betas, decays) = (of(&mixed), of(&betas), of(&decays));
                out.extend(self.take_in(layer, rows, mixed, &betas, &decays, step));
            }
            let normed = kernels.rms_norm(team, &out, &self.norm, self.eps);
            let (width, work) = (self.heads.v_width(), gates.len() * CONV_WORK);
            team.for_each_chunk(&mut gates, width, work, |row, gates| {
                let normed = &normed[row * width..][..width];
                match self.gate {
                    Gate::Silu => kernels.silu_mul(gates, normed),
                    Gate::Sigmoid => kernels.sigmoid_mul(gates, normed),
                }
            });
            self.out_proj.forward(kernels, team, &gates)
        });
        step.phases.attention += elapsed;
        y
    }

    /// Takes the slot's state over `rows`; what their heads read from it, `[rows][v_heads][v_dim]`.
    fn take_in(
        &self,
        layer: usize,
        rows: &[Row],
        mixed: Vec<f32>,
        betas: &[f32],
        decays: &[f32],
        step: &mut Step,
    ) -> Vec<f32> {
        let (kernels, team) = (step.kernels, step.team);
        let layout = self.state_layout();
        let matrices = layout.heads * layout.head_len();
        let start = rows[0].position;
        let state = step.slots[rows[0].slot].state_mut(layer);
        let (before, after) = state.advance(start, start + rows.len());

        // The inputs of the convolution, the kept ones first.
        let mut inputs = match before {
            Some(before) => before[matrices..].to_vec(),
            None => vec![0.0; layout.conv],
        };
        inputs.extend(mixed);
        for Snapshot { tokens, state } in &mut *after {
            let from = (*tokens - start) * self.heads.channels();
            state[matrices..].copy_from_slice(&inputs[from..from + layout.conv]);
        }
        let mixed = self.convolve(&inputs, kernels, team);
        let heads = self.split(&mixed, betas, decays, kernels, team);

        let ends: Vec<usize> = after.iter().map(|snapshot| snapshot.tokens - start).collect();
        let mut jobs: Vec<Job> = heads.into_iter().map(Job::new).collect();
        for Snapshot { state, .. } in after {
            let parts = state[..matrices].chunks_exact_mut(layout.head_len());
            jobs.iter_mut().zip(parts).for_each(|(job, part)| job.states.push(part));
        }
        let work = 3 * rows.len() * matrices;
        team.for_each_chunk(&mut jobs, 1, work, |head, job| {
            let len = layout.head_len();
            job[0].run(kernels, before.map(|before| &before[head * len..][..len]), &ends);
        });

        let mut out = Vec::with_capacity(rows.len() * self.heads.v_width());
        for row in 0..rows.len() {
            for job in &jobs {
                out.extend_from_slice(&job.out[row * layout.v_dim..][..layout.v_dim]);
            }
        }
        out
    }

    /// `[taps - 1 + rows][channels]` to `[rows][channels]`.
    fn convolve(&self, inputs: &[f32], kernels: &Kernels, team: &Team) -> Vec<f32> {
        let (channels, window) = (self.heads.channels(), self.conv.len());
        let mut out = vec![0.0; inputs.len() + channels - window];
        let work = out.len() * CONV_WORK;
        team.for_each_chunk(&mut out, channels, work, |row, out| {
            kernels.conv_silu(&inputs[row * channels..][..window], &self.conv, out);
        });
        out
    }

    /// What each value head takes in, of `mixed` `[rows][channels]` and the rest.
    fn split(
        &self,
        mixed: &[f32],
        betas: &[f32],
        decays: &[f32],
        kernels: &Kernels,
        team: &Team,
    ) -> Vec<HeadRows> {
        let LinearHeads { k_heads, v_heads, k_dim, v_dim } = self.heads;
        // The `width` elements from `from` on of each row of `stride`.
        let columns = |x: &[f32], stride: usize, from: usize, width: usize| -> Vec<f32> {
            x.chunks_exact(stride).flat_map(|row| &row[from..from + width]).copied().collect()
        };
        let (channels, keys) = (self.heads.channels(), self.heads.k_width());
        // x / sqrt(sum of squares + eps) is a norm over the mean with other constants.
        let unit = |from: usize, factor: f32| {
            let weight = vec![factor / (k_dim as f32).sqrt(); k_dim];
            let x = columns(mixed, channels, from, keys);
            kernels.rms_norm(team, &x, &weight, UNIT_EPS / k_dim as f32)
        };
        let (q, k) = (unit(0, 1.0 / (k_dim as f32).sqrt()), unit(keys, 1.0));
        let n_decays = self.rate.len() / v_heads;
        (0..v_heads)
            .map(|head| {
                let key = head / (v_heads / k_heads) * k_dim;
                let decay = columns(decays, self.rate.len(), head * n_decays, n_decays);
                HeadRows {
                    q: columns(&q, keys, key, k_dim),
                    k: columns(&k, keys, key, k_dim),
                    v: columns(mixed, channels, 2 * keys + head * v_dim, v_dim),
                    decay: decay
                        .iter()
                        .flat_map(|&d| std::iter::repeat_n(d, k_dim / n_decays))
                        .collect(),
                    beta: columns(betas, v_heads, head, 1),
                }
            })
            .collect()
    }
}

/// What a head takes in; see [`HeadInputs`].
struct HeadRows {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
}

impl HeadRows {
    fn rows(&self, rows: std::ops::Range<usize>) -> HeadInputs<'_> {
        let of = |x: &'_ [f32]| {
            let width = x.len() / self.beta.len();
            rows.start * width..rows.end * width
        };
        HeadInputs {
            q: &self.q[of(&self.q)],
            k: &self.k[of(&self.k)],
            v: &self.v[of(&self.v)],
            decay: &self.decay[of(&self.decay)],
            beta: &self.beta[of(&self.beta)],
        }
    }
}

/// One head's work in a step.
struct Job<'a> {
    inputs: HeadRows,
    /// Its part of each state that the step fills in.
    states: Vec<&'a mut [f32]>,
    /// `[rows][v_dim]`
    out: Vec<f32>,
}

impl Job<'_> {
    fn new(inputs: HeadRows) -> Self {
        Self { out: vec![0.0; inputs.v.len()], inputs, states: Vec::new() }
    }

    /// Goes from the state `before` (none for zeros) over all rows; state i is the one after
    /// `ends[i]` of them.
    fn run(&mut self, kernels: &Kernels, before: Option<&[f32]>, ends: &[usize]) {
        let v_dim = self.inputs.v.len() / self.inputs.beta.len();
        let mut first = 0;
        for (i, &end) in ends.iter().enumerate() {
            let (done, rest) = self.states.split_at_mut(i);
            match (done.last(), before) {
                (Some(last), _) => rest[0].copy_from_slice(last),
                (None, Some(before)) => rest[0].copy_from_slice(before),
                (None, None) => rest[0].fill(0.0),
            }
            let out = &mut self.out[first * v_dim..end * v_dim];
            kernels.delta_rule(self.inputs.rows(first..end), rest[0], out);
            first = end;
        }
    }
}
