//! The indexers of `DeepSeek` sparse attention as configurations describe them.

use std::sync::Arc;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::Loader;
use crate::model::dsa::{Indexer, Indexing};
use crate::model::loader::{MAX_DIM, MAX_LAYERS, MAX_POSITIONS};
use crate::model::rope::{Pairing, Rope};

/// Geometry of all layers' indexers.
pub struct DsaConfig {
    hidden: usize,
    q_rank: usize,
    n_heads: usize,
    dim: usize,
    rope_dim: usize,
    top_k: usize,
    rope: Arc<Rope>,
    /// Whether each layer has an indexer, or shares the nearest one before it.
    owns: Vec<bool>,
}

impl DsaConfig {
    /// Reads and checks the configuration; `pairing` is the rotation's where it does not say.
    pub fn read(loader: &Loader, pairing: Pairing) -> Result<Self> {
        let config = loader.config;
        let rope_dim = config.count("qk_rope_head_dim", MAX_DIM)?;
        let dim = config.count("index_head_dim", MAX_DIM)?;
        if rope_dim > dim {
            return Err(config.refuse(format!(
                "index_head_dim {dim} is less than the {rope_dim} of qk_rope_head_dim"
            )));
        }
        let pairing =
            if config.flag_or("indexer_rope_interleave", pairing == Pairing::Interleaved)? {
                Pairing::Interleaved
            } else {
                Pairing::Halves
            };
        Ok(Self {
            hidden: config.count("hidden_size", MAX_DIM)?,
            q_rank: config.count("q_lora_rank", MAX_DIM)?,
            n_heads: config.count("index_n_heads", 1 << 12)?,
            dim,
            rope_dim,
            top_k: config.count("index_topk", MAX_POSITIONS)?,
            rope: Arc::new(Rope::new(rope_dim, &config.rope()?, loader.max_ctx, pairing)),
            owns: owning_layers(config)?,
        })
    }

    /// Loads the indexer of the attention `prefix` of layer `layer`.
    pub fn load(&self, loader: &mut Loader, layer: usize, prefix: &str) -> Result<Indexing> {
        // A layer that predicts further tokens, behind the last, has its own.
        if !self.owns.get(layer).copied().unwrap_or(true) {
            return Ok(Indexing::Shared);
        }
        let indexer = format!("{prefix}.indexer");
        let &Self { hidden, q_rank, n_heads, dim, .. } = self;
        Ok(Indexing::Own(Box::new(Indexer {
            n_heads,
            dim,
            rope_dim: self.rope_dim,
            top_k: self.top_k,
            q_proj: loader.matrix(&format!("{indexer}.wq_b"), n_heads * dim, q_rank)?,
            k_proj: loader.matrix(&format!("{indexer}.wk"), dim, hidden)?,
            k_norm: loader.vector(&format!("{indexer}.k_norm.weight"), dim)?,
            k_norm_bias: loader.vector(&format!("{indexer}.k_norm.bias"), dim)?,
            head_weights: loader.matrix_f32(&format!("{indexer}.weights_proj"), n_heads, hidden)?,
            rope: Arc::clone(&self.rope),
        })))
    }
}

/// Which layers have an indexer of their own, in any of three forms: `indexer_types`, a list of
/// "full" and "shared"; `index_topk_pattern`, the same in letters; or every `index_topk_freq`-th
/// from `index_skip_topk_offset` on.
fn owning_layers(config: &Config) -> Result<Vec<bool>> {
    let n_layers = config.count("num_hidden_layers", MAX_LAYERS)?;
    let named = ["indexer_types", "index_topk_pattern"]
        .into_iter()
        .find_map(|key| config.get(key).map(|value| (key, value)));
    let owns = if let Some((key, value)) = named {
        let letters: Option<Vec<String>> = match (value.as_str(), value.as_array()) {
            (Some(letters), _) => Some(letters.chars().map(String::from).collect()),
            (_, Some(list)) => list.iter().map(|kind| kind.as_str().map(String::from)).collect(),
            _ => None,
        };
        let owns: Option<Vec<bool>> = letters.and_then(|kinds| {
            let kind = |kind: &String| match &kind[..] {
                "full" | "F" => Some(true),
                "shared" | "S" => Some(false),
                _ => None,
            };
            kinds.iter().map(kind).collect()
        });
        owns.filter(|owns| owns.len() == n_layers).ok_or_else(|| Error::Unsupported {
            what: format!("{key} {value} for {n_layers} layers"),
            hint: "a \"full\" or \"shared\" for each layer is expected".into(),
        })?
    } else {
        let every = config.opt_count("index_topk_freq", MAX_LAYERS)?.unwrap_or(1);
        let offset = config.count_or("index_skip_topk_offset", 2, MAX_LAYERS)?;
        (0..n_layers)
            .map(|layer| (layer + 1).saturating_sub(offset).is_multiple_of(every))
            .collect()
    };
    if !owns[0] {
        return Err(config.refuse("the first layer has no indexer before it to share"));
    }
    Ok(owns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owns(json: &str) -> Result<Vec<bool>> {
        owning_layers(&Config::from_json(&format!(r#"{{"num_hidden_layers": 6, {json}}}"#)))
    }

    #[test]
    fn sharing_is_read_in_all_forms() {
        let (full, shared) = (true, false);
        let expected = [full, full, shared, shared, full, shared];
        for form in [
            r#""indexer_types": ["full", "full", "shared", "shared", "full", "shared"]"#,
            r#""index_topk_pattern": "FFSSFS""#,
            r#""index_topk_pattern": ["F", "F", "S", "S", "F", "S"]"#,
            r#""index_topk_freq": 3"#,
        ] {
            assert_eq!(owns(form).expect(form), expected, "{form}");
        }
        let later = owns(r#""index_topk_freq": 2, "index_skip_topk_offset": 3"#).expect("a form");
        assert_eq!(later, [full, full, full, shared, full, shared]);
        assert_eq!(owns(r#""x": 1"#).expect("none"), [full; 6]);
    }

    #[test]
    fn other_forms_are_refused() {
        for wrong in [
            r#""indexer_types": ["full", "full", "shared", "shared", "full"]"#,
            r#""indexer_types": ["full", "full", "shared", "shared", "full", "none"]"#,
            r#""indexer_types": [1, 1, 1, 1, 1, 1]"#,
            r#""indexer_types": 3"#,
            r#""index_topk_pattern": "SFFFFF""#,
            r#""index_topk_pattern": "FFFFFX""#,
            r#""index_topk_freq": 0"#,
        ] {
            assert!(owns(wrong).is_err(), "{wrong}");
        }
    }
}
