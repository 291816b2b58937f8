"""``colibri bench stream``: answers with less memory than the experts need, cold and warm."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from colibri import _core, costs
from colibri.admission import Admission, raw_affinity
from colibri.commands.console import (
    ProgressLine,
    engine_config,
    private_engine,
    readable_bytes,
    terminate_cleanly,
)
from colibri.commands.doctor import measure_disk
from colibri.engine import Engine
from colibri.errors import ModelError, UsageError
from colibri.generation import Generation, Prompt
from colibri.models import ModelInfo, model_dirs, read_model, resolve_model

# One for each turn, so that no turn finds a part of its prompt computed.
PROMPTS = {
    "cold": "Once upon a time there was a small boat that wanted to see the other side of the sea.",
    "warm": "The kitchen was quiet when Ben came home, and on the table lay a letter for him.",
}
# Time for each measurement of the drive: one before each turn and one at the end.
DISK_S = 2.0


def run(args: argparse.Namespace) -> int:
    """Measures two answers of an engine that remembers nothing."""
    terminate_cleanly()
    folder = resolve_model(args.model)
    model = read_model(folder)
    with tempfile.TemporaryDirectory(prefix="colibri-stream-") as state:
        os.environ["COLIBRI_STATE_DIR"] = state
        report = asyncio.run(_measure(args, model))
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(lines(report)))
    return 0


def forget_files(folders: Sequence[Path]) -> int:
    """Asks the system to forget what it keeps in memory of weights; returns bytes asked for.

    It may keep what somebody else has open or has changed.
    """
    total = 0
    for folder in folders:
        for path in sorted(folder.glob("*.safetensors")):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                total += os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
    return total


async def _measure(args: argparse.Namespace, model: ModelInfo) -> dict[str, Any]:
    progress = ProgressLine()
    more = (model_dirs() or "").split(os.pathsep)
    forgotten = forget_files([model.path, *(Path(name) for name in more if name)])
    async with private_engine(engine_config(args, model, 1), progress) as engine:
        if "ignore_eos" not in engine.options:
            raise UsageError("this engine does not know ignore_eos, so its turns differ in length")
        disk = []
        turns = {}
        for name, text in PROMPTS.items():
            disk.append(_disk_rate(model.path, progress))
            turns[name] = await _turn(name, text, args.tokens, engine, progress)
        disk.append(_disk_rate(model.path, progress))
        tiers = engine.telemetry.tiers
        memory = costs.memory(engine.caps, tiers.ram_gb if tiers else None)
        reads = engine.caps.get("reads")
    ceiling = statistics.median(disk)
    for turn in turns.values():
        turn["disk_share"] = disk_share(turn, ceiling)
    return {
        "model": str(model.path),
        "page_cache_dropped_bytes": forgotten,
        "reads": reads,
        "memory": memory,
        "tiers": None if tiers is None else asdict(tiers),
        "disk_bytes_per_second": disk,
        "turns": turns,
    }


def _disk_rate(folder: Path, progress: ProgressLine) -> int:
    """The rate at which the drive alone gives the engine's pieces, bytes a second."""
    try:
        measured: int = measure_disk(folder, DISK_S, progress)["bytes_per_second"]
    except _core.ColibriCoreError as error:
        raise ModelError(str(error), hint=error.hint) from error
    progress.clear()
    return measured


async def _turn(
    name: str, text: str, tokens: int, engine: Engine, progress: ProgressLine
) -> dict[str, Any]:
    prompt = Prompt(
        text=text,
        max_tokens=tokens,
        # Drawn, since the likeliest tokens of a model that means little soon repeat each other.
        temperature=1.0,
        top_p=1.0,
        affinity=raw_affinity(text),
        options={"ignore_eos": "1", "seed": "1"},
    )
    done = 0
    async with Generation(engine, Admission(1, 0), prompt) as generation:
        await generation.start()
        async for _ in generation:
            done += 1
            progress.update(f"{name} turn", min(done, tokens), tokens)
    progress.clear()
    told = generation.result.colibri
    return turn_figures(told["stats"], told["perf"])


def turn_figures(stats: Mapping[str, Any], perf: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns what a turn did; shares are 0 to 1, null where the engine does not tell."""
    perf = perf or {}
    counts = costs.uses(perf)
    total = sum(counts.values())
    return {
        "tokens": stats["completion_tokens"],
        "tokens_per_second": stats["tokens_per_second"],
        "ttft_ms": stats["ttft_ms"],
        "wall_s": perf.get("wall_s"),
        "time": costs.shares(perf),
        "uses": {name: count / total for name, count in counts.items()} if total else None,
        "bytes_read": perf.get("bytes_read"),
        "read_bytes_per_second": costs.read_rate(perf),
        "limit": costs.limit_object(perf),
    }


def disk_share(turn: Mapping[str, Any], bytes_per_second: float) -> float | None:
    """Returns what was read in all of a turn's time, as a share of what the drive alone gives."""
    if not turn["wall_s"] or turn["bytes_read"] is None or not bytes_per_second:
        return None
    share: float = turn["bytes_read"] / turn["wall_s"] / bytes_per_second
    return share


def lines(report: Mapping[str, Any]) -> list[str]:
    """Returns the report as people read it."""
    disk = ", ".join(f"{readable_bytes(rate)}/s" for rate in report["disk_bytes_per_second"])
    memory = report["memory"]
    parts = [
        f"{memory[key]:.2f} GB {name}"
        for key, name in (("dense_gb", "dense"), ("experts_most_gb", "experts"))
        if memory[key] is not None
    ]
    rows = [
        ("model", report["model"]),
        ("memory", ", ".join(parts)),
        ("disk", f"{disk} alone, before, between and after the turns"),
    ]
    for name, turn in report["turns"].items():
        rows.append((name, f"{turn['tokens']:,} tokens: {turn['tokens_per_second']:.2f} tokens/s"))
        if turn["time"]:
            told = ", ".join(f"{share:.1%} {phase}" for phase, share in turn["time"].items())
            rows.append(("", f"{turn['wall_s']:.3g} s: {told}"))
        if turn["uses"]:
            told = ", ".join(f"{share:.1%} {how}" for how, share in turn["uses"].items())
            rows.append(("", f"uses: {told}"))
        if turn["bytes_read"] is not None and turn["disk_share"] is not None:
            read = f"{readable_bytes(turn['bytes_read'])} read"
            rows.append(("", f"{read}: {turn['disk_share']:.0%} of what the disk gives alone"))
    return [f"{name:<8}{text}".rstrip() for name, text in rows]
