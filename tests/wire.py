"""An engine process, asked over its pipes with settings from the environment."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from colibri import _core
from colibri.find_engine import find_engine


@dataclass(frozen=True)
class Request:
    prompt: str
    max_tokens: int
    seed: int

    def frame(self, number: int, slot: int) -> bytes:
        """The record that submits it."""
        options = {"seed": str(self.seed), "topk": "20", "ignore_eos": "1"}
        prompt = self.prompt.encode()
        return _core.format_submit(number, slot, prompt, self.max_tokens, 0.8, 0.95, options)


# Text and the likeliest tokens with their log-probabilities, token by token.
Answer = list[tuple[bytes, list[tuple[float, bytes]]]]


@dataclass
class Turn:
    """What came of a request: its answer so far, the error that ended it, what it cost."""

    answer: Answer = field(default_factory=list)
    error: str | None = None
    perf: dict[str, Any] = field(default_factory=dict)


class EngineEnded(Exception):
    """The engine has ended before it was asked to, or otherwise than well."""


class Wire:
    """A running engine. ``caps`` is what it said of itself, ``latest`` the last of each record.

    ``log`` is the file of its stderr, ``command`` what to start in place of the engine found.
    """

    def __init__(
        self,
        model: Path,
        slots: int = 1,
        ctx: int = 512,
        log: Path | None = None,
        command: Sequence[str] | None = None,
        **settings: object,
    ) -> None:
        env = {name: str(value) for name, value in settings.items()}
        arguments = ["--mux", "--model", str(model), "--slots", str(slots), "--ctx", str(ctx)]
        with contextlib.ExitStack() as files:
            self.process = subprocess.Popen(
                [*(command or find_engine()), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=files.enter_context(log.open("ab")) if log else None,
                env={**os.environ, **env},
            )
        self._reader = _core.RecordReader()
        self._slots = slots
        self.caps: dict[str, str] = {}
        self.latest: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        while not self.caps:
            for kind, fields in self.read():
                if kind == "CAPS":
                    self.caps = fields
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.process.kill()
        self.process.communicate()
        if kind is None and self.process.returncode != 0:
            raise EngineEnded(self.process.returncode)

    def send(self, frame: bytes) -> None:
        """Sends a record."""
        assert self.process.stdin is not None
        self.process.stdin.write(frame)
        self.process.stdin.flush()

    def read(self) -> list[tuple[str, dict[str, Any]]]:
        """The records that came since, at least one byte of them."""
        assert self.process.stdout is not None
        data = self.process.stdout.read1(1 << 16)
        if not data:
            raise EngineEnded
        records = self._reader.feed(data)
        self.latest.update(records)
        return records

    def turns(self, requests: Sequence[Request]) -> list[Turn]:
        """What comes of requests that all run at once, each in a slot of its own."""
        assert len(requests) <= self._slots
        frames = [request.frame(number, number - 1) for number, request in enumerate(requests, 1)]
        self.send(b"".join(frames))
        turns = {number: Turn() for number in range(1, len(requests) + 1)}
        texts: dict[int, bytes] = {}
        left = set(turns)
        while left:
            for kind, fields in self.read():
                assert kind != "MALFORMED", fields
                if kind == "DATA":
                    texts[fields["id"]] = fields["data"]
                elif kind == "TOPK":
                    token = (texts.pop(fields["id"]), fields["tokens"])
                    turns[fields["id"]].answer.append(token)
                elif kind == "PERF":
                    turns[fields["id"]].perf = fields
                elif kind == "ERROR":
                    turns[fields["id"]].error = " ".join([fields["code"], *fields["detail"]])
                    left.remove(fields["id"])
                elif kind == "DONE":
                    left.remove(fields["id"])
        return list(turns.values())

    def ask(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers to requests that all run at once and go well."""
        turns = self.turns(requests)
        assert [turn.error for turn in turns if turn.error] == []
        return [turn.answer for turn in turns]
