//! `llama`: Llama and the many dense models of its form.
//!
//! Grouped-query attention and one feed-forward block a layer, nothing else.

use super::Family;
use super::gqa_config::{Form, GqaConfig};
use super::gqa_decoder;
use crate::error::Result;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "llama", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    config.without("mlp_bias")?;
    let bias = config.flag_or("attention_bias", false)?;
    let attention =
        GqaConfig::read(loader, Form { qkv_bias: bias, o_bias: bias, ..Form::default() })?;
    gqa_decoder::load(loader, &attention, None)
}
