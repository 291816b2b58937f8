"""A model of the serve protocol that watches a conversation and says what broke which rule.

Owns: which byte belongs to which record, and which part of the model hears of it. Does not own:
syntax (``_core``), the rules' names (``verdict``), ids (``tracks``), turns (``turns``), telemetry
(``figures``).
"""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

from colibri import _core
from colibri.conformance.figures import FORMATS, Figures
from colibri.conformance.tracks import Command, Tracks
from colibri.conformance.turns import Turns
from colibri.conformance.verdict import RULES, Finding, Judge, Rule

__all__ = ["RULES", "Finding", "Monitor", "Rule"]

READY = b"\x01\x01READY\x01\x01\n"
WIRES = ("full", "seed", "upstream")
TURN_KINDS = frozenset(("ACCEPT", "PREFILL", "DATA", "TOPK", "DONE"))
EXIT_BAD_FRAME = 3


class Monitor:
    """Watches one engine from its start to its end.

    Bytes may be told in any split. Those for the engine must be told before they are written:
    an answer that is told before its request counts as an answer to nothing. The methods are not
    for several threads at once.

    Args:
        wire: what ``COLIBRI_WIRE`` says: full, seed or upstream.
        slots: KV slots of the engine.
        may_say_more: whether further kinds of records, which servers skip, are no fault.
    """

    def __init__(self, wire: str = "full", slots: int = 1, *, may_say_more: bool = False) -> None:
        if wire not in WIRES:
            raise ValueError(f"wire must be one of {', '.join(WIRES)}, not {wire!r}")
        self._judge = Judge()
        self._wire = wire
        self._slots = slots
        self._tracks = Tracks(self._judge, with_accept=wire != "seed")
        self._turns = Turns(self._judge, self._tracks, wire)
        self._figures = Figures(
            self._judge, wire, self._tracks.may_be_active, may_say_more=may_say_more
        )
        self._records = _core.RecordReader()
        # The line, or the record that DATA begins, which is still to be completed.
        self._raw = bytearray()
        self._line = bytearray()
        # Readers of engines that take as many and as few options as this one may.
        self._readers: list[_core.RequestReader] = []
        self._unread = bytearray()
        self._input_ended = False
        self._ended = False

    @property
    def findings(self) -> list[Finding]:
        """What was broken since findings were last taken, each rule once."""
        return self._judge.findings

    def take_findings(self) -> list[Finding]:
        """The findings; from now on they are collected anew."""
        return self._judge.take()

    @property
    def exercised(self) -> Counter[str]:
        """How often each rule was checked."""
        return self._judge.exercised

    # --- to the engine ---

    def sent(self, data: bytes) -> None:
        """Takes bytes that are about to be written to the engine."""
        if not self._readers:
            # Which options it takes is known at the end of the handshake.
            self._unread += data
        else:
            self._commands([reader.feed(data) for reader in self._readers])

    def input_ended(self) -> None:
        """The engine's input is about to be closed."""
        self._input_ended = True
        self._commands([reader.finish() for reader in self._readers])

    def signalled(self, number: int) -> None:
        """SIGINT or SIGTERM is about to be sent to the engine."""
        # Two SIGINT count as one SIGTERM; how far apart they came is not known here.
        self._tracks.terminating |= number == signal.SIGTERM or self._tracks.interrupted
        self._tracks.interrupted = True

    def _read_requests(self) -> None:
        """Begins to read what is sent, once the handshake has told the options."""
        if self._readers or not self._figures.handshake_is_over:
            return
        if self._wire == "full":
            options = self._figures.caps.get("submit", "").split(",")
            self._readers = [_core.RequestReader(options, self._slots)]
        else:
            # Without CAPS it may take or refuse any option.
            self._readers = [_core.RequestReader(None, self._slots)]
            self._readers.append(_core.RequestReader([], self._slots))
        self._commands([reader.feed(bytes(self._unread)) for reader in self._readers])
        self._unread.clear()
        if self._input_ended:
            self._commands([reader.finish() for reader in self._readers])

    def _commands(self, readings: list[list[tuple[str, dict[str, Any]]]]) -> None:
        vocab = self._figures.limit("vocab")
        for (kind, fields), *others in zip(*readings, strict=True):
            if kind == "SUBMIT" and vocab and max(fields["token_ids"], default=0) >= vocab:
                command = Command("REFUSED")
            elif kind == "SUBMIT":
                command = Command(
                    kind,
                    slot=fields["slot"],
                    size=len(fields["payload"]),
                    max_tokens=fields["max_tokens"],
                    topk=fields["topk"],
                    may_be_refused=any(other != kind for other, _ in others),
                )
            else:
                command = Command(kind)
            self._tracks.command(fields["id"], command)

    # --- from the engine ---

    def received(self, data: bytes) -> None:
        """Takes bytes that the engine wrote."""
        if data:
            self._judge.check("after-end", not self._ended, "output after the end", data)
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._line += data[start : end + 1]
            start = end + 1
            line = bytes(self._line)
            self._line.clear()
            self._raw += line
            if records := self._records.feed(line):
                raw = bytes(self._raw)
                self._raw.clear()
                for kind, fields in records:
                    self._record(kind, fields, raw)
        self._line += data[start:]

    def _record(self, kind: str, fields: dict[str, Any], raw: bytes) -> None:
        if kind == "MALFORMED":
            self._judge.check("syntax", False, fields["reason"], raw)
            return
        if kind == "READY":
            detail = "there is something before READY"
            self._judge.check("quiet-start", raw == READY, detail, raw)
        if kind == "UNKNOWN":
            kind = fields["line"].split(b" ")[0].decode("ascii", "backslashreplace")
        else:
            self._judge.check("syntax", True)
        if not self._figures.belongs(kind, raw):
            return
        wanted = FORMATS.get(kind)
        if wanted is not None and kind != "READY":
            header = raw if kind != "DATA" else raw[: raw.index(b"\n") + 1]
            kept = wanted.fullmatch(header) is not None
            self._judge.check("format", kept, f"not a {kind} as documented", raw)
        self._figures.order(kind, raw)
        if kind in TURN_KINDS or kind == "ERROR":
            # A broken handshake ends here.
            self._read_requests()
        if kind in TURN_KINDS:
            if kind == "DONE":
                self._figures.done(fields["id"], raw)
            self._turns.record(kind, fields, raw)
            return
        if kind == "ERROR":
            self._turns.error(fields, raw)
            return
        self._turns.close_data(raw)
        self._figures.values(kind, fields, raw)
        if kind == "HITS":
            self._turns.hits_came(in_block=self._figures.in_block)
        elif kind == "CAPS":
            self._turns.set_limits(self._figures.limit("ctx"), self._figures.limit("vocab"))
            detail = f"started with {self._slots} slots"
            self._judge.check("caps", self._figures.limit("slots") == self._slots, detail, raw)
        self._read_requests()

    # --- the end ---

    def ended(self, exit_code: int) -> None:
        """The engine has ended and all its output was told."""
        self._ended = True
        rest = bytes(self._raw + self._line)
        self._judge.check("whole-records", rest == b"", "the last record is incomplete", rest)
        if not self._figures.handshake_is_over:
            self._judge.check("handshake", False, "the handshake is incomplete")
        self._tracks.end()
        wanted = {EXIT_BAD_FRAME} if self._tracks.lost else {0}
        if self._tracks.terminating:
            wanted.add(0)
        detail = f"exit code {exit_code}, not {' or '.join(map(str, sorted(wanted)))}"
        self._judge.check("exit-code", exit_code in wanted, detail)
