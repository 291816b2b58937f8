"""A converted model of random weights with the layers of GLM-5.2, cut to a size that disks hold.

    python scripts/make_big_model.py DIR [--gb 8] [--layers 4] [--skew 0.1] [--seed 1] [--drafts]

The layers are those of GLM-5.2 in full width: hidden size 6144, latent and sparse attention, one
dense layer, then `--layers` sparse ones of experts of 2048, of which a token takes 8. `--gb` says
how many experts there are of the 256 that a layer has there. It is a container as `colibri
convert` writes it (docs/formats.md): experts in int4-g64, one aligned record each, the rest in
int8-g64 or bf16; its bytes are random, so that it is written as fast as the disk goes. The
weights mean nothing, but with `--drafts`: then a token mostly follows from the one before it, and
a layer behind the last predicts that (docs/design/0020-mtp.md), so that the likeliest tokens are as
it says, and of those drawn at temperature 1 about four in five. A router's bias makes some experts
of each layer likelier, with a standard deviation of `--skew` beside scores between 0 and 1: 0 is
the worst case for any cache. The tokenizer is the demo model's.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import numpy as np

from colibri.models import demo_folder

ALIGN, TILE, LINE, GROUP = 4096, 16, 64, 64
HIDDEN, HEADS, INNER, DENSE_INNER = 6144, 64, 2048, 12288
Q_LORA, KV_LORA, NOPE, ROPE, V_DIM = 2048, 512, 192, 64, 256
INDEX_HEADS, INDEX_DIM = 32, 128
TOP_K, MAX_EXPERTS = 8, 256
VOCABULARY = 2048
# Standard deviation of bytes and nibbles that are all alike.
SPREAD = {8: 73.9, 4: 4.61}
# Random bytes are taken from anywhere in a block of so many.
BLOCK_BYTES = 64 << 20
LOGITS = 2.5
# With `--drafts`: of embeddings beside what layers add, and the logit of the token that follows.
LOUD, FOLLOWS = 8.0, 9.0


@dataclass(frozen=True)
class Matrix:
    """One of random integers."""

    name: str
    rows: int
    inputs: int
    bits: int

    @property
    def line_bytes(self) -> int:
        return -(-self.rows // TILE) * TILE * self.inputs * self.bits // 8

    @property
    def scale_bytes(self) -> int:
        return -(-self.rows // TILE) * TILE * (self.inputs // GROUP) * 2

    def described(self) -> dict[str, Any]:
        kind = f"int{self.bits}-g{GROUP}"
        return {
            "name": self.name,
            "shape": [self.rows, self.inputs],
            "format": kind,
            "scales": "f16",
        }

    def pieces(self, source: Source) -> Iterator[bytes | memoryview]:
        yield from source.random(self.line_bytes)
        scale = 1 / (SPREAD[self.bits] * math.sqrt(self.inputs))
        yield np.full(self.scale_bytes // 2, scale, "<f2").tobytes()
        yield bytes(-(self.line_bytes + self.scale_bytes) % LINE)


class Source:
    """Random bytes, fast."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._block = memoryview(self.rng.bytes(BLOCK_BYTES))

    def random(self, length: int) -> Iterator[memoryview]:
        while length > 0:
            at = int(self.rng.integers(0, BLOCK_BYTES // 2))
            piece = self._block[at : at + min(length, BLOCK_BYTES // 2)]
            length -= len(piece)
            yield piece


@dataclass(frozen=True)
class Tensor:
    """A record of matrices, or floats."""

    name: str
    matrices: tuple[Matrix, ...] = ()
    dtype: str = "U8"
    values: np.ndarray | None = None

    @property
    def shape(self) -> list[int]:
        return [self.n_bytes] if self.values is None else list(self.values.shape)

    @property
    def n_bytes(self) -> int:
        if self.values is not None:
            return self.values.size * (4 if self.dtype == "F32" else 2)
        parts = (m.line_bytes + m.scale_bytes for m in self.matrices)
        return -(-sum(-(-n // LINE) * LINE for n in parts) // ALIGN) * ALIGN

    def pieces(self, source: Source) -> Iterator[bytes | memoryview]:
        if self.values is not None:
            bits = self.values.astype("<f4")
            yield bits.tobytes() if self.dtype == "F32" else bits.view("<u2")[..., 1::2].tobytes()
            return
        length = 0
        for matrix in self.matrices:
            for piece in matrix.pieces(source):
                length += len(piece)
                yield piece
        yield bytes(self.n_bytes - length)


def configuration(layers: int, experts: int, drafts: bool) -> dict[str, Any]:
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "attention_bias": False,
        "dtype": "bfloat16",
        "eos_token_id": 0,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "index_head_dim": INDEX_DIM,
        "index_n_heads": INDEX_HEADS,
        "index_topk": 2048,
        "indexer_rope_interleave": True,
        "intermediate_size": DENSE_INNER,
        "kv_lora_rank": KV_LORA,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": INNER,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": HEADS,
        "num_experts_per_tok": TOP_K,
        "num_hidden_layers": 1 + layers,
        "num_key_value_heads": HEADS,
        "num_nextn_predict_layers": int(drafts),
        "q_lora_rank": Q_LORA,
        "qk_head_dim": NOPE + ROPE,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "rms_norm_eps": 1e-5,
        "rope_interleave": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": V_DIM,
        "vocab_size": VOCABULARY,
        "quantization_config": {"quant_method": "colibri", "version": 1},
    }


def record(name: str, rows: int, inputs: int) -> Tensor:
    return Tensor(f"{name}.tiles", (Matrix(name, rows, inputs, 8),))


def floats(name: str, values: np.ndarray, dtype: str = "BF16") -> Tensor:
    return Tensor(name, dtype=dtype, values=values)


def draw(source: Source, rows: int, inputs: int, gain: float = 1.0) -> np.ndarray:
    drawn = source.rng.standard_normal((rows, inputs), np.float32)
    return drawn * np.float32(gain / math.sqrt(inputs))


def embedding_and_head(source: Source, drafts: bool) -> tuple[np.ndarray, np.ndarray]:
    if not drafts:
        embedding = draw(source, VOCABULARY, HIDDEN, math.sqrt(HIDDEN))
        return embedding, draw(source, VOCABULARY, HIDDEN, LOGITS)
    embedding = draw(source, VOCABULARY, HIDDEN, LOUD * math.sqrt(HIDDEN))
    head = np.empty_like(embedding)
    # All tokens come once before one comes again.
    head[(np.arange(VOCABULARY) * 5 + 3) % VOCABULARY] = embedding * (FOLLOWS / LOUD / HIDDEN)
    return embedding, head


def dense_tensors(
    source: Source, layers: int, experts: int, skew: float, drafts: bool
) -> Iterator[Tensor]:
    ones = np.ones
    embedding, head = embedding_and_head(source, drafts)
    yield floats("model.embed_tokens.weight", embedding)
    yield floats("lm_head.weight", head)
    yield floats("model.norm.weight", ones(HIDDEN))
    if drafts:
        prefix = f"model.layers.{1 + layers}"
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            yield floats(f"{prefix}.{norm}.weight", ones(HIDDEN))
        # The embedding's half goes in as it is.
        yield floats(f"{prefix}.eh_proj.weight", np.eye(HIDDEN, 2 * HIDDEN, dtype=np.float32))
    for layer in range(1 + layers + drafts):
        prefix = f"model.layers.{layer}"
        yield floats(f"{prefix}.input_layernorm.weight", ones(HIDDEN))
        yield floats(f"{prefix}.post_attention_layernorm.weight", ones(HIDDEN))
        attention = f"{prefix}.self_attn"
        yield floats(f"{attention}.q_a_layernorm.weight", ones(Q_LORA))
        yield floats(f"{attention}.kv_a_layernorm.weight", ones(KV_LORA))
        yield record(f"{attention}.q_a_proj", Q_LORA, HIDDEN)
        yield record(f"{attention}.q_b_proj", HEADS * (NOPE + ROPE), Q_LORA)
        yield record(f"{attention}.kv_a_proj_with_mqa", KV_LORA + ROPE, HIDDEN)
        kv_b = draw(source, HEADS * (NOPE + V_DIM), KV_LORA)
        yield floats(f"{attention}.kv_b_proj.weight", kv_b)
        yield record(f"{attention}.o_proj", HIDDEN, HEADS * V_DIM)
        indexer = f"{attention}.indexer"
        yield floats(f"{indexer}.k_norm.weight", ones(INDEX_DIM))
        yield floats(f"{indexer}.k_norm.bias", np.zeros(INDEX_DIM))
        yield floats(f"{indexer}.weights_proj.weight", draw(source, INDEX_HEADS, HIDDEN))
        yield floats(f"{indexer}.wk.weight", draw(source, INDEX_DIM, HIDDEN))
        yield floats(f"{indexer}.wq_b.weight", draw(source, INDEX_HEADS * INDEX_DIM, Q_LORA))
        mlp = f"{prefix}.mlp"
        inner, within = (DENSE_INNER, mlp) if layer == 0 else (INNER, f"{mlp}.shared_experts")
        yield record(f"{within}.gate_proj", inner, HIDDEN)
        yield record(f"{within}.up_proj", inner, HIDDEN)
        yield record(f"{within}.down_proj", HIDDEN, inner)
        if layer > 0:
            yield floats(f"{mlp}.gate.weight", draw(source, experts, HIDDEN))
            bias = source.rng.standard_normal(experts) * skew
            yield floats(f"{mlp}.gate.e_score_correction_bias", bias, "F32")


def expert_tensors(layer: int, experts: int) -> Iterator[Tensor]:
    for expert in range(experts):
        name = f"model.layers.{layer}.mlp.experts.{expert}"
        shapes = (
            ("gate_proj", INNER, HIDDEN),
            ("up_proj", INNER, HIDDEN),
            ("down_proj", HIDDEN, INNER),
        )
        parts = tuple(Matrix(f"{name}.{part}", rows, inputs, 4) for part, rows, inputs in shapes)
        yield Tensor(f"{name}.tiles", parts)


def write(path: Path, tensors: list[Tensor], source: Source) -> dict[str, Any]:
    """Writes a shard; returns its entry of the manifest."""
    # Records come first, so that all of them begin at a multiple of their alignment.
    tensors = sorted(tensors, key=lambda tensor: not tensor.matrices)
    records = {t.name: [m.described() for m in t.matrices] for t in tensors if t.matrices}
    header: dict[str, Any] = {"__metadata__": {"colibri.records": json.dumps(records)}}
    offset = 0
    for tensor in tensors:
        offsets = [offset, offset + tensor.n_bytes]
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": offsets,
        }
        offset += tensor.n_bytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGN)
    head = struct.pack("<Q", len(text)) + text
    hashes = {}
    with path.open("wb") as file:
        file.write(head)
        for tensor in tensors:
            hasher = blake3.blake3()
            for piece in tensor.pieces(source):
                hasher.update(piece)
                file.write(piece)
            hashes[tensor.name] = hasher.hexdigest()
    header_hash = blake3.blake3(head).hexdigest()
    return {"bytes": len(head) + offset, "header": header_hash, "tensors": hashes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--gb", type=float, default=8.0, help="of experts, in GB (default: 8)")
    parser.add_argument("--layers", type=int, default=4, help="sparse ones (default: 4)")
    parser.add_argument("--skew", type=float, default=0.1, help="of the routing (default: 0.1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drafts", action="store_true", help="with a layer that predicts a token")
    args = parser.parse_args()
    one = next(expert_tensors(1, 1)).n_bytes
    experts = round(args.gb * 1e9 / one / args.layers)
    if not TOP_K <= experts <= MAX_EXPERTS:
        least, most = (n * one * args.layers / 1e9 for n in (TOP_K, MAX_EXPERTS))
        parser.error(f"--gb must be from {least:.1f} to {most:.1f} with --layers {args.layers}")
    free = shutil.disk_usage(args.folder.absolute().parent).free
    if free < (args.gb + 2) * 1e9:
        parser.error(f"{free / 1e9:.1f} GB are free there, {args.gb + 2:.1f} are needed")
    args.folder.mkdir()
    source = Source(args.seed)
    began = time.monotonic()
    small = {
        "config.json": json.dumps(
            configuration(args.layers, experts, args.drafts), indent=2
        ).encode()
    }
    small["tokenizer.json"] = (demo_folder() / "tokenizer.json").read_bytes()
    files: dict[str, Any] = {}
    for name, content in small.items():
        (args.folder / name).write_bytes(content)
        files[name] = {"bytes": len(content), "blake3": blake3.blake3(content).hexdigest()}
    shards = {
        "model-dense-00001.safetensors": list(
            dense_tensors(source, args.layers, experts, args.skew, args.drafts)
        )
    }
    for layer in range(1, 1 + args.layers + args.drafts):
        shards[f"model-experts-{layer:05}.safetensors"] = list(expert_tensors(layer, experts))
    for number, (name, tensors) in enumerate(shards.items(), 1):
        files[name] = write(args.folder / name, tensors, source)
        written = sum(entry["bytes"] for entry in files.values())
        rate = written / (time.monotonic() - began) / 1e9
        print(
            f"{number}/{len(shards)} files, {written / 1e9:.1f} GB, {rate:.2f} GB/s",
            file=sys.stderr,
        )
    manifest: dict[str, Any] = {
        "format": "colibri",
        "version": 1,
        "conversion": {"source": "random", "options": vars(args) | {"folder": args.folder.name}},
        "files": dict(sorted(files.items())),
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    manifest["blake3"] = blake3.blake3(text.encode()).hexdigest()
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (args.folder / "manifest.json").write_text(text, encoding="utf-8")
    print(f"{args.folder}: {args.layers} sparse layers of {experts} experts of {one / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
