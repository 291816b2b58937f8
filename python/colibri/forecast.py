"""How fast a model may generate where it was placed: a range, from measured rates.

Owns: the arithmetic. Does not own: placing, measuring (the engine), printing (``commands.plan``).
"""

from __future__ import annotations

from typing import Any


def served(memory: dict[str, Any]) -> dict[str, float | None]:
    """Returns the share of expert uses served from memory, 0 to 1.

    Args:
        memory: ``memory`` of what the engine examined.

    Returns:
        ``uniform``: if all experts were taken alike; ``history``: of the uses that are remembered,
        if those experts were kept that were used most, ``None`` without a history.
    """
    everything = memory["experts_bytes"]
    kept = memory["experts_kept_bytes"] + memory["device_experts_bytes"]
    uniform = kept / everything if everything else 1.0
    history = memory["history"]
    remembered = None
    if history is not None and history["uses"]:
        remembered = history["served"] / history["uses"]
    return {"uniform": uniform, "history": remembered}


def predict(
    memory: dict[str, Any], disk_rate: int | None, weights: dict[str, Any]
) -> dict[str, Any] | None:
    """Returns what a generated token reads and how many come a second, as ``[least, most]``.

    The least: experts are taken alike, a conversation has its full length, and nothing is read
    while something is computed. The most: what history tells is served, or everything without one;
    the conversation is empty, and reading and computing are all at the same time. What an engine
    does besides multiplying is in neither.

    Args:
        memory: ``memory`` of what the engine examined.
        disk_rate: measured bytes a second.
        weights: measured bytes of weights a second that the kernels multiply.

    Returns:
        The prediction, ``None`` where a rate that it needs was not measured.
    """
    token = memory["token"]
    shares = served(memory)
    uniform = shares["uniform"] or 0.0
    best = 1.0 if shares["history"] is None else shares["history"]
    range_served = sorted((uniform, best))
    dense_rate = weights["dense_bytes_per_second"]
    expert_rate = weights["expert_bytes_per_second"]
    if not dense_rate or (token["expert_bytes"] and not expert_rate):
        return None
    computing_s = token["dense_bytes"] / dense_rate
    if token["expert_bytes"]:
        computing_s += token["expert_bytes"] / expert_rate
    conversation_s = memory["conversation_bytes"] / dense_rate
    missed = [token["expert_disk_bytes"] * (1 - share) for share in range_served]
    if missed[0] and not disk_rate:
        return None
    reading_s = [count / disk_rate if disk_rate else 0.0 for count in missed]
    slow_s = computing_s + conversation_s + reading_s[0]
    fast_s = max(computing_s, reading_s[1])
    return {
        "served": range_served,
        "read_bytes_per_token": [round(count) for count in reversed(missed)],
        "tokens_per_second": [1 / slow_s, 1 / fast_s],
    }
