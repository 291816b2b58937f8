"""Maps and hits that look like a model at work, for pictures and for pixel tests."""

from __future__ import annotations

import math
import random


def lively_map(rows: int, cols: int, seed: int = 7) -> bytes:
    """Every layer has its own few favourites; favourites live in faster tiers."""
    chance = random.Random(seed)
    cells = bytearray()
    for _ in range(rows):
        popularity = [chance.paretovariate(1.1) for _ in range(cols)]
        total = sum(popularity)
        for share in popularity:
            selections = int(share / total * 4000)
            heat = min(selections.bit_length(), 63)
            score = math.log2(1 + selections) + chance.uniform(-1.2, 1.2)
            level = math.log2(1 + 4000 / cols)
            tier = 2 if score > level + 0.4 else 1 if score > level - 1.4 else 0
            cells.append(tier << 6 | heat)
    return bytes(cells)


def routed(rows: int, cols: int, top_k: int, cells: bytes, seed: int) -> set[int]:
    """One token's experts: top-k per layer, hot ones more often."""
    chance = random.Random(seed)
    found: set[int] = set()
    for row in range(rows):
        layer = range(row * cols, (row + 1) * cols)
        weights = [1 + (cells[i] & 63) ** 2 for i in layer]
        found.update(chance.choices(layer, weights, k=top_k))
    return found
