"""Plays transcripts against an engine: one process serves as many rules as it survives."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from colibri.conformance.matcher import Mismatch
from colibri.conformance.monitor import RULES, Finding, Rule
from colibri.conformance.process import EXIT_USAGE, Endless, Silence
from colibri.conformance.session import (
    NotShown,
    Session,
    Settings,
    Unanswered,
    begins_with_ready,
    has_actions,
    is_final,
    refuse_to_start,
)
from colibri.conformance.transcript import Action, Start, Transcript, TranscriptError, parse, read
from colibri.errors import EngineStartError

# Bytes of what was sent that a result keeps: its beginning and its end.
SENT_BYTES = (160, 80)
# Rules that the monitor watches are named after it.
ALWAYS = "always/"
TAG_OF = {rule.id: rule.tag for rule in RULES}
# Rules about how something is said; what was meant is known, so that other rules can be judged.
HARMLESS = {"quiet-start", "handshake", "format", "kinds", "rates"}
# After so many rules in a row without an answer, the engine is asked whether it gives any.
RULES_UNANSWERED = 5
DEAF = "not judged: the engine does not answer"
# Rules about what COLIBRI_WIRE does.
WIRE = "wire/"


@dataclass(frozen=True)
class Result:
    """How an engine did on a rule.

    Attributes:
        outcome: ``pass``; ``fail``; ``unjudged``: another fault may be the reason for what was
            seen; ``skip``: it does not apply, or nothing showed it.
        file: the rule's file, empty for rules about everything that an engine says.
        detail: what was wrong, or why there is no judgement.
        sent: what was sent in the play of the rule, shortened.
        seen: bytes of the engine that show it.
    """

    rule: str
    tag: str
    section: str
    text: str
    outcome: str
    file: str = ""
    detail: str = ""
    sent: bytes = b""
    seen: bytes = b""


@dataclass
class Outcome:
    """How an engine did on all rules, in a wire mode."""

    wire: str = ""
    results: list[Result] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        """How many rules ended so."""
        return sum(result.outcome == outcome for result in self.results)


def read_rules(further: Path | None = None) -> list[Transcript]:
    """The rules that come with this package, by their ids.

    Args:
        further: a folder of more.

    Raises:
        TranscriptError: one there is not a rule.
        OSError: it cannot be read.
    """
    folder = files("colibri.conformance") / "rules"
    found = [
        parse(entry.read_text(encoding="utf-8"), entry.name)
        for entry in folder.iterdir()
        if entry.name.endswith(".txt")
    ]
    if further is not None:
        ids = {transcript.rule for transcript in found}
        paths = sorted(path for path in further.iterdir() if path.suffix == ".txt")
        if not paths:
            raise TranscriptError(f"{further}: no file there ends in .txt, as rules do")
        for path in paths:
            transcript = read(path)
            if transcript.rule in ids:
                raise TranscriptError(f"{path}: there is a rule {transcript.rule} already")
            if not all(transcript.steps(wire) for wire in transcript.wires):
                raise TranscriptError(f"{path}: a wire mode has no steps")
            ids.add(transcript.rule)
            found.append(transcript)
    return sorted(found, key=lambda transcript: transcript.rule)


def shortened(data: bytes) -> bytes:
    """The beginning and the end of what was sent."""
    first, last = SENT_BYTES
    return data if len(data) <= first + last else data[:first] + b" ... " + data[-last:]


@dataclass(frozen=True)
class _Seen:
    """A finding, when it was made, and which came before it, if any."""

    finding: Finding
    during: str
    sent: bytes
    first: Finding | None


class Suite:
    """A run of rules against one engine command."""

    def __init__(self, settings: Settings, on_result: Callable[[Result], None]) -> None:
        self._settings = settings
        self._on_result = on_result
        self._session: Session | None = None
        self._tags: frozenset[str] = frozenset()
        # By the rule that is broken; in the second, what an earlier one may be the reason of.
        self._findings: dict[str, _Seen] = {}
        self._set_aside: dict[str, _Seen] = {}
        self._handshake_is_broken = False
        self._exercised: Counter[str] = Counter()
        self._results: list[Result] = []
        self._unstartable: dict[Start, str] = {}
        # How many rules in a row failed without a word, and whether that is all there is to come.
        self._unanswered = 0
        self._is_deaf = False
        # What the first start shows: the wire mode, if none was said, and how many records the
        # handshake has, if CANCEL cannot tell when it is over.
        self._is_first = True
        self._wire = settings.wire or "full"
        self._wire_is_guess = False
        self._handshake: int | None = None

    def run(self, transcripts: Iterable[Transcript], tags: Iterable[str]) -> Outcome:
        """Plays all transcripts of these tags.

        Raises:
            EngineStartError: the engine cannot be started at all.
        """
        self._tags = frozenset(tags)
        groups: dict[Start, list[Transcript]] = {}
        for transcript in transcripts:
            if transcript.tag in self._tags:
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
        self._monitored()
        return Outcome(self._wire, sorted(self._results, key=lambda result: result.rule))

    def _ends_the_engine(self, transcript: Transcript) -> bool:
        return is_final(transcript, self._wire)

    def _rule(self, transcript: Transcript, start: Start, folder: str) -> None:
        if self._wire not in transcript.wires:
            return
        about = (transcript.rule, transcript.tag, transcript.section, transcript.text)
        if self._is_deaf:
            self._result(Result(*about, "unjudged", transcript.file, DEAF))
            return
        outcome, detail, sent, seen = "pass", "", b"", b""
        try:
            self._play(transcript, start, folder)
        except (Mismatch, EngineStartError) as error:
            outcome, detail = "fail", str(error)
            if isinstance(error, Mismatch):
                self._unanswered = self._unanswered + 1 if self._was_unanswered(error) else 0
            if self._session is not None:
                sent = shortened(self._session.process.sent)
                seen = self._session.process.seen
        except NotShown as error:
            outcome, detail = "skip", str(error)
        else:
            self._unanswered = 0
        self._note_findings(f"while {transcript.rule} was played")
        ends = self._ends_the_engine(transcript) or self._handshake is not None
        if outcome == "fail" or ends:
            self._end()
        self._result(Result(*about, outcome, transcript.file, detail, sent, seen))
        if self._unanswered == RULES_UNANSWERED:
            self._unanswered = 0
            self._is_deaf = not self._answers(folder)

    def _was_unanswered(self, error: Mismatch) -> bool:
        """Whether a rule failed because nothing came, or no end."""
        if isinstance(error, Endless):
            return True
        said_nothing = self._session is not None and self._session.process.taken == 0
        return said_nothing and isinstance(error, Silence | Unanswered)

    def _answers(self, folder: str) -> bool:
        """Whether the engine still answers anything; rules may be about what it leaves out."""
        try:
            session = Session(self._settings, Start(), folder, self._handshake)
        except (Mismatch, EngineStartError):
            return False
        try:
            session.check_that_it_answers()
        except Mismatch:
            return False
        finally:
            session.process.close()
        return True

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
            raise NotShown(f"not offered: {', '.join(sorted(lacking))}")
        if self._wire_is_guess and transcript.rule.startswith(WIRE):
            raise NotShown("no wire mode was set")
        session.play(transcript)

    def _begin(self, start: Start, folder: str) -> Session:
        """Starts an engine, unless one that was started alike has failed to."""
        if start in self._unstartable:
            raise EngineStartError(self._unstartable[start])
        try:
            self._session = self._start(start, folder)
        except (Mismatch, EngineStartError) as error:
            after = "the engine said READY, but then: " if isinstance(error, Mismatch) else ""
            self._unstartable[start] = after + str(error)
            raise EngineStartError(after + str(error), exit_code=EXIT_USAGE) from error
        self._wire = self._session.wire
        self._wire_is_guess = self._session.wire_is_guess
        self._note_findings("at the start")
        return self._session

    def _start(self, start: Start, folder: str) -> Session:
        """Starts an engine; the first one may show that CANCEL is not answered."""
        if not self._is_first:
            return Session(self._settings, start, folder, self._handshake)
        self._is_first = False
        try:
            return Session(self._settings, start, folder)
        except Unanswered as problem:
            self._handshake = problem.handshake
            finding = Finding("not-found", str(problem), b"")
            self._findings["not-found"] = _Seen(finding, "at the start", b"", None)
            session = Session(self._settings, start, folder, self._handshake)
            try:
                session.check_that_it_answers()
            finally:
                session.process.close()
            return Session(self._settings, start, folder, self._handshake)

    def _end(self) -> None:
        if self._session is not None:
            self._session.process.close()
            self._exercised += self._session.monitor.exercised
        self._session = None

    def _note_findings(self, during: str) -> None:
        if self._session is None:
            return
        findings = self._session.monitor.take_findings()
        self._handshake_is_broken |= any(finding.rule == "handshake" for finding in findings)
        sent = shortened(self._session.process.sent)
        # What comes after the first of a play may be its consequence. A finding that nobody asked
        # for, or that leads to no other, must not hide what comes after it.
        first: Finding | None = None
        for finding in findings:
            if TAG_OF[finding.rule] not in self._tags:
                continue
            found = self._findings if first is None else self._set_aside
            found.setdefault(finding.rule, _Seen(finding, during, sent, first))
            if finding.rule not in HARMLESS:
                first = first or finding

    def _monitored(self) -> None:
        for rule in RULES:
            if rule.tag in self._tags:
                self._result(self._monitored_rule(rule))

    def _monitored_rule(self, rule: Rule) -> Result:
        about = (ALWAYS + rule.id, rule.tag, rule.section, rule.text)
        if (found := self._findings.get(rule.id)) is not None:
            detail = f"{found.finding.detail} ({found.during})"
            return Result(*about, "fail", "", detail, found.sent, found.finding.seen)
        if (found := self._set_aside.get(rule.id)) is not None and found.first is not None:
            detail = (
                f"not judged: {found.finding.detail} ({found.during}),"
                f" but {ALWAYS}{found.first.rule} had been broken before, which may be the reason"
            )
            return Result(*about, "unjudged", "", detail, found.sent, found.finding.seen)
        if self._exercised[rule.id]:
            return Result(*about, "pass")
        if self._is_deaf:
            return Result(*about, "unjudged", "", DEAF)
        if self._handshake_is_broken:
            return Result(*about, "unjudged", "", "not judged: the handshake was broken")
        is_about_wires = rule.id == "kinds" and self._wire_is_guess
        return Result(
            *about, "skip", "", "no wire mode was set" if is_about_wires else "nothing showed it"
        )

    def _result(self, result: Result) -> None:
        self._results.append(result)
        self._on_result(result)
