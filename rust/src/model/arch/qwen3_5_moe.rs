//! `qwen3_5_moe` and `qwen3_5_moe_text`: the text part of Qwen3.5-35B-A3B, 122B-A10B, 397B-A17B, as published and by
//! itself.
//!
//! As `qwen3_next` with a projection for each purpose and experts that share tensors, whose weights
//! are always scaled to a sum of one. The vision part, and the layer that predicts a further token, are
//! not used: text is all there is, and its positions are the same in all three parts.

use super::Family;
use super::qwen_hybrid::{self, Hybrid};
use crate::error::{Error, Result};
use crate::model::{Loader, Model};

/// The text part beside the others.
pub const QWEN3_5_MOE: Family = Family { name: "qwen3_5_moe", load: load_part };
/// The text part as a model of its own.
pub const TEXT: Family = Family { name: "qwen3_5_moe_text", load };

fn load_part(loader: &mut Loader) -> Result<Model> {
    loader.prefix = "model.language_model";
    if loader.config.get("vision_config").is_some() {
        loader.notices.push("vision_config: images are not supported, text alone is".into());
    }
    load(loader)
}

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    if !config.flag_or("attn_output_gate", true)? {
        return Err(Error::Unsupported {
            what: "attn_output_gate false".into(),
            hint: "check config.json".into(),
        });
    }
    let rope = Some(config.text_rope()?);
    qwen_hybrid::load(loader, &Hybrid { rope, grouped: false, normalise: true })
}
