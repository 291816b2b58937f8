"""What the records about the engine as a whole must be: handshake, telemetry, geometry."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from colibri.conformance.verdict import Judge
from colibri.decimals import decimal

# The seed has GPUS from engines with devices alone.
HANDSHAKE = ("READY", "STAT", "HWINFO", "GPUS", "TIERS", "EMAP")
HANDSHAKES = {"full": (*HANDSHAKE, "CAPS"), "seed": HANDSHAKE, "upstream": HANDSHAKE}
BLOCK = ("HWINFO", "PERF", "ENTROPY", "GPUS", "TIERS", "EMAP", "HITS")
BLOCKS = {
    "full": BLOCK,
    "seed": BLOCK,
    "upstream": ("HWINFO", "GPUS", "TIERS", "EMAP", "HITS", "PROF"),
}
# Kinds that stand in a block, in some wire.
TELEMETRY = frozenset(kind for block in BLOCKS.values() for kind in block)
EXTRA = ("DATA", "DONE", "ERROR", "REPIN")
KINDS = {
    "full": frozenset((*HANDSHAKES["full"], *BLOCK, *EXTRA, "ACCEPT", "PREFILL", "TOPK")),
    "seed": frozenset((*HANDSHAKE, *BLOCK, *EXTRA, "TOPK")),
    "upstream": frozenset((*HANDSHAKE, *BLOCKS["upstream"], *EXTRA, "ACCEPT", "GPUDETAIL")),
}
CAPS_KEYS = ("proto", "ctx", "slots", "vocab", "model", "submit")

_ID = rb"[1-9]\d*"
_N = rb"(?:0|[1-9]\d*)"
_HEX = rb"(?:[0-9a-f]{2})*"
_NAME = rb"[^|\x00-\x1f\x7f]*"
_FORMATS = {
    "READY": rb"\x01\x01READY\x01\x01",
    "STAT": rb"STAT 0 0\.00 0\.0 \d+\.\d\d",
    "HWINFO": rb"HWINFO %b \d+\.\d \d+\.\d %b \d+\.\d %b\|%b" % (_N, _N, _NAME, _NAME),
    "GPUS": rb"GPUS %b(?: \d+\.\d{3} \d+\.\d{3} %b)*" % (_N, _N),
    "TIERS": rb"TIERS %b %b %b \d+\.\d\d \d+\.\d\d" % (_N, _N, _N),
    "EMAP": rb"EMAP %b %b %b" % (_N, _N, _HEX),
    "HITS": rb"HITS %b %b %b" % (_N, _N, _HEX),
    "CAPS": rb"CAPS(?: [a-z_]+=[!-~]*)+",
    "ACCEPT": rb"ACCEPT %b %b" % (_ID, _N),
    "PREFILL": rb"PREFILL %b %b %b" % (_ID, _N, _N),
    "DATA": rb"DATA %b %b" % (_ID, _N),
    "TOPK": rb"TOPK %b %b(?: -?\d+\.\d{4} (?:(?:[0-9a-f]{2})+|-))*" % (_ID, _N),
    "REPIN": rb"REPIN %b %b [012] (?:-1|%b)" % (_N, _N, _N),
    "PERF": rb"PERF %b(?: \d+\.\d{6}){7}" % _ID,
    "ENTROPY": rb"ENTROPY(?: \d+\.\d{3})*",
    "PROF": rb"PROF -?\d+\.\d{3} %b %b(?: -?\d+\.\d{3}){5} %b" % (_N, _N, _N),
    "DONE": rb"DONE %b STAT %b \d+\.\d\d \d+\.\d \d+\.\d\d %b [01]" % (_ID, _N, _N),
    "ERROR": rb"ERROR %b [A-Z_]+" % _N,
}
# Records of a fixed length may have gained fields.
_LISTS = ("READY", "GPUS", "CAPS", "TOPK", "ENTROPY")
FORMATS = {
    kind: re.compile(pattern + (rb"\n" if kind in _LISTS else rb"(?: [^\r\n]*)?\n"))
    for kind, pattern in _FORMATS.items()
}


class Figures:
    """Handshake, telemetry and map of one engine.

    Args:
        judge: told what is checked.
        wire: full, seed or upstream.
        is_active: whether a request may be in flight.
        may_say_more: whether kinds of records that the wire does not have are no fault.
    """

    def __init__(
        self, judge: Judge, wire: str, is_active: Callable[[], bool], *, may_say_more: bool
    ) -> None:
        self._judge = judge
        self._wire = wire
        self._is_active = is_active
        self._may_say_more = may_say_more
        self._handshake = list(HANDSHAKES[wire])
        self._block: list[str] = []
        self._block_id: int | None = None
        self._geometry: tuple[int, int] | None = None
        self._tiers: tuple[int, int, int] | None = None
        self._map: bytes | None = None
        self.caps: dict[str, str] = {}

    @property
    def handshake_is_over(self) -> bool:
        """Whether requests are answered."""
        return not self._handshake

    @property
    def in_block(self) -> bool:
        """Whether records of the block before a DONE have come."""
        return bool(self._block)

    def belongs(self, kind: str, raw: bytes) -> bool:
        """Checks whether the wire has records of this kind."""
        known = kind in KINDS[self._wire]
        if self._may_say_more:
            return known
        return self._judge.check("kinds", known, f"{kind} in the wire {self._wire}", raw)

    def order(self, kind: str, raw: bytes) -> None:
        """Checks whether a record of this kind may come now."""
        if self._handshake:
            if self._wire == "seed" and self._handshake[0] == "GPUS" and kind == "TIERS":
                del self._handshake[0]
            wanted = self._handshake[0]
            self._judge.check("handshake", kind == wanted, f"{kind} instead of {wanted}", raw)
            if kind in self._handshake:
                del self._handshake[: self._handshake.index(kind) + 1]
            elif kind not in HANDSHAKES["full"]:
                # What is said to requests shows that nothing more of it comes.
                self._handshake.clear()
            return
        if kind == "HITS" and not self._block:
            if self._wire == "upstream":
                self._judge.check("kinds", False, "HITS outside the block", raw)
            else:
                detail = "HITS while nothing is active"
                self._judge.check("hits-active", self._is_active(), detail, raw)
        elif kind in TELEMETRY:
            if kind == "HWINFO":
                complete = not self._block
                self._judge.check("block", complete, f"{' '.join(self._block)} without DONE", raw)
                self._block = []
            elif not self._block:
                self._judge.check("block", False, f"{kind} outside the block", raw)
                return
            self._block.append(kind)
        elif kind in HANDSHAKE:
            self._judge.check("handshake", False, f"{kind} after the handshake", raw)

    def done(self, request: int, raw: bytes) -> None:
        """Checks the block that a DONE ends."""
        block, self._block = tuple(self._block), []
        wanted = BLOCKS[self._wire]
        if self._wire == "seed" and "GPUS" not in block:
            wanted = tuple(kind for kind in wanted if kind != "GPUS")
        self._judge.check(
            "block", block == wanted, f"{' '.join(block) or 'nothing'} before DONE", raw
        )
        if "PERF" in block:
            detail = f"PERF of {self._block_id} before DONE of {request}"
            self._judge.check("block", self._block_id == request, detail, raw)

    def values(self, kind: str, fields: dict[str, Any], raw: bytes) -> None:
        """Checks what a record says."""
        match kind:
            case "HWINFO":
                kept = fields["ram_avail_gb"] <= fields["ram_total_gb"]
                self._judge.check("hwinfo", kept, "more memory available than there is", raw)
            case "TIERS":
                self._tiers = (fields["disk"], fields["ram"], fields["vram"])
                if self._geometry is not None:
                    self._check_sum(raw)
            case "EMAP":
                self._emap(fields, raw)
            case "HITS":
                self._check_geometry(fields, raw)
                spare = 8 * len(fields["hits"]) - fields["rows"] * fields["cols"]
                last = fields["hits"][-1] if fields["hits"] else 0
                kept = last >> (8 - spare) == 0
                self._judge.check("geometry", kept, "bits beyond the last expert", raw)
            case "PERF":
                self._block_id = fields["id"]
            case "ENTROPY":
                self._entropy(fields["bits"], raw)
            case "REPIN":
                self._repin(fields, raw)
            case "CAPS":
                self.caps = fields
                missing = [key for key in CAPS_KEYS if key not in fields]
                self._judge.check("caps", missing == [], f"missing: {', '.join(missing)}", raw)
                self._judge.check("caps", fields.get("proto") == "1", "proto is not 1", raw)

    def limit(self, key: str) -> int | None:
        """A count that CAPS tells."""
        return decimal(self.caps.get(key, ""))

    def _check_geometry(self, fields: dict[str, Any], raw: bytes) -> None:
        geometry = (fields["rows"], fields["cols"])
        if self._geometry is None:
            self._geometry = geometry
        detail = f"{geometry}, was {self._geometry}"
        self._judge.check("geometry", geometry == self._geometry, detail, raw)

    def _check_sum(self, raw: bytes) -> None:
        if self._tiers is None or self._geometry is None:
            return
        rows, cols = self._geometry
        detail = f"{sum(self._tiers)} experts in tiers of a map of {rows} x {cols}"
        self._judge.check("tier-sum", sum(self._tiers) == rows * cols, detail, raw)

    def _emap(self, fields: dict[str, Any], raw: bytes) -> None:
        is_first = self._geometry is None
        self._check_geometry(fields, raw)
        if is_first:
            self._check_sum(raw)
        experts: bytes = fields["map"]
        tiers = [byte >> 6 for byte in experts]
        counts = tuple(tiers.count(tier) for tier in range(3))
        if self._tiers is not None:
            detail = f"disk, RAM, VRAM {counts}, but TIERS says {self._tiers}"
            kept = counts == self._tiers and sum(counts) == len(experts)
            self._judge.check("tier-bits", kept, detail, raw)
        if self._map is not None and len(self._map) == len(experts):
            kept = all(old & 63 <= new & 63 for old, new in zip(self._map, experts, strict=True))
            self._judge.check("heat", kept, "an expert's heat fell", raw)
        self._map = experts

    def _entropy(self, bits: list[float], raw: bytes) -> None:
        if self._geometry is None:
            return
        rows, cols = self._geometry
        self._judge.check("entropy", len(bits) == rows, f"{len(bits)} values, {rows} rows", raw)
        most = math.log2(cols) + 0.0005 if cols > 0 else 0.0
        kept = all(0 <= value <= most for value in bits)
        self._judge.check("entropy", kept, f"not within 0 to {most:.3f}", raw)

    def _repin(self, fields: dict[str, Any], raw: bytes) -> None:
        cols = self._geometry[1] if self._geometry else 0
        layers = self.caps.get("layers")
        kept = fields["expert"] < cols and fields["old_tier"] <= 2 and fields["gpu"] >= -1
        if layers is not None:
            kept = kept and str(fields["layer"]) in layers.split(",")
        self._judge.check("repin", kept, "no such expert, tier or device", raw)
