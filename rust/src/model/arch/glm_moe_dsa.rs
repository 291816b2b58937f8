//! `glm_moe_dsa`: GLM-5, 5.1, 5.2.
//!
//! Multi-head latent attention over the positions that an indexer chooses; later models share a
//! choice between layers. Feed-forward as in `deepseek_ffn`. The multi-token prediction layer that
//! follows the last block in the files drafts (`model/mtp.rs`).

use super::Family;
use super::deepseek_ffn::{Defaults, FfnConfig, Scoring};
use super::dsa_config::DsaConfig;
use super::mla_config::{self, MlaConfig};
use crate::error::Result;
use crate::model::rope::Pairing;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "glm_moe_dsa", load };

const DEFAULTS: Defaults = Defaults { scale: 2.5, n_shared: 1, ..Defaults::dense_first(3) };

fn load(loader: &mut Loader) -> Result<Model> {
    let ffn = FfnConfig::read(loader.config, Scoring::Sigmoid, DEFAULTS)?;
    let dsa = DsaConfig::read(loader, Pairing::Interleaved)?;
    let attention = MlaConfig::read(loader)?.with_indexers(dsa);
    mla_config::load(loader, &attention, &ffn)
}
