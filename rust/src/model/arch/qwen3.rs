//! `qwen3`: the dense Qwen3 models.
//!
//! As `llama`, with a norm of each head's query and key.

use super::Family;
use super::gqa_config::{Form, GqaConfig, NormOver};
use super::gqa_decoder;
use crate::error::Result;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "qwen3", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let bias = loader.config.flag_or("attention_bias", false)?;
    let attention = GqaConfig::read(
        loader,
        Form { qkv_bias: bias, o_bias: bias, qk_norm: Some(NormOver::Head), ..Form::default() },
    )?;
    gqa_decoder::load(loader, &attention, None)
}
