//! `deepseek_v32`: DeepSeek-V3.2.
//!
//! `deepseek_v3` whose attention reaches the positions that an indexer chooses. The indexer pairs
//! rotated components by halves although the attention interleaves them.

use super::Family;
use super::deepseek_ffn::{Defaults, FfnConfig, Scoring};
use super::dsa_config::DsaConfig;
use super::mla_config::{self, MlaConfig};
use crate::error::Result;
use crate::model::rope::Pairing;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "deepseek_v32", load };

const DEFAULTS: Defaults =
    Defaults { scale: 2.5, groups: (8, 4), n_shared: 1, ..Defaults::dense_first(3) };

fn load(loader: &mut Loader) -> Result<Model> {
    let ffn = FfnConfig::read(loader.config, Scoring::Sigmoid, DEFAULTS)?;
    let dsa = DsaConfig::read(loader, Pairing::Halves)?;
    let attention = MlaConfig::read(loader)?.with_indexers(dsa);
    mla_config::load(loader, &attention, &ffn)
}
