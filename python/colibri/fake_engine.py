"""An engine that speaks mux and does what a scenario says, to test servers with.

Owns: scenarios, and playing them on stdin and stdout. Does not own: transcripts
(``conformance.reverse``). Standard library only, since tests start it hundreds of times.

Every header line received is appended to ``SCENARIO.log``, and ``SCENARIO.lives`` grows by a byte
with each process started.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from colibri.errors import UsageError

ROWS, COLS = 2, 8
# The map before and after a turn: most experts in RAM, the rest on disk, of different heat.
FIRST_MAP = bytes((i < 10) << 6 | i % 5 for i in range(ROWS * COLS))
LAST_MAP = bytes((i < 11) << 6 | i for i in range(ROWS * COLS))


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list_of(item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(item, value))


def _object_of(item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(item, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a string", _is_text),
    "str | None": ("a string or null", lambda value: value is None or _is_text(value)),
    "int": ("an integer", _is_count),
    "int | None": ("an integer or null", lambda value: value is None or _is_count(value)),
    "float": ("a number", _is_number),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "list[str]": ("a list of strings", _list_of(_is_text)),
    "list[list[int]]": ("a list of pairs", _list_of(_list_of(_is_count))),
    "list[dict[str, Any]]": ("a list of objects", _list_of(_is_object)),
    "dict[str, str]": ("an object of strings", _object_of(_is_text)),
    "dict[str, dict[str, Any]]": ("an object of objects", _object_of(_is_object)),
}
DONE_FIELDS = ("emitted", "tok_s", "hit_pct", "rss_gb", "prompt_tokens", "length_limited")


def token_bytes(token: str) -> bytes:
    """A token's bytes: text, or ``hex:`` and digits for parts of characters."""
    return bytes.fromhex(token[4:]) if token.startswith("hex:") else token.encode()


def check(values: Any, where: str) -> dict[str, Any]:
    """Returns the keys of a scenario, or of a variant of one.

    Raises:
        UsageError: they are none, or their values are of the wrong type.
    """
    if not isinstance(values, dict):
        raise UsageError(f"{where} is not a JSON object")
    known = {entry.name: str(entry.type) for entry in fields(Scenario)}
    if unknown := sorted(set(values) - set(known)):
        raise UsageError(
            f"{where} has the unknown key {unknown[0]!r}", hint=f"known are {', '.join(known)}"
        )
    for name, value in values.items():
        wanted, holds = _CHECKS[known[name]]
        if not holds(value):
            raise UsageError(f"{where}: {name} must be {wanted}")
    if unknown := sorted(set(values.get("done", ())) - set(DONE_FIELDS)):
        raise UsageError(f"{where}: done has no field {unknown[0]!r}")
    for token in values.get("tokens", ()):
        try:
            token_bytes(token)
        except ValueError as error:
            raise UsageError(f"{where}: the token {token!r} is not hex") from error
    for text, variant in values.get("prompts", {}).items():
        check(variant, f"{where}: prompts: {text!r}")
    for number, variant in enumerate(values.get("lives", ()), 1):
        check(variant, f"{where}: life {number}")
    return values


def load(path: Path) -> Scenario:
    """Reads the scenario of the process that begins now.

    Raises:
        UsageError: the script is no scenario.
    """
    try:
        script = json.loads(path.read_text(encoding="utf-8"))
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


class Turn:
    """A request in flight."""

    def __init__(self, scenario: Scenario, turn_id: int, prompt: bytes, max_tokens: int) -> None:
        self.scenario = scenario
        self.id = turn_id
        self.prompt_tokens = len(prompt.split())
        self.tokens = [token_bytes(token) for token in scenario.tokens] * scenario.repeat
        self.cut = max_tokens < len(self.tokens)
        self.tokens = self.tokens[:max_tokens]
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
        turn = Turn(scenario, int(words[1]), payload, int(words[4]))
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
        elif turn.sent == len(turn.tokens):
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
        data = turn.tokens[turn.sent]
        record = f"DATA {turn.id} {len(data)}\n".encode() + data + b"\n"
        if scenario.topk:
            record += f"TOPK {turn.id} 2 -0.1000 {data.hex() or '-'} -2.5000 -\n".encode()
        for _ in range(scenario.repins if turn.sent == 0 else 0):
            record += b"REPIN 1 3 0 -1\n"
        turn.sent += 1
        turn.due = time.monotonic() + scenario.token_s
        self.write(record)

    def take_frames(self) -> None:
        """Obeys the complete frames that have come."""
        while b"\n" in self.pending:
            line, rest = self.pending.split(b"\n", 1)
            words = line.decode("utf-8", "replace").split()
            payload = None
            try:
                if words[:1] == ["SUBMIT"]:
                    size = int(words[3])
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
