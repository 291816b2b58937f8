//! Converting and verifying model folders.

use std::path::Path;

use pyo3::prelude::*;

use crate::convert::{self, Conversion, Options};
use crate::error::Error;
use crate::store::split_dirs;

/// A model folder and what becomes of it; see `colibri._core.Conversion` in the stub file.
#[pyclass(name = "Conversion", module = "colibri._core", frozen)]
pub struct PyConversion(Conversion);

#[pymethods]
impl PyConversion {
    #[new]
    #[pyo3(signature = (src, model_dirs=None, *, experts, group, dense, head, mtp))]
    #[allow(clippy::too_many_arguments, reason = "what the stub file says")]
    fn new(
        py: Python<'_>,
        src: &str,
        model_dirs: Option<&str>,
        experts: &str,
        group: usize,
        dense: &str,
        head: &str,
        mtp: &str,
    ) -> PyResult<Self> {
        let options = Options::parse(experts, group, dense, head, mtp)?;
        let more = model_dirs.map(split_dirs).unwrap_or_default();
        Ok(Self(py.detach(|| Conversion::new(Path::new(src), &more, &options))?))
    }

    /// What would be written, as a JSON object.
    fn summary(&self) -> String {
        self.0.summary().to_string()
    }

    /// Writes it; returns how many files were made and how many were there.
    fn run(
        &self,
        py: Python<'_>,
        dst: &str,
        threads: Option<usize>,
        progress: Py<PyAny>,
    ) -> PyResult<(usize, usize)> {
        with_progress(py, &progress, |tell| self.0.run(Path::new(dst), threads, tell))
    }
}

/// One line for each file or tensor of a converted model that is not what was written.
#[pyfunction]
pub fn verify_converted(py: Python<'_>, dst: &str, progress: Py<PyAny>) -> PyResult<Vec<String>> {
    with_progress(py, &progress, |tell| convert::verify(Path::new(dst), tell))
}

/// Runs `work` without the interpreter's lock; what the callback or a signal raises ends it.
pub(super) fn with_progress<T: Send>(
    py: Python<'_>,
    progress: &Py<PyAny>,
    work: impl FnOnce(&mut dyn FnMut(&str, u64, u64) -> bool) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let result = py.detach(|| {
        work(&mut |stage, done, total| {
            let told = Python::attach(|py| {
                py.check_signals()?;
                progress.call1(py, (stage, done, total)).map(|_| ())
            });
            raised = told.err();
            raised.is_none()
        })
    });
    match raised {
        Some(error) => Err(error),
        None => Ok(result?),
    }
}
