"""A budget holds: never more memory, never less than it allows, never another bit."""

from __future__ import annotations

import json
import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from colibri import _core
from colibri.find_engine import find_engine
from memory_use import Use, requests, use
from random_model import Shape, make

CTX = 512
TURNS = requests(2, 250, 12)
SHAPES = {
    "bf16": Shape("bf16", hidden=512, width=256, experts=32, top_k=4, layers=5),
    # Read as a whole and laid out anew.
    "fp8": Shape("fp8", hidden=512, width=512, experts=32, top_k=2, layers=5),
    "int4": Shape("int4", hidden=768, width=768, experts=32, top_k=4, layers=4),
    # Matrices that are small blocks to the allocator.
    "small": Shape("bf16", hidden=256, width=128, experts=96, top_k=8, layers=5),
}
PAIRS = 20
# Most that a process may take, of its budget.
EXCESS = 1.05


@dataclass(frozen=True)
class Case:
    folder: Path
    # What it takes with all experts in memory, and with the fewest.
    everything: int
    least: int
    unlimited: Use


def memory(folder: Path, ram_gb: float | None = None) -> dict[str, Any]:
    """What the planner says of the memory the model takes."""
    told = json.loads(
        _core.examine(str(folder), None, ram_gb=ram_gb, ctx=CTX, slots=1, threads=None)
    )
    found: dict[str, Any] = told["memory"]
    return found


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    root = tmp_path_factory.mktemp("models")
    found = {}
    for name, shape in SHAPES.items():
        folder = make(root / name, shape)
        unlimited = use(folder, TURNS, None, CTX)
        needed = memory(folder)
        floor = needed["expert_floor_bytes"]
        # The engine's own process, not that of these tests.
        process = unlimited.most - needed["dense_bytes"] - needed["experts_bytes"]
        least = process + needed["dense_bytes"] + needed["conversation_bytes"] + floor
        found[name] = Case(folder, unlimited.most, least, unlimited)
    return found


def refused(folder: Path, ram_bytes: int) -> list[str]:
    """What an engine says that does not start."""
    arguments = ["--mux", "--model", str(folder), "--ctx", str(CTX), "--ram", str(ram_bytes / 1e9)]
    done = subprocess.run(
        [*find_engine(), *arguments, "--progress"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    if done.returncode == 0:
        return []
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()


def bytes_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def check_refusal(lines: list[str], ram_bytes: int) -> float:
    """Checks what is said of a budget that is too small; returns the ``--ram`` that would fit."""
    # No line of progress: nothing was loaded.
    assert len(lines) == 2, lines
    numbers = re.fullmatch(
        r"error: cannot .*: need ([\d.]+ \w+), the budget is ([\d.]+ \w+)", lines[0]
    )
    assert numbers, lines
    need, have = map(bytes_of, numbers.groups())
    assert have < need or "bytes" in lines[0]
    assert have == pytest.approx(ram_bytes, rel=0.05)
    would = re.fullmatch(r"hint: .*--ram ([\d.]+).* would fit", lines[1])
    assert would, lines
    return float(would[1])


@pytest.mark.timeout(240)
def test_twenty_models_and_budgets(cases: dict[str, Case]) -> None:
    choose = random.Random(20)
    ran = refusals = 0
    for _ in range(PAIRS):
        case = cases[choose.choice(sorted(cases))]
        ram = int(choose.uniform(0.5 * case.least, 1.1 * case.everything))
        lines = refused(case.folder, ram) if ram < 1.5 * case.least else []
        if lines:
            check_refusal(lines, ram)
            refusals += 1
            continue
        found = use(case.folder, TURNS, ram, CTX)
        ran += 1
        where = f"{case.folder.name}, {ram / 1e6:.1f} MB"
        print(f"{where}: most {found.most / ram:.1%}, at the end {found.at_end / ram:.1%}")
        assert found.answers == case.unlimited.answers, where
        assert found.most <= EXCESS * ram, where
        # What is kept free for reading and for steps is not always in use; of models as small as
        # these that is much.
        spare = memory(case.folder, ram / 1e9)["working_bytes"]
        assert found.most + spare >= 0.9 * min(ram, case.everything), where
    assert ran >= PAIRS // 2
    assert refusals >= 2


def test_a_device_in_the_process_own_memory_is_beside_the_budget(cases: dict[str, Case]) -> None:
    case = cases["bf16"]
    ram, device = int(1.2 * case.least), 16_000_000
    found = use(case.folder, TURNS, ram, CTX, device)
    print(f"most {found.most / 1e6:.1f} MB of {ram / 1e6:.1f} and {device / 1e6:.1f} MB")
    assert found.answers == case.unlimited.answers
    assert ram + device / 2 < found.most <= EXCESS * (ram + device)


def test_what_cannot_be_is_refused_with_what_would_fit(cases: dict[str, Case]) -> None:
    for name in ("bf16", "fp8"):
        case = cases[name]
        ram = int(0.5 * case.least)
        fits = check_refusal(refused(case.folder, ram), ram)
        assert refused(case.folder, int(fits * 1e9)) == []
        # Not much less would have done.
        ram = int(0.9 * fits * 1e9)
        check_refusal(refused(case.folder, ram), ram)
