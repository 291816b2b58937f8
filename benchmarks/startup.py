"""Measures how long an engine takes to be ready, beside reading the same bytes from the disk.

    python benchmarks/startup.py [MODEL] [--gb 8] [--rounds 3] [--threads N] [--out FILE]

Without MODEL, a model of that size is written to a temporary folder and removed at the end: half
of it is dense. Before each measurement, the system is told to forget what it keeps in memory of the
files. The disk is measured by threads that read the dense tensors, piece by piece, into a buffer;
`ratio` is READY to that, of one round each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from colibri.find_engine import find_engine
from colibri.models import demo_folder
from measure import spread, write_report
from random_model import configuration, tensors

PIECE_BYTES = 4 << 20
HIDDEN, EXPERTS = 4096, 8


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure start-up.")
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL")
    parser.add_argument("--gb", type=float, default=8, help="size of the model that is made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
        model = args.model or write_model(Path(scratch) / "model", args.gb)
        dense = dense_tensors(model)
        disk, ready, cached = [], [], []
        for _ in range(args.rounds):
            forget(model)
            disk.append(read_all(dense, max(args.threads, 2)))
            forget(model)
            ready.append(start(model, args.threads))
            cached.append(start(model, args.threads))
    dense_bytes = sum(size for _, _, size in dense)
    report: dict[str, Any] = {
        "dense_bytes": dense_bytes,
        "disk_s": spread(disk, 3),
        "ready_s": spread(ready, 3),
        "ready_from_page_cache_s": spread(cached, 3),
    }
    report["disk_gb_per_s"] = round(dense_bytes / report["disk_s"]["median"] / 1e9, 3)
    report["ratio"] = spread([r / d for d, r in zip(disk, ready, strict=True)], 3)
    write_report(report, args.out)


def write_model(folder: Path, gb: float) -> Path:
    """Writes a qwen3_moe in bf16 of about ``gb`` GB; its bytes repeat, but not within a page."""
    layers = max(1, round(gb * 1e9 / 2 / (2 * 3 * HIDDEN * HIDDEN)))
    config: dict[str, Any] = configuration(HIDDEN, layers, EXPERTS)
    config |= {"moe_intermediate_size": HIDDEN // EXPERTS}
    header, end = {}, 0
    for entry in tensors(config, seed=1):
        begin, end = end, end + 2 * int(np.prod(entry.shape))
        header[entry.name] = {"dtype": "BF16", "shape": entry.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copyfile(demo_folder() / "tokenizer.json", folder / "tokenizer.json")
    # bf16 numbers around 0.01, whatever their mantissas.
    block = np.random.default_rng(1).integers(0x3C00, 0x3C80, 32 << 20, np.uint16).tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start_at in range(0, end, len(block)):
            file.write(block[: min(len(block), end - start_at)])
        file.flush()
        os.fsync(file.fileno())
    return folder


def dense_tensors(model: Path) -> list[tuple[Path, int, int]]:
    """File, first byte and length of every tensor but those of routed experts."""
    found = []
    for path in sorted(model.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__" and ".experts." not in name:
                begin, end = entry["data_offsets"]
                found.append((path, 8 + length + begin, end - begin))
    return found


def forget(model: Path) -> None:
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_all(dense: list[tuple[Path, int, int]], threads: int) -> float:
    """Seconds that ``threads`` take for all pieces."""
    files = {path: os.open(path, os.O_RDONLY) for path, _, _ in dense}
    pieces = [
        (files[path], first + at, min(PIECE_BYTES, size - at))
        for path, first, size in dense
        for at in range(0, size, PIECE_BYTES)
    ]
    buffers = [bytearray(PIECE_BYTES) for _ in range(threads)]

    def read(number: int) -> int:
        view = memoryview(buffers[number])
        return sum(os.preadv(fd, [view[:n]], at) for fd, at, n in pieces[number::threads])

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(read, range(threads)))
    elapsed = time.perf_counter() - began
    for fd in files.values():
        os.close(fd)
    if done != sum(size for _, _, size in dense):
        raise SystemExit("not all bytes were read")
    return elapsed


def start(model: Path, threads: int) -> float:
    """Seconds from starting an engine to its READY."""
    command = [*find_engine(), "--mux", "--model", str(model), "--threads", str(threads)]
    began = time.perf_counter()
    pipe, env = subprocess.PIPE, {**os.environ, "KVSAVE": "0"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        elapsed = time.perf_counter() - began
        process.stdin.close()
    if b"READY" not in line:
        raise SystemExit("the engine does not start")
    return elapsed


if __name__ == "__main__":
    main()
