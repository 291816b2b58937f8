//! `qwen3_moe`: Qwen3-30B-A3B, 235B-A22B, Coder and their descendants.
//!
//! Grouped-query attention with a norm of each head's query and key; softmax-routed experts without
//! a shared one in every layer, or in those that the configuration says.

use super::Family;
use super::gqa_config::{Form, GqaConfig, NormOver};
use super::gqa_decoder::{self, Experts, Weighing, expert_counts, qwen_sparse_layers};
use crate::error::Result;
use crate::model::loader::{MAX_DIM, PROJECTIONS};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "qwen3_moe", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    let bias = config.flag_or("attention_bias", false)?;
    let attention = GqaConfig::read(
        loader,
        Form { qkv_bias: bias, o_bias: bias, qk_norm: Some(NormOver::Head), ..Form::default() },
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
        shared_width: None,
    };
    gqa_decoder::load(loader, &attention, Some(&experts))
}
