//! The families, one file each.

mod deepseek_ffn;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod dots1;
mod dsa_config;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt_oss;
mod gqa_config;
mod gqa_decoder;
mod kimi_linear;
mod linear_config;
mod llama;
mod minimax_m2;
mod mixtral;
mod mla_config;
mod olmoe;
mod qwen2_moe;
mod qwen3;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen_hybrid;
mod refusals;

use super::{Loader, Model};
use crate::error::{Error, Result};

/// A family of models that are computed alike.
pub struct Family {
    /// `model_type` in config.json.
    pub name: &'static str,
    /// Checks what the family reads of the configuration, then loads the dense part.
    load: fn(&mut Loader) -> Result<Model>,
}

impl Family {
    /// Checks the configuration, then loads the dense part.
    ///
    /// # Errors
    /// Those of [`Model::load`].
    pub fn load(&self, loader: &mut Loader) -> Result<Model> {
        refusals::check(loader.config, self.name)?;
        (self.load)(loader)
    }
}

/// Every family this version runs.
pub const FAMILIES: &[Family] = &[
    deepseek_v2::FAMILY,
    deepseek_v3::DEEPSEEK_V3,
    deepseek_v32::FAMILY,
    dots1::FAMILY,
    glm4::FAMILY,
    glm4_moe::FAMILY,
    glm4_moe_lite::FAMILY,
    glm_moe_dsa::FAMILY,
    gpt_oss::FAMILY,
    deepseek_v3::KIMI_K2,
    kimi_linear::FAMILY,
    llama::FAMILY,
    minimax_m2::FAMILY,
    mixtral::FAMILY,
    olmoe::FAMILY,
    qwen2_moe::FAMILY,
    qwen3::FAMILY,
    qwen3_5_moe::QWEN3_5_MOE,
    qwen3_5_moe::TEXT,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
];

/// The family called `model_type`.
///
/// # Errors
/// [`Error::Unsupported`] naming the families there are.
pub fn find(model_type: &str) -> Result<&'static Family> {
    FAMILIES.iter().find(|family| family.name == model_type).ok_or_else(|| Error::Unsupported {
        what: format!("model_type {model_type:?}"),
        hint: format!(
            "this version runs {}",
            FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ")
        ),
    })
}
