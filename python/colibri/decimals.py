"""Integers that somebody else wrote in digits."""

from __future__ import annotations

# All that counts here is in 64 bits; Python refuses to read integers of thousands of digits.
MOST = 2**64 - 1
MOST_DIGITS = len(str(MOST))


def decimal(word: str | bytes) -> int | None:
    """Returns the integer that ASCII digits mean; ``None`` if they are none or over 64 bits."""
    if not (len(word) <= MOST_DIGITS and word.isascii() and word.isdigit()):
        return None
    value = int(word)
    return value if value <= MOST else None
