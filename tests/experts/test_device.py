"""A device above RAM decides speed alone, and what is told of it is true."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from colibri import Model
from colibri.find_engine import find_engine
from colibri.models import demo_folder
from colibri.quality import HELD_OUT
from wire import Request, Wire

TOKENS = 300
PROMPT = HELD_OUT.read_text(encoding="utf-8")[:700]
REQUESTS = [Request(PROMPT, 60, 1), Request("Once upon a time", 90, 2), Request("The", 75, 3)]
LAYERS, EXPERTS = 5, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, so that what is remembered of its use is ours alone."""
    return Path(shutil.copytree(demo_folder(), tmp_path_factory.mktemp("device") / "model"))


@pytest.fixture(scope="module")
def expert_gb(folder: Path) -> float:
    with Wire(folder, COLIBRI_STATE_DIR=folder.parent) as wire:
        assert (wire.latest["HWINFO"]["ngpu"], wire.latest["GPUS"]["gpus"]) == (0, [])
        return int(wire.caps["experts_ram"]) / (LAYERS * EXPERTS) / 1e9


def generated(
    vram_gb: float | None, expert_slots: int | None = None, threads: int = 2
) -> list[tuple[int, int]]:
    """Ids of the likeliest tokens, with the bits of their log-probabilities."""
    model = Model(
        ctx=768,
        threads=threads,
        expert_slots=expert_slots,
        vram_gb=vram_gb,
        device=None if vram_gb is None else "host",
    )
    # Without the tokens that would end the story early.
    never = {0: -100.0, 4: -100.0, 6: -100.0}
    tokens = model.generate(PROMPT, max_tokens=TOKENS, temperature=0, logit_bias=never)
    return [(token.id, int(np.float32(token.logprob).view(np.uint32))) for token in tokens]


@pytest.fixture(scope="module")
def without() -> list[tuple[int, int]]:
    found = generated(None)
    assert len(found) == TOKENS
    return found


@pytest.mark.parametrize(
    ("on_device", "expert_slots", "threads"),
    [(1, 1, 2), (1, None, 1), (40, 1, 1), (40, 2, 2), (40, None, 2), (160, 1, 2), (160, None, 1)],
)
def test_bits_are_those_without_a_device(
    on_device: int,
    expert_slots: int | None,
    threads: int,
    expert_gb: float,
    without: list[tuple[int, int]],
) -> None:
    assert generated((on_device + 0.5) * expert_gb, expert_slots, threads) == without


@pytest.mark.parametrize(("on_device", "expert_slots"), [(1, 2), (40, 2), (40, "all"), (160, 1)])
def test_the_records_tell_what_is_on_it(
    on_device: int, expert_slots: int | str, folder: Path, expert_gb: float
) -> None:
    vram_gb = (on_device + 0.5) * expert_gb
    state = {"COLIBRI_STATE_DIR": folder.parent}
    with Wire(folder, slots=3, **state) as wire:
        expected = [wire.ask(REQUESTS) for _ in range(2)]
        assert wire.latest["PERF"]["uses_vram"] is None
    settings = {"COLIBRI_DEVICE": "host", "VRAM_GB": vram_gb, "COLIBRI_EXPERT_SLOTS": expert_slots}
    with Wire(folder, slots=3, **settings, **state) as wire:
        told = wire.latest["HWINFO"]
        assert (told["ngpu"], told["gpu_name"]) == (1, "host memory")
        assert wire.latest["TIERS"]["vram"] == 0
        for answers in expected:
            assert wire.ask(REQUESTS) == answers
        tiers, perf = wire.latest["TIERS"], wire.latest["PERF"]
        [gpu] = wire.latest["GPUS"]["gpus"]
        cells = wire.latest["EMAP"]["map"]
        hit_pct = wire.latest["DONE"]["hit_pct"]
    assert tiers["vram"] + tiers["ram"] + tiers["disk"] == LAYERS * EXPERTS == len(cells)
    shown = [sum(cell >> 6 == tier for cell in cells) for tier in (2, 1, 0)]
    assert shown == [tiers["vram"], tiers["ram"], tiers["disk"]]
    assert 0 < tiers["vram"] == gpu["experts"] <= on_device
    if on_device == 160:
        assert tiers["vram"] > 100, "whatever was used"
    assert gpu["total_gb"] == pytest.approx(vram_gb, abs=0.0006)
    # An expert on its way has its memory already.
    assert tiers["vram"] * expert_gb - 0.0006 <= gpu["used_gb"] <= vram_gb + 0.0006
    assert tiers["vram_gb"] == pytest.approx(tiers["vram"] * expert_gb, abs=0.0051)
    assert perf["uses_vram"] > 0
    hits = perf["uses_vram"] + perf["uses_ahead"] + perf["uses_cached"]
    assert hit_pct == pytest.approx(100 * hits / (hits + perf["uses_missed"]), abs=0.051)


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*find_engine(), "--mux", "--model", str(demo_folder()), "--slots", "1", *arguments]
    env = {name: value for name, value in os.environ.items() if name != "COLIBRI_DEVICE"}
    return subprocess.run(
        command, input="", capture_output=True, encoding="utf-8", env=env, check=False
    )


def test_a_budget_without_a_device_and_a_device_without_a_budget_are_told() -> None:
    alone = started("--vram", "1")
    assert alone.returncode == 0
    assert "notice: no device is in use, so --vram changes nothing\n" in alone.stderr
    unbounded = started("--device", "host")
    assert unbounded.returncode == 1
    assert unbounded.stderr == (
        "error: COLIBRI_DEVICE (--device): host is a part of memory whose size --vram GB (VRAM_GB) "
        "must say\n"
    )
    for wrong in (("--device", "cuda"), ("--vram", "0"), ("--vram", "x")):
        refused = started(*wrong)
        assert refused.returncode == 2
        assert refused.stderr.startswith("error: "), wrong
