//! `glm4_moe_lite`: GLM-4.7-Flash, and the embedded demo model.
//!
//! Multi-head latent attention; feed-forward as in `glm_ffn`. The multi-token prediction layer
//! that follows the last block in the files is not used.

use std::sync::Arc;

use super::Family;
use super::glm_ffn::FfnConfig;
use crate::error::Result;
use crate::model::attention::Attention;
use crate::model::loader::{Assembled, MAX_DIM};
use crate::model::mla::{Mla, Query};
use crate::model::rope::{Pairing, Rope};
use crate::model::{Loader, Model};

/// See the module.
pub const FAMILY: Family = Family { name: "glm4_moe_lite", load };

/// Attention geometry.
struct Dims {
    hidden: usize,
    n_heads: usize,
    q_rank: Option<usize>,
    kv_rank: usize,
    nope: usize,
    rope: usize,
    v: usize,
    bias: bool,
}

fn load(loader: &mut Loader) -> Result<Model> {
    let config = loader.config;
    let ffn = FfnConfig::read(config)?;
    let dims = Dims {
        hidden: config.count("hidden_size", MAX_DIM)?,
        n_heads: config.count("num_attention_heads", MAX_DIM)?,
        q_rank: config.opt_count("q_lora_rank", MAX_DIM)?,
        kv_rank: config.count("kv_lora_rank", MAX_DIM)?,
        nope: config.count("qk_nope_head_dim", MAX_DIM)?,
        rope: config.count("qk_rope_head_dim", MAX_DIM)?,
        v: config.count("v_head_dim", MAX_DIM)?,
        bias: config.flag_or("attention_bias", false)?,
    };
    if !dims.rope.is_multiple_of(2) {
        return Err(config.refuse(format!("qk_rope_head_dim {} is odd", dims.rope)));
    }
    let pairing = if config.flag_or("rope_interleave", true)? {
        Pairing::Interleaved
    } else {
        Pairing::Halves
    };
    let rope = Arc::new(Rope::new(dims.rope, config.rope()?.theta, loader.max_ctx, pairing));

    let mut experts = Vec::new();
    let mut layers = Vec::new();
    for i in 0..ffn.n_layers {
        let prefix = format!("model.layers.{i}");
        let attention = load_attention(loader, &format!("{prefix}.self_attn"), &dims, &rope)?;
        let ffn = ffn.load(loader, i, &mut experts)?;
        layers.push(loader.block(&prefix, dims.hidden, Attention::Mla(attention), ffn)?);
    }
    loader.finish(Assembled {
        layers,
        experts,
        sparse_layers: ffn.sparse_layers(),
        n_experts: ffn.n_experts,
        top_k: ffn.top_k,
    })
}

fn load_attention(loader: &mut Loader, attn: &str, dims: &Dims, rope: &Arc<Rope>) -> Result<Mla> {
    let &Dims { hidden, n_heads, kv_rank, nope, v, bias, .. } = dims;
    let q_width = n_heads * (nope + dims.rope);
    let query = match dims.q_rank {
        None => Query::Direct(loader.linear(&format!("{attn}.q_proj"), q_width, hidden, false)?),
        Some(rank) => Query::LowRank {
            down: loader.linear(&format!("{attn}.q_a_proj"), rank, hidden, bias)?,
            norm: loader.vector(&format!("{attn}.q_a_layernorm.weight"), rank)?,
            up: loader.linear(&format!("{attn}.q_b_proj"), q_width, rank, false)?,
        },
    };
    // Rows of kv_b_proj: for each head its key rows, then its value rows.
    let kv_b = loader.matrix(&format!("{attn}.kv_b_proj"), n_heads * (nope + v), kv_rank)?;
    let first = |head: usize| head * (nope + v);
    Ok(Mla {
        n_heads,
        kv_rank,
        nope_dim: nope,
        rope_dim: dims.rope,
        v_dim: v,
        query,
        kv_a_proj: loader.linear(
            &format!("{attn}.kv_a_proj_with_mqa"),
            kv_rank + dims.rope,
            hidden,
            bias,
        )?,
        kv_a_norm: loader.vector(&format!("{attn}.kv_a_layernorm.weight"), kv_rank)?,
        absorb_k: (0..n_heads).map(|h| kv_b.slice_f32(first(h), first(h) + nope, true)).collect(),
        absorb_v: (0..n_heads)
            .map(|h| kv_b.slice_f32(first(h) + nope, first(h + 1), false))
            .collect(),
        o_proj: loader.linear(&format!("{attn}.o_proj"), hidden, n_heads * v, bias)?,
        rope: Arc::clone(rope),
        scale: 1.0 / ((nope + dims.rope) as f32).sqrt(),
    })
}
