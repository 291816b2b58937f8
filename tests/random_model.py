"""Models of random weights, of whatever size and form a test wants, written in a second."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colibri.models import demo_folder

VOCABULARY = 2048
# Random numbers, at least as many as the largest tensor has.
BLOCK = 4 << 20


@dataclass(frozen=True)
class Shape:
    """A model of the family qwen3_moe; ``form`` is how its routed experts are stored."""

    form: str
    hidden: int
    width: int
    experts: int
    top_k: int
    layers: int
    heads: int = 8
    kv_heads: int = 2
    head: int = 64


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


class Weights:
    """Random tensors, the same for the same seed: parts of one block of numbers."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        normal = self.random.standard_normal(BLOCK, dtype=np.float32)
        self.normal = {
            spread: ((normal * np.float32(spread)).view(np.uint32) >> 16).astype(np.uint16)
            for spread in (0.02, 1.0)
        }
        self.bytes = self.random.integers(0, 256, BLOCK, dtype=np.uint8)

    def take(self, block: np.ndarray, n: int) -> np.ndarray:
        start = int(self.random.integers(0, block.size - n))
        return block[start : start + n]

    def bf16(self, name: str, *shape: int, spread: float = 0.02) -> Tensor:
        return Tensor(name, "BF16", shape, self.take(self.normal[spread], math.prod(shape)))

    def ones(self, name: str, n: int) -> Tensor:
        return Tensor(name, "BF16", (n,), np.full(n, 0x3F80, np.uint16))

    def expert(self, form: str, name: str, rows: int, inputs: int) -> Iterator[Tensor]:
        if form == "bf16":
            yield self.bf16(f"{name}.weight", rows, inputs)
        elif form == "fp8":
            codes = self.take(self.bytes, rows * inputs)
            # Exponents around 1; neither is a NaN.
            codes = (codes & 0x87) | 0x30 | ((codes & 0x40) >> 3)
            yield Tensor(f"{name}.weight", "F8_E4M3", (rows, inputs), codes)
            blocks = (-(-rows // 128), -(-inputs // 128))
            scales = np.full(math.prod(blocks), 0.02, np.float32)
            yield Tensor(f"{name}.weight_scale_inv", "F32", blocks, scales)
        else:
            words = self.take(self.bytes, rows * inputs // 2)
            yield Tensor(f"{name}.weight_packed", "I32", (rows, inputs // 8), words)
            groups = (rows, inputs // 64)
            scales = np.full(math.prod(groups), 0x3B80, np.uint16)
            yield Tensor(f"{name}.weight_scale", "BF16", groups, scales)


def tensors(shape: Shape, weights: Weights) -> Iterator[Tensor]:
    """All of them; the residual stream is mostly the token's embedding."""
    hidden, q, kv = shape.hidden, shape.heads * shape.head, shape.kv_heads * shape.head
    yield weights.bf16("model.embed_tokens.weight", VOCABULARY, hidden, spread=1.0)
    yield weights.bf16("lm_head.weight", VOCABULARY, hidden)
    yield weights.ones("model.norm.weight", hidden)
    for i in range(shape.layers):
        layer = f"model.layers.{i}"
        yield weights.ones(f"{layer}.input_layernorm.weight", hidden)
        yield weights.ones(f"{layer}.post_attention_layernorm.weight", hidden)
        for part, rows, inputs in (
            ("q", q, hidden),
            ("k", kv, hidden),
            ("v", kv, hidden),
            ("o", hidden, q),
        ):
            yield weights.bf16(f"{layer}.self_attn.{part}_proj.weight", rows, inputs)
        for part in ("q", "k"):
            yield weights.ones(f"{layer}.self_attn.{part}_norm.weight", shape.head)
        yield weights.bf16(f"{layer}.mlp.gate.weight", shape.experts, hidden)
        for expert in range(shape.experts):
            for part in ("gate", "up", "down"):
                rows, inputs = (hidden, shape.width) if part == "down" else (shape.width, hidden)
                name = f"{layer}.mlp.experts.{expert}.{part}_proj"
                yield from weights.expert(shape.form, name, rows, inputs)


def make(folder: Path, shape: Shape, seed: int = 1) -> Path:
    """Writes the model into a new ``folder``."""
    folder.mkdir(parents=True)
    header, end = {}, 0
    with (folder / "data").open("wb") as data:
        for tensor in tensors(shape, Weights(seed)):
            begin, end = end, end + tensor.data.nbytes
            header[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "data_offsets": [begin, end],
            }
            tensor.data.tofile(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        with (folder / "data").open("rb") as data:
            shutil.copyfileobj(data, out, 16 << 20)
    (folder / "data").unlink()
    shutil.copy(demo_folder() / "tokenizer.json", folder)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.width,
        "intermediate_size": shape.width,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 8192,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
