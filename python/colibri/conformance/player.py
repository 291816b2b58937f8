"""Plays transcripts against an engine: one process serves as many rules as it survives."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from colibri.conformance.matcher import READY, Matcher, Mismatch
from colibri.conformance.monitor import RULES, Finding, Monitor
from colibri.conformance.process import EXIT_USAGE, Process, Silence
from colibri.conformance.transcript import Action, Expect, Send, Start, Transcript, parse
from colibri.errors import EngineStartError

# Ids of requests that nobody sent: their CANCEL must be answered, which shows that an engine
# listens and that all it had to say before has come.
FENCE = 900_000_000_000
# A rule takes at most this many times the time that one record may take.
PATIENCE = 12
# Rules that the monitor watches are named after it.
ALWAYS = "always/"


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


@dataclass(frozen=True)
class Result:
    """How an engine did on a rule: ``pass``, ``fail`` or ``skip``."""

    rule: str
    tag: str
    section: str
    text: str
    outcome: str
    detail: str = ""
    seen: bytes = b""


@dataclass
class Outcome:
    """How an engine did on all rules, in a wire mode."""

    wire: str = ""
    results: list[Result] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        """How many rules ended so."""
        return sum(result.outcome == outcome for result in self.results)


def read_rules() -> list[Transcript]:
    """The rules that come with this package, by their ids."""
    folder = files("colibri.conformance") / "rules"
    found = [
        parse(entry.read_text(encoding="utf-8"), entry.name)
        for entry in folder.iterdir()
        if entry.name.endswith(".txt")
    ]
    return sorted(found, key=lambda transcript: transcript.rule)


class Session:
    """An engine that has said READY.

    Attributes:
        start: how it was started.
        wire: the mode it is judged in.
        offered: submit options that its CAPS lists.
        handshake: the records of it.
    """

    def __init__(self, settings: Settings, start: Start, state_dir: str) -> None:
        self.start = start
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
        self.monitor = Monitor(self.wire, start.slots)
        self.process.watch(self.monitor)
        self.is_fresh = True

    def _start(self) -> None:
        try:
            first = self.process.record(self._settings.start_timeout_s)
        except Silence:
            message = f"the engine was not ready after {self._settings.start_timeout_s:g} s"
            raise EngineStartError(message, exit_code=EXIT_USAGE) from None
        if first is None:
            words = self.process.last_words() or "it said nothing"
            message = f"the engine ended with exit code {self.process.exit_code()}: {words}"
            raise EngineStartError(message, exit_code=EXIT_USAGE)
        self.handshake.append(first)
        self.process.allow(PATIENCE * self._settings.timeout_s)
        self.fence(self.handshake.append)
        for record in self.handshake:
            for word in record.split() if record.startswith(b"CAPS ") else []:
                key, _, value = word.decode("utf-8", "replace").partition("=")
                if key == "submit":
                    self.offered = set(value.split(","))

    def fence(self, take: Callable[[bytes], None]) -> None:
        """Waits until it has answered; ``take`` gets the records before that.

        Raises:
            Mismatch: it does not answer, or ``take`` refuses.
        """
        self._fences += 1
        self.process.send(b"CANCEL %d\n" % self._fences)
        answer = b"ERROR %d NOT_FOUND" % self._fences
        while (record := self.process.record()) is not None:
            if record.split(b"\n")[0].startswith(answer):
                return
            take(record)
        raise Mismatch(f"it ended with exit code {self.process.exit_code()}")

    def play(self, transcript: Transcript) -> None:
        """Plays a transcript to its end; the session is of no further use if that raises.

        Raises:
            Mismatch: the engine did otherwise.
        """
        matcher = Matcher(transcript, self.wire)
        if begins_with_ready(transcript, self.wire):
            for record in self.handshake:
                matcher.take(record)
            if not has_actions(transcript, self.wire):
                if not matcher.is_complete:
                    raise Mismatch(matcher.wanted())
                return
        self.is_fresh = False
        self.process.allow(PATIENCE * self._settings.timeout_s)
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

    def _take(self, matcher: Matcher) -> None:
        try:
            record = self.process.record()
        except Silence as silence:
            raise Silence(f"{matcher.wanted()}; {silence}") from None
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


class Suite:
    """A run of rules against one engine command."""

    def __init__(self, settings: Settings, on_result: Callable[[Result], None]) -> None:
        self._settings = settings
        self._on_result = on_result
        self._session: Session | None = None
        self._findings: dict[str, tuple[Finding, str]] = {}
        self._exercised: Counter[str] = Counter()
        self._results: list[Result] = []
        self._unstartable: dict[Start, str] = {}
        self._told = 0
        # As the first engine shows, if nothing was said.
        self._wire = settings.wire or "full"

    def run(self, transcripts: Iterable[Transcript], tags: Iterable[str]) -> Outcome:
        """Plays all transcripts of these tags.

        Raises:
            EngineStartError: the engine cannot be started at all.
        """
        groups: dict[Start, list[Transcript]] = {}
        for transcript in transcripts:
            if transcript.tag in tags:
                groups.setdefault(transcript.start, []).append(transcript)
        with tempfile.TemporaryDirectory() as folder:
            try:
                # The first start decides whether there is an engine at all, and what it speaks.
                self._begin(Start(), folder)
                for start, group in sorted(groups.items(), key=lambda item: item[0] != Start()):
                    for transcript in sorted(group, key=self._ends_the_engine):
                        self._rule(transcript, start, folder)
            finally:
                self._end()
        self._monitored(tags)
        return Outcome(self._wire, sorted(self._results, key=lambda result: result.rule))

    def _ends_the_engine(self, transcript: Transcript) -> bool:
        return is_final(transcript, self._wire)

    def _rule(self, transcript: Transcript, start: Start, folder: str) -> None:
        if self._wire not in transcript.wires:
            return
        outcome, detail, seen = "pass", "", b""
        try:
            self._play(transcript, start, folder)
        except (Mismatch, EngineStartError) as error:
            outcome, detail = "fail", str(error)
            if self._session is not None:
                seen = self._session.process.seen
        except _NotOffered as error:
            outcome, detail = "skip", str(error)
        self._note_findings(transcript.rule)
        if self._session is not None and (outcome == "fail" or self._ends_the_engine(transcript)):
            self._end()
        about = transcript
        self._result(
            Result(about.rule, about.tag, about.section, about.text, outcome, detail, seen)
        )

    def _play(self, transcript: Transcript, start: Start, folder: str) -> None:
        steps = transcript.steps(self._wire)
        if steps and isinstance(steps[0], Action) and steps[0].name == "exit":
            refuse_to_start(self._settings, start, folder, steps[0])
            return
        session = self._session
        whole = begins_with_ready(transcript, self._wire) and has_actions(transcript, self._wire)
        if (
            session is None
            or session.start != start
            or not session.process.is_alive
            or (whole and not session.is_fresh)
        ):
            self._end()
            session = self._begin(start, folder)
        lacking = transcript.needs - session.offered
        if lacking:
            raise _NotOffered(f"not offered: {', '.join(sorted(lacking))}")
        session.play(transcript)

    def _begin(self, start: Start, folder: str) -> Session:
        """Starts an engine, unless one that was started alike has failed to."""
        if start in self._unstartable:
            raise EngineStartError(self._unstartable[start])
        try:
            self._session = Session(self._settings, start, folder)
        except (Mismatch, EngineStartError) as error:
            after = "the engine said READY, but then: " if isinstance(error, Mismatch) else ""
            self._unstartable[start] = after + str(error)
            raise EngineStartError(after + str(error), exit_code=EXIT_USAGE) from error
        self._told = 0
        self._wire = self._session.wire
        return self._session

    def _end(self) -> None:
        if self._session is not None:
            self._session.process.close()
            self._exercised += self._session.monitor.exercised
        self._session = None

    def _note_findings(self, rule: str) -> None:
        if self._session is None:
            return
        findings = self._session.monitor.findings
        # What comes after the first of a play may be its consequence.
        for finding in findings[self._told : self._told + 1]:
            self._findings.setdefault(finding.rule, (finding, rule))
        self._told = len(findings)

    def _monitored(self, tags: Iterable[str]) -> None:
        for rule in RULES:
            if rule.tag not in tags:
                continue
            found = self._findings.get(rule.id)
            outcome, detail, seen = "pass", "", b""
            if found is not None:
                finding, during = found
                outcome, seen = "fail", finding.seen
                detail = f"{finding.detail} (during {during})"
            elif not self._exercised[rule.id]:
                outcome, detail = "skip", "nothing showed it"
            self._result(
                Result(ALWAYS + rule.id, rule.tag, rule.section, rule.text, outcome, detail, seen)
            )

    def _result(self, result: Result) -> None:
        self._results.append(result)
        self._on_result(result)


class _NotOffered(Exception):
    """A rule is about something this engine does not have."""


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
