"""Random frames against the real engine; ``scripts/soak.py`` says what is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "scripts" / "soak.py"


@pytest.mark.parametrize(
    ("wire", "frames"), [("full", 100_000), ("seed", 10_000), ("upstream", 10_000)]
)
def test_random_frames_break_no_rule(wire: str, frames: int) -> None:
    done = subprocess.run(
        [sys.executable, str(SOAK), "--frames", str(frames), "--wire", wire],
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )
    print(done.stdout)  # with the seed, should this fail
    assert done.returncode == 0, done.stdout + done.stderr
