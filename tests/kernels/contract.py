"""The numeric contract in numpy, written after docs/design/0001: one input row at a time.

There is no fused multiply-add of f32 in numpy; it is made from f64, which holds the product
exactly, by rounding the sum to odd before it is rounded to f32.
"""

from __future__ import annotations

import numpy as np

F32 = np.float32


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32, rounded once."""
    product = np.float64(a) * np.float64(b)
    addend = np.float64(c)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    even = (np.asarray(total).view(np.int64) & 1) == 0
    away = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return F32(np.where((error != 0) & even, away, total))


def product(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Rule 2: one chain of fused multiply-adds per output, inputs ascending."""
    acc = np.zeros(len(w), F32)
    for k in range(len(x)):
        acc = fma(w[:, k], x[k], acc)
    return acc


def quantize(x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Rule 3: integers [groups, group] and a scale for each group."""
    groups = x.reshape(-1, group)
    largest = np.abs(groups).max(axis=1)
    inverse = np.where(largest > 0, F32(127) / np.where(largest > 0, largest, F32(1)), F32(0))
    return np.rint(groups * inverse[:, None].astype(F32)).astype(np.int64), largest / F32(127)


def int_product(q: np.ndarray, scales: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Rule 3: exact integers within a group, one chain over groups."""
    rows, groups = scales.shape
    ours, x_scales = quantize(x, len(x) // groups)
    dots = np.einsum("rgk,gk->rg", q.reshape(rows, groups, -1).astype(np.int64), ours)
    acc = np.zeros(rows, F32)
    for g in range(groups):
        acc = fma(F32(dots[:, g]), scales[:, g] * x_scales[g], acc)
    return acc


def rms_norm(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    """Rule 4: 16 strided chains of squares, added up pairwise."""
    chains = np.zeros(16, F32)
    for first in range(0, len(x), 16):
        terms = x[first : first + 16]
        chains[: len(terms)] = fma(terms, terms, chains[: len(terms)])
    while len(chains) > 1:
        half = len(chains) // 2
        chains = chains[:half] + chains[half:]
    inverse = F32(1) / np.sqrt(chains[0] / F32(len(x)) + F32(eps))
    return x * inverse * w


def exp(x: np.ndarray) -> np.ndarray:
    """Rule 1: the one form of e^x, as kernels/math.rs documents it."""
    clamped = np.clip(x, F32(-104), F32(89))
    n = np.rint(clamped * F32(np.log2(np.e)))
    r = fma(n, F32(-0.693_359_4), clamped)
    r = fma(n, F32(2.121_944_4e-4), r)
    p = np.full_like(r, F32(1) / F32(5040))
    for divisor in (720, 120, 24, 6, 2):
        p = fma(r, p, F32(1) / F32(divisor))
    e = fma(r * r, p, r) + F32(1)
    half = np.rint(n * F32(0.5))
    return e * np.exp2(half).astype(F32) * np.exp2(n - half).astype(F32)


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + e^-x), from e^-|x|."""
    e = exp(-np.abs(x))
    return x * (np.where(x < 0, e, F32(1)) / (F32(1) + e))
