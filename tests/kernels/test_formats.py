"""Every format of weights on every instruction set: whole rows of logits, bit for bit."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from colibri import Model, _core
from colibri.models import demo_folder
from colibri.quality import HELD_OUT
from colibri.quality.plain import Weights
from machine import LEVELS

ROOT = Path(__file__).parents[2]
ORACLES = ROOT / "tests" / "data" / "oracle"
INTEGERS = [(bits, group) for bits in ("int8", "int4") for group in (32, 64, 128)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights in f32, wide enough for every group."""
    folder = tmp_path_factory.mktemp("random") / "plain"
    script = ROOT / "benchmarks" / "random_model.py"
    size = ("--hidden", "256", "--layers", "2", "--experts", "8")
    subprocess.run([sys.executable, str(script), str(folder), *size], check=True, timeout=60)
    return folder


def assert_same_on_every_level(folder: Path, ids: list[int]) -> None:
    scalar = Model(folder, ctx=512, isa="scalar", threads=1).logits(ids)
    assert scalar.std() > 0.5
    settings = [("scalar", 2), *itertools.product(LEVELS[1:], (1, 2))]
    for level, threads in settings:
        found = Model(folder, ctx=512, isa=level, threads=threads).logits(ids)
        assert (found.view(np.uint32) == scalar.view(np.uint32)).all(), (level, threads)


@pytest.mark.parametrize("stored", ["f32", "f16", "bf16"])
def test_floats(stored: str, plain: Path, tmp_path: Path) -> None:
    Weights(plain).write(tmp_path / stored, stored, lambda *_: None)
    assert_same_on_every_level(tmp_path / stored, list(range(5, 25)))


@pytest.mark.parametrize(("bits", "group"), INTEGERS)
def test_integers(bits: str, group: int, plain: Path, tmp_path: Path) -> None:
    conversion = _core.Conversion(
        str(plain), experts=bits, group=group, dense="int8", head="int8", mtp="int8"
    )
    conversion.run(str(tmp_path / "made"), None, lambda *_: None)
    formats = {stored for _, _, stored, _ in _core.Weights(str(tmp_path / "made")).tensors()}
    assert {f"{bits}-g{group}", f"int8-g{group}"} <= formats
    assert_same_on_every_level(tmp_path / "made", list(range(5, 25)))


def test_the_demo_model_over_several_blocks_of_keys() -> None:
    ids = Model().encode(HELD_OUT.read_text(encoding="utf-8"))[:300]
    assert_same_on_every_level(demo_folder(), ids)


@pytest.mark.parametrize("name", sorted(path.name for path in ORACLES.iterdir()))
def test_every_family(name: str) -> None:
    assert_same_on_every_level(ORACLES / name, [1, 5, 9, 33, 70, 120, 200, 250, 260, 261, 7, 8])
