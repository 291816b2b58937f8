#!/usr/bin/env python3
"""Checkpoint -> quantised Hugging Face folder, and back into the network.

python export.py run/last.pt run/tokenizer.json OUT
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from markers import SPECIAL, START
from model import DemoModel, ModelConfig
from quantize import bits_of, dequantize, pack, quantization_config, quantize

TEMPLATE = (
    "[gMASK]<sop>"
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
BFLOAT16 = ("embed_tokens.weight", "kv_b_proj.weight")


def published_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stacked expert tensors -> one tensor an expert and projection."""
    result: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name.endswith("experts.gate_up_proj"):  # [E, 2 I, D]
            base = name.removesuffix("gate_up_proj")
            for index, both in enumerate(value):
                gate, up = both.chunk(2, 0)
                result[f"{base}{index}.gate_proj.weight"] = gate
                result[f"{base}{index}.up_proj.weight"] = up
        elif name.endswith("experts.down_proj"):  # [E, D, I]
            base = name.removesuffix("down_proj")
            for index, down in enumerate(value):
                result[f"{base}{index}.down_proj.weight"] = down
        else:
            result[name] = value
    return result


def stacked_names(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The inverse of `published_names`."""
    result = {n: v for n, v in weights.items() if not re.search(r"experts\.\d+\.", n)}
    for layer in range(config.first_k_dense_replace, config.num_hidden_layers):
        base = f"model.layers.{layer}.mlp.experts."
        gate_up, down = [], []
        for index in range(config.n_routed_experts):
            gate = weights[f"{base}{index}.gate_proj.weight"]
            gate_up.append(torch.cat([gate, weights[f"{base}{index}.up_proj.weight"]]))
            down.append(weights[f"{base}{index}.down_proj.weight"])
        result[base + "gate_up_proj"] = torch.stack(gate_up)
        result[base + "down_proj"] = torch.stack(down)
    return result


def compress(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published names and float32 values -> the tensors to store."""
    stored: dict[str, Tensor] = {}
    for name, value in weights.items():
        module = name.removesuffix(".weight")
        bits = bits_of(module)
        if bits:
            integers, scale = quantize(value, bits)
            stored[f"{module}.weight_packed"] = pack(integers, bits)
            stored[f"{module}.weight_scale"] = scale
            stored[f"{module}.weight_shape"] = torch.tensor(value.shape)
        elif name.endswith(BFLOAT16):
            stored[name] = value.to(torch.bfloat16)
        else:
            stored[name] = value.float()
    return {name: value.contiguous().clone() for name, value in stored.items()}


def decompress(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stored tensors -> published names and float32 values."""
    weights: dict[str, Tensor] = {}
    for name, value in stored.items():
        if name.endswith(".weight_packed"):
            module = name.removesuffix(".weight_packed")
            scale = stored[f"{module}.weight_scale"]
            weights[f"{module}.weight"] = dequantize(value, scale, bits_of(module))
        elif not name.endswith((".weight_scale", ".weight_shape")):
            weights[name] = value.float()
    return weights


def published_config(config: ModelConfig, ids: dict[str, int]) -> dict:
    """config.json; `ids` maps the special tokens to their numbers."""
    dense = config.first_k_dense_replace
    sparse = config.num_hidden_layers - dense
    result = {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "num_key_value_heads": config.num_attention_heads,
        "n_group": 1,
        "topk_group": 1,
        "rope_interleave": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * sparse,
        "dtype": "bfloat16",
        "use_cache": True,
        "pad_token_id": ids["<|endoftext|>"],
        "eos_token_id": stop_ids(ids),
    }
    sizes = config.to_dict()
    sizes.pop("rope_theta")
    return {**result, **sizes, "quantization_config": quantization_config()}


def stop_ids(ids: dict[str, int]) -> list[int]:
    return [ids[token] for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_folder(
    out: Path, config: ModelConfig, weights: dict[str, Tensor], tokenizer: Path
) -> None:
    """Write the whole folder; `weights` are a DemoModel's (stacked experts, float32)."""
    out.mkdir(parents=True, exist_ok=True)
    numbers = Tokenizer.from_file(str(tokenizer))
    ids = {token: numbers.token_to_id(token) for token in SPECIAL}
    stored = compress(published_names(weights))
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", published_config(config, ids))
    shutil.copyfile(tokenizer, out / "tokenizer.json")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": SPECIAL[1:],
        "clean_up_tokenization_spaces": False,
        "model_max_length": config.max_position_embeddings,
    }
    write_json(out / "tokenizer_config.json", tokenizer_config)
    (out / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    generation = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "eos_token_id": stop_ids(ids),
        "pad_token_id": ids["<|endoftext|>"],
    }
    write_json(out / "generation_config.json", generation)


def load_folder(folder: Path) -> tuple[DemoModel, Tokenizer]:
    """An exported folder with its weights dequantised to float32."""
    published = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sizes = {name: published[name] for name in ModelConfig().to_dict() if name in published}
    config = ModelConfig(**sizes, rope_theta=published["rope_parameters"]["rope_theta"])
    net = DemoModel(config)
    weights = decompress(load_file(folder / "model.safetensors"))
    net.load_state_dict(stacked_names(weights, config))
    return net.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def load_checkpoint(checkpoint: Path) -> DemoModel:
    """A training checkpoint, not quantised."""
    state = torch.load(checkpoint, weights_only=True)
    net = DemoModel(ModelConfig(**state["config"]))
    net.load_state_dict(state["weights"])
    return net.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a quantised Hugging Face folder.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    net = load_checkpoint(options.checkpoint)
    write_folder(options.out, net.config, net.state_dict(), options.tokenizer)
    files = sorted(options.out.iterdir())
    for file in files:
        print(f"{file.stat().st_size:>9} {file.name}")
    print(f"{sum(file.stat().st_size for file in files):>9} in all; prompts begin with {START}")


if __name__ == "__main__":
    main()
