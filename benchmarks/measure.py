"""What all benchmarks report alike: spreads, processor time, and where the figures come from."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import colibri


def spread(values: Iterable[float], digits: int) -> dict[str, float]:
    """Least, median and greatest value."""
    ordered = sorted(values)
    return {
        "min": round(ordered[0], digits),
        "median": round(statistics.median(ordered), digits),
        "max": round(ordered[-1], digits),
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far, to the nanosecond; Linux only."""
    # What clock_getcpuclockid() returns, which Python does not offer.
    return time.clock_gettime((~pid << 3) | 2)


def write_report(report: dict[str, Any], out: Path | None) -> None:
    """Adds the provenance and prints the report, or writes it to a file."""
    text = json.dumps(report | {"provenance": provenance()}, indent=2)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


def provenance() -> dict[str, Any]:
    root = Path(__file__).parents[1]
    git = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": colibri.__version__,
        "commit": git.stdout.strip() or None,
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "machine": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
