"""Plays a transcript as the engine: says what it expects and waits for what it sends.

Owns: matching the frames of a server with those of a transcript, and example values for its
placeholders. Does not own: the syntax of transcripts (``transcript``).

A server chooses ids, slots and options itself. So a frame of the transcript stands for the next
one of its kind, and its id for the id that came. A frame with a fault, which no server would send,
stands for the next SUBMIT if it has an id, else for nothing.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from colibri import _core
from colibri.conformance.transcript import (
    Action,
    Choice,
    Expect,
    Pattern,
    Placeholder,
    Send,
    Transcript,
    TranscriptError,
    read,
)
from colibri.decimals import decimal
from colibri.errors import UsageError

READ_BYTES = 1 << 16
# More slots than a server uses.
ANY_SLOT = 1 << 16
ROWS, COLS = 2, 8
READY = b"\x01\x01READY\x01\x01"
# A valid record of each kind, for the words that a transcript leaves open.
EXAMPLES = {
    "STAT": "STAT 0 0.00 0.0 0.01",
    "HWINFO": "HWINFO 2 8.0 4.0 0 0.0 CPU|none",
    "GPUS": "GPUS 0",
    "TIERS": f"TIERS 0 {ROWS * COLS} 0 0.00 0.01",
    "EMAP": f"EMAP {ROWS} {COLS} {'40' * ROWS * COLS}",
    "HITS": f"HITS {ROWS} {COLS} {'01' * (ROWS * COLS // 8)}",
    "TOPK": "TOPK 1 5 -0.5000 78 -1.0000 79 -2.0000 7a -3.0000 - -4.0000 -",
    "REPIN": "REPIN 1 3 0 -1",
    "PERF": "PERF 1 0.500000 0.100000 0.050000 0.200000 0.100000 0.010000 0.040000",
    "ENTROPY": "ENTROPY 1.500 2.250",
    "PROF": "PROF 0.500 3 5 0.100 0.050 0.200 0.100 0.040 5",
    "ACCEPT": "ACCEPT 1 3",
}
# For placeholders that no example covers.
VALUES = {
    "n": b"1",
    "i": b"1",
    "f": b"0.5",
    "x": b"00",
    "h": b"78",
    "w": b"x",
    "s": b"x",
    "t": b"x",
}
VALUES |= {"data": b"1\nx"} | {f"f{digits}": b"0." + b"5" * digits for digits in range(1, 10)}
# Frames of the transcript that a server's SUBMIT stands for.
SUBMITS = ("SUBMIT", "REFUSED", "LOST")


class _InputEndedError(Exception):
    """The server closed stdin."""


class _Turn:
    """What was said about a request."""

    prompt_tokens = "3"
    emitted = 0


class Reverse:
    """A transcript that is being played; ``where`` is what messages call it."""

    def __init__(self, transcript: Transcript, where: str) -> None:
        self._transcript = transcript
        self._where = where
        self._wire = "full" if "full" in transcript.wires else min(transcript.wires)
        self._known: dict[str, bytes] = {}
        self._ids: dict[bytes, bytes] = {}
        self._turns: dict[bytes, _Turn] = {}
        self._expected = _core.RequestReader(None, transcript.start.slots)
        self._received = _core.RequestReader(None, ANY_SLOT)
        self._frames: list[tuple[str, dict[str, Any]]] = []
        self._deferred: list[Pattern] = []

    def play(self) -> int:
        """Plays all of it; returns the exit code."""
        steps = self._transcript.steps(self._wire)
        if not any(pattern.kind == READY for step in steps for pattern in records(step)):
            self._greet()
        try:
            for step in steps:
                match step:
                    case Send():
                        self._await(step)
                        self._say_deferred()
                    case Action(name="exit"):
                        self._say_deferred()
                        return 0 if step.value == "any" else int(step.value)
                    case Action(name="wait"):
                        time.sleep(float(step.value))
                    case Action(name="eof"):
                        self._drain()
                    case Expect(often="~"):
                        self._deferred.append(step.pattern)
                    case _:
                        for pattern in records(step):
                            self._say(pattern)
        except _InputEndedError:
            return 1
        self._say_deferred()
        self._drain()
        return 0

    def _greet(self) -> None:
        """The handshake of transcripts that do not have it."""
        start = self._transcript.start
        caps = f"CAPS proto=1 ctx={start.ctx} slots={start.slots} vocab=512 model=transcript"
        caps += " submit=" + ",".join(sorted(self._transcript.needs))
        kinds = ("STAT", "HWINFO", "GPUS", "TIERS", "EMAP")
        lines = [READY.decode(), *(EXAMPLES[kind] for kind in kinds)]
        if self._wire == "full":
            lines.append(caps)
        _write(("\n".join(lines) + "\n").encode())

    # --- from the server ---

    def _await(self, step: Send) -> None:
        for kind, fields in self._expected.feed(step.data(self._transcript.needs)):
            if kind == "LOST":
                # What the transcript sends next begins a frame again.
                self._expected = _core.RequestReader(None, self._transcript.start.slots)
            if fields["id"] == 0:
                continue
            while (found := self._find(kind, fields)) is None:
                try:
                    self._read()
                except _InputEndedError:
                    got = ", ".join(got for got, _ in self._frames) or "nothing"
                    message = f"{self._where}:{step.line}: waits for {kind}, got {got}"
                    print(message, file=sys.stderr, flush=True)
                    raise
            self._frames.remove(found)
            self._ids[b"%d" % fields["id"]] = b"%d" % found[1]["id"]

    def _find(self, kind: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The frame that stands for one of the transcript, if it has come."""
        if kind not in SUBMITS:
            own = self._ids.get(b"%d" % fields["id"])
            for frame in self._frames:
                if frame[0] == kind and own in (None, b"%d" % frame[1]["id"]):
                    return frame
            return None
        submits = [frame for frame in self._frames if frame[0] == "SUBMIT"]
        same = [frame for frame in submits if frame[1]["payload"] == fields.get("payload")]
        return next(iter([*same, *submits]), None)

    def _read(self) -> None:
        data = os.read(0, READ_BYTES)
        if not data:
            raise _InputEndedError
        self._frames += self._received.feed(data)

    def _drain(self) -> None:
        """Reads to the end of stdin."""
        while os.read(0, READ_BYTES):
            pass

    # --- to the server ---

    def _say_deferred(self) -> None:
        """Says what the frame that has come brings about."""
        for pattern in self._deferred:
            self._say(pattern)
        self._deferred.clear()

    def _say(self, pattern: Pattern) -> None:
        record = self._fill(pattern) + b"\n"
        kind = pattern.kind
        if pattern.request is not None:
            # Records may lack all that belongs behind the id.
            request = re.split(rb"[ \n]", record, maxsplit=2)[1]
            rest = record[len(kind) + 1 + len(request) :]
            turn = self._turns.setdefault(request, _Turn())
            if kind == b"ACCEPT" and rest.split():
                turn.prompt_tokens = rest.split()[0].decode("utf-8", "replace")
            elif kind == b"DATA":
                turn.emitted += 1
            elif kind in (b"DONE", b"ERROR"):
                del self._turns[request]
            record = kind + b" " + self._ids.get(request, request) + rest
        _write(record)

    def _fill(self, pattern: Pattern) -> bytes:
        """The record with a value for each placeholder."""
        example = self._example(pattern)
        record = b""
        for part in pattern.parts:
            if isinstance(part, bytes):
                record += part
                continue
            is_last = part is pattern.parts[-1]
            value = self._known.get(part.name or "") or _value(part, record, example, is_last)
            if part.name is not None:
                self._known[part.name] = value
            record += value
        return record

    def _example(self, pattern: Pattern) -> list[str]:
        kind = pattern.kind.decode("ascii", "replace")
        turn = self._turns.get(b"%d" % (pattern.request or 0), _Turn())
        if kind == "DONE":
            tok_s = "0.00" if turn.emitted < 2 else "12.50"
            text = f"DONE 1 STAT {turn.emitted} {tok_s} 75.0 0.01 {turn.prompt_tokens} 0"
        elif kind == "PREFILL":
            text = f"PREFILL 1 0 {turn.prompt_tokens}"
        else:
            text = EXAMPLES.get(kind, "")
        return text.split(" ")


def _value(part: Placeholder, record: bytes, example: list[str], is_last: bool) -> bytes:
    """A value for a placeholder behind ``record``: that of the example if it fits."""
    words = record.split(b" ")
    if part.kind == "x" and re.fullmatch(rb"(EMAP|HITS) \d{1,4} \d{1,4} ", record):
        cells = int(words[1]) * int(words[2])
        return (
            b"40" * cells if words[0] == b"EMAP" else b"01" * (cells // 8) + b"00" * bool(cells % 8)
        )
    rest = example[len(words) - 1 :]
    takes_rest = is_last and (part.many or part.kind == "s")
    value = " ".join(rest if takes_rest else rest[:1]).encode()
    fits = re.fullmatch(part.regex, value) is not None
    if part.bounds is not None:
        low, high = part.bounds
        number = decimal(value)
        is_within = number is not None and low <= number <= high
        return value if fits and is_within else b"%d" % low
    return value if fits else VALUES[part.kind]


def records(step: object) -> Iterator[Pattern]:
    """The records that a step stands for: no optional ones, and the first branch of a choice."""
    if isinstance(step, Choice):
        for inner in step.branches[0]:
            yield from records(inner)
    elif isinstance(step, Expect) and step.required:
        yield step.pattern


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def play(path: Path) -> int:
    """Plays the transcript in a file on stdin and stdout; returns the exit code.

    Raises:
        UsageError: it is no transcript.
    """
    try:
        transcript = read(path)
    except TranscriptError as error:
        raise UsageError(str(error)) from error
    return Reverse(transcript, path.name).play()
