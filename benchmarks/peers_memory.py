"""Our engine and llama.cpp with less memory than the model takes, run by run in turn, as JSON.

    python benchmarks/peers_memory.py MODELS [--pairs bf16:hf] [--shares 0.5,0.25] [--rounds 5]

MODELS is the folder of `peers.py`. Each run is a process in a control group of its own, whose
limit is the given share of the peer's file: cold page cache, a turn of 8 tokens that is not
counted, then `--tokens` measured ones. Ours is told nothing but where the group is and finds the
limit itself. The peer maps its file, through a read-only loop device that reads 128 KiB ahead,
which is its best set-up here: with a disk's own 8 MiB ahead it reads many times what it needs.
Needs root and losetup.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import spread, write_report
from peer_workers import Colibri, LlamaCpp, Timing, Worker
from peers import converted, cpu_per_token, figures, quantised, rate

WARM_UP = 8
READ_AHEAD_KIB = 128
SECTOR = 512
GROUPS = Path("/sys/fs/cgroup")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare with llama.cpp in too little memory.")
    parser.add_argument("models", type=Path, help="folder with small-bf16.gguf and small-hf")
    parser.add_argument("--pairs", default="bf16:hf,Q8_0:int8-g32,Q4_0:int4-g64")
    parser.add_argument("--shares", default="0.5,0.25", help="limits as shares of the peer's file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    args = parser.parse_args()

    results = [
        compare(args, theirs, ours, share)
        for theirs, ours in (pair.split(":") for pair in args.pairs.split(","))
        for share in map(float, args.shares.split(","))
    ]
    write_report({"what": "ours and llama.cpp in too little memory", "results": results}, args.out)


def compare(args: argparse.Namespace, theirs: str, ours: str, share: float) -> dict[str, Any]:
    our_model = args.models / "small-hf" if ours == "hf" else converted(args.models, ours)
    their_file = quantised(args.models, theirs)
    limit = int(their_file.stat().st_size * share)
    pairs: list[tuple[Timing, Timing]] = []
    with loop_device(their_file) as device:
        for i in range(args.rounds):
            print(f"{ours} and {theirs}, {share:.0%}: round {i + 1}", file=sys.stderr)
            done: dict[bool, Timing] = {}
            for is_ours in (True, False) if i % 2 == 0 else (False, True):
                with memory_group(limit) as group:
                    worker: Worker = (
                        Colibri(our_model, args.threads, group)
                        if is_ours
                        else LlamaCpp(device, args.threads, group)
                    )
                    try:
                        worker.decode(WARM_UP, 1)
                        done[is_ours] = worker.decode(args.tokens, 1)
                    finally:
                        worker.stop()
            pairs.append((done[True], done[False]))
    return {
        "theirs": theirs,
        "ours": ours,
        "limit_bytes": limit,
        "share": share,
        "ratio": spread((rate(a) / rate(b) for a, b in pairs), 2),
        "cpu_ratio": spread((cpu_per_token(a) / cpu_per_token(b) for a, b in pairs), 2),
        "ours_figures": figures([a for a, _ in pairs]),
        "theirs_figures": figures([b for _, b in pairs]),
    }


@contextlib.contextmanager
def loop_device(file: Path) -> Iterator[Path]:
    """The file as a device of which little is read ahead; it is padded to whole sectors."""
    os.truncate(file, -(-file.stat().st_size // SECTOR) * SECTOR)
    command = ["losetup", "--find", "--show", "--read-only", "--direct-io=on", str(file)]
    device = Path(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    )
    try:
        setting = Path("/sys/block") / device.name / "queue" / "read_ahead_kb"
        setting.write_text(f"{READ_AHEAD_KIB}\n")
        yield device
    finally:
        subprocess.run(["losetup", "--detach", str(device)], check=True)


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group that may use `limit` bytes, page cache included; caches are dropped first."""
    first_version = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if first_version else GROUPS) / f"colibri-peers-{os.getpid()}"
    group.mkdir()
    try:
        name = "memory.limit_in_bytes" if first_version else "memory.max"
        (group / name).write_text(f"{limit}\n", encoding="ascii")
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="ascii")
        yield group
    finally:
        group.rmdir()


if __name__ == "__main__":
    main()
