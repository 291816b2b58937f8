//! `Weights`: a model's tensors as plain floats, for comparisons of formats.

use std::collections::BTreeMap;
use std::path::Path;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::store::plain::PlainTensor;
use crate::store::{Catalog, split_dirs};

/// See `colibri._core.Weights` in the stub file.
#[pyclass(module = "colibri._core", frozen)]
pub struct Weights {
    catalog: Catalog,
    tensors: BTreeMap<String, PlainTensor>,
}

#[pymethods]
impl Weights {
    #[new]
    #[pyo3(signature = (path, model_dirs=None))]
    fn new(py: Python<'_>, path: &str, model_dirs: Option<&str>) -> PyResult<Self> {
        let more = model_dirs.map(split_dirs).unwrap_or_default();
        Ok(py.detach(|| {
            let catalog = Catalog::open_spread(Path::new(path), &more)?;
            PlainTensor::all(&catalog).map(|tensors| Self { catalog, tensors })
        })?)
    }

    /// Name, shape, stored format and whether kernels quantise the other factor, by name.
    fn tensors(&self) -> Vec<(&str, &[usize], &str, bool)> {
        self.tensors
            .iter()
            .map(|(name, t)| (&**name, &*t.shape, &*t.format, t.rounds_inputs))
            .collect()
    }

    /// The values of a tensor: f32 bytes, row-major.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let tensor = self.tensors.get(name).ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
        let values = py.detach(|| tensor.read(&self.catalog))?;
        Ok(PyBytes::new(py, bytemuck::cast_slice(&values)))
    }
}
