//! Grouped-query attention as configurations describe it.

use std::sync::Arc;

use crate::config::{Config, RopeConfig};
use crate::error::{Error, Result};
use crate::model::Loader;
use crate::model::gqa::{Gqa, QkNorm};
use crate::model::loader::MAX_DIM;
use crate::model::rope::{Pairing, Rope};

/// What of it is a family's own.
#[derive(Default)]
pub struct Form {
    /// Biases on the projections to queries, keys and values.
    pub qkv_bias: bool,
    /// A bias on the projection back.
    pub o_bias: bool,
    /// Norms of queries and keys.
    pub qk_norm: Option<NormOver>,
    /// How much of each head is rotated.
    pub rotary: Rotary,
    /// Which components of it form a pair.
    pub pairing: Pairing,
    /// Whether queries come with gates.
    pub gated: bool,
    /// The rotary embedding where `Config::rope` does not tell it.
    pub rope: Option<RopeConfig>,
}

/// Refuses a configuration without `rope_theta`, in a family whose reference has another than the
/// usual 10,000.
pub fn require_theta(config: &Config) -> Result<()> {
    let inner = |key: &str| config.get(key).and_then(|rope| rope.get("rope_theta")).is_some();
    if config.get("rope_theta").is_some() || inner("rope_parameters") || inner("rope_scaling") {
        return Ok(());
    }
    Err(config.refuse("rope_theta is missing"))
}

/// How much of each head is rotated, from its first component on.
#[derive(Default)]
pub enum Rotary {
    /// All of it, whatever the file says.
    #[default]
    Whole,
    /// The share the file says, or else this one.
    Share(f64),
    /// This many components.
    Components(usize),
}

/// What a norm of queries or keys is taken over.
#[derive(Clone, Copy)]
pub enum NormOver {
    /// Each head by itself.
    Head,
    /// All heads of a row together.
    Row,
}

/// Geometry of all layers' attention.
pub struct GqaConfig {
    form: Form,
    hidden: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    eps: f32,
    rotary_dim: usize,
    rope: Arc<Rope>,
}

impl GqaConfig {
    /// Reads and checks the configuration.
    pub fn read(loader: &Loader, form: Form) -> Result<Self> {
        let config = loader.config;
        let hidden = config.count("hidden_size", MAX_DIM)?;
        let n_heads = config.count("num_attention_heads", MAX_DIM)?;
        let n_kv_heads = config.opt_count("num_key_value_heads", n_heads)?.unwrap_or(n_heads);
        let head_dim = match config.opt_count("head_dim", MAX_DIM)? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(n_heads) => hidden / n_heads,
            None => {
                return Err(config.refuse(format!("hidden_size {hidden} for {n_heads} heads")));
            }
        };
        let rope = match &form.rope {
            Some(rope) => rope.clone(),
            None => config.rope()?,
        };
        let share = |share: f64| (head_dim as f64 * share) as usize;
        let unsupported =
            |what: String| Err(Error::Unsupported { what, hint: "check config.json".into() });
        let rotary_dim = match (&form.rotary, rope.partial) {
            (Rotary::Whole, None | Some(1.0)) => head_dim,
            (Rotary::Whole, Some(partial)) => {
                return unsupported(format!("partial_rotary_factor {partial} in this family"));
            }
            (Rotary::Share(default), partial) => share(partial.unwrap_or(*default)),
            (Rotary::Components(n), _) if *n > head_dim => {
                return unsupported(format!("rotary_dim {n} for heads of {head_dim}"));
            }
            (Rotary::Components(n), Some(partial)) if share(partial) != *n => {
                return unsupported(format!(
                    "partial_rotary_factor {partial} beside rotary_dim {n}"
                ));
            }
            (Rotary::Components(n), _) => *n,
        };
        if !n_heads.is_multiple_of(n_kv_heads) || !rotary_dim.is_multiple_of(2) {
            return Err(config.refuse(format!(
                "{n_heads} heads over {n_kv_heads} key heads with {rotary_dim} rotated components"
            )));
        }
        let rope = Arc::new(Rope::new(rotary_dim, &rope, loader.max_ctx, form.pairing));
        Ok(Self {
            form,
            hidden,
            n_heads,
            n_kv_heads,
            head_dim,
            eps: config.number_or("rms_norm_eps", None)? as f32,
            rotary_dim,
            rope,
        })
    }

    /// Loads the attention `prefix` of one layer.
    pub fn load(&self, loader: &mut Loader, prefix: &str) -> Result<Gqa> {
        let (q_width, kv_width) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let qk_norm = match self.form.qk_norm {
            None => None,
            Some(over) => {
                let (q, k) = match over {
                    NormOver::Head => (self.head_dim, self.head_dim),
                    NormOver::Row => (q_width, kv_width),
                };
                Some(QkNorm {
                    q: loader.norm(&format!("{prefix}.q_norm"), q)?,
                    k: loader.norm(&format!("{prefix}.k_norm"), k)?,
                    eps: self.eps,
                })
            }
        };
        let Form { qkv_bias, o_bias, gated, .. } = self.form;
        let hidden = self.hidden;
        let q_rows = if gated { 2 * q_width } else { q_width };
        Ok(Gqa {
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            q_proj: loader.linear(&format!("{prefix}.q_proj"), q_rows, hidden, qkv_bias)?,
            k_proj: loader.linear(&format!("{prefix}.k_proj"), kv_width, hidden, qkv_bias)?,
            v_proj: loader.linear(&format!("{prefix}.v_proj"), kv_width, hidden, qkv_bias)?,
            o_proj: loader.linear(&format!("{prefix}.o_proj"), hidden, q_width, o_bias)?,
            qk_norm,
            rotary_dim: self.rotary_dim,
            gated,
            rope: Arc::clone(&self.rope),
            window: None,
            sinks: None,
        })
    }
}
