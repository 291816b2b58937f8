//! A recorded routing through caches of experts.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::experts::replay::{Rule, Trace};

/// Uses of experts that a cache of `slots` experts serves, by one rule; see `colibri.traces`.
#[pyfunction]
pub fn cache_hits(
    py: Python<'_>,
    choices: Vec<u16>,
    layers: usize,
    experts: usize,
    top_k: usize,
    slots: usize,
    rule: &str,
) -> PyResult<u64> {
    let rule =
        Rule::parse(rule).ok_or_else(|| PyValueError::new_err(format!("no rule {rule:?}")))?;
    let trace = Trace { choices: &choices, layers, experts, top_k };
    py.detach(|| trace.hits(slots, rule)).map_err(PyValueError::new_err)
}
