from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.errors import ProtocolError
from colibri.legacy_process import END, READY, AnswerReader, Event, Ready, Stat, parse_stat

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
    reader.feed(READY + b"\n" + END + b"\nSTAT 0 0.00 0.0 1.00\n")
    assert reader.feed(b"abc") == [b"abc"]
    assert reader.feed(b"d\n") == [b"d"]
    assert reader.feed(b"\x01\x01") == []
    assert reader.feed(b"\x01") == [b"\n\x01"]


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
        AnswerReader().feed(READY + b"\n" + END + b"\n" + line + b"\n")


def test_what_has_no_end_is_not_kept() -> None:
    reader = AnswerReader()
    reader.feed(READY + b"\n" + END + b"\n")
    with pytest.raises(ProtocolError, match="no STAT"):
        reader.feed(b"x" * 5000)
