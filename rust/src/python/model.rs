//! `Model`: a model in this process, for tests, notebooks and scripts.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use clap::ValueEnum;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::sampling::Sampling;
use crate::cpu::Isa;
use crate::engine::{Engine, Event, Generated, MAX_PREFILL_CHUNK, Request};
use crate::error::Error;
use crate::gpu::DeviceKind;
use crate::kv::Precision;
use crate::model::{Logits, Row, Trace};
use crate::runner::RunnerOptions;
use crate::store::split_dirs;

/// Rows of one forward pass of `logits` and `routing`.
const CHUNK: usize = 256;

/// See `colibri.Model`.
#[pyclass(module = "colibri._core", frozen)]
pub struct Model {
    engine: Arc<Mutex<Engine>>,
    /// Generations begun so far; a new one ends the one before it.
    generations: AtomicU64,
}

fn lock(engine: &Mutex<Engine>) -> MutexGuard<'_, Engine> {
    // A panic while computing leaves the slot's bookkeeping in an unknown state, but every use
    // begins with its truncation, so the model stays usable.
    engine.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// In what conversations keep keys and values, by its name.
pub(super) fn precision(name: Option<&str>) -> PyResult<Precision> {
    let found = name.map(|name| Precision::from_str(name, false)).transpose();
    let found = found.map_err(|_| PyValueError::new_err("kv: must be f32 or bf16"))?;
    Ok(found.unwrap_or_default())
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (path, ram_gb, ctx, threads, progress=None, isa=None, prefill_chunk=None, expert_slots=None, model_dirs=None, vram_gb=None, device=None, kv=None))]
    #[allow(clippy::too_many_arguments, reason = "what the stub file says")]
    fn new(
        py: Python<'_>,
        path: &str,
        ram_gb: Option<f64>,
        ctx: Option<usize>,
        threads: Option<usize>,
        progress: Option<Py<PyAny>>,
        isa: Option<&str>,
        prefill_chunk: Option<usize>,
        expert_slots: Option<usize>,
        model_dirs: Option<&str>,
        vram_gb: Option<f64>,
        device: Option<&str>,
        kv: Option<&str>,
    ) -> PyResult<Self> {
        if ctx.is_some_and(|ctx| ctx < 2) {
            return Err(PyValueError::new_err("ctx: at least 2 tokens are needed"));
        }
        for (name, gb) in [("ram_gb", ram_gb), ("vram_gb", vram_gb)] {
            if gb.is_some_and(|gb| !gb.is_finite() || gb <= 0.0) {
                return Err(PyValueError::new_err(format!(
                    "{name}: a positive number is expected"
                )));
            }
        }
        let options = RunnerOptions {
            ctx,
            ram_bytes: ram_gb.map(|gb| (gb * 1e9) as u64),
            threads,
            expert_slots,
            device: device
                .map(|name| DeviceKind::from_str(name, false))
                .transpose()
                .map_err(|_| PyValueError::new_err("device: must be host"))?,
            vram_bytes: vram_gb.map(|gb| (gb * 1e9) as u64),
            more_dirs: model_dirs.map(split_dirs).unwrap_or_default(),
            isa: isa
                .map(Isa::choose)
                .transpose()
                .map_err(|reason| PyValueError::new_err(format!("isa: {reason}")))?,
            kv: precision(kv)?,
            ..RunnerOptions::default()
        };
        if prefill_chunk.is_some_and(|n| !(1..=MAX_PREFILL_CHUNK).contains(&n)) {
            return Err(PyValueError::new_err(format!(
                "prefill_chunk must be from 1 to {MAX_PREFILL_CHUNK}"
            )));
        }
        let mut failed = None;
        let mut engine = py.detach(|| {
            Engine::load(Path::new(path), &options, &mut |done, total| {
                if let Some(call) = progress.as_ref().filter(|_| failed.is_none()) {
                    failed = Python::attach(|py| call.call1(py, ("load", done, total)).err());
                }
            })
        })?;
        if let Some(tokens) = prefill_chunk {
            engine.set_prefill_chunk(tokens);
        }
        match failed {
            Some(error) => Err(error),
            None => {
                Ok(Self { engine: Arc::new(Mutex::new(engine)), generations: AtomicU64::new(0) })
            }
        }
    }

    /// Token ids of `text`; added tokens are recognised, none is added.
    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        Ok(py.detach(|| lock(&self.engine).tokenizer.encode(text, true))?)
    }

    fn decode(&self, py: Python<'_>, ids: Vec<u32>) -> String {
        py.detach(|| lock(&self.engine).tokenizer.decode(&ids))
    }

    /// Logits after each token: f32 bytes, rows, columns.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
    ) -> PyResult<(Bound<'py, PyBytes>, usize, usize)> {
        let (logits, vocab) = py.detach(|| {
            let mut engine = lock(&self.engine);
            let vocab = engine.runner.model.decoder.vocab();
            whole_pass(&mut engine, &ids, Logits::All, None).map(|logits| (logits, vocab))
        })?;
        Ok((PyBytes::new(py, bytemuck::cast_slice(&logits)), ids.len(), vocab))
    }

    /// Routed experts (i32) and weights (f32) as bytes `[tokens][layers][k]`, and the dimensions.
    #[allow(clippy::type_complexity, reason = "what the stub file says")]
    fn routing<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize, usize, usize)> {
        let (trace, layers, top_k) = py.detach(|| {
            let mut engine = lock(&self.engine);
            let mut trace = Trace::default();
            let model = &engine.runner.model;
            let (layers, top_k) = (model.sparse_layers.len(), model.top_k);
            whole_pass(&mut engine, &ids, Logits::Of(&[]), Some(&mut trace))
                .map(|_| (trace, layers, top_k))
        })?;
        // The trace is chunk by chunk, layer by layer; the result is token by token.
        let mut experts = vec![0i32; ids.len() * layers * top_k];
        let mut weights = vec![0f32; experts.len()];
        for (pass, choices) in trace.choices.iter().enumerate() {
            let (first, layer) = (pass / layers * CHUNK, pass % layers);
            for (row, choice) in choices.iter().enumerate() {
                let at = ((first + row) * layers + layer) * top_k;
                for (rank, (&expert, &weight)) in
                    choice.experts.iter().zip(&choice.weights).enumerate()
                {
                    experts[at + rank] = expert as i32;
                    weights[at + rank] = weight;
                }
            }
        }
        Ok((
            PyBytes::new(py, bytemuck::cast_slice(&experts)),
            PyBytes::new(py, bytemuck::cast_slice(&weights)),
            ids.len(),
            layers,
            top_k,
        ))
    }

    /// Begins a generation; the tokens come from iterating over the result.
    fn generate(
        &self,
        py: Python<'_>,
        prompt: Prompt,
        max_tokens: usize,
        sampling: &Sampling,
        stop: Vec<String>,
    ) -> PyResult<Generation> {
        if max_tokens == 0 || stop.iter().any(String::is_empty) {
            return Err(PyValueError::new_err("max_tokens is 0, or a stop string is empty"));
        }
        let sampling = sampling.0.clone();
        let id = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        py.detach(|| {
            let mut engine = lock(&self.engine);
            let prompt = match prompt {
                Prompt::Text(text) => engine.tokenizer.encode(&text, true)?,
                Prompt::Ids(ids) => ids,
            };
            end_generation(&mut engine)?;
            engine.submit(Request {
                id,
                slot: 0,
                prompt,
                max_tokens,
                sampling,
                topk: 1,
                stop_ids: Vec::new(),
                ignore_eos: false,
            })
        })?;
        Ok(Generation {
            engine: Arc::clone(&self.engine),
            id,
            held: VecDeque::new(),
            ready: VecDeque::new(),
            text: String::new(),
            stop,
            ended: false,
        })
    }
}

/// Text, or tokens as they are.
#[derive(FromPyObject)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// Forwards `ids` from an empty slot in chunks; returns the wanted logits of all of them.
fn whole_pass(
    engine: &mut Engine,
    ids: &[u32],
    wanted: Logits,
    mut trace: Option<&mut Trace>,
) -> Result<Vec<f32>, Error> {
    end_generation(engine)?;
    let runner = &mut engine.runner;
    let vocab = runner.model.decoder.vocab();
    if ids.len() > runner.ctx {
        return Err(Error::ContextExceeded { tokens: ids.len(), counted: true, limit: runner.ctx });
    }
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
        return Err(Error::BadRequest(format!("token {id} is outside the vocabulary of {vocab}")));
    }
    runner.slots[0].truncate_to(0);
    let mut all = Vec::new();
    for (i, chunk) in ids.chunks(CHUNK).enumerate() {
        let rows: Vec<Row> = chunk
            .iter()
            .enumerate()
            .map(|(j, &token)| Row { slot: 0, position: i * CHUNK + j, token })
            .collect();
        all.extend(runner.forward(&rows, wanted, trace.as_deref_mut(), &mut || false)?);
    }
    Ok(all)
}

/// Ends the generation in flight, if there is one; whoever iterates over it is told.
fn end_generation(engine: &mut Engine) -> Result<(), Error> {
    engine.active_ids().into_iter().try_for_each(|id| engine.cancel(id).map(|_| ()))
}

/// One generated token.
#[pyclass(module = "colibri._core", frozen, get_all)]
#[derive(Clone)]
pub struct Token {
    id: u32,
    text: String,
    logprob: f32,
}

#[pymethods]
impl Token {
    fn __repr__(&self) -> String {
        format!("Token(id={}, text={:?}, logprob={:.4})", self.id, self.text, self.logprob)
    }
}

/// The tokens of one generation, computed as they are asked for.
#[pyclass(module = "colibri._core")]
pub struct Generation {
    engine: Arc<Mutex<Engine>>,
    id: u64,
    /// Tokens whose text may turn out to begin a stop string, with where it begins in `text`.
    held: VecDeque<(usize, Token)>,
    ready: VecDeque<Token>,
    /// All text so far.
    text: String,
    stop: Vec<String>,
    ended: bool,
}

#[pymethods]
impl Generation {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Token>> {
        while self.ready.is_empty() && !self.ended {
            py.detach(|| self.step())?;
            py.check_signals()?;
        }
        Ok(self.ready.pop_front())
    }
}

impl Generation {
    fn step(&mut self) -> PyResult<()> {
        let engine = Arc::clone(&self.engine);
        let mut engine = lock(&engine);
        if !engine.active_ids().contains(&self.id) {
            self.ended = true;
            return Err(PyRuntimeError::new_err("ended by a later call on the same model"));
        }
        for event in engine.step(&mut |_| false) {
            match event {
                Event::Token { token, .. } if !self.ended => {
                    if self.take(&token) {
                        engine.cancel(self.id)?;
                    }
                }
                Event::Done { .. } => {
                    self.ended = true;
                    self.ready.extend(self.held.drain(..).map(|(_, token)| token));
                }
                Event::Failed { error, .. } => {
                    self.ended = true;
                    return Err(error.into());
                }
                Event::Token { .. } | Event::Prefill { .. } => {}
            }
        }
        Ok(())
    }

    /// Adds a token; true once a stop string is complete, with the text before it made ready.
    fn take(&mut self, token: &Generated) -> bool {
        let text = String::from_utf8_lossy(&token.text).into_owned();
        let logprob = token.logprob.expect("every generation asks for one alternative");
        self.held
            .push_back((self.text.len(), Token { id: token.token, text: text.clone(), logprob }));
        self.text.push_str(&text);
        if let Some(end) = self.stop.iter().filter_map(|stop| self.text.find(stop)).min() {
            for (start, mut token) in self.held.drain(..).filter(|(start, _)| *start < end) {
                token.text.truncate(end - start);
                self.ready.push_back(token);
            }
            self.ended = true;
            return true;
        }
        let undecided =
            self.text.len() - self.stop.iter().map(|s| overlap(&self.text, s)).max().unwrap_or(0);
        while self.held.front().is_some_and(|(start, token)| start + token.text.len() <= undecided)
        {
            self.ready.extend(self.held.pop_front().map(|(_, token)| token));
        }
        false
    }
}

/// Length of the longest end of `text` that begins `stop` without completing it.
fn overlap(text: &str, stop: &str) -> usize {
    (1..stop.len().min(text.len() + 1))
        .rev()
        .find(|&n| stop.is_char_boundary(n) && text.ends_with(&stop[..n]))
        .unwrap_or(0)
}

impl Drop for Generation {
    fn drop(&mut self) {
        let mut engine = lock(&self.engine);
        if engine.active_ids().contains(&self.id) {
            // It was just seen to be in flight.
            let _ = engine.cancel(self.id);
        }
    }
}
