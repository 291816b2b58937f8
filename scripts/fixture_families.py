"""Tiny configurations of the families that scripts/make_fixture.py makes models of."""

from __future__ import annotations

from typing import Any

BASE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
GQA = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
MLA = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 32,
}
DEEPSEEK = {
    "intermediate_size": 96,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
}
QWEN_MOE = {
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
DELTA = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 24,
}
DENSE = {"intermediate_size": 96}


def rope(theta: float, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **fields}}


def yarn(theta: float, **fields: Any) -> dict[str, Any]:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    return rope(theta, **{**scaling, "beta_fast": 32.0, "beta_slow": 1.0, **fields})


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MSCALE = {"mscale": 0.707, "mscale_all_dim": 0.707}
MROPE = {"partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1], "mrope_interleaved": True}

# `model_type`, or what the library calls it, and a configuration.
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**MLA, **DEEPSEEK, **yarn(1e4, **MSCALE), "norm_topk_prob": False},
    "deepseek_v3": {**MLA, **DEEPSEEK, **yarn(1e4, mscale=1.0, mscale_all_dim=1.0)},
    "dots1": {**GQA, **DEEPSEEK, **rope(1e4), "n_shared_experts": 2},
    "glm4": {**GQA, **DENSE, **rope(1e4, partial_rotary_factor=0.5), "attention_bias": True},
    "glm4_moe": {**GQA, **DEEPSEEK, **rope(1e6, partial_rotary_factor=0.5), "use_qk_norm": True},
    "glm4_moe_lite": {**MLA, **DEEPSEEK, **rope(1e6)},
    "gpt_oss": {
        **GQA,
        **yarn(1.5e5, factor=8.0, truncate=False),
        "intermediate_size": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "swiglu_limit": 3.0,
    },
    "llama": {**GQA, **DENSE, **rope(5e5)},
    "minimax_m2": {
        **GQA,
        **rope(5e6, partial_rotary_factor=0.5),
        "intermediate_size": 24,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "mixtral": {
        **GQA,
        **rope(1e6),
        "intermediate_size": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "olmoe": {
        **rope(1e4),
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
    },
    "qwen2_moe": {
        **QWEN_MOE,
        **rope(1e6),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 48,
        "norm_topk_prob": False,
    },
    "qwen3": {**GQA, **DENSE, **rope(1e6)},
    "qwen3_5_moe_text": {**GQA, **QWEN_MOE, **DELTA, **rope(1e7, **MROPE), "head_dim": 32},
    "qwen3_moe": {**GQA, **QWEN_MOE, **rope(1e6), "norm_topk_prob": True},
    "qwen3_next": {
        **GQA,
        **QWEN_MOE,
        **DELTA,
        **rope(1e7, partial_rotary_factor=0.25),
        "head_dim": 32,
        "norm_topk_prob": True,
    },
}
# Published under another name than the library's.
ALIASES = {"kimi_k2": "deepseek_v3"}
# Named changes to a configuration, where a dozen of `--set` would be needed.
PRESETS: dict[str, dict[str, Any]] = {
    "scaled": rope(5e5, **LLAMA3),
    "tied": {"tie_word_embeddings": True},
    "yarn": yarn(1e6),
}
