"""Copies of a model on other drives: the same bits, and no request fails for what a copy does."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri import _core
from colibri.models import demo_folder
from faulty_disk import FaultyDisk
from wire import Answer, Request, Wire

REQUESTS = [Request("Once upon a time", 12, 5), Request("The dog", 12, 7)]
FILE = "model.safetensors"


@pytest.fixture(scope="module", params=["as it is", "converted"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without digests of its weights, and one with them."""
    folder = tmp_path_factory.mktemp("model") / "model"
    if request.param == "as it is":
        return Path(shutil.copytree(demo_folder(), folder))
    options = {"experts": "int4", "group": 32, "dense": "int8", "head": "int8", "mtp": "int8"}
    _core.Conversion(str(demo_folder()), **options).run(str(folder), 2, lambda *_: None)
    return folder


@pytest.fixture(scope="module")
def alone(model: Path) -> list[Answer]:
    """What the model answers without a mirror."""
    with Wire(model, slots=2) as wire:
        return wire.ask(REQUESTS)


@pytest.fixture
def mirror(model: Path, tmp_path: Path) -> Path:
    """The files with experts, and nothing else."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    for path in files(model):
        shutil.copy(path, folder)
    return folder


@pytest.fixture
def disk(model: Path, mirror: Path, tmp_path: Path) -> FaultyDisk:
    """The mirror's drive."""
    return FaultyDisk(tmp_path, reads=str(mirror))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def start(model: Path, mirror: Path, log: Path, **settings: Any) -> Wire:
    settings = {"COLIBRI_EXPERT_SLOTS": 2, "COLI_MODEL_MIRROR": mirror, **settings}
    return Wire(model, slots=2, log=log, **settings)


def told(log: Path, what: str) -> list[str]:
    return [line for line in log.read_text(encoding="utf-8").splitlines() if what in line]


def shares(log: Path, *folders: Path) -> list[int]:
    """Percentages of the bytes of experts that came from each folder."""
    (line,) = told(log, "of experts that were read, ")
    return [int(re.search(rf"(\d+) % from {re.escape(str(dir))}(,|$)", line)[1]) for dir in folders]


def test_bits_are_the_same_and_what_came_from_where_is_told(
    model: Path, mirror: Path, tmp_path: Path, alone: list[Answer]
) -> None:
    # The model's own drive is the slow one.
    disk = FaultyDisk(tmp_path, reads=str(model))
    log = tmp_path / "log"
    with start(model, mirror, log, **disk.settings) as wire:
        disk.set(delay_ms=2)
        assert wire.ask(REQUESTS) == alone
    drives = wire.latest["PERF"]["drives"]
    assert [(drive["mirror"], drive["is_dropped"]) for drive in drives] == [
        (0, False),
        (1, False),
    ]
    # Of both turns, which began and ended together.
    assert sum(drive["bytes"] for drive in drives) == wire.latest["PERF"]["bytes_read"]
    own, other = shares(log, model, mirror)
    assert own + other in (99, 100, 101)
    assert other > 50
    assert len(told(log, f"experts are read from {mirror} too")) == 1


def test_a_slow_mirror_is_used_less(
    model: Path, mirror: Path, disk: FaultyDisk, tmp_path: Path, alone: list[Answer]
) -> None:
    log = tmp_path / "log"
    with start(model, mirror, log, **disk.settings) as wire:
        disk.set(delay_ms=20)
        assert wire.ask(REQUESTS) == alone
    assert shares(log, mirror) < [50]


def end(wire: Wire, log: Path, mirror: Path, alone: list[Answer]) -> None:
    """Asks twice; the mirror is given up, and that is told once."""
    with wire:
        for _ in range(2):
            assert wire.ask(REQUESTS) == alone
        own, other = wire.latest["PERF"]["drives"]
        assert (own["is_dropped"], other["is_dropped"], other["bytes"]) == (False, True, 0)
    (line,) = told(log, "is used no longer")
    assert line.startswith(f"notice: the model mirror {mirror} is used no longer: ")
    assert told(log, "error: ") == []


@pytest.mark.parametrize("after", [0, 60])
def test_a_mirror_that_cannot_be_read_is_given_up(
    model: Path, mirror: Path, disk: FaultyDisk, tmp_path: Path, alone: list[Answer], after: int
) -> None:
    log = tmp_path / "log"
    with start(model, mirror, log, **disk.settings) as wire:
        disk.set(**{"pass": after, "fail": 1 << 40})
        end(wire, log, mirror, alone)
    assert "Input/output error" in told(log, "is used no longer")[0]


def test_a_mirror_may_stumble(
    model: Path, mirror: Path, disk: FaultyDisk, tmp_path: Path, alone: list[Answer]
) -> None:
    log = tmp_path / "log"
    with start(model, mirror, log, **disk.settings) as wire:
        disk.set(fail_every=3, short_every=2)
        assert wire.ask(REQUESTS) == alone
    assert disk.get("faults") > 10
    assert told(log, "is used no longer") == []


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def change(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")


@pytest.mark.parametrize("how", [cut, change])
def test_a_mirror_that_changes_is_given_up(
    model: Path, mirror: Path, tmp_path: Path, alone: list[Answer], how: Callable[[Path], None]
) -> None:
    for path in files(mirror):
        os.utime(path, (1e9, 1e9))
    log = tmp_path / "log"
    with start(model, mirror, log) as wire:
        for path in files(mirror):
            how(path)
        end(wire, log, mirror, alone)


def test_a_mirror_that_vanishes_is_used_on_as_it_was(
    model: Path, mirror: Path, tmp_path: Path, alone: list[Answer]
) -> None:
    log = tmp_path / "log"
    with start(model, mirror, log) as wire:
        shutil.rmtree(mirror)
        assert wire.ask(REQUESTS) == alone
    assert told(log, "is used no longer") == []


@pytest.mark.parametrize("model", ["converted"], indirect=True)
def test_wrong_bytes_of_a_mirror_are_not_computed_with(
    model: Path, mirror: Path, disk: FaultyDisk, tmp_path: Path, alone: list[Answer]
) -> None:
    log = tmp_path / "log"
    with start(model, mirror, log, **disk.settings) as wire:
        disk.set(corrupt=1)
        end(wire, log, mirror, alone)
    assert re.search(rf"{mirror}/\S+: tensor \S+ is damaged", told(log, "is used no longer")[0])


def revise(path: Path) -> None:
    """Another revision: the same header, other weights."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:begin] + bytes(byte ^ 1 for byte in data[begin:]))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (cut, "truncated: "),
        (revise, "its weights are not those of the model"),
        (Path.unlink, "it holds none of the files that experts are in"),
        (lambda path: shutil.rmtree(path.parent, ignore_errors=True), "No such file or directory"),
    ],
)
def test_what_is_no_copy_is_not_used(
    model: Path,
    mirror: Path,
    tmp_path: Path,
    alone: list[Answer],
    how: Callable[[Path], None],
    reason: str,
) -> None:
    for path in files(mirror):
        how(path)
    log = tmp_path / "log"
    with start(model, mirror, log) as wire:
        assert wire.ask(REQUESTS) == alone
    (line,) = told(log, "mirror")
    assert line.startswith(f"notice: the model mirror {mirror} is not used: ")
    assert reason in line
