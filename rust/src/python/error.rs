//! `ColibriCoreError`: how a crate error looks to Python.

use crate::error::Error;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    _core,
    ColibriCoreError,
    PyException,
    "Any refusal or fault of the engine; `str()` is one line."
);

/// Adds the exception class to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let class = module.py().get_type::<ColibriCoreError>();
    class.setattr("__module__", "colibri._core")?;
    module.add("ColibriCoreError", class)
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string().replace(['\n', '\r'], " ");
        let raised = ColibriCoreError::new_err(message);
        Python::attach(|py| {
            let value = raised.value(py);
            value.setattr("code", error.wire_code())?;
            value.setattr("hint", error.hint())
        })
        .map_or_else(|failure: PyErr| failure, |()| raised)
    }
}
