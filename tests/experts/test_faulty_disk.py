"""Drives that fail, stumble or dawdle: no wrong token, no hang, and a line that says what was."""

from __future__ import annotations

import contextlib
import errno
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from colibri.models import demo_folder
from expert_places import bytes_of, experts_of
from faulty_disk import FaultyDisk, told
from wire import Answer, EngineEnded, Request, Turn, Wire

MODEL = demo_folder()
FILE = MODEL / "model.safetensors"
FEW = {"COLIBRI_EXPERT_SLOTS": 2}
STORY = Request("Once upon a time there was a little girl who", 24, 5)
OTHER = Request("The dog", 12, 7)


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path)


@pytest.fixture(scope="module")
def sound() -> dict[Request, Answer]:
    """What a sound drive answers."""
    with Wire(MODEL, slots=2) as wire:
        return dict(zip((STORY, OTHER), wire.ask([STORY, OTHER]), strict=True))


@pytest.mark.parametrize("fault", ["short_every", "interrupt_every"])
@pytest.mark.parametrize("nth", [1, 3])
def test_what_every_read_may_do_changes_nothing(
    disk: FaultyDisk, fault: str, nth: int, sound: dict[Request, Answer]
) -> None:
    # A read that is interrupted each time would never end.
    disk.set(**{fault: nth if fault == "short_every" else nth + 1})
    with Wire(MODEL, slots=2, **FEW, **disk.settings) as wire:
        assert wire.ask([STORY, OTHER]) == list(sound.values())
    assert disk.get("faults") > 500


def test_a_read_that_fails_once_is_tried_again(
    disk: FaultyDisk, sound: dict[Request, Answer]
) -> None:
    disk.set(fail_every=3)
    with Wire(MODEL, slots=2, **FEW, **disk.settings) as wire:
        assert wire.ask([STORY, OTHER]) == list(sound.values())
    assert disk.get("faults") > 500


# --- an expert that cannot be read ---


def test_an_expert_that_cannot_be_read_fails_only_those_who_need_it(
    disk: FaultyDisk, tmp_path: Path, sound: dict[Request, Answer]
) -> None:
    first = experts_of(MODEL, STORY, 1)
    in_prompt = sorted(first - experts_of(MODEL, OTHER, OTHER.max_tokens))
    later = sorted(experts_of(MODEL, STORY, STORY.max_tokens) - first)
    later = sorted(set(later) - experts_of(MODEL, OTHER, OTHER.max_tokens))
    log = tmp_path / "log"
    with Wire(MODEL, slots=2, log=log, **FEW, **disk.settings) as wire:
        layers = [int(layer) for layer in wire.caps["layers"].split(",")]
        for row, expert in (in_prompt[0], later[0]):
            begin, end = bytes_of(FILE, layers[row], expert, "up")
            disk.set(bad_from=begin, bad_to=end)
            before = len(told(log, "error: "))
            failed, served = wire.turns([STORY, OTHER])
            assert served == Turn(sound[OTHER], None, served.perf)
            # All that was said until then was right.
            assert failed.answer == sound[STORY][: len(failed.answer)]
            assert bool(failed.answer) == ((row, expert) == later[0])
            reason = f"{FILE}: bytes {begin} to {end} cannot be read: Input/output error"
            assert failed.error is not None
            assert failed.error.startswith(f"ENGINE {reason}")
            assert "\n" not in failed.error
            lines = told(log, "error: ")[before:]
            assert len(lines) == 1
            assert reason in lines[0]
            disk.heal()
            assert wire.ask([STORY, OTHER]) == list(sound.values())


@pytest.mark.parametrize("good", [0, 1, 2, 9, 40])
def test_a_read_that_fails_while_loading_is_a_refusal(
    disk: FaultyDisk, tmp_path: Path, good: int
) -> None:
    disk.set(**{"pass": good, "fail": 1 << 40})
    log = tmp_path / "log"
    wire = Wire(MODEL, log=log, **disk.settings)
    _, _ = wire.process.communicate(timeout=60)
    assert wire.process.returncode == 1
    lines = log.read_text(encoding="utf-8").splitlines()
    errors = [line for line in lines if not line.startswith(("notice: ", "hint: "))]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {FILE}: ")
    assert "Input/output error" in errors[0]


# --- slow drives ---


def test_a_slow_drive_is_waited_for_and_told_of(
    disk: FaultyDisk, sound: dict[Request, Answer]
) -> None:
    with Wire(MODEL, **FEW, **disk.settings) as wire:
        disk.heal()
        disk.set(delay_ms=20)
        (turn,) = wire.turns([OTHER])
        assert turn.answer == sound[OTHER]
        # Eight threads wait at the same time.
        least = disk.get("reads") * 0.020 / 8
        assert turn.perf["reading_s"] > least
        assert turn.perf["expert_disk_s"] > least * 8
        assert turn.perf["expert_wait_s"] > 0.5 * turn.perf["wall_s"]


def test_a_read_that_hangs_for_long_is_waited_for(
    disk: FaultyDisk, sound: dict[Request, Answer]
) -> None:
    with Wire(MODEL, **FEW, **disk.settings) as wire:
        disk.set(hang_ms=3000)
        (turn,) = wire.turns([OTHER])
        assert turn.answer == sound[OTHER]
        assert turn.perf["expert_wait_s"] > 2.9


def reads_until_end(wire: Wire, disk: FaultyDisk, frame: bytes, word: str, after: str) -> int:
    """Reads from sending ``word`` upon the first record ``after`` until the turn's end."""
    wire.send(frame)
    before = None
    while True:
        for kind, fields in wire.read():
            if kind == after and before is None:
                before = disk.get("reads")
                wire.send(f"{word} 1\n".encode())
            if kind == "DONE" or (kind == "ERROR" and fields["code"] == "CANCELLED"):
                assert before is not None
                return disk.get("reads") - before


@pytest.mark.parametrize("word", ["CANCEL", "STOP"])
@pytest.mark.parametrize("after", ["PREFILL", "DATA"])
def test_turns_end_between_layers_while_the_drive_is_slow(
    disk: FaultyDisk, word: str, after: str, sound: dict[Request, Answer]
) -> None:
    long = Request(" ".join([STORY.prompt] * 8), 60, 1)
    with Wire(MODEL, **FEW, **disk.settings) as wire:
        disk.heal()
        wire.ask([Request(long.prompt, 1, 1)])
        prompt_reads = disk.get("reads")
        n_layers = len(wire.caps["layers"].split(","))
        disk.set(delay_ms=40)
        # Another prompt, so that nothing of it is in the slot.
        frame = Request(f"A {long.prompt}", 60, 1).frame(1, 0)
        reads = reads_until_end(wire, disk, frame, word, after)
        # A layer of a prompt, or a step; and what was under way.
        assert reads < 2 * prompt_reads / n_layers
        disk.heal()
        assert wire.ask([OTHER]) == [sound[OTHER]]


# --- what is remembered ---


def history(state: Path) -> Counter[tuple[int, int]]:
    """The counts by layer and expert; fails for anything but a whole file."""
    files = list(state.rglob(".coli_usage"))
    text = files[0].read_text(encoding="utf-8") if files else ""
    assert not files or text.endswith("\n")
    lines = [tuple(map(int, line.split(" "))) for line in text.splitlines()]
    return Counter({(a, b): n for a, b, n in lines if a >= 0})


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("write_errno", errno.ENOSPC),
        ("write_errno", errno.EIO),
        ("sync_errno", errno.EIO),
        ("rename_errno", errno.ENOSPC),
    ],
)
def test_a_history_that_cannot_be_written_is_told_once(
    disk: FaultyDisk, tmp_path: Path, call: str, error: int, sound: dict[Request, Answer]
) -> None:
    log, state = tmp_path / "log", tmp_path / "state"
    state.mkdir()
    settings: dict[str, Any] = {**disk.settings, "COLIBRI_STATE_DIR": state}
    with Wire(MODEL, **settings) as wire:
        wire.ask([OTHER])
    before = history(state)
    assert before
    disk.set(**{call: error})
    with Wire(MODEL, log=log, **settings) as wire:
        for _ in range(2):
            assert wire.ask([STORY]) == [sound[STORY]]
    assert disk.get("faults") > 0
    assert len(told(log, "notice: the use of experts is not remembered: ")) == 1
    assert history(state) == before
    assert not list(state.rglob("*partial*"))


class Life:
    """An engine that is killed at some moment; its turns are always the same ones."""

    REQUESTS = (OTHER, Request("A cat", 3, 1), Request("Tom", 3, 2))

    def __init__(self, log: Path, settings: dict[str, Any]) -> None:
        # Nothing of one prompt is another's beginning, so that counts add up.
        self.wire = Wire(MODEL, log=log, **settings)
        self.done = 0

    def live(self) -> None:
        """Serves until it is killed, or has done all."""
        try:
            with self.wire as wire:
                for request in self.REQUESTS:
                    wire.ask([request])
                    self.done += 1
        except (EngineEnded, BrokenPipeError):
            assert self.wire.process.wait(60) == -signal.SIGKILL
        finally:
            with contextlib.suppress(BrokenPipeError):
                self.wire.process.communicate()


def gains(settings: dict[str, Any], log: Path, state: Path) -> list[Counter[tuple[int, int]]]:
    """What the history has more after so many turns."""
    gained = [history(state)]
    with Wire(MODEL, log=log, **settings) as wire:
        for request in Life.REQUESTS:
            wire.ask([request])
            gained.append(history(state))
    return gained


def check_history(life: Life, state: Path, before: Counter[tuple[int, int]], gained: Any) -> None:
    """Each turn that is done is remembered; the next one is entirely, or not at all."""
    now = history(state)
    assert now in [before + gain for gain in gained[life.done : life.done + 2]], life.done


@pytest.mark.parametrize("how", ["anywhere", "at a call"])
def test_whenever_an_engine_is_killed_its_history_is_whole(
    disk: FaultyDisk, tmp_path: Path, how: str
) -> None:
    log, state = tmp_path / "log", tmp_path / "state"
    state.mkdir()
    settings: dict[str, Any] = {**disk.settings, "COLIBRI_STATE_DIR": state}
    began = time.monotonic()
    gained = gains(settings, log, state)
    usual_s = time.monotonic() - began
    # Opening, writing, syncing and renaming for each turn, and at the end.
    calls = disk.get("changes")
    assert calls >= 4 * len(Life.REQUESTS)
    chance = random.Random(1)
    killed = 0
    for n in range(1, 31 if how == "anywhere" else calls + 1):
        before = history(state)
        disk.heal()
        if how == "at a call":
            disk.set(kill_at=n)
        life = Life(log, settings)
        killer = threading.Timer(usual_s * chance.random(), life.wire.process.kill)
        if how == "anywhere":
            killer.start()
        life.live()
        killer.cancel()
        killed += life.wire.process.returncode == -signal.SIGKILL
        check_history(life, state, before, gained)
    assert killed > 10
    with Wire(MODEL, log=log, **settings) as wire:
        wire.ask([OTHER])
    assert told(log, "of no use") == []
