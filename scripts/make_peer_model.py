"""One set of random weights for several engines: a GGUF file and a Hugging Face folder.

    pip install gguf numpy
    python scripts/make_peer_model.py MODELS [--tiny] [--seed 1]

MODELS/small-bf16.gguf (architecture qwen3moe, matrices in bf16, norms and routers in f32) and
MODELS/small-hf (Qwen3MoeForCausalLM) hold the same 2.7 billion weights, 5.4 GB each; with --tiny 4
million, for a trial. They mean nothing. They are scaled so that the residual stream is dominated
by the token's embedding: experts then depend on the token and are chosen nearly evenly, the worst
case for any cache of experts. Each byte is one token of the vocabulary, with its own number.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

SHARDS = 3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Shape:
    vocabulary: int = 32000
    hidden: int = 2048
    layers: int = 12
    heads: int = 16
    kv_heads: int = 4
    head: int = 128
    experts: int = 64
    top_k: int = 8
    width: int = 512
    context: int = 32768
    theta: float = 1e6
    eps: float = 1e-6


TINY = Shape(vocabulary=512, hidden=256, layers=3, heads=4, kv_heads=2, head=64, experts=8, top_k=2)


@dataclass(frozen=True)
class Tensor:
    """A tensor under both its names; `hf` of an expert's has a place for its number."""

    gguf: str
    hf: str
    shape: tuple[int, ...]
    kind: str


def tensors(shape: Shape) -> Iterator[Tensor]:
    """All of them, in file order."""
    q, kv = shape.heads * shape.head, shape.kv_heads * shape.head
    hidden, experts, width = shape.hidden, shape.experts, shape.width
    yield Tensor("token_embd", "model.embed_tokens", (shape.vocabulary, hidden), "embedding")
    for i in range(shape.layers):
        blk, layer = f"blk.{i}", f"model.layers.{i}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        yield Tensor(f"{blk}.attn_norm", f"{layer}.input_layernorm", (hidden,), "norm")
        yield Tensor(f"{blk}.attn_q", f"{attention}.q_proj", (q, hidden), "matrix")
        yield Tensor(f"{blk}.attn_k", f"{attention}.k_proj", (kv, hidden), "matrix")
        yield Tensor(f"{blk}.attn_v", f"{attention}.v_proj", (kv, hidden), "matrix")
        yield Tensor(f"{blk}.attn_output", f"{attention}.o_proj", (hidden, q), "matrix")
        yield Tensor(f"{blk}.attn_q_norm", f"{attention}.q_norm", (shape.head,), "norm")
        yield Tensor(f"{blk}.attn_k_norm", f"{attention}.k_norm", (shape.head,), "norm")
        yield Tensor(f"{blk}.ffn_norm", f"{layer}.post_attention_layernorm", (hidden,), "norm")
        yield Tensor(f"{blk}.ffn_gate_inp", f"{mlp}.gate", (experts, hidden), "router")
        for part, rows, columns in (
            ("gate", width, hidden),
            ("up", width, hidden),
            ("down", hidden, width),
        ):
            name = f"{mlp}.experts.{{}}.{part}_proj"
            yield Tensor(f"{blk}.ffn_{part}_exps", name, (experts, rows, columns), "experts")
    yield Tensor("output_norm", "model.norm", (hidden,), "norm")
    yield Tensor("output", "lm_head", (shape.vocabulary, hidden), "matrix")


def bf16(values: np.ndarray) -> np.ndarray:
    """The bits of f32 values as bf16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def weights(tensor: Tensor, seed: int) -> np.ndarray:
    """Bits of bf16; the same for the same name and seed."""
    if tensor.kind == "norm":
        return bf16(np.ones(tensor.shape))
    deviation = 1.0 if tensor.kind == "embedding" else 0.02
    random = np.random.Generator(np.random.SFC64([seed, zlib.crc32(tensor.gguf.encode())]))
    # One matrix at a time: all experts of a layer in f32 are large.
    shape = tensor.shape if len(tensor.shape) == 3 else (1, *tensor.shape)
    parts = [
        bf16(random.standard_normal(shape[1:], dtype=np.float32) * np.float32(deviation))
        for _ in range(shape[0])
    ]
    return np.stack(parts).reshape(tensor.shape)


def vocabulary(size: int) -> list[str]:
    """Byte tokens as byte-level vocabularies write them, filler words, special tokens."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    words = [f"\u0120w{i}" for i in range(size - 256 - len(SPECIAL))]
    return [*(letters[b] for b in range(256)), *words, *SPECIAL]


class GgufFile:
    def __init__(self, path: Path, shape: Shape) -> None:
        out = self.out = gguf.GGUFWriter(path, "qwen3moe")
        out.add_context_length(shape.context)
        out.add_embedding_length(shape.hidden)
        out.add_block_count(shape.layers)
        out.add_feed_forward_length(shape.width * shape.top_k)
        out.add_expert_feed_forward_length(shape.width)
        out.add_head_count(shape.heads)
        out.add_head_count_kv(shape.kv_heads)
        out.add_key_length(shape.head)
        out.add_value_length(shape.head)
        out.add_rope_freq_base(shape.theta)
        out.add_layer_norm_rms_eps(shape.eps)
        out.add_expert_count(shape.experts)
        out.add_expert_used_count(shape.top_k)
        out.add_vocab_size(shape.vocabulary)
        words = shape.vocabulary - len(SPECIAL)
        out.add_tokenizer_model("gpt2")
        out.add_tokenizer_pre("qwen2")
        out.add_token_list(vocabulary(shape.vocabulary))
        out.add_token_types([1] * words + [3] * len(SPECIAL))
        out.add_token_merges(["\u0120 w"])
        out.add_bos_token_id(words)
        out.add_eos_token_id(words + 2)
        out.add_pad_token_id(words)
        out.add_add_bos_token(False)
        for tensor in tensors(shape):
            self.announce(tensor)
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_ti_data_to_file()

    def announce(self, tensor: Tensor) -> None:
        name, n = f"{tensor.gguf}.weight", int(np.prod(tensor.shape))
        if tensor.kind in ("norm", "router"):
            kind = gguf.GGMLQuantizationType.F32
            self.out.add_tensor_info(name, tensor.shape, np.dtype(np.float32), 4 * n, kind)
        else:
            # Of a type numpy lacks, the writer wants the last dimension in bytes.
            in_bytes = (*tensor.shape[:-1], 2 * tensor.shape[-1])
            kind = gguf.GGMLQuantizationType.BF16
            self.out.add_tensor_info(name, in_bytes, np.dtype(np.uint8), 2 * n, kind)

    def put(self, tensor: Tensor, bits: np.ndarray) -> None:
        if tensor.kind in ("norm", "router"):
            self.out.write_tensor_data((bits.astype(np.uint32) << 16).view(np.float32))
        else:
            self.out.write_tensor_data(bits.view(np.uint8))


class HfFolder:
    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.shard_of = {}
        entries: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(SHARDS)]
        everything = list(tensors(shape))
        for i, tensor in enumerate(everything):
            shard = i * SHARDS // len(everything)
            for name, part in hf_parts(tensor):
                entries[shard].append((name, part))
                self.shard_of[name] = shard
        self.files = [self.begin(shard, names) for shard, names in enumerate(entries)]
        index = {name: shard_name(shard) for name, shard in self.shard_of.items()}
        write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
        write_texts(folder, shape)

    def begin(self, shard: int, entries: list[tuple[str, tuple[int, ...]]]) -> Any:
        header, end = {}, 0
        for name, shape in entries:
            begin, end = end, end + 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file = (self.folder / shard_name(shard)).open("wb")
        file.write(len(text).to_bytes(8, "little") + text)
        return file

    def put(self, tensor: Tensor, bits: np.ndarray) -> None:
        name, _ = next(hf_parts(tensor))
        bits.tofile(self.files[self.shard_of[name]])

    def close(self) -> None:
        for file in self.files:
            file.close()


def hf_parts(tensor: Tensor) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a Hugging Face folder that one of ours is there, in memory order."""
    if tensor.kind == "experts":
        for expert in range(tensor.shape[0]):
            yield f"{tensor.hf.format(expert)}.weight", tensor.shape[1:]
    else:
        yield f"{tensor.hf}.weight", tensor.shape


def shard_name(shard: int) -> str:
    return f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"


def write_texts(folder: Path, shape: Shape) -> None:
    tokens = vocabulary(shape.vocabulary)
    words = shape.vocabulary - len(SPECIAL)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.width,
        "intermediate_size": shape.width * shape.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "max_position_embeddings": shape.context,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": words,
        "eos_token_id": words + 2,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": words + i, "content": text, "special": True, **flags}
            for i, text in enumerate(SPECIAL)
        ],
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [],
        },
    }
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", tokenizer)


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make one random model for several engines.")
    parser.add_argument("models", type=Path, help="folder to write into")
    parser.add_argument("--tiny", action="store_true", help="4 million weights")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    shape = TINY if args.tiny else Shape()
    folder = HfFolder(args.models / "small-hf", shape)
    file = GgufFile(args.models / "small-bf16.gguf", shape)
    for tensor in tensors(shape):
        if tensor.kind == "experts":
            print(tensor.gguf, flush=True)
        bits = weights(tensor, args.seed)
        folder.put(tensor, bits)
        file.put(tensor, bits)
    folder.close()
    file.out.close()


if __name__ == "__main__":
    main()
