//! The `colibri._core` extension module: registration only.

mod batch;
mod convert;
mod doctor;
mod engine;
mod error;
mod model;
mod sampling;
mod template;
mod tokenizer;
mod trace;
mod weights;
mod wire;

use pyo3::prelude::*;

/// The compiled part of the `colibri` package.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::register(module)?;
    module.add_class::<template::ChatTemplate>()?;
    module.add_class::<tokenizer::Tokenizer>()?;
    module.add_class::<wire::RecordReader>()?;
    module.add_class::<wire::RequestReader>()?;
    module.add_function(wrap_pyfunction!(wire::format_submit, module)?)?;
    module.add_function(wrap_pyfunction!(engine::engine_main, module)?)?;
    module.add_function(wrap_pyfunction!(engine::describe, module)?)?;
    module.add_function(wrap_pyfunction!(doctor::examine, module)?)?;
    module.add_function(wrap_pyfunction!(doctor::measure_disk, module)?)?;
    module.add_function(wrap_pyfunction!(doctor::check_contents, module)?)?;
    module.add_function(wrap_pyfunction!(doctor::measure_weights, module)?)?;
    module.add_class::<sampling::Sampling>()?;
    module.add_function(wrap_pyfunction!(sampling::draw, module)?)?;
    module.add_class::<convert::PyConversion>()?;
    module.add_function(wrap_pyfunction!(convert::verify_converted, module)?)?;
    module.add_class::<model::Model>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<weights::Weights>()?;
    module.add_function(wrap_pyfunction!(trace::cache_hits, module)?)?;
    module.add_class::<model::Token>()?;
    module.add_class::<model::Generation>()?;
    Ok(())
}
