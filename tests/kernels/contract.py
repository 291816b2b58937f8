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


def power(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rule 1: t and n of e^x = (1 + t) 2^n, as kernels/math.rs documents it."""
    n = np.rint(x * F32(np.log2(np.e)))
    r = fma(n, F32(-0.693_359_4), x)
    r = fma(n, F32(2.121_944_4e-4), r)
    p = np.full_like(r, F32(1) / F32(5040))
    for divisor in (720, 120, 24, 6, 2):
        p = fma(r, p, F32(1) / F32(divisor))
    return fma(r * r, p, r), n


def scale(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """x 2^n in two factors."""
    half = np.rint(n * F32(0.5))
    return x * np.exp2(half).astype(F32) * np.exp2(n - half).astype(F32)


def exp(x: np.ndarray) -> np.ndarray:
    t, n = power(np.clip(x, F32(-120), F32(89)))
    return scale(F32(1) + t, n)


def silu(x: np.ndarray) -> np.ndarray:
    """Rule 1: x / (1 + e^-x) from e^-|x|, with the rests of its two sums and its quotient."""
    negative = x < 0
    t, n = power(-np.minimum(np.abs(x), F32(120)))
    e = F32(1) + t
    e_rest = t - (e - F32(1))
    top = np.where(negative, x * e, x)
    top_rest = np.where(negative, fma(x, e_rest, fma(x, e, -(x * e))), F32(0))
    bottom = F32(1) + scale(e, n)
    bottom_rest = (scale(e, n) - (bottom - F32(1))) + scale(e_rest, n)
    inverse = F32(1) / bottom
    q = top * inverse
    left = fma(-q, bottom, top) + fma(-q, bottom_rest, top_rest)
    q = q + left * inverse
    return np.where(negative, scale(q, n), q)
