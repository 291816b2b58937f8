from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.engine_process import EngineConfig
from colibri.errors import ProtocolError
from colibri.legacy_process import (
    END,
    READY,
    AnswerReader,
    Event,
    LegacyEngine,
    Ready,
    Stat,
    parse_stat,
)

SESSION = (
    b"== an older engine ==\nloaded in 3 s\n\x01\x01REA" + READY + b"\nSTAT 0 0.00 0.0 1.00\n"
    b"TIERS 0 1 2 0.00 0.10\nNEWS of a later version\n"
    + END
    + b"\nSTAT 0 0.00 0.0 1.00\nHello\n\x01\x01E\nthere.\n\n"
    + END
    + b"\nSTAT 5 1.00 2.0 3.00 12 1\n"
    + END
    + b"\r\nSTAT 0 0.00 0.0 1.00 0 0\r\n\xc3\n"
    + END
    + b"\nSTAT 1 1.00 2.0 3.00\n"
)
ANSWERS = [
    Ready(),
    b"\nSTAT 0 0.00 0.0 1.00\nTIERS 0 1 2 0.00 0.10\nNEWS of a later version",
    Stat(0),
    b"Hello\n\x01\x01E\nthere.\n",
    Stat(5, 12, True),
    Stat(0, 0, False),
    b"\xc3",
    Stat(1),
]


def joined(events: list[Event]) -> list[Event]:
    result: list[Event] = []
    for event in events:
        if isinstance(event, bytes) and result and isinstance(result[-1], bytes):
            result[-1] += event
        else:
            result.append(event)
    return result


@given(st.lists(st.integers(0, len(SESSION)), max_size=20))
def test_answers_are_the_same_for_every_split(cuts: list[int]) -> None:
    reader = AnswerReader()
    events = []
    edges = [0, *sorted(cuts), len(SESSION)]
    for start, end in pairwise(edges):
        events += reader.feed(SESSION[start:end])
    assert joined(events) == ANSWERS


def test_byte_by_byte_nothing_of_an_end_is_shown() -> None:
    reader = AnswerReader()
    events = [event for i in range(len(SESSION)) for event in reader.feed(SESSION[i : i + 1])]
    assert joined(events) == ANSWERS


def test_text_is_not_kept_until_the_end() -> None:
    reader = AnswerReader()
    list(reader.feed(READY + b"\n" + END + b"\nSTAT 0 0.00 0.0 1.00\n"))
    assert list(reader.feed(b"abc")) == [b"abc"]
    assert list(reader.feed(b"d\n")) == [b"d"]
    assert list(reader.feed(b"\x01\x01")) == []
    assert list(reader.feed(b"\x01")) == [b"\n\x01"]


@pytest.mark.parametrize(
    ("line", "stat"),
    [
        (b"STAT 0 0.00 0.0 0.02", Stat(0)),
        (b"STAT 7 12.5 -0.000 1 30 0", Stat(7, 30, False)),
        (b"STAT 7 1e3 nan 1.123456 30 1 9 9", Stat(7, 30, True)),
        (b"STAT 7 1.0 2.0 3.0 swap_pct=1.5 route_swaps=2", Stat(7)),
        (b"STAT 7 1.0 2.0 3.0 30 1 swap_pct=1.5", Stat(7, 30, True)),
    ],
)
def test_stat_is_read_by_position(line: bytes, stat: Stat) -> None:
    assert parse_stat(line) == stat


@pytest.mark.parametrize("line", [b"", b"STAT", b"STAT x 0 0 0", b"STAT 1 2", b"HITS 1 2 3 4"])
def test_something_else_behind_an_answer_is_an_error(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="STAT"):
        list(AnswerReader().feed(READY + b"\n" + END + b"\n" + line + b"\n"))


def test_what_has_no_end_is_not_kept() -> None:
    reader = AnswerReader()
    list(reader.feed(READY + b"\n" + END + b"\n"))
    with pytest.raises(ProtocolError, match="no STAT"):
        list(reader.feed(b"x" * 5000))


def test_what_comes_before_a_fault_is_not_lost() -> None:
    events: list[Event] = []
    with pytest.raises(ProtocolError, match="FOO"):
        events.extend(AnswerReader().feed(SESSION + b"half\n" + END + b"\nFOO\n"))
    assert joined(events) == [*ANSWERS, b"half"]


async def test_refusals_that_nobody_waits_for_are_logged_and_not_kept(tmp_path: Path) -> None:
    logged: list[str] = []
    script = (
        "printf '\\001\\001READY\\001\\001\\n'; end='\\001\\001END\\001\\001\\nSTAT 0 0 0 0\\n'; "
        'read -r line; printf "$end"; read -r line; '
        'for n in 1 2 3; do echo "error: request: no $n" >&2; done; sleep 0.2; printf "$end"; '
        'read -r line; printf "$end"; read -r line'
    )
    config = EngineConfig(tmp_path, command=("sh", "-c", script))
    engine = LegacyEngine(config, on_progress=lambda *_: None, on_log=logged.append)
    await engine.start()
    try:
        async for _ in engine.ask(b"hi"):
            pass
        assert logged == ["error: request: no 2", "error: request: no 3"]
        async for _ in engine.ask(b"again"):
            pass
        assert logged[2:] == ["error: request: no 1"]
        assert await engine.refusal() is None
    finally:
        await engine.stop()
