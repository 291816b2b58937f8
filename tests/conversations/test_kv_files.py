"""Conversations outlive their engine, however it ends, and a file never decides what is said."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from colibri.models import demo_folder
from faulty_disk import FaultyDisk, told
from wire import Answer, EngineEnded, Request, Wire

MODEL = demo_folder()
ORACLE = Path(__file__).parent.parent / "data" / "oracle"
# Keys and values, with windows, latents, latents with index keys, states beside either.
FAMILIES = ["llama", "gpt_oss", "glm4_moe_lite", "glm_moe_dsa", "qwen3_next", "kimi_linear"]
RECURRENT = ["qwen3_next", "kimi_linear"]
# How often an engine is killed at a moment that chance chooses.
KILLS = int(os.environ.get("COLIBRI_TEST_KILLS", "30"))

BEGINNING = "Once upon a time there was a little girl who lived in a house near the big forest"
STORY = [
    BEGINNING,
    BEGINNING + " and she had a dog",
    BEGINNING + " and she had a dog and a cat and they played in the sun all day",
]
OTHER = "The bird was very sad because it could not find the other birds"
# Of several blocks of 256 tokens, so that some are written before its turn ends.
LONG = " ".join([OTHER, *(f"and then {i} of them came home" for i in range(66))])
# Most tokens that the demo model was made for.
LONG_CTX = 1024


class Said(NamedTuple):
    """What a turn said, and how many of its prompt's tokens were there already."""

    answer: Answer
    tokens: int
    reused: int


def say(wire: Wire, prompt: str, slot: int = 0, max_tokens: int = 6) -> Said:
    wire.send(Request(prompt, max_tokens, 3).frame(1, slot))
    answer: Answer = []
    tokens = reused = -1
    text = b""
    while True:
        for kind, fields in wire.read():
            if kind == "ACCEPT":
                tokens = fields["prompt_tokens"]
            elif kind == "PREFILL" and reused < 0:
                reused = fields["done"]
            elif kind == "DATA":
                text = fields["data"]
            elif kind == "TOPK":
                answer.append((text, fields["tokens"]))
            elif kind == "ERROR":
                raise AssertionError(fields)
            elif kind == "DONE":
                return Said(answer, tokens, reused)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a test's engines, which keep their conversations there."""
    folder = tmp_path / "state"
    folder.mkdir()
    monkeypatch.setenv("COLIBRI_STATE_DIR", str(folder))
    monkeypatch.setenv("KVSAVE", "1")
    return folder


def kv_file(state: Path, slot: int = 0) -> Path:
    (found,) = state.glob(f"*/.coli_kv{f'.{slot}' if slot else ''}")
    return found


@pytest.fixture(scope="module")
def sound() -> dict[str, Answer]:
    """What each prompt is answered where nothing is remembered."""
    answers = {}
    for prompt in [*STORY, OTHER, LONG]:
        with Wire(MODEL, ctx=LONG_CTX, KVSAVE=0) as wire:
            answers[prompt] = say(wire, prompt).answer
    return answers


@pytest.mark.parametrize("kv", ["f32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_goes_on_after_a_restart(
    family: str, kv: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLIBRI_KV", kv)
    model, log = ORACLE / family, tmp_path / "log"
    # Longer than the distance between two checkpoints of a state.
    prompts = [f"{BEGINNING} {BEGINNING} {BEGINNING} {prompt}" for prompt in STORY]
    with Wire(model, slots=2, KVSAVE=0) as wire:
        expected = [say(wire, prompt, 1) for prompt in prompts]
    with Wire(model, KVSAVE=0) as wire:
        assert say(wire, prompts[2]).answer == expected[2].answer
    for said, prompt in zip(expected, prompts, strict=True):
        with Wire(model, slots=2, log=log) as wire:
            assert say(wire, prompt, 1) == said
    # Only what is new was computed, or what is behind a checkpoint.
    assert expected[0].reused == 0
    for before, after in itertools.pairwise(expected):
        known = before.tokens // 64 * 64 if family in RECURRENT else before.tokens
        assert after.reused >= known > 100
    assert kv_file(state, 1).stat().st_mode & 0o777 == 0o600
    assert not list(state.glob("*/.coli_kv"))
    assert told(log, "notice: ") == [] or family != "llama"


def test_a_file_of_another_precision_is_of_no_use(state: Path, tmp_path: Path) -> None:
    said, sizes = {}, {}
    for kv in ("f32", "bf16"):
        with Wire(MODEL, KVSAVE=0, COLIBRI_KV=kv) as wire:
            said[kv] = say(wire, STORY[0]).answer
    for before, kv in [(None, "f32"), ("f32", "bf16"), ("bf16", "f32")]:
        with Wire(MODEL, log=tmp_path / kv, COLIBRI_KV=kv) as wire:
            turn = say(wire, STORY[0])
            assert (turn.answer, turn.reused) == (said[kv], 0)
        notices = told(tmp_path / kv, "notice: ")
        assert len(notices) == (before is not None)
        assert before is None or "it is of another model" in notices[0]
        with Wire(MODEL, COLIBRI_KV=kv) as wire:
            assert say(wire, STORY[0]).reused > 8
        sizes[kv] = kv_file(state).stat().st_size
    assert 0.5 < sizes["bf16"] / sizes["f32"] < 0.6


def test_a_conversation_may_come_back_in_any_slot(state: Path) -> None:
    with Wire(MODEL, slots=2) as wire:
        say(wire, STORY[0], 0)
        say(wire, OTHER, 1)
    with Wire(MODEL, slots=2) as wire:
        # Each takes the other's place, and pushes nobody out.
        assert say(wire, OTHER + " again", 0).reused > 8
    with Wire(MODEL, slots=2) as wire:
        assert say(wire, STORY[1], 1).reused > 8
        assert say(wire, OTHER + " again", 0).reused > 8


def test_nothing_is_kept_where_that_is_not_wanted(state: Path) -> None:
    for _ in range(2):
        with Wire(MODEL, KVSAVE=0) as wire:
            assert say(wire, STORY[0]).reused == 0
    assert not list(state.glob("*/.coli_kv*"))


# --- the end of an engine ---


def test_what_is_done_is_kept_whatever_comes_then(state: Path) -> None:
    with contextlib.suppress(EngineEnded), Wire(MODEL) as wire:
        first = say(wire, STORY[0])
        wire.process.kill()
    with Wire(MODEL) as wire:
        assert say(wire, STORY[1]).reused >= first.tokens


def test_what_is_cancelled_is_kept_too(state: Path) -> None:
    with contextlib.suppress(EngineEnded), Wire(MODEL) as wire:
        wire.send(Request(STORY[0], 400, 1).frame(1, 0))
        records: list[tuple[str, dict[str, Any]]] = []
        while not any(kind == "DATA" for kind, _ in records):
            records += wire.read()
        wire.send(b"CANCEL 1\n")
        while not any(kind == "ERROR" for kind, _ in records):
            records += wire.read()
        assert records[-1][1]["code"] == "CANCELLED"
        (tokens,) = [fields["prompt_tokens"] for kind, fields in records if kind == "ACCEPT"]
        wire.process.kill()
    with Wire(MODEL) as wire:
        assert say(wire, STORY[1]).reused >= tokens


def test_an_answer_that_sigterm_ends_is_kept(state: Path) -> None:
    with Wire(MODEL, ctx=1024) as wire:
        wire.send(Request(STORY[0], 900, 1).frame(1, 0))
        kinds: list[str] = []
        while kinds.count("DATA") < 5:
            kinds += [kind for kind, _ in wire.read()]
        wire.process.send_signal(signal.SIGTERM)
        while "DONE" not in kinds:
            kinds += [kind for kind, _ in wire.read()]
    with Wire(MODEL) as wire:
        said = say(wire, STORY[1])
        assert said.reused >= said.tokens - 6


@pytest.mark.parametrize("end", ["kill", "CANCEL", "STOP"])
def test_a_long_conversation_is_written_before_its_turn_ends(
    end: str, state: Path, sound: dict[str, Answer]
) -> None:
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    latent = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    token_bytes = 4 + 4 * latent * config["num_hidden_layers"]
    with contextlib.suppress(EngineEnded), Wire(MODEL, ctx=LONG_CTX) as wire:
        wire.send(Request(LONG, 200, 1).frame(1, 0))
        records: list[tuple[str, dict[str, Any]]] = []
        while not any(kind == "DATA" for kind, _ in records):
            records += wire.read()
        (tokens,) = [fields["prompt_tokens"] for kind, fields in records if kind == "ACCEPT"]
        whole = tokens // 256 * 256
        assert whole >= 512
        # The engine waits meanwhile, since nobody reads what it says.
        deadline = time.monotonic() + 60
        while not (files := list(state.glob("*/.coli_kv"))) or (
            files[0].stat().st_size < whole * token_bytes
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if end == "kill":
            wire.process.kill()
        else:
            wire.send(f"{end} 1\n".encode())
        while not any(kind in ("DONE", "ERROR") for kind, _ in records):
            records += wire.read()
    said = sum(kind == "DATA" for kind, _ in records)
    assert said < 200, "its turn has not ended by itself"
    with Wire(MODEL, ctx=LONG_CTX) as wire:
        again = say(wire, LONG)
    assert again.answer == sound[LONG]
    assert again.reused >= (whole if end == "kill" else tokens - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_computed_of_a_prompt_is_kept(family: str, state: Path) -> None:
    model, prompt = ORACLE / family, " ".join([LONG] * 4)[:8000]
    with Wire(model, ctx=4096, KVSAVE=0) as wire:
        expected = say(wire, prompt)
    # A token a step, so that there is time to end it within; else all of it is kept.
    with (
        contextlib.suppress(EngineEnded),
        Wire(model, ctx=4096, COLIBRI_PREFILL_CHUNK=1) as wire,
    ):
        wire.send(Request(prompt, 900, 1).frame(1, 0))
        done, ended = 0, False
        while not ended:
            for kind, fields in wire.read():
                if kind == "PREFILL":
                    done = fields["done"]
                    if done >= 256:
                        wire.send(b"CANCEL 1\n")
                ended |= kind in ("DONE", "ERROR")
        wire.process.kill()
    assert done >= 256
    with Wire(model, ctx=4096) as wire:
        said = say(wire, prompt)
    assert said.answer == expected.answer
    least = min(done, said.tokens - 1)
    # A state is gone back to by 64 tokens or more, and by none where it ends.
    if family in RECURRENT and done == said.tokens:
        least = 64
    assert said.reused >= least


class Life:
    """An engine that is killed at some moment; what it says is checked until then."""

    PROMPTS = (STORY[0], STORY[2], OTHER, LONG)

    def __init__(self, log: Path, settings: dict[str, Any]) -> None:
        self.wire = Wire(MODEL, ctx=LONG_CTX, log=log, **settings)
        # The turn under way, and how many tokens that it begins with must not be lost.
        self.under_way, self.kept = self.PROMPTS[0], 0

    def live(self, sound: dict[str, Answer]) -> None:
        """Serves until it is killed, or has done all."""
        try:
            with self.wire as wire:
                for before, prompt in itertools.pairwise(("", *self.PROMPTS)):
                    if not prompt.startswith(before):
                        self.kept = 0
                    self.under_way = prompt
                    said = say(wire, prompt)
                    assert said.answer == sound[prompt]
                    self.kept = said.tokens
        except (EngineEnded, BrokenPipeError):
            assert self.wire.process.wait(60) == -signal.SIGKILL
        finally:
            with contextlib.suppress(BrokenPipeError):
                self.wire.process.communicate()


@pytest.mark.parametrize("how", ["anywhere", "at a call"])
def test_whenever_an_engine_is_killed_its_conversation_is_whole(
    how: str, state: Path, tmp_path: Path, sound: dict[str, Answer]
) -> None:
    log = tmp_path / "log"
    disk = FaultyDisk(tmp_path, writes=".coli_kv")
    began = time.monotonic()
    Life(log, disk.settings).live(sound)
    usual_s = time.monotonic() - began
    calls = disk.get("changes")
    assert calls > 30
    chance = random.Random(1)
    killed = 0
    for n in range(1, KILLS + 1 if how == "anywhere" else calls + 1):
        disk.heal()
        if how == "at a call":
            disk.set(kill_at=n)
        life = Life(log, disk.settings)
        killer = threading.Timer(usual_s * chance.random(), life.wire.process.kill)
        if how == "anywhere":
            killer.start()
        life.live(sound)
        killer.cancel()
        killed += life.wire.process.returncode == -signal.SIGKILL
        # A turn that was done is not lost.
        disk.heal()
        with Wire(MODEL, ctx=LONG_CTX, log=log, **disk.settings) as wire:
            said = say(wire, life.under_way)
        assert said.answer == sound[life.under_way]
        assert said.reused >= min(life.kept, said.tokens - 1), n
    assert killed > 10
    assert told(log, "of no use") == []
    assert told(log, "not saved") == []


# --- files that are of no use ---


FAULTS = ["empty", "text", "header", "record", "tail", "cut", "foreign", "link", "folder"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_is_of_no_use_is_replaced_with_one_notice(
    fault: str, state: Path, tmp_path: Path, sound: dict[str, Answer]
) -> None:
    log = tmp_path / "log"
    with Wire(MODEL) as wire:
        say(wire, STORY[1])
    file = kv_file(state)
    data = bytearray(file.read_bytes())
    if fault == "empty":
        data.clear()
    elif fault == "text":
        data[:] = b"-1 5 3\n" * 100
    elif fault in ("header", "record", "tail"):
        data[{"header": 20, "record": len(data) // 2, "tail": len(data) - 5}[fault]] ^= 4
    elif fault == "cut":
        del data[-3:]
    elif fault == "foreign":
        with Wire(ORACLE / "llama") as wire:
            say(wire, STORY[1])
        (other,) = (found for found in state.glob("*/.coli_kv") if found != file)
        data[:] = other.read_bytes()
    file.unlink()
    if fault == "link":
        (state / "elsewhere").write_bytes(data)
        file.symlink_to(state / "elsewhere")
    elif fault == "folder":
        file.mkdir()
    else:
        file.write_bytes(data)
    with Wire(MODEL, log=log) as wire:
        said = say(wire, STORY[2])
        assert said.answer == sound[STORY[2]]
        assert said.reused == 0
    notices = told(log, "notice: ")
    if fault == "folder":
        # It cannot be replaced, which is told too.
        assert len(notices) == 2
        shutil.rmtree(file)
        return
    (notice,) = notices
    assert str(file) in notice
    with Wire(MODEL, log=log) as wire:
        said = say(wire, STORY[2])
        assert said.reused == said.tokens - 1
    assert told(log, "notice: ") == [notice]


def test_a_second_engine_on_a_folder_saves_nothing(
    state: Path, tmp_path: Path, sound: dict[str, Answer]
) -> None:
    log = tmp_path / "log"
    with Wire(MODEL) as wire:
        say(wire, STORY[0])
        before = kv_file(state).read_bytes()
        with Wire(MODEL, log=log) as second:
            assert say(second, OTHER).answer == sound[OTHER]
        assert kv_file(state).read_bytes() == before
        assert say(wire, STORY[1]).answer == sound[STORY[1]]
    assert len(told(log, "notice: conversations are not saved: another engine")) == 1


def test_a_folder_that_cannot_be_written_to_is_told_once(
    state: Path, tmp_path: Path, sound: dict[str, Answer]
) -> None:
    log = tmp_path / "log"
    with Wire(MODEL) as wire:
        say(wire, STORY[0])
    lock = kv_file(state).with_name(".coli_kv.lock")
    lock.unlink()
    lock.mkdir()
    with Wire(MODEL, log=log) as wire:
        for prompt in STORY:
            assert say(wire, prompt).answer == sound[prompt]
    assert len(told(log, "notice: ")) == 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("write_errno", errno.ENOSPC),
        ("write_errno", errno.EIO),
        ("sync_errno", errno.EIO),
        ("rename_errno", errno.ENOSPC),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_disk_that_takes_no_more_is_told_once(
    call: str, error: int, there: bool, state: Path, tmp_path: Path, sound: dict[str, Answer]
) -> None:
    log = tmp_path / "log"
    disk = FaultyDisk(tmp_path, writes=".coli_kv")
    with Wire(MODEL, **disk.settings) as wire:
        if there:
            say(wire, OTHER)
    disk.set(**{call: error})
    with Wire(MODEL, log=log, **disk.settings) as wire:
        for prompt in STORY:
            assert say(wire, prompt).answer == sound[prompt]
    # A file that is there is not renamed.
    faulty = not (there and call == "rename_errno")
    assert (disk.get("faults") > 0) == faulty
    assert len(told(log, "notice: conversations are not saved any more: ")) == faulty
    assert not list(state.rglob("*partial*"))
    disk.heal()
    with Wire(MODEL, log=log, **disk.settings) as wire:
        for prompt in STORY:
            assert say(wire, prompt).answer == sound[prompt]
    assert told(log, "of no use") == []


def test_a_drive_that_hangs_does_not_hold_up_the_end(state: Path, tmp_path: Path) -> None:
    disk, log = FaultyDisk(tmp_path, writes=".coli_kv"), tmp_path / "log"
    with Wire(MODEL, log=log, **disk.settings) as wire:
        say(wire, STORY[0])
        disk.set(sync_stuck=1)
        # Its sync begins, and the next turn is written after it.
        say(wire, STORY[1])
        wire.send(Request(STORY[2], 3, 3).frame(2, 0))
        while not any(kind == "DATA" for kind, _ in wire.read()):
            pass
        began = time.monotonic()
        wire.process.send_signal(signal.SIGTERM)
        ends = []
        with contextlib.suppress(EngineEnded):
            while True:
                ends += [fields["id"] for kind, fields in wire.read() if kind == "DONE"]
        assert ends == [2]
        assert wire.process.wait(30) == 0
        assert time.monotonic() - began < 20
    assert len(told(log, "the drive has not answered for 5 s")) == 1
    disk.heal()


def test_no_answer_waits_for_the_drive(state: Path, tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, writes=".coli_kv")
    with Wire(MODEL, slots=2, ctx=1024, **disk.settings) as wire:
        say(wire, OTHER, 1)
        disk.set(sync_ms=1500)
        wire.send(Request(STORY[0], 900, 1).frame(7, 0))
        # The second turn of the other slot is written when the first one's sync has ended.
        wire.send(Request(OTHER, 3, 1).frame(8, 1))
        told: list[tuple[str, dict[str, Any]]] = []
        ended: list[tuple[float, int]] = []
        while len(ended) < 2:
            for kind, fields in wire.read():
                told.append((kind, fields))
                if kind == "DONE" and fields["id"] != 7:
                    said = sum(k == "DATA" and f["id"] == 7 for k, f in told)
                    ended.append((time.monotonic(), said))
                    wire.send(Request(OTHER + " yet", 3, 1).frame(9, 1))
        (first, before), (second, after) = ended
        assert second - first > 1.0
        assert after - before > 10
        disk.heal()
        wire.send(b"STOP 7\n")
