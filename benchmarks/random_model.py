"""Writes a Mixture-of-Experts model of random weights, to measure formats and speed on.

    python benchmarks/random_model.py DIR [--hidden 512] [--layers 8] [--experts 64] [--seed 1]

The family is qwen3_moe, the tokenizer the demo model's. Weights are normal in f32, scaled so that
activations keep their size from layer to layer and logits have a standard deviation of 2.5: about
that of trained models of this size, though such a model predicts nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from colibri.models import demo_folder
from colibri.quality.plain import Entry, write_safetensors

VOCABULARY = 2048
HEAD_DIM = 64
LOGITS = 2.5


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model of random weights.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder to make")
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 128")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--experts", type=int, default=64, help="of which 4 are taken")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    config = configuration(args.hidden, args.layers, args.experts)
    (args.folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    shutil.copyfile(demo_folder() / "tokenizer.json", args.folder / "tokenizer.json")
    entries = list(tensors(config, args.seed))
    write_safetensors(args.folder / "model.safetensors", entries, lambda *_: None)


def configuration(hidden: int, layers: int, experts: int) -> dict[str, object]:
    heads = hidden // HEAD_DIM
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "head_dim": HEAD_DIM,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "num_hidden_layers": layers,
        "num_experts": experts,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": hidden // 2,
        "intermediate_size": hidden * 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        "eos_token_id": 0,
    }


def tensors(config: dict, seed: int) -> Iterator[Entry]:
    """Every tensor draws from a generator of its own, so none has to be kept."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    width = config["num_attention_heads"] * HEAD_DIM
    kv_width = config["num_key_value_heads"] * HEAD_DIM
    inner = config["moe_intermediate_size"]

    def matrix(name: str, rows: int, inputs: int, gain: float = 1.0) -> Entry:
        def draw() -> np.ndarray:
            random = np.random.default_rng([seed, *name.encode()])
            drawn = random.standard_normal((rows, inputs), np.float32)
            return drawn * np.float32(gain / np.sqrt(inputs))

        return Entry(f"{name}.weight", (rows, inputs), "f32", draw)

    def ones(name: str, length: int) -> Entry:
        return Entry(f"{name}.weight", (length,), "f32", lambda: np.ones(length, np.float32))

    # Rows of the embedding have entries of size one.
    yield matrix("model.embed_tokens", VOCABULARY, hidden, gain=np.sqrt(hidden))
    yield matrix("lm_head", VOCABULARY, hidden, gain=LOGITS)
    yield ones("model.norm", hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        yield ones(f"{prefix}.input_layernorm", hidden)
        yield ones(f"{prefix}.post_attention_layernorm", hidden)
        attention = f"{prefix}.self_attn"
        yield ones(f"{attention}.q_norm", HEAD_DIM)
        yield ones(f"{attention}.k_norm", HEAD_DIM)
        yield matrix(f"{attention}.q_proj", width, hidden)
        yield matrix(f"{attention}.k_proj", kv_width, hidden)
        yield matrix(f"{attention}.v_proj", kv_width, hidden)
        yield matrix(f"{attention}.o_proj", hidden, width)
        yield matrix(f"{prefix}.mlp.gate", config["num_experts"], hidden)
        for expert in range(config["num_experts"]):
            part = f"{prefix}.mlp.experts.{expert}"
            yield matrix(f"{part}.gate_proj", inner, hidden)
            yield matrix(f"{part}.up_proj", inner, hidden)
            yield matrix(f"{part}.down_proj", hidden, inner)


if __name__ == "__main__":
    main()
