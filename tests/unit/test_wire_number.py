from __future__ import annotations

import pytest

from colibri.wire_number import wire_integer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("007", 7),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", None),
        ("000000000000000000001", None),
        ("9" * 5000, None),
        ("", None),
        ("-1", None),
        ("+1", None),
        (" 1", None),
        ("1_0", None),
        ("1\n", None),
        ("²", None),
        ("\u0661", None),
    ],
)
def test_only_unsigned_64_bit_integers_are_numbers(text: str, value: int | None) -> None:
    assert wire_integer(text) == value
    assert wire_integer(text.encode()) == value
