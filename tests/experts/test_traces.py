"""Recorded routings, and caches that are compared on them."""

from __future__ import annotations

import contextlib
import json
import random
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from colibri import Model
from colibri.cli import main
from colibri.errors import UsageError
from colibri.quality import HELD_OUT
from colibri.traces import RULES, Trace, record


@pytest.fixture(scope="module")
def told() -> Trace:
    model = Model()
    return record(model, model.encode(HELD_OUT.read_text(encoding="utf-8"))[:500], 32, "demo")


def lru(trace: Trace, slots: int) -> float:
    """The rule once more."""
    kept: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = 0
    for token in trace.choices:
        for layer, chosen in enumerate(token):
            for expert in chosen:
                key = (layer, int(expert))
                hits += key in kept
                kept[key] = None
                kept.move_to_end(key)
                if len(kept) > slots:
                    kept.popitem(last=False)
    return hits / trace.choices.size


def optimal(trace: Trace, slots: int) -> float:
    """Belady's rule once more, by looking through all that follows."""
    uses = [
        (layer, int(expert))
        for token in trace.choices
        for layer, chosen in enumerate(token)
        for expert in chosen
    ]
    following = [len(uses)] * len(uses)
    seen: dict[tuple[int, int], int] = {}
    for time in reversed(range(len(uses))):
        following[time] = seen.get(uses[time], len(uses))
        seen[uses[time]] = time
    kept: dict[tuple[int, int], int] = {}
    hits = 0
    for time, key in enumerate(uses):
        hits += key in kept
        kept[key] = following[time]
        if len(kept) > slots:
            del kept[max(kept, key=kept.__getitem__)]
    return hits / len(uses)


@pytest.mark.parametrize("slots", [4, 16, 40, 80, 160])
def test_rules_serve_what_they_say(told: Trace, slots: int) -> None:
    assert told.hits(slots, "lru") == lru(told, slots)
    assert told.hits(slots, "optimal") == optimal(told, slots)
    # The routing of a model is not what defeats learning.
    assert told.hits(slots, "lru") <= told.hits(slots, "learned") <= told.hits(slots, "optimal")


@pytest.mark.parametrize("seed", range(4))
def test_nothing_to_learn_costs_next_to_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    choices = np.array([[rng.permutation(24)[:3] for _ in range(6)] for _ in range(1200)])
    if seed % 2:
        # What is taken changes all at once, now and then.
        for begin in range(0, 1200, 150):
            favoured = rng.permutation(24)[:6]
            choices[begin : begin + 150] = [
                [rng.permutation(favoured)[:3] for _ in range(6)] for _ in range(150)
            ]
    trace = Trace(choices.astype(np.uint16), 24, "random")
    # Where all changes at once, what was learned is in the way until the rule of age is followed.
    allowed = 0.01 if seed % 2 else 0.0
    for slots in (7, 14, 36, 72):
        assert trace.hits(slots, "learned") >= trace.hits(slots, "lru") - allowed


def test_a_trace_survives_its_file_and_nothing_else_is_one(tmp_path: Path, told: Trace) -> None:
    path = tmp_path / "a trace"
    told.save(path)
    again = Trace.load(path)
    assert np.array_equal(again.choices, told.choices)
    assert (again.experts, again.model) == (32, "demo")
    whole = path.read_bytes()
    other = tmp_path / "other"
    rng = random.Random(1)
    for _ in range(60):
        cut = rng.randrange(len(whole))
        for bytes_ in (whole[:cut], whole[:cut] + b"\x55" + whole[cut + 1 :], b"", b"PK\3\4"):
            other.write_bytes(bytes_)
            # A changed byte may leave the numbers as they were.
            with contextlib.suppress(UsageError):
                Trace.load(other)
    with other.open("wb") as file:
        np.savez(file, choices=np.full((1, 2, 3), 32, np.uint16), experts=32, model="x")
    with pytest.raises(UsageError, match="expert 32 of 32"):
        Trace.load(other)
    for experts in (0, -1, 2**16 + 1, 2**62, 2**64):
        with other.open("wb") as file:
            np.savez(file, choices=np.zeros((1, 2, 3), np.uint16), experts=experts, model="x")
        with pytest.raises(UsageError, match="no trace"):
            Trace.load(other)
    other.write_text("no archive", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        Trace.load(other)
    assert caught.value.hint is not None
    assert "pickle" not in caught.value.hint


def test_the_commands_record_replay_and_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "text.txt"
    other.write_text("kept", encoding="utf-8")
    assert main(["trace", "record", "demo", "--text", str(other), "-o", str(other)]) != 0
    assert "does not take the place of a text" in capsys.readouterr().err
    assert other.read_text(encoding="utf-8") == "kept"
    path = str(tmp_path / "held-out.npz")
    said = main(["trace", "record", "demo", "--text", str(HELD_OUT), "--tokens", "700", "-o", path])
    assert said == 0
    assert "700 tokens, 5 layers, 4 of 32 experts" in capsys.readouterr().out
    assert main(["trace", "replay", path, "--slots", "160"]) == 0
    assert "of uses served by 160 of 160 experts (learned)" in capsys.readouterr().out
    assert main(["trace", "compare", path, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["share"] for row in rows] == [5, 10, 25, 50]
    for row in rows:
        assert 0 <= row["lru"] <= row["optimal"] <= 1
        assert set(RULES) < set(row)
    nowhere = str(tmp_path / "none" / "t.npz")
    record = ["trace", "record", "demo", "--text", str(HELD_OUT), "--tokens", "2", "-o"]
    for target, said in ((nowhere, "none: no such folder"), ("/dev/full", "/dev/full: No space")):
        assert main([*record, target]) == 1
        assert said in capsys.readouterr().err
    assert main(["trace", "compare", path]) == 0
    assert capsys.readouterr().out.count("\n| held-out |") == 4
    for wrong in (["replay", path, "--slots", "3"], ["compare", str(HELD_OUT)]):
        assert main(["trace", *wrong]) != 0
        assert capsys.readouterr().err.startswith("error: ")
