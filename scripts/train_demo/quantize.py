"""Weight-only quantisation in the layout of compressed-tensors' "pack-quantized" format.

A quantised matrix `X.weight` [out, in] is stored as

* `X.weight_packed`, int32 [out, in * bits / 32]: the first value in the lowest bits, each stored
  with 2^(bits - 1) added;
* `X.weight_scale`, float16 [out, in / 32]: one scale for 32 neighbouring inputs;
* `X.weight_shape`, int64 [2]: out and in.

Symmetric: value = integer * scale.  Routed experts get 4 bits, other projections 8.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

GROUP = 32
ROUTED = r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj"
OTHER = (
    r"model\.layers\.\d+\.self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj)",
    r"model\.layers\.\d+\.mlp\.(gate|up|down)_proj",
    r"model\.layers\.\d+\.mlp\.shared_experts\.(gate|up|down)_proj",
)
CLIPS = (1.0, 0.95, 0.9, 0.875, 0.85, 0.8, 0.75)


def bits_of(module: str) -> int:
    """Bits of a linear module's weight; 0 if it stays as it is."""
    if re.fullmatch(ROUTED, module):
        return 4
    return 8 if any(re.fullmatch(pattern, module) for pattern in OTHER) else 0


def quantize(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """[out, in] -> integers int32 [out, in] and scales float16 [out, in / 32].

    With 4 bits each group takes the clip of its largest value that gives the smallest error."""
    highest = 2 ** (bits - 1) - 1
    groups = weight.float().reshape(-1, GROUP)
    best_error = torch.full((groups.shape[0], 1), float("inf"))
    best_integers = torch.zeros_like(groups)
    best_scale = torch.ones(groups.shape[0], 1)
    for clip in CLIPS if bits < 8 else CLIPS[:1]:
        largest = groups.abs().amax(1, keepdim=True) * clip
        scale = (largest / highest).clamp_min(1e-7).half().float()
        integers = (groups / scale).round().clamp(-highest - 1, highest)
        error = ((groups - integers * scale) ** 2).sum(1, keepdim=True)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_integers = torch.where(better, integers, best_integers)
        best_scale = torch.where(better, scale, best_scale)
    out = weight.shape[0]
    return best_integers.to(torch.int32).reshape(weight.shape), best_scale.half().reshape(out, -1)


def pack(integers: Tensor, bits: int) -> Tensor:
    """int32 [out, in] of small integers -> packed int32 [out, in * bits / 32]."""
    per_word = 32 // bits
    shifted = (integers.long() + 2 ** (bits - 1)).reshape(integers.shape[0], -1, per_word)
    words = (shifted << (bits * torch.arange(per_word))).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words)  # as a signed 32-bit number
    return words.to(torch.int32)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The inverse of `pack`."""
    places = bits * torch.arange(32 // bits)
    values = (packed.long()[..., None] >> places) & (2**bits - 1)
    return (values - 2 ** (bits - 1)).to(torch.int32).reshape(packed.shape[0], -1)


def dequantize(packed: Tensor, scale: Tensor, bits: int) -> Tensor:
    """Packed weight and scales -> float32 [out, in]."""
    integers = unpack(packed, bits).float()
    grouped = integers.reshape(integers.shape[0], -1, GROUP) * scale.float()[..., None]
    return grouped.reshape(integers.shape)


def quantization_config() -> dict:
    """The `quantization_config` entry of config.json."""

    def group(bits: int, targets: list[str]) -> dict:
        weights = {
            "num_bits": bits,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": GROUP,
            "dynamic": False,
        }
        return {
            "targets": [f"re:{target}$" for target in targets],
            "weights": weights,
            "input_activations": None,
            "output_activations": None,
        }

    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group(4, [ROUTED]), "group_1": group(8, list(OTHER))},
        "ignore": ["lm_head", r"re:.*kv_b_proj$", r"re:.*mlp\.gate$"],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
