"""An engine that speaks mux and does what a scenario says, to test servers with.

Owns: playing scenarios on stdin and stdout. Does not own: what they may say (``scenario``),
transcripts (``conformance.reverse``). Standard library only, since tests start it hundreds of
times.

Every header line received is appended to ``SCENARIO.log``, and ``SCENARIO.lives`` grows by a byte
with each process started.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from colibri.scenario import DONE_FIELDS, Scenario, load, token_bytes

ROWS, COLS = 2, 8
# The map before and after a turn: most experts in RAM, the rest on disk, of different heat.
FIRST_MAP = bytes((i < 10) << 6 | i % 5 for i in range(ROWS * COLS))
LAST_MAP = bytes((i < 11) << 6 | i for i in range(ROWS * COLS))


class Turn:
    """A request in flight."""

    def __init__(self, scenario: Scenario, turn_id: int, prompt: bytes, max_tokens: int) -> None:
        self.scenario = scenario
        self.id = turn_id
        self.prompt_tokens = len(prompt.split())
        self.tokens = [token_bytes(token) for token in scenario.tokens]
        whole = len(self.tokens) * scenario.repeat
        self.cut = max_tokens < whole
        self.last = min(max_tokens, whole)
        self.sent = 0
        self.accepted = False
        self.due = time.monotonic() + scenario.accept_s


class FakeEngine:
    """Plays the scenario of a script on stdin and stdout."""

    def __init__(self, path: Path) -> None:
        self.scenario = load(path)
        self.log = Path(f"{path}.log")
        self.written = 0
        self.is_silent = False
        self.turns: dict[int, Turn] = {}
        self.pending = b""

    def write(self, data: bytes) -> None:
        """Writes as much as the scenario lets out."""
        if self.is_silent:
            return
        cut = self._end_at(self.scenario.cut_at, data)
        stall = self._end_at(self.scenario.stall_at, data)
        view = memoryview(data)[: min(cut, stall)]
        while view:
            view = view[os.write(1, view) :]
        self.written += len(data)
        if cut <= min(stall, len(data)):
            os._exit(70)
        self.is_silent = stall <= len(data)

    def _end_at(self, at: int | None, data: bytes) -> int:
        """Bytes of ``data`` until ``at`` bytes were written in all; more than it has if never."""
        return len(data) + 1 if at is None else at - self.written

    def start(self) -> None:
        """Loads, and says the handshake."""
        scenario = self.scenario
        for line in scenario.stderr:
            print(line, file=sys.stderr, flush=True)
        time.sleep(scenario.load_s)
        if scenario.exit_before_ready is not None:
            sys.exit(scenario.exit_before_ready)
        self.write(scenario.banner.encode())
        head = b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\n" + self.telemetry()
        if scenario.caps is not None:
            head += f"CAPS {scenario.caps}\n".encode()
        self.write(head)

    def telemetry(self) -> bytes:
        """The telemetry of the handshake."""
        return (
            "HWINFO 2 8.0 4.0 0 0.0 Fake CPU|none\nGPUS 0\nTIERS 0 10 6 0.00 0.01\n"
            f"EMAP {ROWS} {COLS} {FIRST_MAP.hex()}\n"
        ).encode()

    def closing(self, turn: Turn) -> bytes:
        """The block before DONE."""
        hits = bytes([turn.id % 256, 1]).hex()
        return (
            "HWINFO 2 8.0 4.0 0 0.0 Fake CPU|none\n"
            f"PERF {turn.id} 0.500000 0.100000 0.050000 0.200000 0.100000 0.010000 0.040000\n"
            "ENTROPY 1.500 2.250\nGPUS 0\nTIERS 0 11 5 0.00 0.01\n"
            f"EMAP {ROWS} {COLS} {LAST_MAP.hex()}\nHITS {ROWS} {COLS} {hits}\n"
        ).encode()

    def done(self, turn: Turn, *, limited: bool) -> None:
        """Ends a turn as a success."""
        del self.turns[turn.id]
        truth = (turn.sent, "12.50", "75.0", "0.01", turn.prompt_tokens, int(limited))
        told = dict(zip(DONE_FIELDS, map(str, truth), strict=True)) | turn.scenario.done
        line = f"DONE {turn.id} STAT {' '.join(told.values())}\n"
        self.write(self.closing(turn) + line.encode())

    def submit(self, words: list[str], payload: bytes) -> None:
        """Begins a turn."""
        scenario = self.scenario
        for text, override in scenario.prompts.items():
            if text.encode() in payload:
                scenario = replace(scenario, **override)
        turn = Turn(scenario, _count(words[1]), payload, _count(words[4]))
        self.turns[turn.id] = turn

    def command(self, words: list[str]) -> None:
        """Obeys STOP or CANCEL."""
        turn_id = int(words[1])
        turn = self.turns.get(turn_id)
        if turn is None:
            self.write(f"ERROR {turn_id} NOT_FOUND\n".encode())
        elif not turn.scenario.deaf:
            if words[0] == "STOP":
                self.done(turn, limited=False)
            else:
                del self.turns[turn_id]
                self.write(f"ERROR {turn_id} CANCELLED\n".encode())

    def step(self, turn: Turn) -> None:
        """Does what is due in a turn."""
        scenario = turn.scenario
        if not turn.accepted:
            self.accept(turn)
        elif turn.sent == scenario.error_after:
            del self.turns[turn.id]
            self.write(f"ERROR {turn.id} {scenario.error}\n".encode())
        elif turn.sent == turn.last:
            self.done(turn, limited=turn.cut or scenario.length_limited)
        else:
            self.token(turn)
        if turn.accepted and turn.sent == scenario.silent_after:
            self.is_silent = True

    def accept(self, turn: Turn) -> None:
        """Says that a turn begins, or that its prompt is too long."""
        scenario = turn.scenario
        if turn.prompt_tokens > scenario.limit:
            del self.turns[turn.id]
            text = f"ERROR {turn.id} CONTEXT_EXCEEDED {turn.prompt_tokens} {scenario.limit}\n"
            self.write(text.encode())
            return
        turn.accepted = True
        self.write(f"ACCEPT {turn.id} {turn.prompt_tokens}\n".encode())
        for done, total in scenario.prefill:
            self.write(f"PREFILL {turn.id} {done} {total}\n".encode())
        turn.due = time.monotonic() + scenario.prefill_s

    def token(self, turn: Turn) -> None:
        """Sends one token."""
        scenario = turn.scenario
        if turn.sent == scenario.raw_after:
            self.write(scenario.raw.encode())
        if turn.sent in (scenario.exit_after, scenario.kill_after):
            if scenario.last_words:
                print(scenario.last_words, file=sys.stderr, flush=True)
            if scenario.kill_after is not None:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(scenario.exit_code)
        data = turn.tokens[turn.sent % len(turn.tokens)]
        record = f"DATA {turn.id} {len(data)}\n".encode() + data + b"\n"
        if scenario.topk:
            record += f"TOPK {turn.id} 2 -0.1000 {data.hex() or '-'} -2.5000 -\n".encode()
        self.write(record)
        for _ in range(scenario.repins if turn.sent == 0 else 0):
            self.write(b"REPIN 1 3 0 -1\n")
        turn.sent += 1
        turn.due = time.monotonic() + scenario.token_s

    def take_frames(self) -> None:
        """Obeys the complete frames that have come."""
        while b"\n" in self.pending:
            line, rest = self.pending.split(b"\n", 1)
            words = line.decode("utf-8", "replace").split()
            payload = None
            try:
                if words[:1] == ["SUBMIT"]:
                    size = _count(words[3])
                    if len(rest) < size + 1:
                        return
                    payload, rest = rest[:size], rest[size + 1 :]
                self.note(line)
                if payload is None:
                    self.command(words)
                else:
                    self.submit(words, payload)
            except (IndexError, ValueError):
                self.write(b"ERROR 0 BAD_REQUEST\n")
            self.pending = rest

    def note(self, line: bytes) -> None:
        """Logs a header line."""
        with self.log.open("ab") as file:
            file.write(line + b"\n")

    def run(self) -> None:
        """Serves until stdin ends."""
        self.start()
        is_open = True
        while is_open or self.turns:
            now = time.monotonic()
            due = min((turn.due for turn in self.turns.values()), default=now + 60)
            if is_open:
                if select.select([0], [], [], max(0.0, due - now))[0]:
                    data = os.read(0, 1 << 16)
                    is_open = bool(data)
                    self.pending += data
                    self.take_frames()
            else:
                time.sleep(max(0.0, due - now))
            now = time.monotonic()
            for turn in list(self.turns.values()):
                if turn.due <= now and turn.id in self.turns:
                    self.step(turn)
        self.note(b"EOF")


def _count(word: str) -> int:
    number = int(word)
    if number < 0:
        raise ValueError(word)
    return number
