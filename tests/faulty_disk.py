"""A drive with faults under an engine process: ``experts/faulty_disk.c``, loaded into it."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "experts" / "faulty_disk.c"
# In the order of `struct disk` in the source, which says what they do.
FIELDS = [
    "bad_from",
    "bad_to",
    "pass",
    "fail",
    "short_every",
    "interrupt_every",
    "fail_every",
    "delay_ms",
    "hang_ms",
    "stuck_from",
    "stuck_to",
    "corrupt",
    "write_errno",
    "sync_errno",
    "rename_errno",
    "sync_stuck",
    "sync_ms",
    "kill_at",
    "reads",
    "faults",
    "changes",
    "stuck",
]


class FaultyDisk:
    """Settings and counts, shared with the engines that run with ``settings``."""

    def __init__(self, folder: Path, reads: str = ".safetensors", writes: str = "usage") -> None:
        library, shared = folder / "faulty_disk.so", folder / "faulty_disk"
        if not library.exists():
            # Whoever builds the engine links it with this.
            build = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
            subprocess.run([*build, "-o", library, SOURCE, "-ldl"], check=True)
        shared.write_bytes(bytes(8 * len(FIELDS)))
        fd = os.open(shared, os.O_RDWR)
        self._memory = mmap.mmap(fd, 0)
        os.close(fd)
        self.settings = {
            "LD_PRELOAD": library,
            "FAULTY_DISK": shared,
            "FAULTY_READS": reads,
            "FAULTY_WRITES": writes,
        }

    def set(self, **values: int) -> None:
        for name, value in values.items():
            struct.pack_into("=q", self._memory, 8 * FIELDS.index(name), value)

    def get(self, name: str) -> int:
        (value,) = struct.unpack_from("=q", self._memory, 8 * FIELDS.index(name))
        return value

    def heal(self) -> None:
        """No faults any more, and nothing counted yet."""
        self.set(**dict.fromkeys(FIELDS, 0))


def told(log: Path, what: str) -> list[str]:
    """The lines of an engine's log that hold this."""
    return [line for line in log.read_text(encoding="utf-8").splitlines() if what in line]
