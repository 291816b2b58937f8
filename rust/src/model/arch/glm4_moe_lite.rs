//! `glm4_moe_lite`: GLM-4.7-Flash, and the embedded demo model.
//!
//! Multi-head latent attention; feed-forward as in `deepseek_ffn`. The multi-token prediction layer
//! that follows the last block in the files is not used.

use super::Family;
use super::deepseek_ffn::{Defaults, FfnConfig, Scoring};
use super::mla_config::{self, MlaConfig};
use crate::error::Result;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "glm4_moe_lite", load };

const DEFAULTS: Defaults = Defaults { scale: 1.8, n_shared: 1, ..Defaults::dense_first(1) };

fn load(loader: &mut Loader) -> Result<Model> {
    let ffn = FfnConfig::read(loader.config, Scoring::Sigmoid, DEFAULTS)?;
    let attention = MlaConfig::read(loader)?;
    mla_config::load(loader, &attention, &ffn)
}
