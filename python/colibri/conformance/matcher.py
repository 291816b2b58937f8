"""Compares an engine's records with the steps of a transcript; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from colibri.conformance.transcript import (
    Action,
    Choice,
    Expect,
    Send,
    Transcript,
    kind_of,
    request_of,
)
from colibri.decimals import decimal

READY = b"\x01\x01READY\x01\x01"
# Kinds that must come where steps have them and nowhere else. Of the others, that holds for those
# that the transcript names, of the same request.
ALWAYS = {READY, b"STAT", b"DONE", b"ERROR"}
# Longest line kept: an EMAP holds two digits an expert.
MAX_LINE_BYTES = 64 << 20

# Under this, which is no name of a placeholder, the record is remembered that shows that the rule
# is not to be judged.
NOT_SHOWN = "-"

# What is still to come of one stream: each step with its place among all steps.
_Items = list[tuple[int, Expect | Choice]]


class Mismatch(Exception):
    """The engine did not do what the transcript says."""


class Records:
    """Cuts an engine's output into records, from READY on."""

    def __init__(self) -> None:
        self.rest = b""
        self._is_ready = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Takes more output; yields the records that are complete, newlines included.

        Raises:
            Mismatch: a payload is not followed by a newline, or a line has no end.
        """
        self.rest += data
        if not self._is_ready:
            # Other engines print banners first.
            at = self.rest.find(READY + b"\n")
            if at < 0:
                # A banner may have no end; of READY, all but its last byte may have come.
                self.rest = self.rest[-len(READY) :]
                return
            self.rest = self.rest[at:]
            self._is_ready = True
        while (size := self._size()) is not None:
            record, self.rest = self.rest[:size], self.rest[size:]
            yield record

    def _size(self) -> int | None:
        line = self.rest.find(b"\n") + 1
        if line == 0:
            if len(self.rest) > MAX_LINE_BYTES:
                raise Mismatch("a line has no end")
            return None
        words = self.rest[:line].split()
        if len(words) != 3 or words[0] != b"DATA" or (count := decimal(words[2])) is None:
            return line
        size = line + count + 1
        if len(self.rest) < size:
            return None
        if self.rest[size - 1 : size] != b"\n":
            raise Mismatch("no newline after the payload of DATA")
        return size


@dataclass(frozen=True)
class _State:
    """One way to read what came so far: what is still to come, and what was remembered."""

    streams: Mapping[int | None, _Items]
    known: Mapping[str, bytes]

    def missing(self, before: int) -> list[Expect]:
        """The records that have to come before a place among the steps."""
        required = [
            step
            for items in self.streams.values()
            for place, step in items
            if place < before and step.required
        ]
        return list(_expects(required))


class Matcher:
    """Follows a transcript in one wire mode.

    ``due`` says what to do next; ``take`` is told each record.
    """

    def __init__(self, transcript: Transcript, wire: str) -> None:
        steps = transcript.steps(wire)
        self._ordered = transcript.ordered
        self._actions = [
            (place, step) for place, step in enumerate(steps) if isinstance(step, Send | Action)
        ]
        self._watched = ALWAYS | transcript.watch
        # Kinds that steps name, of which request; in one order for all, of any.
        self._named: set[tuple[bytes, int | None]] = set()
        streams: dict[int | None, _Items] = {}
        for place, step in enumerate(steps):
            if isinstance(step, Expect | Choice):
                patterns = [expect.pattern for expect in _expects([step])]
                self._named |= {(p.kind, self._stream(p.request)) for p in patterns}
                streams.setdefault(self._stream(patterns[0].request), []).append((place, step))
        self._states = [_State(streams, {})]

    def _stream(self, request: int | None) -> int | None:
        return None if self._ordered else request

    @property
    def due(self) -> Send | Action | None:
        """What to do, once the records before it have come."""
        if not self._actions:
            return None
        place, action = self._actions[0]
        ready = [
            state
            for state in self._states
            if all(expect.often == "~" for expect in state.missing(place))
        ]
        return action if ready else None

    def done(self) -> None:
        """Tells that what was due has been done."""
        place, _ = self._actions.pop(0)
        self._states = [
            state
            for state in self._states
            if all(expect.often == "~" for expect in state.missing(place))
        ]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is to be done and no record has to come."""
        end = self._barrier
        return not self._actions and any(not state.missing(end) for state in self._states)

    @property
    def not_shown(self) -> bytes:
        """The record that came in place of what the transcript is about, if one did."""
        over = [state for state in self._states if not state.missing(self._barrier)]
        return min((state.known.get(NOT_SHOWN, b"") for state in over), default=b"")

    @property
    def _barrier(self) -> int:
        return self._actions[0][0] if self._actions else 1 << 60

    def take(self, record: bytes) -> None:
        """Compares a record with what may come.

        Raises:
            Mismatch: it may not come now.
        """
        kind, stream = kind_of(record), self._stream(request_of(record))
        if kind not in self._watched and (kind, stream) not in self._named:
            return
        states: list[_State] = []
        for state in self._states:
            items = state.streams.get(stream, [])
            for left, new in self._advance(items, record, state.known):
                after = _State({**state.streams, stream: left}, {**state.known, **new})
                if after not in states:
                    states.append(after)
        if not states:
            raise Mismatch(f"{self.wanted()}, not {record[:80].decode('latin-1')!r}")
        self._states = states

    def wanted(self) -> str:
        """What has to come, for people."""
        missing = self._states[0].missing(self._barrier)
        if not missing:
            return "wanted no such record"
        named = [f"{expect.pattern.text} (line {expect.line})" for expect in missing[:4]]
        return "wanted " + ", ".join(named) + (" ..." if len(missing) > 4 else "")

    def _advance(
        self, items: _Items, record: bytes, known: Mapping[str, bytes]
    ) -> Iterator[tuple[_Items, Mapping[str, bytes]]]:
        """Each way to take a record: what is left of ``items``, and what else is known."""
        for i, (place, step) in enumerate(items):
            if place >= self._barrier:
                return
            if isinstance(step, Choice):
                for branch in step.branches:
                    inside = [(place, inner) for inner in branch]
                    yield from self._advance(inside + items[i + 1 :], record, known)
                return
            new = step.pattern.match(record, known)
            if new is not None:
                if step.often in "<~":
                    yield items[i + 1 :], new
                elif step.often == "-":
                    yield items[i + 1 :], {**new, NOT_SHOWN: record.strip()}
                elif step.often == "+":
                    yield [(place, replace(step, often="*")), *items[i + 1 :]], new
                elif step.often == "?":
                    yield items[:i] + items[i + 1 :], new
                else:
                    yield items, new
            if step.required:
                return


def _expects(steps: Iterable[Expect | Choice]) -> Iterator[Expect]:
    """The records named by steps; of choices, those of every branch."""
    for step in steps:
        if isinstance(step, Expect):
            yield step
        else:
            for branch in step.branches:
                yield from _expects(branch)
