//! `dots1`: dots.llm1.
//!
//! Grouped-query attention with a norm of each head's query and key; feed-forward as in
//! `deepseek_ffn`.

use super::Family;
use super::deepseek_ffn::{Defaults, FfnConfig, Scoring};
use super::gqa_config::{Form, GqaConfig, NormOver};
use super::gqa_decoder;
use crate::error::Result;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "dots1", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    let defaults = Defaults { normalise: false, ..Defaults::dense_first(0) };
    let ffn = FfnConfig::read(config, Scoring::Sigmoid, defaults)?;
    let bias = config.flag_or("attention_bias", false)?;
    let attention = GqaConfig::read(
        loader,
        Form { qkv_bias: bias, o_bias: bias, qk_norm: Some(NormOver::Head), ..Form::default() },
    )?;
    gqa_decoder::load_deepseek_ffn(loader, &attention, &ffn)
}
