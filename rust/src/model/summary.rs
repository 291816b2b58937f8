//! What a model folder holds, told from headers alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::arch;
use super::loader::{Loader, is_routed_expert};
use crate::config::Config;
use crate::error::Result;
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
    let top_k = config.n_chosen(usize::MAX >> 1)?.unwrap_or(0);
    let active = dense.parameters
        + if n_experts > 0 { experts.parameters * top_k as u64 / n_experts as u64 } else { 0 };
    let is_told = !dense.untold && !experts.untold;
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
        "context": config.opt_max_positions(usize::MAX >> 1)?,
        "parameters": is_told.then_some(dense.parameters + experts.parameters),
        "parameters_active": is_told.then_some(active),
        "shards": catalog.n_shards(),
        "dense": {"bytes": dense.bytes, "formats": dense.formats},
        "routed_experts": {"bytes": experts.bytes, "formats": experts.formats},
    }))
}

#[derive(Default)]
struct Part {
    bytes: u64,
    parameters: u64,
    /// Whether there are weights that `parameters` does not count.
    untold: bool,
    /// Format -> number of tensors.
    formats: BTreeMap<String, u64>,
}

impl Part {
    fn add(&mut self, catalog: &Catalog, name: &str, tensor: &Tensor) -> Result<()> {
        self.bytes += tensor.bytes as u64;
        if let Some(parts) = &tensor.record {
            for part in &parts[..] {
                self.parameters += (part.layout.n_out * part.layout.n_in) as u64;
                *self.formats.entry(part.layout.format()).or_default() += 1;
            }
            return Ok(());
        }
        let mxfp4 = name.strip_suffix("_scales").map(|name| format!("{name}_blocks"));
        let side_data = ["weight_scale", "weight_scale_inv", "weight_shape", ".qs"]
            .iter()
            .any(|end| name.ends_with(end))
            || mxfp4.is_some_and(|blocks| catalog.get(&blocks).is_some());
        if side_data {
            return Ok(());
        }
        if catalog.get(&format!("{name}.qs")).is_some() {
            // Flat bytes; only with the shape, which the family knows, do they tell how many bits.
            self.untold = true;
            *self.formats.entry("integers with .qs".into()).or_default() += 1;
            return Ok(());
        }
        let stored = tensor.shape.iter().map(|&n| n as u64).product::<u64>();
        let (parameters, format) = match name.strip_suffix("weight_packed") {
            None if is_mxfp4(catalog, name) => (stored * 2, "mxfp4".into()),
            None if tensor.dtype == safetensors::Dtype::F8_E4M3 => (stored, "fp8-e4m3".into()),
            None => (stored, format!("{:?}", tensor.dtype).to_lowercase()),
            Some(prefix) => {
                let [n_out, n_in] = catalog.packed_shape(prefix.trim_end_matches('.'))?;
                let weights = (n_out * n_in) as u64;
                (weights, format!("int{}", (stored * 32).checked_div(weights).unwrap_or(0)))
            }
        };
        self.parameters += parameters;
        *self.formats.entry(format).or_default() += 1;
        Ok(())
    }
}

/// Whether `name` has the codes of MXFP4 weights, two in a byte.
fn is_mxfp4(catalog: &Catalog, name: &str) -> bool {
    name.strip_suffix("_blocks")
        .is_some_and(|matrix| catalog.get(&format!("{matrix}_scales")).is_some())
}
