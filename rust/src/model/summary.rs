//! What a model folder holds, told from headers alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::arch;
use super::loader::{Loader, is_routed_expert};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::store::{Catalog, Tensor};

/// Family, sizes, formats and context of the model folder `dir`, as a JSON object.
///
/// # Errors
/// As loading would, for a folder whose files are missing or damaged; an unknown family and what a
/// family refuses are reported in the object, since the rest can still be told.
pub fn summary(dir: &Path) -> Result<Value> {
    let config = Config::open(dir)?;
    let model_type = config.model_type()?;
    let catalog = Arc::new(Catalog::open(dir)?);
    let checked =
        arch::find(model_type).and_then(|family| Loader::check(&config, &catalog, family));
    let unsupported = checked.err().map(|e| e.to_string());
    let (mut dense, mut experts) = (Part::default(), Part::default());
    for (name, tensor) in catalog.tensors() {
        let part = if is_routed_expert(name) { &mut experts } else { &mut dense };
        part.add(&catalog, name, tensor)?;
    }
    let n_experts = config.n_experts(usize::MAX >> 1)?.unwrap_or(0);
    let top_k = config.opt_count("num_experts_per_tok", usize::MAX >> 1)?.unwrap_or(0);
    let active = dense.parameters
        + if n_experts > 0 { experts.parameters * top_k as u64 / n_experts as u64 } else { 0 };
    Ok(json!({
        "path": dir.display().to_string(),
        "family": model_type,
        "supported": unsupported.is_none(),
        "reason": unsupported,
        "layers": config.opt_count("num_hidden_layers", usize::MAX >> 1)?,
        "experts": n_experts,
        "experts_per_token": top_k,
        "hidden": config.opt_count("hidden_size", usize::MAX >> 1)?,
        "vocabulary": config.opt_count("vocab_size", usize::MAX >> 1)?,
        "context": config.opt_count("max_position_embeddings", usize::MAX >> 1)?,
        "parameters": dense.parameters + experts.parameters,
        "parameters_active": active,
        "shards": catalog.n_shards(),
        "dense": {"bytes": dense.bytes, "formats": dense.formats},
        "routed_experts": {"bytes": experts.bytes, "formats": experts.formats},
    }))
}

#[derive(Default)]
struct Part {
    bytes: u64,
    parameters: u64,
    /// Format -> number of tensors.
    formats: BTreeMap<String, u64>,
}

impl Part {
    fn add(&mut self, catalog: &Catalog, name: &str, tensor: &Tensor) -> Result<()> {
        self.bytes += tensor.bytes as u64;
        let side_data = ["weight_scale", "weight_shape"].iter().any(|end| name.ends_with(end));
        if side_data {
            return Ok(());
        }
        let stored = tensor.shape.iter().map(|&n| n as u64).product::<u64>();
        let (parameters, format) = match name.strip_suffix("weight_packed") {
            None => (stored, format!("{:?}", tensor.dtype).to_lowercase()),
            Some(prefix) => {
                let weights = packed_elements(catalog, &format!("{prefix}weight_shape"))?;
                (weights, format!("int{}", (stored * 32).checked_div(weights).unwrap_or(0)))
            }
        };
        self.parameters += parameters;
        *self.formats.entry(format).or_default() += 1;
        Ok(())
    }
}

/// Number of weights that a packed matrix stands for, from the tensor that holds its shape.
fn packed_elements(catalog: &Catalog, name: &str) -> Result<u64> {
    let tensor = catalog.require(name)?;
    if tensor.dtype != safetensors::Dtype::I64 || tensor.shape != [2] {
        return Err(Error::bad_file(
            catalog.path_of(tensor),
            format!("tensor {name} is {:?} {:?}; i64 [2] is expected", tensor.dtype, tensor.shape),
        ));
    }
    let bytes = catalog.read(tensor)?;
    let dims = bytes.chunks_exact(8).map(|b| {
        let b: [u8; 8] = b.try_into().expect("chunks of eight bytes");
        u64::try_from(i64::from_le_bytes(b)).ok()
    });
    dims.into_iter().try_fold(1u64, |product, dim| product.checked_mul(dim?)).ok_or_else(|| {
        Error::bad_file(catalog.path_of(tensor), format!("tensor {name} is no shape"))
    })
}
