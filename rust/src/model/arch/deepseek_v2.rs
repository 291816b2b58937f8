//! `deepseek_v2`: DeepSeek-V2, V2-Lite, Coder-V2.
//!
//! Multi-head latent attention, with one projection to queries in the Lite models; feed-forward as
//! in `deepseek_ffn`, with softmax routing whose weights are not scaled to a sum of one. What
//! `norm_topk_prob` should mean beside `routed_scaling_factor` is told differently by the family's
//! implementations, and no published model asks for it: it is refused.

use super::Family;
use super::deepseek_ffn::{Defaults, FfnConfig, Scoring};
use super::mla_config::{self, MlaConfig};
use crate::error::Result;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "deepseek_v2", load };

fn load(loader: &mut Loader) -> Result<Model> {
    loader.config.flag_or("norm_topk_prob", false)?;
    let defaults = Defaults { n_shared: 2, ..Defaults::dense_first(0) };
    let ffn = FfnConfig::read(loader.config, Scoring::Softmax, defaults)?.without_normalising();
    let attention = MlaConfig::read(loader)?;
    mla_config::load(loader, &attention, &ffn)
}
