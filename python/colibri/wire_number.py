"""Integers as the wire has them. Whatever an engine or a script wrote is read by this, not by int.

``int`` takes signs, spaces and digits of other alphabets, and raises for more than 4300 digits.
"""

from __future__ import annotations

MAX = 2**64 - 1
MAX_DIGITS = 20


def wire_integer(text: str | bytes) -> int | None:
    """The number, or ``None`` if this is no unsigned 64-bit integer in at most 20 digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        return None
    value = int(text)
    return value if value <= MAX else None
