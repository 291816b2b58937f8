//! What Qwen3-Next and Qwen3.5 share: gated `DeltaNet` in most layers, gated grouped-query attention
//! in the others, experts in every layer; files hold norms as their difference from one.

use super::gqa_config::{Form, GqaConfig, NormOver, Rotary};
use super::gqa_decoder::{self, Experts, Weighing, expert_counts, qwen_sparse_layers};
use super::linear_config::{conv_taps, negative_exp, read_heads};
use crate::config::{Config, RopeConfig};
use crate::error::{Error, Result};
use crate::model::attention::Attention;
use crate::model::linear_attention::{Gate, LinearAttention, LinearHeads, Projection};
use crate::model::loader::{MAX_DIM, MAX_LAYERS, PROJECTIONS};
use crate::model::{Loader, Model};

/// What of it is a family's own.
pub struct Hybrid {
    /// See [`Form::rope`].
    pub rope: Option<RopeConfig>,
    /// Whether the projections of a recurrent layer lie in the order of key heads.
    pub grouped: bool,
    /// Whether the experts' weights are scaled to a sum of one.
    pub normalise: bool,
}

/// Loads the whole model.
pub fn load(loader: &mut Loader, hybrid: &Hybrid) -> Result<Model> {
    loader.norm_offset = 1.0;
    let config = loader.config;
    config.without("attention_bias")?;
    let attention = GqaConfig::read(
        loader,
        Form {
            qk_norm: Some(NormOver::Head),
            rotary: Rotary::Share(0.25),
            gated: true,
            rope: hybrid.rope.clone(),
            ..Form::default()
        },
    )?;
    let delta = DeltaConfig::read(config, hybrid.grouped)?;
    let full = full_layers(config)?;
    let (n, top_k) = expert_counts(config)?;
    let experts = Experts {
        block: "mlp",
        parts: &PROJECTIONS,
        n,
        top_k,
        width: config.count("moe_intermediate_size", MAX_DIM)?,
        weighing: Weighing::Softmax { normalise: hybrid.normalise },
        sparse: qwen_sparse_layers(config)?,
        shared_width: Some(config.count("shared_expert_intermediate_size", MAX_DIM)?),
    };
    let attend = |loader: &mut Loader, layer: &str, i: usize| {
        Ok(if full[i] {
            Attention::Gqa(attention.load(loader, &format!("{layer}.self_attn"))?)
        } else {
            Attention::Linear(delta.load(loader, &format!("{layer}.linear_attn"))?)
        })
    };
    gqa_decoder::load_with(loader, &attend, Some(&experts))
}

/// Which layers have keys and values: as `layer_types` says, or else every
/// `full_attention_interval`-th.
fn full_layers(config: &Config) -> Result<Vec<bool>> {
    let n_layers = config.count("num_hidden_layers", MAX_LAYERS)?;
    let Some(kinds) = config.get("layer_types") else {
        let every = config.opt_count("full_attention_interval", MAX_LAYERS)?.unwrap_or(4);
        return Ok((0..n_layers).map(|i| (i + 1).is_multiple_of(every)).collect());
    };
    let kind = |kind: &serde_json::Value| match kind.as_str() {
        Some("full_attention") => Some(true),
        Some("linear_attention") => Some(false),
        _ => None,
    };
    let full: Option<Vec<bool>> =
        kinds.as_array().and_then(|kinds| kinds.iter().map(kind).collect());
    full.filter(|full| full.len() == n_layers).ok_or_else(|| Error::Unsupported {
        what: format!("layer_types {kinds} for {n_layers} layers"),
        hint: "\"linear_attention\" or \"full_attention\" for each layer is expected".into(),
    })
}

/// Geometry of the recurrent layers.
struct DeltaConfig {
    hidden: usize,
    heads: LinearHeads,
    taps: usize,
    grouped: bool,
    eps: f32,
}

impl DeltaConfig {
    fn read(config: &Config, grouped: bool) -> Result<Self> {
        Ok(Self {
            hidden: config.count("hidden_size", MAX_DIM)?,
            heads: read_heads(
                config,
                ["linear_num_key_heads", "linear_num_value_heads"],
                ["linear_key_head_dim", "linear_value_head_dim"],
            )?,
            taps: conv_taps(config, "linear_conv_kernel_dim")?,
            grouped,
            eps: config.number_or("rms_norm_eps", None)? as f32,
        })
    }

    fn load(&self, loader: &mut Loader, prefix: &str) -> Result<LinearAttention> {
        let &Self { hidden, heads, taps, .. } = self;
        let LinearHeads { v_heads, v_dim, .. } = heads;
        let (channels, values) = (heads.channels(), heads.v_width());
        let mut linear =
            |name: &str, rows| loader.linear(&format!("{prefix}.{name}"), rows, hidden, false);
        let projection = if self.grouped {
            Projection::Grouped {
                qkvz: linear("in_proj_qkvz", channels + values)?,
                ba: linear("in_proj_ba", 2 * v_heads)?,
            }
        } else {
            Projection::Split {
                qkv: linear("in_proj_qkv", channels)?,
                z: linear("in_proj_z", values)?,
                b: linear("in_proj_b", v_heads)?,
                a: linear("in_proj_a", v_heads)?,
            }
        };
        Ok(LinearAttention {
            heads,
            projection,
            conv: loader.conv(&format!("{prefix}.conv1d"), channels, taps)?,
            dt_bias: loader.vector(&format!("{prefix}.dt_bias"), v_heads)?,
            rate: negative_exp(&loader.vector(&format!("{prefix}.A_log"), v_heads)?),
            // The only norm whose weight is stored as it is.
            norm: loader.vector(&format!("{prefix}.norm.weight"), v_dim)?,
            eps: self.eps,
            gate: Gate::Silu,
            out_proj: loader.linear(&format!("{prefix}.out_proj"), hidden, values, false)?,
        })
    }
}
