//! `deepseek_v32`: DeepSeek-V3.2.
//!
//! `deepseek_v3` whose attention reaches the positions that an indexer chooses. The indexer pairs
//! rotated components by halves although the attention interleaves them.

use super::Family;
use super::deepseek_ffn::{FfnConfig, Scoring};
use super::dsa_config::DsaConfig;
use super::mla_config::{self, MlaConfig};
use crate::error::Result;
use crate::model::rope::Pairing;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "deepseek_v32", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let ffn = FfnConfig::read(loader.config, Scoring::Sigmoid, 3)?;
    let dsa = DsaConfig::read(loader, Pairing::Halves)?;
    let attention = MlaConfig::read(loader)?.with_indexers(dsa);
    mla_config::load(loader, &attention, &ffn)
}
