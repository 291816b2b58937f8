"""Typed records of the engine's output.

``_core.RecordReader`` does the parsing; this module gives each record a type, so that a misspelt
field is found by the type checker and not by a user.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything is loaded; requests may be sent."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The figures of the handshake."""

    emitted: int
    tok_s: float
    hit_pct: float
    rss_gb: float


@dataclass(frozen=True, slots=True)
class HwInfo:
    """The machine as the engine sees it."""

    cores: int
    ram_total_gb: float
    ram_avail_gb: float
    ngpu: int
    vram_total_gb: float
    cpu_name: str
    gpu_name: str


@dataclass(frozen=True, slots=True)
class Gpus:
    """Devices: dictionaries of ``used_gb``, ``total_gb``, ``experts``."""

    gpus: list[dict[str, float]]


@dataclass(frozen=True, slots=True)
class Tiers:
    """Experts per tier and the bytes they take."""

    vram: int
    ram: int
    disk: int
    vram_gb: float
    ram_gb: float


@dataclass(frozen=True, slots=True)
class ExpertMap:
    """One byte an expert, row-major: ``tier << 6 | heat``."""

    rows: int
    cols: int
    map: bytes


@dataclass(frozen=True, slots=True)
class Hits:
    """Bitmap of the experts routed to since the previous one, least significant bit first."""

    rows: int
    cols: int
    hits: bytes


@dataclass(frozen=True, slots=True)
class Caps:
    """What the engine offers beyond the base protocol."""

    values: dict[str, str]


@dataclass(frozen=True, slots=True)
class Accept:
    """The request was tokenized and will be prefilled."""

    id: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Progress; the first one states the reused prefix."""

    id: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Data:
    """The text of one token; empty while a character is incomplete."""

    id: int
    data: bytes

    def tokens(self) -> list[bytes]:
        """Returns the bytes of each token."""
        return [self.data]


@dataclass(frozen=True, slots=True)
class DataRun(Data):
    """The text of several tokens that were merged while nobody took them."""

    sizes: list[int]

    def tokens(self) -> list[bytes]:
        """Returns the bytes of each token."""
        ends = list(accumulate(self.sizes))
        return [self.data[end - size : end] for size, end in zip(self.sizes, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class TopK:
    """The likeliest tokens where the last DATA was drawn: (logprob, bytes)."""

    id: int
    tokens: list[tuple[float, bytes]]


@dataclass(frozen=True, slots=True)
class Repin:
    """An expert became pinned."""

    layer: int
    expert: int
    old_tier: int
    gpu: int


@dataclass(frozen=True, slots=True)
class Perf:
    """Seconds by phase over a request's life, uses of experts by how they were served, bytes of
    experts read and those that experts may take in memory, tokens drafted and how many of them were
    needed; ``None`` where the engine does not say.
    Where there are mirrors, ``drives`` tells what came from each: ``mirror`` (0 for the model's own
    folders), ``bytes``, ``bytes_per_second`` of late or ``None``, ``is_dropped``.
    """

    id: int
    wall_s: float
    expert_disk_s: float
    expert_wait_s: float
    expert_matmul_s: float
    attention_s: float
    kv_decompress_s: float | None
    head_s: float
    ffn_s: float | None
    reading_s: float | None
    uses_ahead: int | None
    uses_cached: int | None
    uses_missed: int | None
    bytes_read: int | None
    uses_vram: int | None
    experts_ram: int | None
    drafted: int | None
    drafted_right: int | None
    drives: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Prof:
    """Seconds by phase since the prompt of the turn that ends next; the C engine's ``Perf``."""

    wall_s: float
    prompt_tokens: int
    emitted: int
    expert_disk_s: float
    expert_wait_s: float
    expert_matmul_s: float
    attention_s: float
    head_s: float
    forwards: int

    def to_perf(self, turn_id: int) -> Perf:
        """Returns what it tells of the turn it came before; the time of its prompt is not in it."""
        return Perf(
            id=turn_id,
            wall_s=self.wall_s,
            expert_disk_s=self.expert_disk_s,
            expert_wait_s=self.expert_wait_s,
            expert_matmul_s=self.expert_matmul_s,
            attention_s=self.attention_s,
            kv_decompress_s=None,
            head_s=self.head_s,
            ffn_s=None,
            reading_s=None,
            uses_ahead=None,
            uses_cached=None,
            uses_missed=None,
            bytes_read=None,
            uses_vram=None,
            experts_ram=None,
            drafted=None,
            drafted_right=None,
            drives=[],
        )


@dataclass(frozen=True, slots=True)
class Entropy:
    """Bits of the routing histogram per sparse layer, over the turn that is about to end."""

    bits: list[float]


@dataclass(frozen=True, slots=True)
class Done:
    """The turn ended well."""

    id: int
    emitted: int
    tok_s: float
    hit_pct: float
    rss_gb: float
    prompt_tokens: int
    length_limited: bool


@dataclass(frozen=True, slots=True)
class Error:
    """The turn ended badly, or a command was refused."""

    id: int
    code: str
    detail: list[str]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A line of a kind this version does not know; to be ignored."""

    line: bytes


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line of a known kind that does not parse."""

    line: bytes
    reason: str


Record: TypeAlias = (
    Ready
    | Stat
    | HwInfo
    | Gpus
    | Tiers
    | ExpertMap
    | Hits
    | Caps
    | Accept
    | Prefill
    | Data
    | TopK
    | Repin
    | Perf
    | Prof
    | Entropy
    | Done
    | Error
    | Unknown
    | Malformed
)

_TYPES: dict[str, Any] = {
    "READY": Ready,
    "STAT": Stat,
    "HWINFO": HwInfo,
    "GPUS": Gpus,
    "TIERS": Tiers,
    "EMAP": ExpertMap,
    "HITS": Hits,
    "ACCEPT": Accept,
    "PREFILL": Prefill,
    "DATA": Data,
    "TOPK": TopK,
    "REPIN": Repin,
    "PERF": Perf,
    "PROF": Prof,
    "ENTROPY": Entropy,
    "DONE": Done,
    "ERROR": Error,
    "UNKNOWN": Unknown,
    "MALFORMED": Malformed,
}
_FIELDS: dict[str, tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(cls)) for kind, cls in _TYPES.items()
}

# Records whose loss would leave a request waiting for ever: a malformed one is fatal to the stream.
_REQUEST_KINDS = (b"ACCEPT ", b"DATA ", b"DONE ", b"ERROR ")


def to_record(kind: str, values: dict[str, Any]) -> Record:
    """Gives one ``(kind, fields)`` pair of the reader its type; extra fields are dropped."""
    if kind == "DATA":
        # Nearly all records are of this kind.
        return Data(values["id"], values["data"])
    if kind == "CAPS":
        return Caps(values)
    cls = _TYPES.get(kind)
    if cls is None:
        return Unknown(kind.encode())
    record: Record = cls(**{name: values[name] for name in _FIELDS[kind]})
    return record


def breaks_requests(record: Malformed) -> bool:
    """Whether the malformed line belonged to a request, not to telemetry."""
    return record.line.startswith(_REQUEST_KINDS)
