//! `mixtral`: Mixtral 8x7B and 8x22B.
//!
//! Plain grouped-query attention; softmax-routed experts in every layer, their weights always
//! scaled to a sum of one. A sliding window that would cut the context is refused.

use super::Family;
use super::gqa_config::{Form, GqaConfig, require_theta};
use super::gqa_decoder::{self, Experts, Weighing, expert_counts};
use crate::error::Result;
use crate::model::loader::{MAX_DIM, MAX_LAYERS, PartNames};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "mixtral", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    require_theta(config)?;
    let attention = GqaConfig::read(loader, Form::default())?;
    let (n, top_k) = expert_counts(config)?;
    let experts = Experts {
        block: "block_sparse_moe",
        parts: &PartNames { gate: "w1", up: "w3", down: "w2" },
        n,
        top_k,
        width: config.count("intermediate_size", MAX_DIM)?,
        weighing: Weighing::Softmax { normalise: true },
        sparse: vec![true; config.count("num_hidden_layers", MAX_LAYERS)?],
        shared_width: None,
    };
    gqa_decoder::load(loader, &attention, Some(&experts))
}
