//! `minimax_m2`: MiniMax-M2, M2.1, M2.5.
//!
//! Grouped-query attention with norms of queries and keys over all heads together and a part of
//! each head rotated; experts in every layer, chosen and weighted by the sigmoid of their logits
//! with a bias for the choice, weights always scaled to a sum of one. Multi-token prediction layers
//! are not used.

use super::Family;
use super::gqa_config::{Form, GqaConfig, NormOver, Rotary, require_theta};
use super::gqa_decoder::{self, Experts, Weighing, expert_counts};
use crate::error::{Error, Result};
use crate::model::loader::{MAX_DIM, MAX_LAYERS, PartNames};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "minimax_m2", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    require_theta(config)?;
    config.only("qk_norm_type", "per_layer")?;
    for key in ["use_qk_norm", "use_routing_bias"] {
        if !config.flag_or(key, true)? {
            return Err(Error::Unsupported {
                what: format!("{key} false"),
                hint: "check config.json".into(),
            });
        }
    }
    // Kinds of attention of the family's predecessor: 1 is the one that is left.
    if let Some(kinds) = config.get("attn_type_list")
        && !kinds.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == 1))
    {
        return Err(Error::Unsupported {
            what: format!("attn_type_list {kinds} (only 1 is implemented)"),
            hint: "check config.json".into(),
        });
    }
    if config.count_or("shared_intermediate_size", 0, MAX_DIM)? > 0 {
        return Err(Error::Unsupported {
            what: "shared_intermediate_size above 0 in this family".into(),
            hint: "check config.json".into(),
        });
    }
    let bias = config.flag_or("attention_bias", false)?;
    let rotary = match config.opt_count("rotary_dim", MAX_DIM)? {
        Some(n) => Rotary::Components(n),
        None => Rotary::Share(1.0),
    };
    let attention = GqaConfig::read(
        loader,
        Form {
            qkv_bias: bias,
            o_bias: bias,
            qk_norm: Some(NormOver::Row),
            rotary,
            ..Form::default()
        },
    )?;
    let (n, top_k) = expert_counts(config)?;
    let experts = Experts {
        block: "block_sparse_moe",
        parts: &PartNames { gate: "w1", up: "w3", down: "w2" },
        n,
        top_k,
        width: config.count("intermediate_size", MAX_DIM)?,
        weighing: Weighing::Sigmoid,
        sparse: vec![true; config.count("num_hidden_layers", MAX_LAYERS)?],
        shared_width: None,
    };
    gqa_decoder::load(loader, &attention, Some(&experts))
}
