//! `engine_main` and `describe`: the engine as a program, and a model folder told from headers.

use std::path::Path;

use pyo3::prelude::*;

use crate::store::split_dirs;

/// Run the engine (`colibri-engine ARGS`) on file descriptors 0, 1, 2; return its exit code.
///
/// The interpreter lock is released for the whole run; Python's SIGINT handler is replaced.
#[pyfunction]
pub fn engine_main(py: Python<'_>, args: Vec<String>) -> PyResult<i32> {
    // Python's own handler would be chained before ours and raise once we return.
    let signal = py.import("signal")?;
    signal.call_method1("signal", (signal.getattr("SIGINT")?, signal.getattr("SIG_DFL")?))?;
    let args: Vec<String> = std::iter::once("colibri-engine".to_owned()).chain(args).collect();
    Ok(py.detach(|| crate::cli::run(&args)))
}

/// What a model folder holds, as a JSON object (family, sizes, formats); reads headers only.
#[pyfunction]
#[pyo3(signature = (path, model_dirs=None))]
pub fn describe(py: Python<'_>, path: &str, model_dirs: Option<&str>) -> PyResult<String> {
    let more = model_dirs.map(split_dirs).unwrap_or_default();
    let summary = py.detach(|| crate::model::summary(Path::new(path), &more))?;
    Ok(summary.to_string())
}
