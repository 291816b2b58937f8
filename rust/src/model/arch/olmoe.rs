//! `olmoe`: OLMoE-1B-7B.
//!
//! Grouped-query attention with norms of queries and keys over all heads together; softmax-routed
//! experts in every layer. `clip_qkv`, which no published model uses, is refused.

use super::Family;
use super::gqa_config::{Form, GqaConfig, NormOver};
use super::gqa_decoder::{self, Experts, Weighing, expert_counts};
use crate::error::Result;
use crate::model::loader::{MAX_DIM, MAX_LAYERS, PROJECTIONS};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "olmoe", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    config.without("clip_qkv")?;
    let bias = config.flag_or("attention_bias", false)?;
    let attention = GqaConfig::read(
        loader,
        Form { qkv_bias: bias, o_bias: bias, qk_norm: Some(NormOver::Row), ..Form::default() },
    )?;
    let (n, top_k) = expert_counts(config)?;
    let experts = Experts {
        block: "mlp",
        parts: &PROJECTIONS,
        n,
        top_k,
        width: config.count("intermediate_size", MAX_DIM)?,
        weighing: Weighing::Softmax { normalise: config.flag_or("norm_topk_prob", false)? },
        sparse: vec![true; config.count("num_hidden_layers", MAX_LAYERS)?],
        shared_width: None,
    };
    gqa_decoder::load(loader, &attention, Some(&experts))
}
