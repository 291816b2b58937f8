"""Drives that hang for ever: nothing else does, and whoever needs them is told."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri.models import demo_folder
from expert_places import bytes_of, experts_of
from faulty_disk import FaultyDisk, told
from wire import Answer, Request, Turn, Wire

MODEL = demo_folder()
FILE = MODEL / "model.safetensors"
FEW = {"COLIBRI_EXPERT_SLOTS": 2}
STORY = Request("Once upon a time there was a little girl who", 24, 5)
OTHER = Request("The dog", 12, 7)
# Far less than the limit within which a read that hangs would fail its request.
SOON_S = 10.0
LIMIT_S = 1.5


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path)


@pytest.fixture(scope="module")
def sound() -> dict[Request, Answer]:
    """What a sound drive answers."""
    with Wire(MODEL, slots=2) as wire:
        return dict(zip((STORY, OTHER), wire.ask([STORY, OTHER]), strict=True))


def hang(disk: FaultyDisk, begin: int = 0, end: int = 1 << 60) -> None:
    disk.set(stuck_from=begin, stuck_to=end)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def begin_and_hang(wire: Wire, disk: FaultyDisk, when: str) -> None:
    """Sends a request whose reads hang from a moment on."""
    disk.heal()
    if when == "prompt":
        hang(disk)
    wire.send(STORY.frame(1, 0))
    while when == "answer":
        if any(kind == "DATA" for kind, _ in wire.read()):
            hang(disk)
            break
    wait_until(lambda: disk.get("stuck"))
    # A decode step is not abandoned before it takes long.
    time.sleep(0.3)


@pytest.mark.parametrize("when", ["prompt", "answer"])
@pytest.mark.parametrize("word", ["STOP", "CANCEL"])
def test_a_turn_ends_while_its_reads_hang(
    disk: FaultyDisk, when: str, word: str, sound: dict[Request, Answer]
) -> None:
    with Wire(MODEL, **FEW, **disk.settings) as wire:
        begin_and_hang(wire, disk, when)
        asked = time.monotonic()
        wire.send(f"{word} 1\n".encode())
        end = None
        while end is None:
            ends = [kind for kind, _ in wire.read() if kind in ("DONE", "ERROR")]
            end = next(iter(ends), None)
        assert end == ("DONE" if word == "STOP" else "ERROR")
        assert time.monotonic() - asked < SOON_S
        assert disk.get("stuck") > 0
        disk.heal()
        assert wire.ask([STORY]) == [sound[STORY]]


@pytest.mark.parametrize("when", ["prompt", "answer"])
def test_sigterm_ends_the_process_while_reads_hang(
    disk: FaultyDisk, tmp_path: Path, when: str
) -> None:
    state = tmp_path / "state"
    wire = Wire(MODEL, **FEW, **disk.settings, COLIBRI_STATE_DIR=state)
    wire.__enter__()
    begin_and_hang(wire, disk, when)
    asked = time.monotonic()
    wire.process.send_signal(signal.SIGTERM)
    out, _ = wire.process.communicate(timeout=60)
    assert wire.process.returncode == 0
    assert time.monotonic() - asked < SOON_S
    assert disk.get("stuck") > 0
    # What can be saved is: the turn ends as by STOP.
    assert b"DONE 1 STAT" in out
    assert list(state.rglob(".coli_usage"))


@pytest.mark.parametrize("told_first", [False, True])
def test_sigterm_ends_a_start_whose_reads_hang(
    disk: FaultyDisk, tmp_path: Path, told_first: bool
) -> None:
    hang(disk, 1 << 20)
    log = tmp_path / "log"
    wire = Wire(MODEL, log=log, **disk.settings)
    wait_until(lambda: disk.get("stuck"))
    if told_first:
        wait_until(lambda: told(log, f"notice: waiting for {FILE} for "))
    wire.process.send_signal(signal.SIGTERM)
    wire.process.communicate(timeout=SOON_S)
    assert wire.process.returncode == -signal.SIGTERM


def test_the_end_of_the_input_ends_the_process_once_what_hangs_has_failed(
    disk: FaultyDisk,
) -> None:
    wire = Wire(MODEL, **FEW, **disk.settings, COLIBRI_READ_LIMIT=LIMIT_S)
    wire.__enter__()
    begin_and_hang(wire, disk, "answer")
    out, _ = wire.process.communicate(timeout=SOON_S)
    assert b"ERROR 1 ENGINE" in out
    assert wire.process.returncode == 0


@pytest.mark.parametrize("when", ["prompt", "answer"])
def test_an_expert_whose_read_hangs_fails_only_those_who_need_it(
    disk: FaultyDisk, tmp_path: Path, when: str, sound: dict[Request, Answer]
) -> None:
    of_prompt = experts_of(MODEL, STORY, 1)
    all_of_it = experts_of(MODEL, STORY, STORY.max_tokens)
    alone = (of_prompt if when == "prompt" else all_of_it - of_prompt) - experts_of(
        MODEL, OTHER, OTHER.max_tokens
    )
    log = tmp_path / "log"
    settings = {**FEW, **disk.settings, "COLIBRI_READ_LIMIT": LIMIT_S}
    with Wire(MODEL, slots=2, log=log, **settings) as wire:
        layers = [int(layer) for layer in wire.caps["layers"].split(",")]
        row, expert = min(alone)
        hang(disk, *bytes_of(FILE, layers[row], expert, "up"))
        began = time.monotonic()
        failed, served = wire.turns([STORY, OTHER])
        assert LIMIT_S < time.monotonic() - began < 3 * LIMIT_S + 3
        assert served == Turn(sound[OTHER], None, served.perf)
        # All that was said until then was right.
        assert failed.answer == sound[STORY][: len(failed.answer)]
        assert bool(failed.answer) == (when == "answer")
        assert failed.error is not None
        assert re.fullmatch(rf"ENGINE {FILE}: the drive has not answered for \d+ s", failed.error)
        assert len(told(log, f"notice: waiting for {FILE} for ")) == 1
        assert len(told(log, "error: ")) == 1
        # As long as it hangs nobody waits for it again.
        failed, served = wire.turns([STORY, OTHER])
        assert failed.error is not None
        assert served.answer == sound[OTHER]
        assert served.perf["expert_wait_s"] < LIMIT_S
        assert disk.get("stuck") == 1
        disk.heal()
        assert wire.ask([STORY, OTHER]) == list(sound.values())


def test_a_drive_that_hangs_as_a_whole_fails_all_and_may_come_back(
    disk: FaultyDisk, tmp_path: Path, sound: dict[Request, Answer]
) -> None:
    log = tmp_path / "log"
    settings = {**FEW, **disk.settings, "COLIBRI_READ_LIMIT": LIMIT_S}
    with Wire(MODEL, slots=2, log=log, **settings) as wire:
        for _ in range(2):
            hang(disk)
            turns = wire.turns([STORY, OTHER])
            assert all("has not answered for" in (turn.error or "") for turn in turns)
            disk.heal()
            assert wire.ask([STORY, OTHER]) == list(sound.values())


def test_a_history_that_hangs_is_given_up(
    disk: FaultyDisk, tmp_path: Path, sound: dict[Request, Answer]
) -> None:
    log, state = tmp_path / "log", tmp_path / "state"
    with Wire(MODEL, slots=2, log=log, **disk.settings, COLIBRI_STATE_DIR=state) as wire:
        disk.set(sync_stuck=1)
        began = time.monotonic()
        for _ in range(2):
            assert wire.ask([STORY, OTHER]) == list(sound.values())
        assert time.monotonic() - began < SOON_S
        # It hangs until the end, which does not wait for it.
        began = time.monotonic()
    assert time.monotonic() - began < SOON_S
    (line,) = told(log, "notice: the use of experts is not remembered: ")
    assert "the drive has not answered for 3 s" in line


def test_a_mirror_that_hangs_costs_no_request(tmp_path: Path, sound: dict[Request, Answer]) -> None:
    mirror, log = tmp_path / "mirror", tmp_path / "log"
    mirror.mkdir()
    shutil.copy(FILE, mirror)
    disk = FaultyDisk(tmp_path, reads=str(mirror))
    settings = {
        **FEW,
        **disk.settings,
        "COLI_MODEL_MIRROR": mirror,
        "COLIBRI_READ_LIMIT": LIMIT_S,
    }
    with Wire(MODEL, slots=2, log=log, **settings) as wire:
        hang(disk)
        for _ in range(2):
            assert wire.ask([STORY, OTHER]) == list(sound.values())
        assert disk.get("stuck") > 0
        disk.heal()
        assert wire.ask([STORY, OTHER]) == list(sound.values())
    (line,) = told(log, "is used no longer")
    assert line.startswith(f"notice: the model mirror {mirror} is used no longer: {mirror}/")
    assert "has not answered for" in line
    assert told(log, "error: ") == []
