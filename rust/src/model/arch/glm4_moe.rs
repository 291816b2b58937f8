//! `glm4_moe`: GLM-4.5, 4.6, 4.7 and their Air forms.
//!
//! Grouped-query attention with half of each head rotated, biases on q, k and v, optional per-head
//! norms of q and k; feed-forward as in `deepseek_ffn`. The multi-token prediction layer that
//! follows the last block in the files is not used.

use super::Family;
use super::deepseek_ffn::{FfnConfig, Scoring};
use super::gqa_config::{Form, GqaConfig, NormOver, Rotary};
use crate::error::Result;
use crate::model::attention::Attention;
use crate::model::loader::{Assembled, MAX_DIM};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "glm4_moe", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    config.full_attention(loader.max_ctx)?;
    let ffn = FfnConfig::read(config, Scoring::Sigmoid, 1)?;
    let hidden = config.count("hidden_size", MAX_DIM)?;
    let attention = GqaConfig::read(
        loader,
        Form {
            qkv_bias: config.flag_or("attention_bias", false)?,
            qk_norm: config.flag_or("use_qk_norm", false)?.then_some(NormOver::Head),
            rotary: Rotary::Share(0.5),
            ..Form::default()
        },
    )?;

    let mut experts = Vec::new();
    let mut layers = Vec::new();
    for i in 0..ffn.n_layers {
        let prefix = format!("model.layers.{i}");
        let attention = attention.load(loader, &format!("{prefix}.self_attn"))?;
        let attention = Attention::Gqa(attention);
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
