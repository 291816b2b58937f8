//! `engine_main` and `describe`: the engine as a program, and a model folder told from headers.

use std::path::Path;

use pyo3::prelude::*;

/// Run the engine (`colibri-engine ARGS`) on file descriptors 0, 1, 2; return its exit code.
///
/// The interpreter lock is released for the whole run; Python's SIGINT handler is replaced.
#[pyfunction]
pub fn engine_main(py: Python<'_>, args: Vec<String>) -> i32 {
    let args: Vec<String> = std::iter::once("colibri-engine".to_owned()).chain(args).collect();
    py.detach(|| crate::cli::run(&args))
}

/// What a model folder holds, as a JSON object (family, sizes, formats); reads headers only.
#[pyfunction]
pub fn describe(py: Python<'_>, path: &str) -> PyResult<String> {
    let summary = py.detach(|| crate::model::summary(Path::new(path)))?;
    Ok(summary.to_string())
}
