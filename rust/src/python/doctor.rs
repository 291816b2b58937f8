//! What `colibri doctor` asks.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum as _;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::convert::with_progress;
use crate::doctor;
use crate::error::Error;
use crate::experts::history;
use crate::gpu::DeviceKind;
use crate::model::Survey;
use crate::runner::{DEFAULT_CTX, RunnerOptions};
use crate::store::{Catalog, split_dirs};

/// See `colibri._core.examine` in the stub file.
#[pyfunction]
#[pyo3(signature = (
    path, model_dirs, *, ram_gb, ctx, slots, threads, state_dir=None, mirrors=None, vram_gb=None,
    device=None, kv=None, mtp=true
))]
#[allow(clippy::too_many_arguments, reason = "what the stub file says")]
pub fn examine(
    py: Python<'_>,
    path: &str,
    model_dirs: Option<&str>,
    ram_gb: Option<f64>,
    ctx: Option<usize>,
    slots: usize,
    threads: Option<usize>,
    state_dir: Option<OsString>,
    mirrors: Option<&str>,
    vram_gb: Option<f64>,
    device: Option<&str>,
    kv: Option<&str>,
    mtp: bool,
) -> PyResult<String> {
    let device = device
        .map(|name| DeviceKind::from_str(name, false))
        .transpose()
        .map_err(|_| PyValueError::new_err("device: must be host"))?;
    let options = RunnerOptions {
        ctx,
        slots,
        ram_bytes: ram_gb.map(|gb| (gb * 1e9) as u64),
        threads,
        more_dirs: model_dirs.map(split_dirs).unwrap_or_default(),
        state_dir: history::state_dir(state_dir.as_deref(), Path::new(path)).ok(),
        mirrors: mirrors.map(split_dirs).unwrap_or_default(),
        vram_bytes: vram_gb.map(|gb| (gb * 1e9) as u64),
        device,
        mtp,
        kv: super::model::precision(kv)?,
        ..RunnerOptions::default()
    };
    Ok(py.detach(|| doctor::examine(Path::new(path), &options)).to_string())
}

/// See `colibri._core.measure_disk` in the stub file.
#[pyfunction]
#[pyo3(signature = (path, model_dirs, seconds, progress, mirrors=None))]
pub fn measure_disk(
    py: Python<'_>,
    path: &str,
    model_dirs: Option<&str>,
    seconds: f64,
    progress: Py<PyAny>,
    mirrors: Option<&str>,
) -> PyResult<String> {
    let limit = duration(seconds)?;
    with_progress(py, &progress, |tell| {
        let catalog = open(path, model_dirs)?;
        // What is not used is told by `examine`.
        catalog.attach_mirrors(&mirrors.map(split_dirs).unwrap_or_default());
        Ok(doctor::measure_disk(&catalog, limit, &mut |done, total| {
            tell("measuring the disk", done, total)
        })?
        .to_string())
    })
}

/// See `colibri._core.measure_weights` in the stub file.
#[pyfunction]
pub fn measure_weights(
    py: Python<'_>,
    path: &str,
    model_dirs: Option<&str>,
    threads: Option<usize>,
    seconds: f64,
    progress: Py<PyAny>,
) -> PyResult<String> {
    let limit = duration(seconds)?;
    with_progress(py, &progress, |tell| {
        let more = model_dirs.map(split_dirs).unwrap_or_default();
        let survey = Survey::begin(Path::new(path), &more, DEFAULT_CTX, false, false)?.whole()?;
        Ok(doctor::measure_weights(&survey, threads, limit, &mut |done, total| {
            tell("measuring the kernels", done, total)
        })?
        .to_string())
    })
}

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|e| PyValueError::new_err(e.to_string()))
}

/// See `colibri._core.check_contents` in the stub file.
#[pyfunction]
pub fn check_contents(
    py: Python<'_>,
    path: &str,
    model_dirs: Option<&str>,
    progress: Py<PyAny>,
) -> PyResult<String> {
    with_progress(py, &progress, |tell| {
        let catalog = open(path, model_dirs)?;
        let findings =
            doctor::check_contents(&catalog, &mut |done, total| tell("reading", done, total))?;
        let findings = findings.iter().map(doctor::Finding::to_json).collect();
        Ok(serde_json::Value::Array(findings).to_string())
    })
}

/// What can be read of a model; the rest is what `examine` tells.
fn open(path: &str, model_dirs: Option<&str>) -> Result<Catalog, Error> {
    let more = model_dirs.map(split_dirs).unwrap_or_default();
    Catalog::examine(Path::new(path), &more).map(|(catalog, _)| catalog)
}
