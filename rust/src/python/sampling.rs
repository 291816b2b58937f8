//! `Sampling` and `draw`: how tokens are drawn, and one draw for the tests.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cpu::Isa;
use crate::kernels::Kernels;
use crate::sample::{self, sample_with};

/// How tokens are drawn, with the names of the wire; `colibri.Model` checks the ranges.
#[pyclass(module = "colibri._core", frozen)]
pub struct Sampling(pub sample::Sampling);

#[pymethods]
impl Sampling {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    #[pyo3(signature = (
        *, temperature, top_p, top_k, min_p, repetition, presence, frequency, bias, seed,
    ))]
    fn new(
        temperature: f32,
        top_p: f32,
        top_k: u32,
        min_p: f32,
        repetition: f64,
        presence: f64,
        frequency: f64,
        bias: Vec<(u32, f64)>,
        seed: Option<u64>,
    ) -> Self {
        let seed = seed.unwrap_or_else(|| {
            use std::hash::{BuildHasher, RandomState};
            RandomState::new().hash_one(0)
        });
        let top_k = top_k as usize;
        Self(sample::Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            repetition,
            presence,
            frequency,
            bias,
            seed,
        })
    }
}

/// The token that `uniform` in [0, 1) stands for, and the scores (f32) it was drawn from.
///
/// `logits` is f32 `[vocab]`, at least one; every id must be below vocab.
#[pyfunction]
pub fn draw<'py>(
    py: Python<'py>,
    logits: &[u8],
    sampling: &Sampling,
    prompt: Vec<u32>,
    answer: Vec<u32>,
    uniform: f64,
) -> (u32, Bound<'py, PyBytes>) {
    let logits: Vec<f32> = bytemuck::pod_collect_to_vec(logits);
    let (token, scores) =
        sample_with(&Kernels::new(Isa::detect()), &logits, &sampling.0, &prompt, &answer, uniform);
    (token, PyBytes::new(py, bytemuck::cast_slice(&scores)))
}
