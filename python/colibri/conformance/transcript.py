r"""Golden transcripts: files of one rule each, what is sent and what must come back.

A file has a head of ``key: value`` lines, an empty line, then steps; ``#`` begins a comment line.

Head (``rule``, ``tag`` and ``text`` must be there)::

    rule      id, like cancel/acknowledged
    tag       seed | compat | ours: where the rule comes from
    section   of docs/protocol.md
    text      the rule in one sentence
    covers    comma list of what it proves, like error:CANCELLED (tests compare with the tables)
    wire      wire modes it holds in; all of them if left out
    needs     submit options that CAPS must list, else the rule does not apply
    slots     KV slots the engine is started with (2); ctx: its context (4096)
    env       further NAME=value pairs it is started with
    order     requests: each request's records in their own order, others in between (default)
              stream: one order for all
    watch     kinds of records that may come only where steps have them. Otherwise that holds
              for READY, STAT, DONE, ERROR and the kinds that steps name; the rest is skipped

Steps::

    > bytes      to the engine; no newline is added
    < record     exactly one; + one or more; ? at most one; * any number
    - record     exactly one, which shows that the rule cannot be judged this time
    ~ record     exactly one, which the next actions and sent bytes do not wait for
    either       then steps, ``or``, steps, ``end``: one of the branches
    $ action     eof | exit CODE | exit any | signal NAME | wait SECONDS

Bytes have escapes as in Python (``\n \r \t \0 \\ \xNN``); ``{fill:COUNT:text}`` repeats a text;
``{if:OPTION}`` is `` OPTION`` if CAPS offers that submit option, like ignore_eos=1, else nothing.
Records are written without their last newline and may have further fields. Placeholders::

    {n} integer          {i} one that may be negative
    {f} decimal number   {f3} one with 3 decimals
    {x} bytes in hex     {h} the same, or - for none
    {w} word             {s} all up to the end of the line
    {t} text without |   {data} count, newline and payload of DATA

``{n:name}`` remembers what matched, and matches only that from then on. ``{n:2..5}`` bounds an
integer. ``{f3...}`` is one or more of them.
``@full,seed `` before a step leaves it out in other wire modes.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from colibri.decimals import decimal

TAGS = ("seed", "compat", "ours")
WIRES = ("full", "seed", "upstream")
_DEEPEST = 16  # of choices in choices
ADDRESSED = {b"ACCEPT", b"PREFILL", b"DATA", b"TOPK", b"PERF", b"DONE", b"ERROR"}

# What sent bytes may repeat.
MAX_FILLED_BYTES = 64 << 20

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_BYTES = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\([nrt0\\])"
    r"|\{fill:(\d{1,8}):((?:[^{}\\]|\\.)*)\}|\{if:(\w+=\w+)\}"
    r"|((?!\{fill|\{if)[^\\])"
)
_PLACEHOLDER = re.compile(
    r"\{([nifxhwst]|data|f[1-9])(?::(?:(\d{1,18})\.\.(\d{1,18})|([a-z]\w*)))?(\.\.\.)?\}"
)
_SIGNALS = "|".join(number.name.removeprefix("SIG") for number in signal.Signals)
_ACTION = (
    r"eof|exit (?:[01]?\d?\d|2[0-4]\d|25[0-5]|any)"
    rf"|signal (?:{_SIGNALS})|wait \d{{1,5}}(\.\d{{1,9}})?"
)
_WHOLE_DATA = re.compile(rb"DATA \d+ (\d+)(?: [^\n]*)?\n(.*)", re.DOTALL)
_REGEX = {
    "n": rb"\d+",
    "i": rb"-?\d+",
    "f": rb"-?\d+\.\d+",
    "x": rb"(?:[0-9a-f]{2})+",
    "h": rb"(?:(?:[0-9a-f]{2})+|-)",
    "w": rb"[^ \n]+",
    "s": rb"[^\n]+",
    "t": rb"[^|\n]*",
    "data": rb"\d+\n[\x00-\xff]*",
}


class TranscriptError(ValueError):
    """A transcript that cannot be read; says where."""


@dataclass(frozen=True)
class Placeholder:
    """A part of a record that is not fixed."""

    kind: str
    name: str | None = None
    bounds: tuple[int, int] | None = None
    many: bool = False

    @property
    def regex(self) -> bytes:
        """A pattern without groups."""
        one = _REGEX.get(self.kind) or rb"-?\d+\.\d{%d}" % int(self.kind[1:])
        return rb"%s(?: %s)*" % (one, one) if self.many else one


@dataclass(frozen=True)
class Offered:
    """A submit option that is sent where the engine offers it."""

    option: str


@dataclass(frozen=True)
class Pattern:
    """A record with placeholders."""

    text: str
    parts: tuple[bytes | Placeholder, ...]

    @property
    def kind(self) -> bytes:
        """The record's first word."""
        return kind_of(self._start)

    @property
    def request(self) -> int | None:
        """The request that the record is about."""
        return request_of(self._start)

    @property
    def _start(self) -> bytes:
        first = self.parts[0] if self.parts else b""
        return first if isinstance(first, bytes) else b""

    def match(self, record: bytes, known: Mapping[str, bytes]) -> dict[str, bytes] | None:
        """Compares with a record, its newline included.

        Args:
            record: all its bytes.
            known: what placeholders remember already.

        Returns:
            What further placeholders remember, or ``None`` if the record is another.
        """
        new: dict[str, bytes] = {}
        groups: list[Placeholder] = []
        regex = b""
        for part in self.parts:
            if isinstance(part, bytes):
                regex += re.escape(part)
            elif part.name is not None and part.name in known:
                regex += re.escape(known[part.name])
            else:
                regex += b"(" + part.regex + b")"
                groups.append(part)
        further = b"" if self.kind == b"DATA" else rb"(?: [^\n]*)?"
        found = re.fullmatch(regex + further + b"\n", record)
        if found is None:
            return None
        for part, value in zip(groups, found.groups(), strict=True):
            if part.bounds is not None and not _is_within(value, part.bounds):
                return None
            if part.name is not None and new.setdefault(part.name, value) != value:
                return None
        return new


@dataclass(frozen=True)
class Send:
    """Bytes to the engine."""

    line: int
    parts: tuple[bytes | Offered, ...]

    def data(self, offered: Collection[str]) -> bytes:
        """The bytes, for an engine with these submit options."""
        data = b""
        for part in self.parts:
            if isinstance(part, Offered):
                if part.option.partition("=")[0] in offered:
                    data += b" " + part.option.encode()
            else:
                data += part
        return data


@dataclass(frozen=True)
class Expect:
    """Records from the engine."""

    line: int
    often: Literal["<", "+", "~", "-", "?", "*"]
    pattern: Pattern

    @property
    def required(self) -> bool:
        """Whether it must come."""
        return self.often in "<+~-"


@dataclass(frozen=True)
class Choice:
    """One of several sequences of records."""

    line: int
    branches: tuple[tuple[Expect | Choice, ...], ...]

    @property
    def required(self) -> bool:
        """Whether something of it must come."""
        return all(any(step.required for step in branch) for branch in self.branches)


@dataclass(frozen=True)
class Action:
    """Something done to the engine, or its end: eof, exit, signal or wait."""

    line: int
    name: str
    value: str


Step = Send | Expect | Choice | Action


@dataclass(frozen=True)
class Start:
    """How an engine is started; rules that share it can share a process."""

    slots: int = 2
    ctx: int = 4096
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Transcript:
    """A rule."""

    rule: str
    tag: str
    text: str
    section: str = ""
    covers: frozenset[str] = frozenset()
    wires: frozenset[str] = frozenset(WIRES)
    needs: frozenset[str] = frozenset()
    start: Start = Start()
    ordered: bool = False
    watch: frozenset[bytes] = frozenset()
    file: str = ""
    _steps: tuple[tuple[frozenset[str], Step], ...] = field(default=(), repr=False)

    def steps(self, wire: str) -> list[Step]:
        """The steps in a wire mode."""
        return [step for wires, step in self._steps if wire in wires]


def kind_of(record: bytes) -> bytes:
    """The first word of a record."""
    return re.split(rb"[ \n]", record, maxsplit=1)[0]


def request_of(record: bytes) -> int | None:
    """The id of the request a record is about, ``None`` for those about the engine."""
    words = record.split(b"\n", 1)[0].split(b" ")
    return decimal(words[1]) if len(words) > 1 and words[0] in ADDRESSED else None


def _is_within(value: bytes, bounds: tuple[int, int]) -> bool:
    number = decimal(value)
    return number is not None and bounds[0] <= number <= bounds[1]


def parse_pattern(text: str) -> Pattern:
    """Reads a record with placeholders.

    Raises:
        TranscriptError: it has an escape or a brace that means nothing.
    """
    parts: list[bytes | Placeholder] = []
    at = 0
    for found in _PLACEHOLDER.finditer(text):
        parts.append(_literal(text[at : found.start()]))
        kind, low, high, name, many = found.groups()
        if low is not None and kind not in "ni":
            raise TranscriptError(f"only integers have bounds: {found[0]}")
        bounds = None if low is None else (int(low), int(high))
        if bounds is not None and bounds[0] > bounds[1]:
            raise TranscriptError(f"no integer is within {found[0]}")
        parts.append(Placeholder(kind, name, bounds, many is not None))
        at = found.end()
    parts.append(_literal(text[at:]))
    pattern = Pattern(text, tuple(part for part in parts if part))
    if len(pattern.parts) == 1 and isinstance(data := pattern.parts[0], bytes):
        whole = _WHOLE_DATA.fullmatch(data)
        if whole is not None and whole[1] != b"%d" % len(whole[2]):
            raise TranscriptError(f"the payload has {len(whole[2])} bytes, not {whole[1].decode()}")
    return pattern


def _literal(text: str) -> bytes:
    parts = _byte_parts(text)
    if "{" in text or "}" in text:
        raise TranscriptError(f"unknown placeholder in {text[:80]!r}")
    return b"".join(part for part in parts if isinstance(part, bytes))


def _byte_parts(text: str) -> tuple[bytes | Offered, ...]:
    parts: list[bytes | Offered] = []
    at = 0
    while at < len(text):
        found = _BYTES.match(text, at)
        if found is None:
            raise TranscriptError(f"unknown escape in {text[at : at + 8]!r}")
        number, letter, count, filling, option, plain = found.groups()
        if number:
            parts.append(bytes([int(number, 16)]))
        elif letter:
            parts.append(_ESCAPES[letter])
        elif count:
            repeated = _literal(filling)
            if int(count) * len(repeated) > MAX_FILLED_BYTES:
                raise TranscriptError(f"more than {MAX_FILLED_BYTES >> 20} MiB: {found[0][:40]}")
            parts.append(repeated * int(count))
        elif option:
            parts.append(Offered(option))
        else:
            parts.append(plain.encode())
        at = found.end()
    return tuple(_joined(parts))


def _joined(parts: list[bytes | Offered]) -> Iterator[bytes | Offered]:
    run = b""
    for part in parts:
        if isinstance(part, bytes):
            run += part
        else:
            if run:
                yield run
            run = b""
            yield part
    if run:
        yield run


class _Lines:
    """The lines of a file that say something; ``number`` is that of the last one taken."""

    def __init__(self, text: str) -> None:
        self.number = 0
        self._left = deque(
            (number, line)
            for number, line in enumerate(text.splitlines(), 1)
            if not line.startswith("#")
        )

    def take(self) -> str | None:
        """The next line, ``None`` at the end."""
        if not self._left:
            return None
        self.number, line = self._left.popleft()
        return line


def parse(text: str, name: str) -> Transcript:
    """Reads a transcript; ``name`` is what errors call it.

    Raises:
        TranscriptError: it is not one.
    """
    lines = _Lines(text)
    try:
        head = _parse_head(lines)
        return _transcript(name, head, _parse_steps(lines))
    except TranscriptError as error:
        raise TranscriptError(f"{name}:{lines.number}: {error}") from None


def read(path: Path) -> Transcript:
    """Reads the transcript in a file.

    Raises:
        TranscriptError: it is not one.
        OSError: the file cannot be read.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise TranscriptError(f"{path} is not valid UTF-8") from None


_KEYS = {"rule", "tag", "section", "text", "covers", "wire", "needs", "slots", "ctx", "env"}
_KEYS |= {"order", "watch"}


def _parse_head(lines: _Lines) -> dict[str, str]:
    head: dict[str, str] = {}
    while (line := lines.take()) is not None:
        if not line:
            if head:
                break
            continue
        key, colon, value = line.partition(":")
        if not colon or key not in _KEYS or key in head:
            raise TranscriptError(f"not a line of the head: {line!r}")
        head[key] = value.strip()
        _check_value(key, head[key])
    missing = {"rule", "tag", "text"} - set(head)
    if missing:
        raise TranscriptError(f"the head lacks {', '.join(sorted(missing))}")
    return head


def _check_value(key: str, value: str) -> None:
    if key == "tag" and value not in TAGS:
        raise TranscriptError(f"the tag is one of {', '.join(TAGS)}")
    if key == "order" and value not in ("requests", "stream"):
        raise TranscriptError("the order is requests or stream")
    if key in ("slots", "ctx") and not re.fullmatch("[0-9]{1,9}", value):
        raise TranscriptError(f"{key} must be an integer of at most 9 digits, not {value[:20]!r}")
    if key == "wire":
        _wires(value)


def _transcript(
    name: str, head: dict[str, str], steps: tuple[tuple[frozenset[str], Step], ...]
) -> Transcript:
    env = [pair.partition("=") for pair in head.get("env", "").split()]
    return Transcript(
        rule=head["rule"],
        tag=head["tag"],
        text=head["text"],
        section=head.get("section", ""),
        covers=_items(head.get("covers", "")),
        wires=_wires(head["wire"]) if "wire" in head else frozenset(WIRES),
        needs=_items(head.get("needs", "")),
        start=Start(
            slots=int(head.get("slots", str(Start.slots))),
            ctx=int(head.get("ctx", str(Start.ctx))),
            env=tuple((key, value) for key, _, value in env),
        ),
        ordered=head.get("order") == "stream",
        watch=frozenset(item.encode() for item in _items(head.get("watch", ""))),
        file=name,
        _steps=steps,
    )


def _items(text: str) -> frozenset[str]:
    return frozenset(item for item in re.split(r"[ ,]+", text) if item)


def _wires(text: str) -> frozenset[str]:
    wires = _items(text)
    if not wires or wires - set(WIRES):
        raise TranscriptError(f"wire modes are {', '.join(WIRES)}")
    return wires


def _parse_steps(lines: _Lines) -> tuple[tuple[frozenset[str], Step], ...]:
    steps: list[tuple[frozenset[str], Step]] = []
    while (full_line := lines.take()) is not None:
        wires, line = _guard(full_line)
        if line == "either":
            steps.append((wires, _choice(lines, 1)))
        elif line:
            steps.append((wires, _step(lines.number, line)))
    return tuple(steps)


def _choice(lines: _Lines, depth: int) -> Choice:
    if depth > _DEEPEST:
        raise TranscriptError(f"choices are nested deeper than {_DEEPEST}")
    start = lines.number
    branches: list[list[Expect | Choice]] = [[]]
    while (line := lines.take()) != "end":
        if line is None:
            raise TranscriptError("a choice has no end")
        if line == "or":
            branches.append([])
        elif line == "either":
            branches[-1].append(_choice(lines, depth + 1))
        elif line:
            step = _step(lines.number, line)
            if not isinstance(step, Expect):
                raise TranscriptError("a choice is between records")
            branches[-1].append(step)
    return Choice(start, tuple(tuple(branch) for branch in branches))


def _guard(line: str) -> tuple[frozenset[str], str]:
    if not line.startswith("@"):
        return frozenset(WIRES), line
    wires, _, rest = line[1:].partition(" ")
    return _wires(wires), rest


def _step(number: int, line: str) -> Step:
    mark, text = line[:1], line[2:]
    if line[1:2] != " " or mark not in "><+~-?*$":
        raise TranscriptError(f"not a step: {line!r}")
    if mark == ">":
        return Send(number, _byte_parts(text))
    if mark == "$":
        action, _, value = text.partition(" ")
        if not re.fullmatch(_ACTION, text):
            raise TranscriptError(f"not an action: {text[:80]!r}")
        return Action(number, action, value)
    often: Literal["<", "+", "~", "-", "?", "*"] = mark  # type: ignore[assignment]
    return Expect(number, often, parse_pattern(text))
