//! `deepseek_v3` and `kimi_k2`: DeepSeek-V3, V3.1, R1; Kimi K2.
//!
//! Multi-head latent attention, with `YaRN` in the published models; feed-forward as in
//! `deepseek_ffn`, experts in groups for `DeepSeek` and in one group for Kimi. The multi-token
//! prediction layer that follows the last block in `DeepSeek`'s files drafts (`model/mtp.rs`).

use super::Family;
use super::deepseek_ffn::{Defaults, FfnConfig, Scoring};
use super::mla_config::{self, MlaConfig};
use crate::error::Result;
use crate::model::{Loader, Model};

/// `DeepSeek`'s name for it.
pub const DEEPSEEK_V3: Family = Family { name: "deepseek_v3", load };
/// Kimi's.
pub const KIMI_K2: Family = Family { name: "kimi_k2", load };

const DEFAULTS: Defaults =
    Defaults { scale: 2.5, groups: (8, 4), n_shared: 1, ..Defaults::dense_first(3) };

fn load(loader: &mut Loader) -> Result<Model> {
    let ffn = FfnConfig::read(loader.config, Scoring::Sigmoid, DEFAULTS)?;
    let attention = MlaConfig::read(loader)?;
    mla_config::load(loader, &attention, &ffn)
}
