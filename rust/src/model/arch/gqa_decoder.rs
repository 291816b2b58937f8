//! Decoders of grouped-query attention, dense or with routed experts: Llama, Qwen, `OLMoE`, Mixtral,
//! `MiniMax`; also with attention of other kinds in some layers.

use super::deepseek_ffn::FfnConfig;
use super::gqa_config::GqaConfig;
use crate::config::Config;
use crate::error::Result;
use crate::experts::ExpertSource;
use crate::model::attention::Attention;
use crate::model::ffn::{Ffn, Moe, Shared};
use crate::model::loader::{Assembled, MAX_DIM, MAX_EXPERTS, MAX_LAYERS, PartNames};
use crate::model::router::{Router, SigmoidRouter, SoftmaxRouter};
use crate::model::{Loader, Model};

/// The sparse feed-forward blocks of a model.
pub struct Experts {
    /// Name of a layer's feed-forward block.
    pub block: &'static str,
    /// Names of an expert's matrices.
    pub parts: &'static PartNames,
    /// Experts of a sparse layer.
    pub n: usize,
    /// Experts a row takes.
    pub top_k: usize,
    /// Width of an expert.
    pub width: usize,
    /// How experts are chosen and weighted.
    pub weighing: Weighing,
    /// Whether each layer is sparse.
    pub sparse: Vec<bool>,
    /// Width of the gated expert that every row takes, if there is one.
    pub shared_width: Option<usize>,
}

/// How a row's experts are chosen and weighted.
#[derive(Clone, Copy)]
pub enum Weighing {
    /// By the softmax of their logits.
    Softmax {
        /// Whether the weights of a row are scaled to a sum of one.
        normalise: bool,
    },
    /// By the sigmoid of their logits, with a bias beside the router for the choice; the weights of
    /// a row are scaled to a sum of one.
    Sigmoid,
}

/// Experts of a sparse layer, and how many of them a row takes.
pub fn expert_counts(config: &Config) -> Result<(usize, usize)> {
    let n =
        config.n_experts(MAX_EXPERTS)?.ok_or_else(|| config.refuse("num_experts is missing"))?;
    Ok((n, config.count("num_experts_per_tok", n)?))
}

/// Which layers of a Qwen model are sparse: every `decoder_sparse_step`-th, but those that
/// `mlp_only_layers` lists.
pub fn qwen_sparse_layers(config: &Config) -> Result<Vec<bool>> {
    let n_layers = config.count("num_hidden_layers", MAX_LAYERS)?;
    let step = config.opt_count("decoder_sparse_step", MAX_LAYERS)?.unwrap_or(1);
    let dense = config.indices("mlp_only_layers")?;
    Ok((0..n_layers).map(|i| (i + 1).is_multiple_of(step) && !dense.contains(&i)).collect())
}

/// Loads the whole model; without `moe` all layers are dense.
pub fn load(loader: &mut Loader, attention: &GqaConfig, moe: Option<&Experts>) -> Result<Model> {
    loader.config.full_attention(loader.max_ctx)?;
    let attend = |loader: &mut Loader, layer: &str, _| {
        Ok(Attention::Gqa(attention.load(loader, &format!("{layer}.self_attn"))?))
    };
    load_with(loader, &attend, moe)
}

/// Loads the attention of a layer, of which the name and the number are given.
pub type LoadAttention<'a> = dyn Fn(&mut Loader, &str, usize) -> Result<Attention> + 'a;

/// As [`load`] with any attention.
pub fn load_with(
    loader: &mut Loader,
    attention: &LoadAttention,
    moe: Option<&Experts>,
) -> Result<Model> {
    let config = loader.config;
    config.only("hidden_act", "silu")?;
    config.only(
        "scoring_func",
        match moe.map(|moe| moe.weighing) {
            Some(Weighing::Sigmoid) => "sigmoid",
            Some(Weighing::Softmax { .. }) | None => "softmax",
        },
    )?;
    let n_layers = config.count("num_hidden_layers", MAX_LAYERS)?;
    let hidden = config.count("hidden_size", MAX_DIM)?;
    let is_sparse = |layer: usize| moe.is_some_and(|moe| moe.sparse[layer]);
    let dense_width = if (0..n_layers).all(is_sparse) {
        0
    } else {
        config.count("intermediate_size", MAX_DIM)?
    };
    let mut experts = Vec::new();
    let mut sparse_layers = Vec::new();
    let mut layers = Vec::new();
    for i in 0..n_layers {
        let prefix = format!("{}.layers.{i}", loader.prefix);
        let attention = attention(loader, &prefix, i)?;
        let ffn = match moe.filter(|moe| moe.sparse[i]) {
            None => Ffn::Dense(loader.swiglu(&format!("{prefix}.mlp"), dense_width, hidden)?),
            Some(moe) => {
                sparse_layers.push(i);
                let block = format!("{prefix}.{}", moe.block);
                Ffn::Sparse(load_sparse(loader, &block, hidden, moe, &mut experts)?)
            }
        };
        layers.push(loader.block(&prefix, hidden, attention, ffn)?);
    }
    loader.finish(Assembled {
        layers,
        experts,
        sparse_layers,
        n_experts: moe.map_or(0, |moe| moe.n),
        top_k: moe.map_or(0, |moe| moe.top_k),
    })
}

/// Loads a decoder whose feed-forward blocks are those of `DeepSeek`.
pub fn load_deepseek_ffn(
    loader: &mut Loader,
    attention: &GqaConfig,
    ffn: &FfnConfig,
) -> Result<Model> {
    loader.config.full_attention(loader.max_ctx)?;
    let mut experts = Vec::new();
    let mut layers = Vec::new();
    for i in 0..ffn.n_layers {
        let prefix = format!("model.layers.{i}");
        let attention = attention.load(loader, &format!("{prefix}.self_attn"))?;
        let block = ffn.load(loader, i, &mut experts)?;
        layers.push(loader.block(&prefix, ffn.hidden, Attention::Gqa(attention), block)?);
    }
    loader.prediction_layer(ffn.n_layers, ffn.hidden, &mut experts, |loader, experts| {
        let prefix = format!("model.layers.{}", ffn.n_layers);
        let attention = Attention::Gqa(attention.load(loader, &format!("{prefix}.self_attn"))?);
        let block = ffn.load_sparse(loader, ffn.n_layers, experts)?;
        loader.block(&prefix, ffn.hidden, attention, block)
    })?;
    loader.finish(Assembled {
        layers,
        experts,
        sparse_layers: ffn.sparse_layers(),
        n_experts: ffn.n_experts,
        top_k: ffn.top_k,
    })
}

/// Loads a sparse block and adds its experts to `experts`.
fn load_sparse(
    loader: &mut Loader,
    block: &str,
    hidden: usize,
    moe: &Experts,
    experts: &mut Vec<ExpertSource>,
) -> Result<Moe> {
    let map_row = experts.len() / moe.n;
    let prefix = format!("{block}.experts");
    experts.extend(if loader.catalog.get(&format!("{prefix}.gate_up_proj")).is_some() {
        loader.stacked_experts(&prefix, moe.n, moe.width, hidden)?
    } else {
        loader.experts(&prefix, moe.parts, moe.n, moe.width, hidden)?
    });
    let shared = match moe.shared_width {
        None => None,
        Some(width) => Some(Shared {
            mlp: loader.swiglu(&format!("{block}.shared_expert"), width, hidden)?,
            gate: Some(loader.matrix_f32(&format!("{block}.shared_expert_gate"), 1, hidden)?),
        }),
    };
    let top_k = moe.top_k;
    let router = match moe.weighing {
        Weighing::Softmax { normalise } => {
            Router::Softmax(SoftmaxRouter { top_k, groups: None, normalise, scale: 1.0 })
        }
        Weighing::Sigmoid => Router::Sigmoid(SigmoidRouter {
            bias: loader.vector(&format!("{block}.e_score_correction_bias"), moe.n)?,
            top_k,
            groups: None,
            normalise: true,
            scale: 1.0,
        }),
    };
    Ok(Moe {
        map_row,
        gate: loader.matrix_f32(&format!("{block}.gate"), moe.n, hidden)?,
        gate_bias: None,
        router,
        shared,
    })
}
