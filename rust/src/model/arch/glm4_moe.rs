//! `glm4_moe`: GLM-4.5, 4.6, 4.7 and their Air forms.
//!
//! Grouped-query attention with half of each head rotated, biases on q, k and v, optional per-head
//! norms of q and k; feed-forward as in `glm_ffn`. The multi-token prediction layer that follows
//! the last block in the files is not used.

use std::sync::Arc;

use super::Family;
use super::glm_ffn::FfnConfig;
use crate::error::Result;
use crate::model::attention::Attention;
use crate::model::decoder::Layer;
use crate::model::gqa::{Gqa, QkNorm};
use crate::model::loader::{Assembled, MAX_DIM};
use crate::model::rope::{Pairing, Rope};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "glm4_moe", load };

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    let ffn = FfnConfig::read(config)?;
    let hidden = config.count("hidden_size", MAX_DIM)?;
    let n_heads = config.count("num_attention_heads", MAX_DIM)?;
    let n_kv_heads = config.opt_count("num_key_value_heads", n_heads)?.unwrap_or(n_heads);
    let head_dim = config.opt_count("head_dim", MAX_DIM)?.unwrap_or(hidden / n_heads);
    let qkv_bias = config.flag_or("attention_bias", false)?;
    let use_qk_norm = config.flag_or("use_qk_norm", false)?;
    let eps = config.number_or("rms_norm_eps", None)? as f32;
    let rope = config.rope()?;
    let rotary_dim = (head_dim as f64 * rope.partial.unwrap_or(0.5)) as usize;
    if !n_heads.is_multiple_of(n_kv_heads) || !rotary_dim.is_multiple_of(2) {
        return Err(config.refuse(format!(
            "{n_heads} heads over {n_kv_heads} key heads with {rotary_dim} rotated components"
        )));
    }
    let rope = Arc::new(Rope::new(rotary_dim, rope.theta, loader.max_ctx, Pairing::Halves));
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);

    let mut experts = Vec::new();
    let mut layers = Vec::new();
    for i in 0..ffn.n_layers {
        let prefix = format!("model.layers.{i}");
        let attn = format!("{prefix}.self_attn");
        let qk_norm = if use_qk_norm {
            Some(QkNorm {
                q: loader.vector(&format!("{attn}.q_norm.weight"), head_dim)?,
                k: loader.vector(&format!("{attn}.k_norm.weight"), head_dim)?,
                eps,
            })
        } else {
            None
        };
        layers.push(Layer {
            input_norm: loader.vector(&format!("{prefix}.input_layernorm.weight"), hidden)?,
            attention: Attention::Gqa(Gqa {
                n_heads,
                n_kv_heads,
                head_dim,
                q_proj: loader.linear(&format!("{attn}.q_proj"), q_width, hidden, qkv_bias)?,
                k_proj: loader.linear(&format!("{attn}.k_proj"), kv_width, hidden, qkv_bias)?,
                v_proj: loader.linear(&format!("{attn}.v_proj"), kv_width, hidden, qkv_bias)?,
                o_proj: loader.linear(&format!("{attn}.o_proj"), hidden, q_width, false)?,
                qk_norm,
                rotary_dim,
                rope: Arc::clone(&rope),
            }),
            post_norm: loader
                .vector(&format!("{prefix}.post_attention_layernorm.weight"), hidden)?,
            ffn: ffn.load(loader, i, &mut experts)?,
        });
    }
    loader.finish(Assembled {
        layers,
        experts,
        sparse_layers: ffn.sparse_layers(),
        n_experts: ffn.n_experts,
        top_k: ffn.top_k,
    })
}
