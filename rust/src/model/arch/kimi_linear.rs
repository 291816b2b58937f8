//! `kimi_linear`: Kimi-Linear-48B-A3B.
//!
//! Kimi Delta Attention (arXiv 2510.26692), recurrent with a decay for each channel, in most layers;
//! multi-head latent attention without rotation in the others. Feed-forward as in `deepseek_ffn` by
//! other names.

use super::Family;
use super::deepseek_ffn::{Defaults, FfnConfig, Names, Scoring};
use super::linear_config::{conv_taps, negative_exp, read_heads};
use super::mla_config::{self, MlaConfig};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::attention::Attention;
use crate::model::linear_attention::{Gate, LinearAttention, LinearHeads, Projection};
use crate::model::loader::PartNames;
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "kimi_linear", load };

const NAMES: Names = Names {
    experts: "num_experts",
    top_k: "num_experts_per_token",
    shared: "num_shared_experts",
    groups: "num_expert_group",
    normalise: "moe_renormalize",
    scoring: "moe_router_activation_func",
    block: "block_sparse_moe",
    parts: &PartNames { gate: "w1", up: "w3", down: "w2" },
};

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    let ffn = FfnConfig::read_named(config, &NAMES, Scoring::Sigmoid, Defaults::dense_first(1))?;
    if !config.flag_or("mla_use_nope", true)? {
        return Err(Error::Unsupported {
            what: "mla_use_nope false".into(),
            hint: "check config.json".into(),
        });
    }
    let latent = MlaConfig::read(loader)?.without_rope();
    let linear = config.section("linear_attn_config")?;
    let full = full_layers(&linear, ffn.n_layers)?;
    let kda = KdaConfig {
        hidden: ffn.hidden,
        heads: read_heads(&linear, ["num_heads"; 2], ["head_dim"; 2])?,
        taps: conv_taps(&linear, "short_conv_kernel_size")?,
        eps: config.number_or("rms_norm_eps", None)? as f32,
    };
    let attend = |loader: &mut Loader, layer: usize| {
        Ok(if full[layer] {
            Attention::Mla(latent.load(loader, layer)?)
        } else {
            Attention::Linear(kda.load(loader, layer)?)
        })
    };
    mla_config::load_with(loader, &attend, None, &ffn)
}

/// Which layers have latent keys: `full_attn_layers`; the others are in `kda_layers`. Both count
/// from 1.
fn full_layers(linear: &Config, n_layers: usize) -> Result<Vec<bool>> {
    let (full, kda) = (linear.indices("full_attn_layers")?, linear.indices("kda_layers")?);
    let mut all = [&full[..], &kda].concat();
    all.sort_unstable();
    if !all.iter().copied().eq(1..=n_layers) {
        return Err(Error::Unsupported {
            what: format!(
                "full_attn_layers {full:?} with kda_layers {kda:?} in linear_attn_config for \
                 {n_layers} layers"
            ),
            hint: "each layer, counted from 1, is expected in one of them".into(),
        });
    }
    Ok((1..=n_layers).map(|layer| full.contains(&layer)).collect())
}

/// Geometry of the recurrent layers.
struct KdaConfig {
    hidden: usize,
    heads: LinearHeads,
    taps: usize,
    eps: f32,
}

impl KdaConfig {
    fn load(&self, loader: &mut Loader, layer: usize) -> Result<LinearAttention> {
        let prefix = format!("model.layers.{layer}.self_attn");
        let &Self { hidden, heads, taps, eps } = self;
        let LinearHeads { v_heads, v_dim, .. } = heads;
        let width = heads.v_width();
        let mut linear = |name: &str, n_out, n_in| {
            loader.linear(&format!("{prefix}.{name}_proj"), n_out, n_in, false)
        };
        let projection = Projection::Kimi {
            q: linear("q", width, hidden)?,
            k: linear("k", width, hidden)?,
            v: linear("v", width, hidden)?,
            b: linear("b", v_heads, hidden)?,
            f: [linear("f_a", v_dim, hidden)?, linear("f_b", width, v_dim)?],
            g: [linear("g_a", v_dim, hidden)?, linear("g_b", width, v_dim)?],
        };
        let mut conv = |name: &str| loader.conv(&format!("{prefix}.{name}_conv1d"), width, taps);
        let convs = [conv("q")?, conv("k")?, conv("v")?];
        let tap = |j: usize| convs.iter().flat_map(move |conv| &conv[j * width..][..width]);
        let a_log = loader.floats(&format!("{prefix}.A_log"), &[1, 1, v_heads, 1])?;
        let rates = negative_exp(&a_log);
        Ok(LinearAttention {
            heads,
            projection,
            conv: (0..taps).flat_map(tap).copied().collect(),
            dt_bias: loader.vector(&format!("{prefix}.dt_bias"), width)?,
            rate: rates.iter().flat_map(|&rate| std::iter::repeat_n(rate, v_dim)).collect(),
            norm: loader.vector(&format!("{prefix}.o_norm.weight"), v_dim)?,
            eps,
            gate: Gate::Sigmoid,
            out_proj: loader.linear(&format!("{prefix}.o_proj"), hidden, width, false)?,
        })
    }
}
