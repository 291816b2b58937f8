"""Whichever way files are read, past the page cache or through it, the answers are the same."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from colibri.models import demo_folder
from colibri.quality import HELD_OUT
from wire import Answer, Request, Wire

PROMPT = HELD_OUT.read_text(encoding="utf-8")[:300]


def can_read_direct(path: Path) -> bool:
    """Whether the file system has a way past the page cache."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def answer(model: Path, reads: str, expected: str, **settings: object) -> list[Answer]:
    """What an engine answers that finds nothing in the page cache."""
    if not can_read_direct(next(model.glob("*.safetensors"))):
        expected = "cached,cached"
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with Wire(model, COLIBRI_READS=reads, **settings) as wire:
        assert wire.caps["reads"] == expected
        return wire.ask([Request(PROMPT, 60, 5)])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose pages in memory nobody else wants."""
    return Path(shutil.copytree(demo_folder(), tmp_path_factory.mktemp("reads") / "model"))


@pytest.fixture(scope="module")
def resident(model: Path) -> list[Answer]:
    return answer(model, "cached", "cached,cached")


@pytest.mark.parametrize(
    ("reads", "expected"),
    # There is room in memory for all experts of the demo model.
    [("auto", "direct,cached"), ("cached", "cached,cached"), ("direct", "direct,direct")],
)
def test_bits_are_the_same_whichever_way_files_are_read(
    model: Path, reads: str, expected: str, resident: list[Answer]
) -> None:
    assert answer(model, reads, expected, COLIBRI_EXPERT_SLOTS=2) == resident
