//! `qwen2_moe`: Qwen1.5-MoE-A2.7B and Qwen2-57B-A14B.
//!
//! Grouped-query attention with biases on q, k and v; softmax-routed experts, and a shared one that
//! each row takes as far as a gate of its own lets it.

use super::Family;
use super::gqa_config::{Form, GqaConfig};
use super::gqa_decoder::{self, Experts, Weighing, expert_counts, qwen_sparse_layers};
use crate::error::Result;
use crate::model::loader::{MAX_DIM, PROJECTIONS};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "qwen2_moe", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    let attention = GqaConfig::read(
        loader,
        Form { qkv_bias: config.flag_or("qkv_bias", true)?, ..Form::default() },
    )?;
    let (n, top_k) = expert_counts(config)?;
    let experts = Experts {
        block: "mlp",
        parts: &PROJECTIONS,
        n,
        top_k,
        width: config.count("moe_intermediate_size", MAX_DIM)?,
        weighing: Weighing::Softmax { normalise: config.flag_or("norm_topk_prob", false)? },
        sparse: qwen_sparse_layers(config)?,
        shared_width: Some(config.count("shared_expert_intermediate_size", MAX_DIM)?),
    };
    gqa_decoder::load(loader, &attention, Some(&experts))
}
