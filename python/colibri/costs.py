"""Where the time of a turn went, and what it was limited by.

Owns: shares of phases, the split of expert uses, the sentence that names the limit; what an engine
does not tell is left out. Does not own: measuring (the engine), printing (``commands.run``), HTTP
(``handlers.telemetry``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from colibri.decimals import decimal

# Phases of a turn that exclude each other, by the engine's name; the rest of the time is in none.
PHASES = {
    "expert_wait_s": "waiting for experts",
    "expert_matmul_s": "experts",
    "attention_s": "attention",
    "ffn_s": "dense layers",
    "head_s": "output head",
}
WAITING = "waiting for experts"
OTHER = "other"
# How uses of experts were served, by the engine's name. No engine of ours pins experts.
USES = {
    "uses_vram": "on the device",
    "uses_ahead": "read ahead",
    "uses_cached": "cached",
    "uses_missed": "missed",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """What limits a turn.

    Attributes:
        kind: ``disk``, ``computing`` or ``neither``: where most of the time went.
        text: one sentence with the figures that say so.
    """

    kind: str
    text: str


def shares(perf: Mapping[str, Any]) -> dict[str, float]:
    """Returns the share of the wall time that each phase took, 0 to 1; they sum to 1.

    Args:
        perf: seconds by phase and ``wall_s``, as in ``perf`` of a reply.
    """
    seconds = {name: float(perf.get(key) or 0.0) for key, name in PHASES.items()}
    spent = sum(seconds.values())
    wall = max(float(perf.get("wall_s") or 0.0), spent)
    if wall <= 0:
        return {}
    return {name: part / wall for name, part in seconds.items()} | {OTHER: (wall - spent) / wall}


def uses(perf: Mapping[str, Any]) -> dict[str, int]:
    """Returns uses of experts by how they were served; nothing if the engine does not tell."""
    counts = {name: perf.get(key) for key, name in USES.items()}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def read_rate(perf: Mapping[str, Any]) -> float | None:
    """Returns bytes of experts read per second in which at least one was being read."""
    count, seconds = perf.get("bytes_read"), perf.get("reading_s")
    return count / seconds if count and seconds else None


def limit(perf: Mapping[str, Any] | None) -> Limit | None:
    """Returns what limits a turn: whatever of waiting, computing and the rest took longest."""
    parts = shares(perf or {})
    if perf is None or not parts:
        return None
    waiting, other = parts[WAITING], parts[OTHER]
    computing = sum(parts.values()) - waiting - other
    wall = f"{perf['wall_s']:.3g} s"
    if waiting >= max(computing, other):
        text = f"the disk: {waiting:.0%} of {wall} went by waiting for experts"
        text += _reads(perf)
        return Limit("disk", f"{text}; more --ram or a faster drive would help")
    told = f"{computing:.0%} of {wall} went into matrix products and attention, {waiting:.0%} into "
    told += "waiting for experts"
    if computing >= other:
        return Limit("computing", f"memory bandwidth or the processor: {told}")
    text = f"neither disk nor matrix products: {told}, and {other:.0%} into steps between them"
    return Limit("neither", text)


def limit_object(perf: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Returns the limit as it stands in ``GET /profile``."""
    found = limit(perf)
    return None if found is None else asdict(found)


def _reads(perf: Mapping[str, Any]) -> str:
    said = []
    if rate := read_rate(perf):
        said.append(f"{perf['bytes_read'] / 1e9:.3g} GB were read at {rate / 1e9:.3g} GB/s")
    counts = uses(perf)
    if total := sum(counts.values()):
        said.append(f"{counts['missed'] / total:.0%} of uses were not in memory")
    return f" ({', '.join(said)})" if said else ""


def memory(caps: Mapping[str, str], experts_gb: float | None) -> dict[str, float | None]:
    """Returns what an engine's memory is for, in 1e9 bytes; null where it does not tell.

    Args:
        caps: what CAPS says.
        experts_gb: experts in memory now, as TIERS says.
    """

    def told(key: str) -> float | None:
        count = decimal(caps.get(key, ""))
        return None if count is None else count / 1e9

    return {
        "dense_gb": told("dense_ram"),
        "experts_gb": experts_gb,
        "experts_most_gb": told("experts_ram"),
        "conversations_most_gb": told("conversations_ram"),
    }
