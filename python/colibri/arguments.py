"""Checks of arguments of the Python interface; each message names the one argument."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping, Set
from numbers import Real
from typing import Any

MAX_THREADS = 1024
MAX_PREFILL_CHUNK = 1 << 16
MAX_EXPERT_SLOTS = 1 << 16
MAX_TOKENS = 2**31 - 1
MAX_ID = 2**32 - 1
MAX_SEED = 2**64 - 1


def integer(name: str, value: Any, low: int, high: int) -> int:
    """Returns an integer of any integer type.

    Raises:
        TypeError: it is none.
        ValueError: it is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {_type(value)}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {number}")
    return number


def real(name: str, value: Any, low: float, high: float, *, above_low: bool = False) -> float:
    """Returns a number of any real type; minus zero is zero.

    Raises:
        TypeError: it is none.
        ValueError: it is out of range.
    """
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {_type(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not low <= number <= high or (above_low and number == low):
        most = f"{high:,.15g}"
        bound = f"above {low:g}, at most {most}" if above_low else f"from {low:g} to {most}"
        raise ValueError(f"{name} must be {bound}, not {number}")
    return number + 0.0


def text(name: str, value: Any) -> str:
    """Returns a string that has an encoding.

    Raises:
        TypeError: it is no string.
        ValueError: it holds half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {_type(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds half of a surrogate pair") from error
    return value


def texts(name: str, value: Any) -> list[str]:
    """Returns strings, none of them empty; one string is not taken for its characters.

    Raises:
        TypeError: they are none.
        ValueError: one is empty or has no encoding.
    """
    found = enumerate(_entries(name, value, "a list of strings"))
    entries = [text(f"{name}[{at}]", entry) for at, entry in found]
    if "" in entries:
        raise ValueError(f"{name} must not hold an empty string")
    return entries


def ids(name: str, value: Any, wanted: str = "a list of integers") -> list[int]:
    """Returns token ids; ``wanted`` says what else the argument may be.

    Raises:
        TypeError: they are none.
        ValueError: one is out of range.
    """
    entries = enumerate(_entries(name, value, wanted))
    return [integer(f"{name}[{at}]", entry, 0, MAX_ID) for at, entry in entries]


def biases(name: str, value: Any) -> list[tuple[int, float]]:
    """Returns token ids with what is added to their logits.

    Raises:
        TypeError: they are none.
        ValueError: one is out of range.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of token ids to numbers, not {_type(value)}")
    return [
        (integer(f"{name} token", token, 0, MAX_ID), real(f"{name}[{token}]", bias, -100, 100))
        for token, bias in value.items()
    ]


def path(name: str, value: Any) -> str:
    """Returns a path as text.

    Raises:
        TypeError: it is no path.
        ValueError: it has no encoding.
    """
    return text(name, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _entries(name: str, value: Any, wanted: str) -> Iterable[Any]:
    # Bytes iterate as integers and dictionaries as their keys, which nobody can have meant.
    wrong = (str, bytes, bytearray, memoryview, Mapping, Set)
    if isinstance(value, wrong) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be {wanted}, not {_type(value)}")
    return value


def _type(value: Any) -> str:
    return type(value).__name__
