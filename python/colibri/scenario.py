"""What a fake engine is told to do: the keys of a scenario, and what each of them may be.

Owns: reading scripts (``.json``) and refusing bad ones in one line. Does not own: playing them
(``fake_engine``). Standard library only, like the player.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from colibri.errors import UsageError

MAX_COUNT = 2**31 - 1
MAX_S = 86400
MAX_EXIT_CODE = 255
DONE_FIELDS = ("emitted", "tok_s", "hit_pct", "rss_gb", "prompt_tokens", "length_limited")
# Longer integers are beyond every key's range, and Python refuses to read the longest.
_MOST_DIGITS = 300


@dataclass(frozen=True)
class Scenario:
    """What a fake engine does; the fields are the keys of a script."""

    # What it is.
    caps: str | None = "proto=1 ctx=64 slots=2 vocab=512 model=fake submit=seed,topk eos=0"
    limit: int = 63  # most prompt tokens, which are words here

    # How it answers.
    tokens: list[str] = field(default_factory=lambda: ["Hello", " there", ",", " friend", "."])
    repeat: int = 1
    topk: bool = False
    length_limited: bool = False
    prefill: list[list[int]] = field(default_factory=list)  # [done, total] records
    repins: int = 0
    error_after: int | None = None  # ends with `error` after that many tokens
    error: str = "ENGINE disk%20read%20failed"

    # Slow.
    load_s: float = 0.0
    accept_s: float = 0.0
    prefill_s: float = 0.0
    token_s: float = 0.0

    # Silent.
    deaf: bool = False  # ignores STOP and CANCEL
    silent_after: int | None = None  # writes nothing more after that many tokens of a turn
    stall_at: int | None = None  # writes nothing more once that many bytes were written

    # Dying.
    stderr: list[str] = field(default_factory=list)  # printed while loading
    exit_before_ready: int | None = None
    exit_after: int | None = None  # ends after that many tokens
    exit_code: int = 70
    kill_after: int | None = None  # kills itself with signal 9 after that many tokens
    last_words: str = ""
    cut_at: int | None = None  # ends once that many bytes were written

    # Lying.
    banner: str = ""  # printed before READY
    raw_after: int | None = None  # sends `raw` after that many tokens
    raw: str = ""
    done: dict[str, str] = field(default_factory=dict)  # fields of DONE, whatever is true

    # Variants.
    prompts: dict[str, dict[str, Any]] = field(default_factory=dict)  # by a text in the prompt
    lives: list[dict[str, Any]] = field(default_factory=list)  # by process started


class _Kind(NamedTuple):
    """What the value of a key may be: in words, and as a check."""

    words: str
    holds: Callable[[Any], bool]

    def or_null(self) -> _Kind:
        return _Kind(f"{self.words}, or null", lambda value: value is None or self.holds(value))


def _integer(high: int) -> _Kind:
    # Not isinstance: true is no integer here.
    return _Kind(
        f"an integer from 0 to {high}", lambda value: type(value) is int and 0 <= value <= high
    )


def _list_of(words: str, item: Callable[[Any], bool]) -> _Kind:
    return _Kind(words, lambda value: isinstance(value, list) and all(map(item, value)))


def _has_bytes(encode: Callable[[str], bytes], value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        encode(value)
    except ValueError:
        return False
    return True


def _is_text(value: Any) -> bool:
    return _has_bytes(str.encode, value)


def _is_token(value: Any) -> bool:
    return _has_bytes(token_bytes, value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_COUNT.holds, value))


def _is_done(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return value.keys() <= set(DONE_FIELDS) and all(map(_is_text, value.values()))


def _is_by_text(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value))


_COUNT = _integer(MAX_COUNT)
_EXIT_CODE = _integer(MAX_EXIT_CODE)
_SECONDS = _Kind(
    f"a number from 0 to {MAX_S}",
    # Not a number is in no range.
    lambda value: type(value) in (int, float) and 0 <= value <= MAX_S,
)
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
# Half of a surrogate pair has no bytes that could be sent.
_TEXT = _Kind("a string without half of a surrogate pair", _is_text)
_TEXTS = _list_of("a list of strings without half of a surrogate pair", _is_text)

_KINDS = {
    "caps": _TEXT.or_null(),
    "limit": _COUNT,
    "tokens": _list_of("a list of strings, each text or hex: and pairs of hex digits", _is_token),
    "repeat": _COUNT,
    "topk": _FLAG,
    "length_limited": _FLAG,
    "prefill": _list_of(f"a list of pairs of integers from 0 to {MAX_COUNT}", _is_pair),
    "repins": _COUNT,
    "error_after": _COUNT.or_null(),
    "error": _TEXT,
    "load_s": _SECONDS,
    "accept_s": _SECONDS,
    "prefill_s": _SECONDS,
    "token_s": _SECONDS,
    "deaf": _FLAG,
    "silent_after": _COUNT.or_null(),
    "stall_at": _COUNT.or_null(),
    "stderr": _TEXTS,
    "exit_before_ready": _EXIT_CODE.or_null(),
    "exit_after": _COUNT.or_null(),
    "exit_code": _EXIT_CODE,
    "kill_after": _COUNT.or_null(),
    "last_words": _TEXT,
    "cut_at": _COUNT.or_null(),
    "banner": _TEXT,
    "raw_after": _COUNT.or_null(),
    "raw": _TEXT,
    "done": _Kind(f"an object of strings with keys of {', '.join(DONE_FIELDS)}", _is_done),
    "prompts": _Kind("an object with keys without half of a surrogate pair", _is_by_text),
    "lives": _list_of("a list of objects", lambda value: isinstance(value, dict)),
}
# Variants do not vary further.
_OF_LIVES = _KINDS.keys() - {"lives"}
_OF_PROMPTS = _OF_LIVES - {"prompts"}


def token_bytes(token: str) -> bytes:
    """A token's bytes: text, or ``hex:`` and digits for parts of characters."""
    return bytes.fromhex(token[4:]) if token.startswith("hex:") else token.encode()


def check(values: Any, where: str, known: Set[str] = _KINDS.keys()) -> dict[str, Any]:
    """Returns the keys of a scenario, or of a variant of one.

    Raises:
        UsageError: they are none of those ``known``, or a value is not what its key may have.
    """
    if not isinstance(values, dict):
        raise UsageError(f"{where} is not a JSON object")
    if unknown := sorted(values.keys() - known):
        names = ", ".join(name for name in _KINDS if name in known)
        raise UsageError(f"{where} has the unknown key {unknown[0]!r}", hint=f"known are {names}")
    for name, value in values.items():
        if not _KINDS[name].holds(value):
            raise UsageError(f"{where}: {name} must be {_KINDS[name].words}")
    for text, variant in values.get("prompts", {}).items():
        check(variant, f"{where}: prompts: {text!r}", _OF_PROMPTS)
    for number, variant in enumerate(values.get("lives", ()), 1):
        check(variant, f"{where}: life {number}", _OF_LIVES)
    return values


def _to_integer(digits: str) -> float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def load(path: Path) -> Scenario:
    """Reads the scenario of the process that begins now.

    Raises:
        UsageError: the script is no scenario.
    """
    try:
        script = json.loads(path.read_text(encoding="utf-8"), parse_int=_to_integer)
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    values = check(script, str(path))
    counter = Path(f"{path}.lives")
    life = len(counter.read_bytes()) if counter.exists() else 0
    with counter.open("ab") as file:
        file.write(b".")
    for override in values.get("lives", [])[life : life + 1]:
        values |= override
    return Scenario(**values)
