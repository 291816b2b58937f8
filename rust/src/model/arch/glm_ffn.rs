//! The feed-forward blocks of the GLM-4.5 generation: dense first layers, then sigmoid-routed
//! experts with a shared one.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::experts::ExpertSource;
use crate::model::Loader;
use crate::model::ffn::{Ffn, Moe, Shared};
use crate::model::loader::{MAX_DIM, MAX_EXPERTS, MAX_LAYERS, PROJECTIONS};
use crate::model::router::{Router, SigmoidRouter};

/// Geometry of the feed-forward blocks.
pub struct FfnConfig {
    /// Decoder blocks.
    pub n_layers: usize,
    hidden: usize,
    dense_width: usize,
    expert_width: usize,
    /// Experts of a sparse layer.
    pub n_experts: usize,
    n_shared: usize,
    /// Experts a row takes.
    pub top_k: usize,
    /// Whether each layer is sparse.
    sparse: Vec<bool>,
    n_group: usize,
    topk_group: usize,
    normalise: bool,
    scale: f32,
}

impl FfnConfig {
    /// Reads and checks the configuration.
    pub fn read(config: &Config) -> Result<Self> {
        config.only("hidden_act", "silu")?;
        config.only("scoring_func", "sigmoid")?;
        config.only("topk_method", "noaux_tc")?;
        let n_layers = config.count("num_hidden_layers", MAX_LAYERS)?;
        let n_experts = config.count("n_routed_experts", MAX_EXPERTS)?;
        let top_k = config.count("num_experts_per_tok", n_experts)?;
        let n_group = config.opt_count("n_group", n_experts)?.unwrap_or(1);
        let topk_group = config.opt_count("topk_group", n_group)?.unwrap_or(1);
        if n_group > 1 {
            let size = n_experts / n_group;
            if !n_experts.is_multiple_of(n_group) || size < 2 || topk_group * size < top_k {
                return Err(config.refuse(format!(
                    "{n_experts} experts in {n_group} groups, {topk_group} of them chosen, do not \
                     give {top_k} experts a token"
                )));
            }
        }
        Ok(Self {
            n_layers,
            hidden: config.count("hidden_size", MAX_DIM)?,
            dense_width: config.count("intermediate_size", MAX_DIM)?,
            expert_width: config.count("moe_intermediate_size", MAX_DIM)?,
            n_experts,
            n_shared: config.count_or("n_shared_experts", 0, 1024)?,
            top_k,
            sparse: sparse_layers(config, n_layers)?,
            n_group,
            topk_group,
            normalise: config.flag_or("norm_topk_prob", true)?,
            scale: config.number_or("routed_scaling_factor", Some(1.0))? as f32,
        })
    }

    /// Numbers of the sparse layers.
    pub fn sparse_layers(&self) -> Vec<usize> {
        (0..self.n_layers).filter(|&layer| self.sparse[layer]).collect()
    }

    /// Loads one layer's block; a sparse one adds its experts to `experts`.
    pub fn load(
        &self,
        loader: &mut Loader,
        layer: usize,
        experts: &mut Vec<ExpertSource>,
    ) -> Result<Ffn> {
        let mlp = format!("model.layers.{layer}.mlp");
        if !self.sparse[layer] {
            return Ok(Ffn::Dense(loader.swiglu(&mlp, self.dense_width, self.hidden)?));
        }
        let map_row = experts.len() / self.n_experts;
        experts.extend(loader.experts(
            &format!("{mlp}.experts"),
            &PROJECTIONS,
            self.n_experts,
            self.expert_width,
            self.hidden,
        )?);
        let shared = match self.n_shared {
            0 => None,
            n => Some(Shared {
                mlp: loader.swiglu(
                    &format!("{mlp}.shared_experts"),
                    n * self.expert_width,
                    self.hidden,
                )?,
                gate: None,
            }),
        };
        Ok(Ffn::Sparse(Moe {
            map_row,
            gate: loader.matrix_f32(&format!("{mlp}.gate"), self.n_experts, self.hidden)?,
            router: Router::Sigmoid(SigmoidRouter {
                bias: loader
                    .vector(&format!("{mlp}.gate.e_score_correction_bias"), self.n_experts)?,
                top_k: self.top_k,
                n_group: self.n_group,
                topk_group: self.topk_group,
                normalise: self.normalise,
                scale: self.scale,
            }),
            shared,
        }))
    }
}

/// Which layers have experts: `mlp_layer_types`, or all from `first_k_dense_replace` on.
fn sparse_layers(config: &Config, n_layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = config.get("mlp_layer_types") {
        let types = types.as_array().filter(|types| types.len() == n_layers);
        let sparse: Option<Vec<bool>> = types.and_then(|types| {
            types
                .iter()
                .map(|kind| match kind.as_str() {
                    Some("sparse") => Some(true),
                    Some("dense") => Some(false),
                    _ => None,
                })
                .collect()
        });
        return sparse.ok_or_else(|| Error::Unsupported {
            what: format!("mlp_layer_types other than {n_layers} times \"dense\" or \"sparse\""),
            hint: "check config.json".into(),
        });
    }
    let first = config.count_or("first_k_dense_replace", 1, n_layers)?;
    Ok((0..n_layers).map(|layer| layer >= first).collect())
}
