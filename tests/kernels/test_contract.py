"""Logits of every instruction set, bit for bit those of numpy by the letter of the contract.

The model is a dense layer whose attention adds zero, so that numpy can follow it to the logits:
norms, products with matrices in every format, and the gated feed-forward block.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import contract
from colibri import Model
from containers import Integers, Tensors, floats, to_bf16, write_safetensors
from machine import LEVELS

LLAMA = Path(__file__).parents[1] / "data" / "oracle" / "llama"
HIDDEN, INNER, VOCAB, KV = 128, 192, 512, 32
EPS = 1e-5
PROMPT = [3, 77, 12, 500, 3, 410, 255, 256, 1, 90, 91]
FORMATS = ["f32", "f16", "bf16", "int8-g16", "int8-g32", "int8-g64", "int4-g16", "int4-g64"]


class Matrix:
    """A random matrix in one format: how it is stored, and what it does to a vector."""

    def __init__(self, name: str, rows: int, inputs: int, stored: str) -> None:
        random = np.random.default_rng([1, *name.encode()])
        values = random.standard_normal((rows, inputs), np.float32) / np.float32(np.sqrt(inputs))
        self.name = name
        self.stored = stored
        if "-g" in stored:
            bits = int(stored[3])
            groups = inputs // int(stored.split("-g")[1])
            half = 1 << (bits - 1)
            q = random.integers(-half, half, (rows, inputs))
            # Where narrow sums would overflow.
            q[::3] = np.where(q[::3] < 0, -half, half - 1)
            scales = np.abs(values[:, :groups]) / np.float32(half)
            self.integers = Integers(bits, q, scales)
            return
        self.values = values
        if stored == "f16":
            self.values = values.astype(np.float16).astype(np.float32)
        elif stored == "bf16":
            self.values = floats("BF16", [rows, inputs], to_bf16(values))

    def tensors(self) -> Tensors:
        if "-g" in self.stored:
            return self.integers.packed(self.name)
        data = {
            "f32": lambda: self.values.tobytes(),
            "f16": lambda: self.values.astype(np.float16).tobytes(),
            "bf16": lambda: to_bf16(self.values),
        }[self.stored]()
        shape = list(self.values.shape)
        return {f"{self.name}.weight": (self.stored.upper(), shape, data)}

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if "-g" in self.stored:
            return contract.int_product(self.integers.q, self.integers.scales, x)
        return contract.product(self.values, x)


class Follower:
    """The model, and numpy's way through it."""

    def __init__(self, folder: Path, stored: str) -> None:
        random = np.random.default_rng(7)
        layer = "model.layers.0"
        self.embed = Matrix("model.embed_tokens", VOCAB, HIDDEN, "f32")
        self.head = Matrix("lm_head", VOCAB, HIDDEN, stored)
        self.gate = Matrix(f"{layer}.mlp.gate_proj", INNER, HIDDEN, stored)
        self.up = Matrix(f"{layer}.mlp.up_proj", INNER, HIDDEN, stored)
        self.down = Matrix(f"{layer}.mlp.down_proj", HIDDEN, INNER, stored)
        self.gate_norm = random.standard_normal(HIDDEN, np.float32)
        self.head_norm = random.standard_normal(HIDDEN, np.float32)
        tensors: Tensors = {}
        for matrix in (self.embed, self.head, self.gate, self.up, self.down):
            tensors |= matrix.tensors()
        zeros = {"q_proj": HIDDEN, "k_proj": KV, "v_proj": KV, "o_proj": HIDDEN}
        for name, rows in zeros.items():
            data = bytes(4 * rows * HIDDEN)
            tensors[f"{layer}.self_attn.{name}.weight"] = ("F32", [rows, HIDDEN], data)
        for name, values in {
            f"{layer}.input_layernorm": self.gate_norm,
            f"{layer}.post_attention_layernorm": self.gate_norm,
            "model.norm": self.head_norm,
        }.items():
            tensors[f"{name}.weight"] = ("F32", [HIDDEN], values.tobytes())
        config = json.loads((LLAMA / "config.json").read_text(encoding="utf-8"))
        config |= {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1}
        config |= {"num_attention_heads": 8, "rms_norm_eps": EPS}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        shutil.copyfile(LLAMA / "tokenizer.json", folder / "tokenizer.json")
        write_safetensors(folder / "model.safetensors", tensors)

    def logits(self, token: int) -> np.ndarray:
        x = self.embed.values[token]
        normed = contract.rms_norm(x, self.gate_norm, EPS)
        x = x + self.down(contract.silu(self.gate(normed)) * self.up(normed))
        return self.head(contract.rms_norm(x, self.head_norm, EPS))


@pytest.mark.parametrize("stored", FORMATS)
def test_logits_are_those_of_the_contract(stored: str, tmp_path: Path) -> None:
    follower = Follower(tmp_path, stored)
    expected = np.stack([follower.logits(token) for token in PROMPT])
    assert expected.std() > 0.1
    for level in LEVELS:
        for threads in (1, 2):
            found = Model(tmp_path, isa=level, threads=threads).logits(PROMPT)
            same = found.view(np.uint32) == expected.view(np.uint32)
            assert same.all(), f"{level}: {(~same).sum()} of {same.size} logits differ"


def test_the_numpy_fma_rounds_once() -> None:
    random = np.random.default_rng(3)
    a, b, c = (random.standard_normal(2000).astype(np.float32) for _ in range(3))
    # Products that nearly cancel, and sums just beside the middle of two floats.
    c[::2] = -(a * b)[::2]
    a[1::4], b[1::4], c[1::4] = 1 + 2**-12, 1 + 2**-12, 2.0**-40
    from fractions import Fraction

    for x, y, z, found in zip(a, b, c, contract.fma(a, b, c), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        below, above = np.nextafter(found, -np.inf), np.nextafter(found, np.inf)
        off = abs(Fraction(float(found)) - exact)
        for other in (below, above):
            assert off <= abs(Fraction(float(other)) - exact)
