//! `glm4_moe`: GLM-4.5, 4.6, 4.7 and their Air forms.
//!
//! Grouped-query attention with half of each head rotated, biases on q, k and v, optional per-head
//! norms of q and k; feed-forward as in `deepseek_ffn`. The multi-token prediction layer that
//! follows the last block in the files drafts (`model/mtp.rs`).

use super::Family;
use super::deepseek_ffn::{Defaults, FfnConfig, Scoring};
use super::gqa_config::{Form, GqaConfig, NormOver, Rotary};
use super::gqa_decoder;
use crate::error::Result;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "glm4_moe", load };

const DEFAULTS: Defaults = Defaults { n_shared: 1, ..Defaults::dense_first(1) };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    let ffn = FfnConfig::read(config, Scoring::Sigmoid, DEFAULTS)?;
    let attention = GqaConfig::read(
        loader,
        Form {
            qkv_bias: config.flag_or("attention_bias", false)?,
            qk_norm: config.flag_or("use_qk_norm", false)?.then_some(NormOver::Head),
            rotary: Rotary::Share(0.5),
            ..Form::default()
        },
    )?;
    gqa_decoder::load_deepseek_ffn(loader, &attention, &ffn)
}
