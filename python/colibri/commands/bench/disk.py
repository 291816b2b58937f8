"""``colibri bench disk``: what a drive gives at the engine's block sizes and depths."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from colibri.commands.console import ProgressLine, readable_bytes, terminate_cleanly
from colibri.errors import UsageError

# The dense part is read in pieces of 1 MiB; an expert has some hundred KiB to some MiB.
BLOCKS = (256 << 10, 1 << 20, 4 << 20)
# Reads at once: two threads a core while loading, eight that read experts.
DEPTHS = (1, 2, 4, 8, 16)
# What direct reads want offsets to be multiples of, at most.
ALIGN = 4096


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    way: str
    block_bytes: int
    depth: int
    gb_per_s: float
    cpu_s_per_gb: float


def run(args: argparse.Namespace) -> int:
    """Measures a file's drive and prints the table."""
    path: Path = args.file
    size = _size(path)
    blocks = [block for block in BLOCKS if block <= size]
    if not blocks:
        least = readable_bytes(BLOCKS[0])
        raise UsageError(f"{path}: has {readable_bytes(size)}, at least {least} are read at a time")
    terminate_cleanly()
    ways = {"buffered": 0}
    if _reads_direct(path):
        ways["direct"] = os.O_DIRECT
    progress = ProgressLine()
    cells: list[Cell] = []
    total = len(ways) * len(blocks) * len(DEPTHS)
    for block in blocks:
        for depth in DEPTHS:
            # One way after the other at once, so that a drive of changing mood is fair to both.
            for way, flag in ways.items():
                progress.update("measuring", len(cells), total)
                cells.append(measure(path, size, way, flag, block, depth, args.seconds))
    progress.clear()
    if args.json:
        report = {"file": str(path), "bytes": size, "seconds": args.seconds}
        print(json.dumps({**report, "cells": [asdict(cell) for cell in cells]}, indent=2))
    else:
        print(f"{path}: blocks in random order, GB/s (processor seconds per GB)")
        print("\n".join(table(cells, list(ways))))
        if "direct" not in ways:
            print("The file system has no direct reads.")
    return 0


def _size(path: Path) -> int:
    try:
        if not path.is_file():
            raise UsageError(
                f"{path}: is not a regular file", hint="name a large file of the drive"
            )
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def _reads_direct(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, ALIGN) as page:
            os.preadv(descriptor, [page], 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def measure(
    path: Path, size: int, way: str, flag: int, block: int, depth: int, seconds: float
) -> Cell:
    """Reads blocks in random order for so many seconds, ``depth`` of them at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | flag)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    # The last block may end with the file.
    places = range(0, size - block + 1, ALIGN)
    done = [0] * depth
    failed: list[OSError] = []
    began, cpu = time.perf_counter(), _cpu_s()
    end = began + seconds

    def read(number: int) -> None:
        choose = random.Random(number)  # noqa: S311 - places, not secrets
        try:
            with mmap.mmap(-1, block) as buffer:
                while time.perf_counter() < end:
                    at = choose.choice(places)
                    if not flag:
                        os.posix_fadvise(descriptor, at, block, os.POSIX_FADV_DONTNEED)
                    done[number] += os.preadv(descriptor, [buffer], at)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, cpu = time.perf_counter() - began, _cpu_s() - cpu
    os.close(descriptor)
    if failed:
        raise UsageError(f"{path}: {failed[0].strerror}")
    gb = sum(done) / 1e9
    return Cell(way, block, depth, round(gb / elapsed, 3), round(cpu / max(gb, 1e-9), 3))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def table(cells: Sequence[Cell], ways: Sequence[str]) -> list[str]:
    """Returns the lines of the table for people."""
    found = {(cell.way, cell.block_bytes, cell.depth): cell for cell in cells}
    lines = [("block", "depth", *ways)]
    for block, depth in dict.fromkeys((cell.block_bytes, cell.depth) for cell in cells):
        row = [found[way, block, depth] for way in ways]
        rates = [f"{cell.gb_per_s:.2f} ({cell.cpu_s_per_gb:.2f})" for cell in row]
        lines.append((f"{block >> 10} KiB", str(depth), *rates))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
