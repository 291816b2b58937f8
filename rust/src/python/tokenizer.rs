//! `Tokenizer`: a `tokenizer.json`.

use crate::tokenizer;
use pyo3::prelude::*;
use std::path::PathBuf;

/// A `tokenizer.json`.
#[pyclass(module = "colibri._core", frozen)]
pub struct Tokenizer(tokenizer::Tokenizer);

#[pymethods]
impl Tokenizer {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Ok(Self(py.detach(|| tokenizer::Tokenizer::load(path))?))
    }

    /// Token ids of `text`; no token is added. `special`: added tokens are recognised.
    #[pyo3(signature = (text, *, special = true))]
    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        Ok(py.detach(|| self.0.encode(text, special))?)
    }

    /// Text of `ids`; bytes that are no UTF-8 become U+FFFD.
    #[expect(clippy::needless_pass_by_value, reason = "arguments arrive by value from Python")]
    fn decode(&self, py: Python<'_>, ids: Vec<u32>) -> String {
        py.detach(|| self.0.decode(&ids))
    }

    /// One more than the largest id.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }
}
