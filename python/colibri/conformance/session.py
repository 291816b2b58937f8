"""One engine that has said READY, and what is played with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from colibri.conformance.matcher import READY, Matcher, Mismatch
from colibri.conformance.monitor import Monitor
from colibri.conformance.process import EXIT_USAGE, Endless, Process, Silence, TooMuch
from colibri.conformance.transcript import Action, Expect, Send, Start, Transcript, request_of
from colibri.errors import EngineStartError

# Ids of requests that nobody sent: their CANCEL must be answered, which shows that an engine
# listens and that all it had to say before has come.
FENCE = 900_000_000_000
# Where that is not answered, so long without a record shows that a rule is over.
QUIET_S = 0.3
# A rule takes at most this many times the time that one record may take.
PATIENCE = 2


@dataclass(frozen=True)
class Settings:
    """What is run, and how patiently.

    Attributes:
        command: the engine and its arguments.
        wire: value of COLIBRI_WIRE; ``None`` leaves it out, and CAPS tells full from seed.
        timeout_s: longest time without a record that should come.
        start_timeout_s: longest time until READY.
    """

    command: Sequence[str]
    wire: str | None = None
    timeout_s: float = 10.0
    start_timeout_s: float = 120.0


class Ended(Mismatch):
    """The engine ended."""


class Unanswered(Mismatch):
    """A CANCEL of no request was not answered as it should.

    Attributes:
        handshake: how many records came before that.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            "CANCEL of an id that is not in flight must be answered by ERROR id NOT_FOUND"
            f" (section 2); {message}"
        )
        self.handshake = 0


class NotShown(Exception):
    """A rule is about something that this engine does not have, or did not do."""


class Session:
    """An engine that has said READY.

    Args:
        settings: what is run.
        start: how.
        state_dir: where it may keep what it likes.
        handshake: how many records it begins with, if it is not to be asked with CANCEL.

    Raises:
        EngineStartError: it does not say READY.
        Unanswered: it says READY, and does not answer a CANCEL.
        Mismatch: what it says cannot be read.

    Attributes:
        start: how it was started.
        wire: the mode it is judged in.
        offered: submit options that its CAPS lists.
        handshake: the records of it.
    """

    def __init__(
        self, settings: Settings, start: Start, state_dir: str, handshake: int | None = None
    ) -> None:
        self.start = start
        self._records_first = handshake
        self._settings = settings
        self._fences = FENCE
        self.offered: set[str] = set()
        self.handshake: list[bytes] = []
        self.process = Process(
            settings.command, environment(settings, start, state_dir), settings.timeout_s
        )
        try:
            self._start()
        except BaseException:
            self.process.close()
            raise
        has_caps = any(record.startswith(b"CAPS ") for record in self.handshake)
        self.wire = settings.wire or ("full" if has_caps else "seed")
        # What an engine that knows no wire modes sends beyond the seed is its own business.
        self.wire_is_guess = settings.wire is None and not has_caps
        self.monitor = Monitor(self.wire, start.slots, may_say_more=self.wire_is_guess)
        self.process.watch(self.monitor)
        self.is_fresh = True

    def _start(self) -> None:
        try:
            first = self.process.record(self._settings.start_timeout_s)
        except TooMuch as flood:
            message = f"the engine was not ready: {flood}"
            raise EngineStartError(message, exit_code=EXIT_USAGE) from None
        except Silence:
            message = f"the engine was not ready after {self._settings.start_timeout_s:g} s"
            raise EngineStartError(message, exit_code=EXIT_USAGE) from None
        if first is None:
            words = self.process.last_words().removeprefix("error: ") or "it said nothing"
            message = f"the engine ended with exit code {self.process.exit_code()}: {words}"
            raise EngineStartError(message, exit_code=EXIT_USAGE)
        self.handshake.append(first)
        self.process.allow(PATIENCE * self._settings.timeout_s)
        if self._records_first is None:
            try:
                self.fence(self.handshake.append)
            except (Unanswered, Ended) as problem:
                told = problem if isinstance(problem, Unanswered) else Unanswered(str(problem))
                told.handshake = len(self.handshake)
                raise told from None
        while len(self.handshake) < (self._records_first or 0):
            self.handshake.append(self._next())
        for record in self.handshake:
            for word in record.split() if record.startswith(b"CAPS ") else []:
                key, _, value = word.decode("utf-8", "replace").partition("=")
                if key == "submit":
                    self.offered = set(value.split(","))

    def check_that_it_answers(self) -> None:
        """Sends a SUBMIT, and waits for a record about it.

        Raises:
            Mismatch: none comes.
        """
        self._fences += 1
        self.process.send(b"SUBMIT %d 0 3 1 0 1\nabc\n" % self._fences)
        try:
            while request_of(self._next()) != self._fences:
                pass
        except (Silence, Ended) as problem:
            raise Mismatch(f"neither CANCEL nor SUBMIT is answered: {problem}") from None

    def _next(self, timeout_s: float | None = None) -> bytes:
        record = self.process.record(timeout_s)
        if record is None:
            raise Ended(f"it ended with exit code {self.process.exit_code()}")
        return record

    def fence(self, take: Callable[[bytes], None]) -> None:
        """Waits until all it had to say has come; ``take`` gets that.

        Raises:
            Unanswered: it does not tell.
            Mismatch: it has ended, or ``take`` refuses.
        """
        if self._records_first is not None:
            try:
                while True:
                    take(self._next(QUIET_S))
            except Endless:
                raise
            except Silence:
                return
        self._fences += 1
        self.process.send(b"CANCEL %d\n" % self._fences)
        try:
            while request_of(record := self._next()) != self._fences:
                take(record)
        except Endless:
            raise
        except Silence:
            raise Unanswered(f"nothing came in {self._settings.timeout_s:g} s") from None
        if not record.startswith(b"ERROR %d NOT_FOUND" % self._fences):
            raise Unanswered(f"what came is {record[:80].decode('latin-1')!r}")

    def play(self, transcript: Transcript) -> None:
        """Plays a transcript to its end; the session is of no further use if that raises.

        Raises:
            NotShown: the engine did right, but not what the transcript is about.
            Mismatch: the engine did otherwise.
        """
        self.process.sent = b""
        matcher = Matcher(transcript, self.wire)
        if begins_with_ready(transcript, self.wire):
            for record in self.handshake:
                matcher.take(record)
            if not has_actions(transcript, self.wire):
                if not matcher.is_complete:
                    raise Mismatch(matcher.wanted())
                return
        self.is_fresh = False
        waits_s = sum(
            float(step.value)
            for step in transcript.steps(self.wire)
            if isinstance(step, Action) and step.name == "wait"
        )
        self.process.allow(PATIENCE * self._settings.timeout_s + waits_s)
        while not matcher.is_complete:
            step = matcher.due
            if step is None:
                self._take(matcher)
                continue
            if isinstance(step, Action):
                self._act(step, matcher)
            else:
                self.process.send(step.data(self.offered))
            matcher.done()
        if not is_final(transcript, self.wire):
            self.fence(matcher.take)
        if matcher.not_shown:
            raise NotShown(f"nothing showed it: {matcher.not_shown.decode('latin-1')}")

    def _take(self, matcher: Matcher) -> None:
        try:
            record = self.process.record()
        except Silence as silence:
            raise type(silence)(f"{matcher.wanted()}; {silence}") from None
        if record is None:
            code = self.process.exit_code()
            raise Mismatch(f"{matcher.wanted()}; it ended with exit code {code}")
        matcher.take(record)

    def _act(self, action: Action, matcher: Matcher) -> None:
        if action.name == "eof":
            self.process.end_input()
        elif action.name == "signal":
            self.process.signal(action.value)
        elif action.name == "wait":
            time.sleep(float(action.value))
        else:
            while (record := self.process.record()) is not None:
                matcher.take(record)
            check_exit(self.process, action)


def check_exit(process: Process, action: Action) -> None:
    """Compares how a process ends with what should be.

    Raises:
        Mismatch: it is another way.
    """
    code = process.exit_code()
    if action.value != "any" and code != int(action.value):
        raise Mismatch(f"wanted exit code {action.value} (line {action.line}), it was {code}")


def environment(settings: Settings, start: Start, state_dir: str) -> dict[str, str]:
    """The environment of an engine; nothing it keeps is put beside the model."""
    env = {**os.environ, "SERVE": "1", "SERVE_BATCH": "1", "KVSAVE": "0"}
    env |= {"KV_SLOTS": str(start.slots), "CTX": str(start.ctx), "COLIBRI_STATE_DIR": state_dir}
    env.pop("SERVE_TOPK", None)
    env.pop("COLIBRI_WIRE", None)
    if settings.wire is not None:
        env["COLIBRI_WIRE"] = settings.wire
    return {**env, **dict(start.env)}


def has_actions(transcript: Transcript, wire: str) -> bool:
    """Whether anything is done to the engine."""
    return any(isinstance(step, Send | Action) for step in transcript.steps(wire))


def begins_with_ready(transcript: Transcript, wire: str) -> bool:
    """Whether it is about the handshake."""
    first = next(iter(transcript.steps(wire)), None)
    return isinstance(first, Expect) and first.pattern.kind == READY


def is_final(transcript: Transcript, wire: str) -> bool:
    """Whether the engine ends."""
    return any(isinstance(s, Action) and s.name == "exit" for s in transcript.steps(wire))


def refuse_to_start(settings: Settings, start: Start, folder: str, action: Action) -> None:
    """Starts an engine that should not start.

    Raises:
        Mismatch: it starts, or ends in another way.
    """
    process = Process(settings.command, environment(settings, start, folder), settings.timeout_s)
    try:
        if process.record(settings.start_timeout_s) is not None:
            raise Mismatch("it started")
        check_exit(process, action)
    finally:
        process.close()
