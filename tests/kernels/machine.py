"""What instruction sets this machine has, told without the engine."""

from __future__ import annotations

from pathlib import Path

NEEDED = {
    "scalar": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avxvnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "vnni": {
        *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
        "avx512_vnni",
    },
}


def _flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = [line.split(":")[1].split() for line in lines if line.startswith("flags")]
    return set(found[0]) if found else set()


# Weakest first.
LEVELS = [name for name, needed in NEEDED.items() if needed <= _flags()]
BEST = LEVELS[-1]
