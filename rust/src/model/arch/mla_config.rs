//! Multi-head latent attention as configurations describe it, and the decoders made of it.

use std::sync::Arc;

use serde_json::Value;

use super::deepseek_ffn::FfnConfig;
use super::dsa_config::DsaConfig;
use crate::config::{Config, RopeScaling};
use crate::error::{Error, Result};
use crate::model::attention::Attention;
use crate::model::dsa::Indexing;
use crate::model::loader::{Assembled, MAX_DIM};
use crate::model::mla::{Mla, Query};
use crate::model::rope::{Pairing, Rope};
use crate::model::{Loader, Model};

/// Geometry of all layers' attention.
pub struct MlaConfig {
    hidden: usize,
    n_heads: usize,
    q_rank: Option<usize>,
    kv_rank: usize,
    nope: usize,
    rope_dim: usize,
    v: usize,
    bias: bool,
    rope: Option<Arc<Rope>>,
    scale: f32,
    indexers: Option<DsaConfig>,
}

impl MlaConfig {
    /// Reads and checks the configuration.
    pub fn read(loader: &Loader) -> Result<Self> {
        let config = loader.config;
        refuse_other_layers(config, loader.max_ctx)?;
        let n_heads = config.count("num_attention_heads", MAX_DIM)?;
        let n_kv_heads = config.opt_count("num_key_value_heads", MAX_DIM)?.unwrap_or(n_heads);
        if n_kv_heads != n_heads {
            return Err(Error::Unsupported {
                what: format!("num_key_value_heads {n_kv_heads} for {n_heads} latent heads"),
                hint: "check config.json".into(),
            });
        }
        let nope = config.count("qk_nope_head_dim", MAX_DIM)?;
        let rope_dim = config.count("qk_rope_head_dim", MAX_DIM)?;
        if !rope_dim.is_multiple_of(2) {
            return Err(config.refuse(format!("qk_rope_head_dim {rope_dim} is odd")));
        }
        let pairing = if config.flag_or("rope_interleave", true)? {
            Pairing::Interleaved
        } else {
            Pairing::Halves
        };
        let rope = config.rope()?;
        if let Some(share) = rope.partial.filter(|share| *share != 1.0) {
            return Err(Error::Unsupported {
                what: format!("partial_rotary_factor {share} in this family"),
                hint: "check config.json".into(),
            });
        }
        let stretched = match &rope.scaling {
            RopeScaling::Yarn(yarn) => yarn.latent_scores,
            RopeScaling::None | RopeScaling::Llama3(_) => 1.0,
        };
        Ok(Self {
            hidden: config.count("hidden_size", MAX_DIM)?,
            n_heads,
            q_rank: config.opt_count("q_lora_rank", MAX_DIM)?,
            kv_rank: config.count("kv_lora_rank", MAX_DIM)?,
            nope,
            rope_dim,
            v: config.count("v_head_dim", MAX_DIM)?,
            bias: config.flag_or("attention_bias", false)?,
            rope: Some(Arc::new(Rope::new(rope_dim, &rope, loader.max_ctx, pairing))),
            scale: stretched as f32 / ((nope + rope_dim) as f32).sqrt(),
            indexers: None,
        })
    }

    /// The same with indexers that choose which positions are attended to.
    #[must_use]
    pub fn with_indexers(self, indexers: DsaConfig) -> Self {
        Self { indexers: Some(indexers), ..self }
    }

    /// The same without rotation.
    #[must_use]
    pub fn without_rope(self) -> Self {
        Self { rope: None, ..self }
    }

    /// Loads the attention of one layer.
    pub fn load(&self, loader: &mut Loader, layer: usize) -> Result<Mla> {
        let prefix = format!("model.layers.{layer}.self_attn");
        let &Self { hidden, n_heads, kv_rank, nope, rope_dim, v, bias, .. } = self;
        let q_width = n_heads * (nope + rope_dim);
        let query = match self.q_rank {
            None => {
                Query::Direct(loader.linear(&format!("{prefix}.q_proj"), q_width, hidden, false)?)
            }
            Some(rank) => Query::LowRank {
                down: loader.linear(&format!("{prefix}.q_a_proj"), rank, hidden, bias)?,
                norm: loader.vector(&format!("{prefix}.q_a_layernorm.weight"), rank)?,
                up: loader.linear(&format!("{prefix}.q_b_proj"), q_width, rank, false)?,
            },
        };
        // Rows of kv_b_proj: for each head its key rows, then its value rows.
        let first = |head: usize| head * (nope + v);
        let keys = (0..n_heads).map(|h| (first(h)..first(h) + nope, true));
        let values = (0..n_heads).map(|h| (first(h) + nope..first(h + 1), false));
        let mut absorb_k = loader.slices_f32(
            &format!("{prefix}.kv_b_proj"),
            n_heads * (nope + v),
            kv_rank,
            keys.chain(values).collect(),
        )?;
        let absorb_v = absorb_k.split_off(n_heads);
        Ok(Mla {
            n_heads,
            kv_rank,
            nope_dim: nope,
            rope_dim,
            v_dim: v,
            query,
            kv_a_proj: loader.linear(
                &format!("{prefix}.kv_a_proj_with_mqa"),
                kv_rank + rope_dim,
                hidden,
                bias,
            )?,
            kv_a_norm: loader.vector(&format!("{prefix}.kv_a_layernorm.weight"), kv_rank)?,
            absorb_k,
            absorb_v,
            o_proj: loader.linear(&format!("{prefix}.o_proj"), hidden, n_heads * v, bias)?,
            rope: self.rope.clone(),
            scale: self.scale,
            indexing: match &self.indexers {
                None => Indexing::All,
                Some(indexers) => indexers.load(loader, layer, &prefix)?,
            },
        })
    }
}

/// Refuses layers that are neither full nor, as configurations of sparse attention may call all of
/// theirs, `"indexed_attention"`.
fn refuse_other_layers(config: &Config, max_ctx: usize) -> Result<()> {
    let indexed = |kinds: &Vec<Value>| kinds.iter().all(|kind| kind == "indexed_attention");
    let has_indexers = config.get("index_topk").is_some();
    if has_indexers && config.get("layer_types").and_then(Value::as_array).is_some_and(indexed) {
        return Ok(());
    }
    config.full_attention(max_ctx)
}

/// Loads a decoder of latent attention and the given feed-forward blocks.
pub fn load(loader: &mut Loader, attention: &MlaConfig, ffn: &FfnConfig) -> Result<Model> {
    let attend = |loader: &mut Loader, i| Ok(Attention::Mla(attention.load(loader, i)?));
    load_with(loader, &attend, Some(attention), ffn)
}

/// The same with any attention, which is loaded by the number of its layer, and that of a layer that
/// predicts a token more, where the family has one.
pub fn load_with(
    loader: &mut Loader,
    attention: &dyn Fn(&mut Loader, usize) -> Result<Attention>,
    predicting: Option<&MlaConfig>,
    ffn: &FfnConfig,
) -> Result<Model> {
    let mut experts = Vec::new();
    let mut layers = Vec::new();
    for i in 0..ffn.n_layers {
        let prefix = format!("model.layers.{i}");
        let attention = attention(loader, i)?;
        let hidden = ffn.hidden;
        let ffn = ffn.load(loader, i, &mut experts)?;
        layers.push(loader.block(&prefix, hidden, attention, ffn)?);
    }
    if let Some(latent) = predicting {
        let (n_layers, hidden) = (ffn.n_layers, ffn.hidden);
        loader.prediction_layer(n_layers, hidden, &mut experts, |loader, experts| {
            let attention = Attention::Mla(latent.load(loader, n_layers)?);
            let ffn = ffn.load_sparse(loader, n_layers, experts)?;
            loader.block(&format!("model.layers.{n_layers}"), hidden, attention, ffn)
        })?;
    }
    loader.finish(Assembled {
        layers,
        experts,
        sparse_layers: ffn.sparse_layers(),
        n_experts: ffn.n_experts,
        top_k: ffn.top_k,
    })
}
