//! `Batch`: requests side by side on one loaded model, for tests of what must not change a bit.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine::{Engine, Event, Request};
use crate::error::Error;
use crate::experts::ExpertStore;
use crate::runner::{Runner, RunnerOptions};
use crate::sample::Sampling;

/// See `colibri._core.Batch` in the stub file.
#[pyclass(module = "colibri._core", frozen)]
pub struct Batch(Mutex<Engine>);

/// One request's turn.
#[derive(Default)]
struct Answer {
    /// Prompt tokens that were in the slot already.
    reused: usize,
    tokens: Vec<u32>,
    /// `[tokens][vocab]`
    logprobs: Vec<f32>,
}

#[pymethods]
impl Batch {
    #[new]
    #[pyo3(signature = (path, *, slots, fewest_experts=false))]
    fn new(py: Python<'_>, path: &str, slots: usize, fewest_experts: bool) -> PyResult<Self> {
        if !(1..=64).contains(&slots) {
            return Err(PyValueError::new_err("slots must be from 1 to 64"));
        }
        let engine = py.detach(|| {
            let options = RunnerOptions { slots, ..RunnerOptions::default() };
            let mut engine = Engine::load(Path::new(path), &options, &mut |_, _| {})?;
            if fewest_experts {
                keep_fewest(&mut engine.runner)?;
            }
            Ok::<_, Error>(engine)
        })?;
        Ok(Self(Mutex::new(engine)))
    }

    /// Admits all requests, each a slot and a prompt, and steps until all have `max_tokens`.
    #[allow(clippy::type_complexity, reason = "what the stub file says")]
    fn run<'py>(
        &self,
        py: Python<'py>,
        requests: Vec<(usize, Vec<u32>)>,
        max_tokens: usize,
    ) -> PyResult<(Vec<(usize, Vec<u32>, Bound<'py, PyBytes>)>, Vec<u64>)> {
        let (answers, bytes_read) = py.detach(|| {
            let mut engine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let answers = run(&mut engine, requests, max_tokens);
            for id in engine.active_ids() {
                engine.cancel(id)?;
            }
            answers
        })?;
        let told = |answer: Answer| {
            let logprobs = PyBytes::new(py, bytemuck::cast_slice(&answer.logprobs));
            (answer.reused, answer.tokens, logprobs)
        };
        Ok((answers.into_iter().map(told).collect(), bytes_read))
    }
}

/// Lets as few experts stay in memory as the store accepts.
fn keep_fewest(runner: &mut Runner) -> Result<(), Error> {
    let model = &runner.model;
    let store = |budget| {
        let (catalog, sources) = (model.catalog.clone(), model.experts.clone());
        ExpertStore::new(&catalog, sources, model.n_experts, model.top_k, budget)
    };
    runner.experts = match store(0) {
        Err(Error::DoesNotFit { need_bytes, .. }) => store(need_bytes)?,
        other => other?,
    };
    Ok(())
}

/// Answers, and bytes of experts that each step read.
fn run(
    engine: &mut Engine,
    requests: Vec<(usize, Vec<u32>)>,
    max_tokens: usize,
) -> Result<(Vec<Answer>, Vec<u64>), Error> {
    let vocab = engine.runner.model.decoder.vocab();
    let mut answers: Vec<Answer> = Vec::new();
    for (slot, prompt) in requests {
        engine.submit(Request {
            id: answers.len() as u64,
            slot,
            prompt,
            max_tokens,
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            topk: vocab,
            stop_ids: Vec::new(),
            ignore_eos: true,
        })?;
        answers.push(Answer::default());
    }
    let mut bytes_read = Vec::new();
    let mut begun = vec![false; answers.len()];
    while !engine.active_ids().is_empty() {
        let before = engine.runner.experts.bytes_read();
        for event in engine.step(&mut |_| false) {
            match event {
                Event::Prefill { id, done, .. } => {
                    // The first one of a request comes before anything is computed.
                    if !std::mem::replace(&mut begun[id as usize], true) {
                        answers[id as usize].reused = done;
                    }
                }
                Event::Token { id, token } => {
                    let mut row = vec![0.0; vocab];
                    for (id, logprob) in token.top {
                        row[id as usize] = logprob;
                    }
                    let answer = &mut answers[id as usize];
                    answer.tokens.push(token.token);
                    answer.logprobs.extend(row);
                }
                Event::Done { .. } => {}
                Event::Failed { error, .. } => return Err(error),
            }
        }
        bytes_read.push(engine.runner.experts.bytes_read() - before);
    }
    Ok((answers, bytes_read))
}
