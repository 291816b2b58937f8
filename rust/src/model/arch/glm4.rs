//! `glm4`: the dense GLM-4-0414 models, GLM-Z1.
//!
//! Grouped-query attention with half of each head rotated in pairs of neighbours; what attention
//! and feed-forward block give is normed once more before it is added.

use super::Family;
use super::gqa_config::{Form, GqaConfig, Rotary};
use crate::error::Result;
use crate::model::attention::Attention;
use crate::model::ffn::Ffn;
use crate::model::loader::{Assembled, MAX_DIM, MAX_LAYERS};
use crate::model::rope::Pairing;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "glm4", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    config.full_attention(loader.max_ctx)?;
    config.only("hidden_act", "silu")?;
    let hidden = config.count("hidden_size", MAX_DIM)?;
    let width = config.count("intermediate_size", MAX_DIM)?;
    let attention = GqaConfig::read(
        loader,
        Form {
            qkv_bias: config.flag_or("attention_bias", true)?,
            rotary: Rotary::Share(0.5),
            pairing: Pairing::Interleaved,
            ..Form::default()
        },
    )?;

    let mut layers = Vec::new();
    for i in 0..config.count("num_hidden_layers", MAX_LAYERS)? {
        let prefix = format!("model.layers.{i}");
        let attention = Attention::Gqa(attention.load(loader, &format!("{prefix}.self_attn"))?);
        let ffn = Ffn::Dense(loader.joined_swiglu(&format!("{prefix}.mlp"), width, hidden)?);
        let mut layer = loader.block(&prefix, hidden, attention, ffn)?;
        let mut norm = |name: &str| loader.vector(&format!("{prefix}.{name}.weight"), hidden);
        layer.attention_out_norm = Some(norm("post_self_attn_layernorm")?);
        layer.ffn_out_norm = Some(norm("post_mlp_layernorm")?);
        layers.push(layer);
    }
    loader.finish(Assembled {
        layers,
        experts: Vec::new(),
        sparse_layers: Vec::new(),
        n_experts: 0,
        top_k: 0,
    })
}
