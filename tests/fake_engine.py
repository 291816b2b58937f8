"""An engine that speaks mux and does what a scenario says; standard library only.

Usage: ``fake_engine.py SCENARIO.json [engine arguments]``. The scenario's keys are the fields of
``Scenario``; ``lives`` holds overrides for the first, second, ... process started from it, and
``prompts`` overrides for prompts that contain a text. Every header line received is appended to
``SCENARIO.json.log``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

ROWS, COLS = 2, 8


@dataclass(frozen=True)
class Scenario:
    caps: str | None = "proto=1 ctx=64 slots=2 vocab=512 model=fake submit=seed,topk eos=0"
    banner: str = ""  # printed before READY
    stderr: list[str] = field(default_factory=list)  # printed while loading
    exit_before_ready: int | None = None
    load_s: float = 0.0
    limit: int = 63  # most prompt tokens, which are words here
    tokens: list[str] = field(default_factory=lambda: ["Hello", " there", ",", " friend", "."])
    repeat: int = 1
    token_s: float = 0.0
    accept_s: float = 0.0
    prefill_s: float = 0.0
    prefill: list[list[int]] = field(default_factory=list)  # [done, total] records
    topk: bool = False
    length_limited: bool = False
    error_after: int | None = None
    error: str = "ENGINE disk%20read%20failed"
    raw_after: int | None = None  # sends `raw` after that many tokens
    raw: str = ""
    exit_after: int | None = None  # ends after that many tokens
    exit_code: int = 70
    kill_after: int | None = None  # kills itself with signal 9 after that many tokens
    last_words: str = ""
    cut_at: int | None = None  # ends once that many bytes were written
    deaf: bool = False  # ignores STOP and CANCEL
    repins: int = 0
    prompts: dict[str, dict[str, Any]] = field(default_factory=dict)
    lives: list[dict[str, Any]] = field(default_factory=list)


def load(path: Path) -> Scenario:
    values = json.loads(path.read_text(encoding="utf-8"))
    counter = Path(f"{path}.lives")
    life = len(counter.read_bytes()) if counter.exists() else 0
    with counter.open("ab") as file:
        file.write(b".")
    for override in values.get("lives", [])[life : life + 1]:
        values |= override
    known = {entry.name for entry in fields(Scenario)}
    unknown = set(values) - known
    if unknown:
        raise SystemExit(f"unknown scenario keys: {unknown}")
    return Scenario(**values)


def token_bytes(token: str) -> bytes:
    """A token's bytes: text, or ``hex:`` and digits for parts of characters."""
    return bytes.fromhex(token[4:]) if token.startswith("hex:") else token.encode()


class Turn:
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
    def __init__(self, path: Path) -> None:
        self.scenario = load(path)
        self.log = Path(f"{path}.log")
        self.written = 0
        self.turns: dict[int, Turn] = {}
        self.pending = b""

    def write(self, data: bytes) -> None:
        cut = self.scenario.cut_at
        if cut is not None and self.written + len(data) >= cut:
            os.write(1, data[: cut - self.written])
            os._exit(70)
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]
        self.written += len(data)

    def start(self) -> None:
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
        expert_map = bytes(1 << 6 | i % 5 for i in range(ROWS * COLS)).hex()
        return (
            "HWINFO 2 8.0 4.0 0 0.0 Fake CPU|none\nGPUS 0\nTIERS 0 10 6 0.00 0.01\n"
            f"EMAP {ROWS} {COLS} {expert_map}\n"
        ).encode()

    def closing(self, turn: Turn) -> bytes:
        hits = bytes([turn.id % 256, 1]).hex()
        return (
            b"HWINFO 2 8.0 4.0 0 0.0 Fake CPU|none\n"
            + f"PERF {turn.id} 0.5 0.1 0.05 0.2 0.1 0.01 0.04\nENTROPY 1.5 2.25\n".encode()
            + b"GPUS 0\nTIERS 0 11 5 0.00 0.01\n"
            + f"EMAP {ROWS} {COLS} {bytes(range(16)).hex()}\nHITS {ROWS} {COLS} {hits}\n".encode()
        )

    def done(self, turn: Turn, *, limited: bool) -> None:
        del self.turns[turn.id]
        self.write(
            self.closing(turn)
            + f"DONE {turn.id} STAT {turn.sent} 12.50 75.0 0.01 {turn.prompt_tokens}"
            f" {int(limited)}\n".encode()
        )

    def submit(self, words: list[str], payload: bytes) -> None:
        scenario = self.scenario
        for text, override in scenario.prompts.items():
            if text.encode() in payload:
                scenario = replace(scenario, **override)
        turn = Turn(scenario, int(words[1]), payload, int(words[4]))
        self.turns[turn.id] = turn

    def command(self, words: list[str]) -> None:
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

    def accept(self, turn: Turn) -> None:
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
        while b"\n" in self.pending:
            line, rest = self.pending.split(b"\n", 1)
            words = line.decode().split()
            if words[0] == "SUBMIT":
                size = int(words[3])
                if len(rest) < size + 1:
                    return
                payload, rest = rest[:size], rest[size + 1 :]
                self.note(line)
                self.submit(words, payload)
            else:
                self.note(line)
                self.command(words)
            self.pending = rest

    def note(self, line: bytes) -> None:
        with self.log.open("ab") as file:
            file.write(line + b"\n")

    def run(self) -> None:
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


if __name__ == "__main__":
    FakeEngine(Path(sys.argv[1])).run()
