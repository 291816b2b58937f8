//! The feed-forward blocks of `DeepSeek` and of GLM and Kimi after it: dense first layers, then routed
//! experts, which may be divided in groups, with a shared one.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::experts::ExpertSource;
use crate::model::Loader;
use crate::model::ffn::{Ffn, Moe, Shared};
use crate::model::loader::{MAX_DIM, MAX_EXPERTS, MAX_LAYERS, PROJECTIONS, PartNames};
use crate::model::router::{Groups, Router, SigmoidRouter, SoftmaxRouter};

/// How experts are scored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// By the sigmoid of their logits, with a bias for the choice; groups by their two best.
    Sigmoid,
    /// By the softmax over all of them; groups, if `topk_method` asks for them, by their best.
    Softmax,
}

/// What a family calls things.
pub struct Names {
    /// Key of the number of experts.
    pub experts: &'static str,
    /// Key of how many of them a row takes.
    pub top_k: &'static str,
    /// Key of the number of shared ones.
    pub shared: &'static str,
    /// Key of the number of groups.
    pub groups: &'static str,
    /// Key of whether weights are scaled to a sum of one.
    pub normalise: &'static str,
    /// Key of how experts are scored.
    pub scoring: &'static str,
    /// A layer's sparse block.
    pub block: &'static str,
    /// The matrices of a routed expert.
    pub parts: &'static PartNames,
}

/// `DeepSeek`'s.
pub const DEEPSEEK: Names = Names {
    experts: "n_routed_experts",
    top_k: "num_experts_per_tok",
    shared: "n_shared_experts",
    groups: "n_group",
    normalise: "norm_topk_prob",
    scoring: "scoring_func",
    block: "mlp",
    parts: &PROJECTIONS,
};
/// What holds where a file does not say: each family's reference has its own.
#[derive(Clone, Copy)]
pub struct Defaults {
    /// Dense layers before the sparse ones.
    pub first_dense: usize,
    /// Factor on the weights of experts.
    pub scale: f64,
    /// Whether weights are scaled to a sum of one first.
    pub normalise: bool,
    /// Groups that experts are divided in, and how many of them are chosen.
    pub groups: (usize, usize),
    /// Experts that every row takes.
    pub n_shared: usize,
}

impl Defaults {
    /// `first_dense` dense layers, and nothing else but weights scaled to a sum of one.
    pub const fn dense_first(first_dense: usize) -> Self {
        Self { first_dense, scale: 1.0, normalise: true, groups: (1, 1), n_shared: 0 }
    }
}

/// Geometry of the feed-forward blocks.
pub struct FfnConfig {
    names: &'static Names,
    /// Decoder blocks.
    pub n_layers: usize,
    /// Elements of a row.
    pub hidden: usize,
    dense_width: usize,
    expert_width: usize,
    /// Experts of a sparse layer.
    pub n_experts: usize,
    n_shared: usize,
    /// Experts a row takes.
    pub top_k: usize,
    /// Whether each layer is sparse.
    sparse: Vec<bool>,
    scoring: Scoring,
    groups: Option<Groups>,
    normalise: bool,
    scale: f32,
}

impl FfnConfig {
    /// Reads and checks the configuration.
    pub fn read(config: &Config, scoring: Scoring, defaults: Defaults) -> Result<Self> {
        Self::read_named(config, &DEEPSEEK, scoring, defaults)
    }

    /// The same by other names.
    pub fn read_named(
        config: &Config,
        names: &'static Names,
        scoring: Scoring,
        defaults: Defaults,
    ) -> Result<Self> {
        config.only("hidden_act", "silu")?;
        config.without("mlp_bias")?;
        let n_layers = config.count("num_hidden_layers", MAX_LAYERS)?;
        let n_experts = config.count(names.experts, MAX_EXPERTS)?;
        let top_k = config.count(names.top_k, n_experts)?;
        let grouped = match scoring {
            Scoring::Sigmoid => {
                config.only(names.scoring, "sigmoid")?;
                config.only("topk_method", "noaux_tc")?;
                true
            }
            Scoring::Softmax => {
                config.only(names.scoring, "softmax")?;
                let greedy = config.get("topk_method").is_none_or(|method| method == "greedy");
                if !greedy {
                    config.only("topk_method", "group_limited_greedy")?;
                }
                !greedy
            }
        };
        let counts = (n_experts, top_k);
        let groups = if grouped {
            read_groups(config, names.groups, scoring, counts, defaults.groups)?
        } else {
            None
        };
        Ok(Self {
            names,
            n_layers,
            hidden: config.count("hidden_size", MAX_DIM)?,
            dense_width: config.count("intermediate_size", MAX_DIM)?,
            expert_width: config.count("moe_intermediate_size", MAX_DIM)?,
            n_experts,
            n_shared: config.count_or(names.shared, defaults.n_shared, 1024)?,
            top_k,
            sparse: sparse_layers(config, n_layers, defaults.first_dense)?,
            scoring,
            groups,
            normalise: config.flag_or(names.normalise, defaults.normalise)?,
            scale: config.number_or("routed_scaling_factor", Some(defaults.scale))? as f32,
        })
    }

    /// The same with experts' weights as they are, whatever the configuration says.
    #[must_use]
    pub fn without_normalising(self) -> Self {
        Self { normalise: false, ..self }
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
        let prefix = format!("model.layers.{layer}");
        if !self.sparse[layer] {
            let mlp = format!("{prefix}.mlp");
            return Ok(Ffn::Dense(loader.swiglu(&mlp, self.dense_width, self.hidden)?));
        }
        self.load_sparse(loader, layer, experts)
    }

    /// Loads a layer's sparse block, whatever layer it is, and adds its experts to `experts`.
    pub fn load_sparse(
        &self,
        loader: &mut Loader,
        layer: usize,
        experts: &mut Vec<ExpertSource>,
    ) -> Result<Ffn> {
        let prefix = format!("model.layers.{layer}");
        let mlp = format!("{prefix}.{}", self.names.block);
        let map_row = experts.len() / self.n_experts;
        experts.extend(loader.experts(
            &format!("{mlp}.experts"),
            self.names.parts,
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
            gate_bias: None,
            router: self.load_router(loader, &mlp)?,
            shared,
        }))
    }

    fn load_router(&self, loader: &mut Loader, mlp: &str) -> Result<Router> {
        let &Self { top_k, groups, normalise, scale, .. } = self;
        Ok(match self.scoring {
            Scoring::Sigmoid => Router::Sigmoid(SigmoidRouter {
                bias: loader
                    .vector(&format!("{mlp}.gate.e_score_correction_bias"), self.n_experts)?,
                top_k,
                groups,
                normalise,
                scale,
            }),
            Scoring::Softmax => Router::Softmax(SoftmaxRouter { top_k, groups, normalise, scale }),
        })
    }
}

/// The groups that experts are divided in; none for a single one.
fn read_groups(
    config: &Config,
    key: &str,
    scoring: Scoring,
    (n_experts, top_k): (usize, usize),
    (default_n, default_chosen): (usize, usize),
) -> Result<Option<Groups>> {
    let n = config.opt_count(key, n_experts)?.unwrap_or(default_n);
    let chosen = config.opt_count("topk_group", n)?.unwrap_or(default_chosen);
    if n == 1 {
        return Ok(None);
    }
    let judged_by = match scoring {
        Scoring::Sigmoid => 2,
        Scoring::Softmax => 1,
    };
    let size = n_experts / n;
    if !n_experts.is_multiple_of(n) || size < judged_by || chosen * size < top_k {
        return Err(config.refuse(format!(
            "{n_experts} experts in {n} groups, {chosen} of them chosen, do not give {top_k} \
             experts a token"
        )));
    }
    Ok(Some(Groups { n, chosen, judged_by }))
}

/// Which layers have experts: `mlp_layer_types`, or all from `first_k_dense_replace` on.
fn sparse_layers(config: &Config, n_layers: usize, first_dense: usize) -> Result<Vec<bool>> {
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
    if config.opt_count("moe_layer_freq", MAX_LAYERS)?.is_some_and(|freq| freq > 1) {
        return Err(Error::Unsupported {
            what: "moe_layer_freq above 1".into(),
            hint: "check config.json".into(),
        });
    }
    let first = config.count_or("first_k_dense_replace", first_dense.min(n_layers), n_layers)?;
    Ok((0..n_layers).map(|layer| layer >= first).collect())
}
