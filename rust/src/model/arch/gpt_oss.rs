//! `gpt_oss`: gpt-oss-20b and 120b.
//!
//! Grouped-query attention with biases and sinks, in some layers over a window of the last
//! positions; in every layer experts with biases and a clamped activation, which share one tensor a
//! matrix, chosen by a router with a bias and weighted by the softmax over the chosen.

use super::Family;
use super::gqa_config::{Form, GqaConfig, require_theta};
use super::gqa_decoder::expert_counts;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::experts::Activation;
use crate::model::attention::Attention;
use crate::model::ffn::{Ffn, Moe};
use crate::model::loader::{Assembled, MAX_DIM, MAX_LAYERS, MAX_POSITIONS};
use crate::model::router::{Router, SoftmaxRouter};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "gpt_oss", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    require_theta(config)?;
    config.only("hidden_act", "silu")?;
    let bias = config.flag_or("attention_bias", true)?;
    let attention =
        GqaConfig::read(loader, Form { qkv_bias: bias, o_bias: bias, ..Form::default() })?;
    let windows = windows(config)?;
    let hidden = config.count("hidden_size", MAX_DIM)?;
    let n_heads = config.count("num_attention_heads", MAX_DIM)?;
    let width = config.count("intermediate_size", MAX_DIM)?;
    let (n, top_k) = expert_counts(config)?;
    let positive = f64::from(f32::MIN_POSITIVE)..=1e6;
    let activation = Activation::Clamped {
        alpha: config.opt_number("swiglu_alpha", positive.clone())?.unwrap_or(1.702) as f32,
        limit: config.opt_number("swiglu_limit", positive)?.unwrap_or(7.0) as f32,
    };

    let mut experts = Vec::new();
    let mut layers = Vec::new();
    for (i, window) in windows.into_iter().enumerate() {
        let prefix = format!("model.layers.{i}");
        let mut attention = attention.load(loader, &format!("{prefix}.self_attn"))?;
        attention.window = window;
        attention.sinks = Some(loader.vector(&format!("{prefix}.self_attn.sinks"), n_heads)?);
        let mlp = format!("{prefix}.mlp");
        experts.extend(loader.fused_experts(
            &format!("{mlp}.experts"),
            n,
            width,
            hidden,
            activation,
        )?);
        let ffn = Ffn::Sparse(Moe {
            map_row: i,
            gate: loader.matrix_f32(&format!("{mlp}.router"), n, hidden)?,
            gate_bias: Some(loader.vector(&format!("{mlp}.router.bias"), n)?),
            router: Router::Softmax(SoftmaxRouter {
                top_k,
                groups: None,
                normalise: true,
                scale: 1.0,
            }),
            shared: None,
        });
        layers.push(loader.block(&prefix, hidden, Attention::Gqa(attention), ffn)?);
    }
    loader.finish(Assembled {
        sparse_layers: (0..layers.len()).collect(),
        layers,
        experts,
        n_experts: n,
        top_k,
    })
}

/// How far each layer sees: `layer_types`, or a window in every other layer from the first on.
fn windows(config: &Config) -> Result<Vec<Option<usize>>> {
    let n_layers = config.count("num_hidden_layers", MAX_LAYERS)?;
    let window = config.count("sliding_window", MAX_POSITIONS)?;
    let Some(kinds) = config.get("layer_types") else {
        return Ok((0..n_layers).map(|i| i.is_multiple_of(2).then_some(window)).collect());
    };
    let kind = |kind: &serde_json::Value| match kind.as_str() {
        Some("sliding_attention") => Some(Some(window)),
        Some("full_attention") => Some(None),
        _ => None,
    };
    let windows: Option<Vec<_>> =
        kinds.as_array().and_then(|kinds| kinds.iter().map(kind).collect());
    windows.filter(|windows| windows.len() == n_layers).ok_or_else(|| Error::Unsupported {
        what: format!("layer_types {kinds} for {n_layers} layers"),
        hint: "\"sliding_attention\" or \"full_attention\" for each layer is expected".into(),
    })
}
