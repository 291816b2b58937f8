//! `glm4_moe`: GLM-4.5, 4.6, 4.7 and their Air forms.
//!
//! Grouped-query attention with half of each head rotated, biases on q, k and v, optional per-head
//! norms of q and k; feed-forward as in `glm_ffn`. The multi-token prediction layer that follows
//! the last block in the files is not used.

use super::Family;
use super::glm_ffn::FfnConfig;
use super::gqa_config::{Form, GqaConfig, NormOver};
use crate::error::Result;
use crate::model::loader::{Assembled, MAX_DIM};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "glm4_moe", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    let ffn = FfnConfig::read(config)?;
    let hidden = config.count("hidden_size", MAX_DIM)?;
    let attention = GqaConfig::read(
        loader,
        Form {
            qkv_bias: config.flag_or("attention_bias", false)?,
            o_bias: false,
            qk_norm: config.flag_or("use_qk_norm", false)?.then_some(NormOver::Head),
            partial_rotary: Some(0.5),
        },
    )?;

    let mut experts = Vec::new();
    let mut layers = Vec::new();
    for i in 0..ffn.n_layers {
        let prefix = format!("model.layers.{i}");
        let attention = attention.load(loader, &format!("{prefix}.self_attn"))?;
        let ffn = ffn.load(loader, i, &mut experts)?;
        layers.push(loader.block(&prefix, hidden, attention, ffn)?);
    }
    loader.finish(Assembled {
        layers,
        experts,
        sparse_layers: ffn.sparse_layers(),
        n_experts: ffn.n_experts,
        top_k: ffn.top_k,
    })
}
