//! `ChatTemplate`: a chat template.

use crate::error::Error;
use crate::template;
use pyo3::prelude::*;

/// A Jinja chat template, rendered by minijinja with a fuel limit.
#[pyclass(module = "colibri._core", frozen)]
pub struct ChatTemplate(template::ChatTemplate);

#[pymethods]
impl ChatTemplate {
    #[new]
    #[pyo3(signature = (source, *, bos_token = None, eos_token = None))]
    fn new(source: &str, bos_token: Option<&str>, eos_token: Option<&str>) -> PyResult<Self> {
        Ok(Self(template::ChatTemplate::new(source, bos_token, eos_token)?))
    }

    /// Render with the variables of a JSON object.
    fn render(&self, py: Python<'_>, context_json: &str) -> PyResult<String> {
        let rendered = py.detach(|| {
            let context = serde_json::from_str(context_json)
                .map_err(|error| Error::BadRequest(format!("variables are no JSON: {error}")))?;
            self.0.render(&context)
        });
        Ok(rendered?)
    }
}
