"""``colibri convert``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from colibri import _core
from colibri.commands.console import ProgressLine, readable_bytes
from colibri.errors import ModelError, UsageError
from colibri.models import model_dirs, resolve_model

# A rate over less time says nothing about the time that is left.
SETTLED_S = 1.0


def run(args: argparse.Namespace) -> int:
    """Converts a model folder, or verifies one that was converted."""
    if args.verify and args.dst is None and not args.dry_run:
        return _verify(args.src)
    if args.dst is None and not args.dry_run:
        raise UsageError("DST is missing", hint="name the folder to write, or use --dry-run")
    progress = _Progress()
    try:
        conversion = _core.Conversion(
            str(resolve_model(args.src)),
            model_dirs(),
            experts=args.experts,
            group=args.group,
            dense=args.dense,
            head=args.head,
            mtp=args.mtp,
        )
        summary: dict[str, Any] = json.loads(conversion.summary())
        if args.dry_run:
            for line in lines(summary):
                print(line)
            return 0
        _check_space(Path(args.dst), summary["bytes"])
        made, there = conversion.run(args.dst, args.threads, progress.update)
    except _core.ColibriCoreError as error:
        raise ModelError(str(error), hint=error.hint) from error
    finally:
        progress.clear()
    kept = f", {there} of them from before" if there else ""
    print(f"{args.dst}: {readable_bytes(summary['bytes'])} in {made + there} files{kept}")
    return _verify(args.dst) if args.verify else 0


def _verify(folder: str) -> int:
    progress = _Progress()
    try:
        problems = _core.verify_converted(folder, progress.update)
    except _core.ColibriCoreError as error:
        raise ModelError(str(error), hint=error.hint) from error
    finally:
        progress.clear()
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        print(f"{folder}: every file is as it was written")
    return 1 if problems else 0


def lines(summary: dict[str, Any]) -> list[str]:
    """Returns what a conversion would write, by kind."""
    rows = [_row(kind["kind"], kind, ", ".join(kind["formats"])) for kind in summary["kinds"]]
    weights = sum(kind["weights"] for kind in summary["kinds"])
    source = readable_bytes(summary["source_bytes"])
    total = {"weights": weights, "bytes": summary["bytes"]}
    files = f"{summary['files']} files; the source has {source}"
    return [*rows, _row("all", total, files)]


def _row(name: str, sums: dict[str, Any], remark: str) -> str:
    bits = 8 * sums["bytes"] / max(sums["weights"], 1)
    size = readable_bytes(sums["bytes"])
    return f"{name:<20}{sums['weights']:>18,} weights {size:>10} {bits:6.2f} bits each  {remark}"


def _check_space(dst: Path, needed: int) -> None:
    """Says before hours of work that the disk is too small for their result."""
    there = sum(f.stat().st_size for f in dst.iterdir() if f.is_file()) if dst.is_dir() else 0
    place = next(folder for folder in (dst.absolute(), *dst.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free + there:
        raise ModelError(
            f"{dst}: {readable_bytes(needed - there)} are to be written, "
            f"{readable_bytes(free)} are free",
            hint="name a folder on another disk; --dry-run shows what takes the space",
        )


class _Progress:
    """A progress line with the rate of the stage and the time it will take."""

    def __init__(self) -> None:
        self._line = ProgressLine()
        self._stage = ""
        self._began = 0.0

    def update(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began = stage, now
        elapsed = now - self._began
        note = ""
        if elapsed >= SETTLED_S and done > 0:
            rate = done / elapsed
            note = f", {readable_bytes(int(rate))}/s, {_duration((total - done) / rate)} left"
        self._line.update(stage, done, total, readable_bytes, note)

    def clear(self) -> None:
        self._line.clear()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
