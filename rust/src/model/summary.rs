//! What a model folder holds, told from headers alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Survey, arch};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::experts::ExpertSource;
use crate::store::{Catalog, Tensor};

/// Family, sizes, formats and context of the model folder `dir`, whose shards may be in the folders
/// `more` as well, as a JSON object.
///
/// # Errors
/// As loading would, for a folder whose files are missing or damaged; an unknown family and what a
/// family refuses are reported in the object, since the rest can still be told.
pub fn summary(dir: &Path, more: &[PathBuf]) -> Result<Value> {
    let config = Config::open(dir)?;
    let model_type = config.model_type()?.to_owned();
    let count = |key: &str| config.opt_count(key, usize::MAX >> 1);
    let n_experts = config.n_experts(usize::MAX >> 1)?.unwrap_or(0);
    let top_k = config.n_chosen(usize::MAX >> 1)?.unwrap_or(0);
    let [layers, hidden, vocabulary] =
        ["num_hidden_layers", "hidden_size", "vocab_size"].map(count);
    let (layers, hidden, vocabulary) = (layers?, hidden?, vocabulary?);
    let context = config.opt_max_positions(usize::MAX >> 1)?;
    let (catalog, faults) = Catalog::examine(dir, more)?;
    Error::unless_empty(faults)?;
    let catalog = Arc::new(catalog);
    let survey = arch::find(&model_type).and_then(|family| {
        Survey::of(config, family, Arc::clone(&catalog), Vec::new(), 1, (false, false))
    });
    let (model, unsupported) = match survey {
        Err(error) => (None, Some(error.to_string())),
        Ok(Survey { model, faults, .. }) => {
            (model, Error::unless_empty(faults).err().map(|e| e.to_string()))
        }
    };
    let (mut dense, mut experts) = (Part::default(), Part::default());
    for (name, tensor) in catalog.tensors() {
        let part = if tensor.routed { &mut experts } else { &mut dense };
        part.add(&catalog, name, tensor)?;
    }
    let taken = u128::from(experts.parameters) * top_k as u128;
    let routed = u64::try_from(taken.checked_div(n_experts as u128).unwrap_or(0));
    let active = dense.parameters.saturating_add(routed.unwrap_or(u64::MAX));
    let is_told = !dense.untold && !experts.untold;
    let model = model.as_ref();
    Ok(json!({
        "path": dir.display().to_string(),
        "family": model_type,
        "supported": unsupported.is_none(),
        "reason": unsupported,
        "layers": layers,
        "sparse_layers": model.map(|model| model.sparse_layers.len()),
        "experts": n_experts,
        "experts_per_token": top_k,
        "hidden": hidden,
        "vocabulary": vocabulary,
        "context": context,
        "parameters": is_told.then(|| dense.parameters.saturating_add(experts.parameters)),
        "parameters_active": is_told.then_some(active),
        "shards": catalog.n_shards(),
        "dense": {"bytes": dense.bytes, "formats": dense.formats},
        "routed_experts": {"bytes": experts.bytes, "formats": experts.formats},
        "largest_expert": model
            .and_then(|model| model.experts.iter().map(ExpertSource::disk_bytes).max())
            .map(|bytes| json!({ "bytes": bytes })),
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
    /// Adds weights. A file may claim more of them than a number holds.
    fn count(&mut self, parameters: u64) {
        self.parameters = self.parameters.saturating_add(parameters);
    }

    fn add(&mut self, catalog: &Catalog, name: &str, tensor: &Tensor) -> Result<()> {
        self.bytes += tensor.bytes as u64;
        if let Some(parts) = &tensor.record {
            for part in &parts[..] {
                self.count((part.layout.n_out * part.layout.n_in) as u64);
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
            None if is_mxfp4(catalog, name) => (stored.saturating_mul(2), "mxfp4".into()),
            None if tensor.dtype == safetensors::Dtype::F8_E4M3 => (stored, "fp8-e4m3".into()),
            None => (stored, format!("{:?}", tensor.dtype).to_lowercase()),
            Some(prefix) => {
                let [n_out, n_in] = catalog.packed_shape(prefix.trim_end_matches('.'))?;
                let weights = (n_out * n_in) as u64;
                (
                    weights,
                    format!("int{}", stored.saturating_mul(32).checked_div(weights).unwrap_or(0)),
                )
            }
        };
        self.count(parameters);
        *self.formats.entry(format).or_default() += 1;
        Ok(())
    }
}

/// Whether `name` has the codes of MXFP4 weights, two in a byte.
fn is_mxfp4(catalog: &Catalog, name: &str) -> bool {
    name.strip_suffix("_blocks")
        .is_some_and(|matrix| catalog.get(&format!("{matrix}_scales")).is_some())
}
