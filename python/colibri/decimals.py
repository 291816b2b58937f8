"""Integers that somebody else wrote in digits."""

from __future__ import annotations

# All that counts here is in 64 bits; Python refuses to read integers of thousands of digits.
MOST_DIGITS = 20


def decimal(word: str | bytes) -> int | None:
    """Returns the integer that ASCII digits mean; ``None`` if they are none or far too many."""
    if len(word) <= MOST_DIGITS and word.isascii() and word.isdigit():
        return int(word)
    return None
