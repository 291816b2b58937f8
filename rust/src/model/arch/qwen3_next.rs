//! `qwen3_next`: Qwen3-Next-80B-A3B, Qwen3-Coder-Next.
//!
//! Gated `DeltaNet` and gated attention as in `qwen_hybrid`, the projections of a recurrent layer in
//! the order of key heads; softmax-routed experts, and a shared one behind a gate of its own. The
//! layer that predicts a further token is not used.

use super::Family;
use super::qwen_hybrid::{self, Hybrid};
use crate::error::Result;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "qwen3_next", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let normalise = loader.config.flag_or("norm_topk_prob", true)?;
    qwen_hybrid::load(loader, &Hybrid { rope: None, grouped: true, normalise })
}
