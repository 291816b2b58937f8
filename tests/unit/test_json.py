from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.openai.json import MAX_DEPTH, dumps, loads, quote


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'"\\ud800"',
        b'{"\\ud800": 1}',
        b'[["\\udc00"]]',
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * 2_000_000,
    ],
)
def test_refuses(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(body)


def test_reads_what_is_valid() -> None:
    assert loads('{"a": ["ü😀", "\\ud83d\\ude00", 1.5, null]}'.encode()) == {
        "a": ["ü😀", "😀", 1.5, None]
    }


def test_writes_one_line_of_utf8_with_slashes_as_they_are() -> None:
    assert dumps({"a": "</x>\n\u2028ü"}) == '{"a":"</x>\\n\u2028ü"}'


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_writes_no_number_that_is_not_json(value: float) -> None:
    with pytest.raises((OverflowError, ValueError)):
        dumps([value])


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_quotes_like_any_other_value(text: str) -> None:
    assert quote(text) == dumps(text)
