"""An engine process, asked over its pipes with settings from the environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
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


# Text and the likeliest tokens with their log-probabilities, token by token.
Answer = list[tuple[bytes, list[tuple[float, bytes]]]]


class Wire:
    """A running engine.

    ``caps`` is what it said of itself, ``latest`` the last record of each kind.
    """

    def __init__(self, model: Path, slots: int = 1, ctx: int = 512, **settings: object) -> None:
        env = {name: str(value) for name, value in settings.items()}
        arguments = ["--mux", "--model", str(model), "--slots", str(slots), "--ctx", str(ctx)]
        self._process = subprocess.Popen(
            [*find_engine(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
        )
        self._reader = _core.RecordReader()
        self._slots = slots
        self.caps: dict[str, str] = {}
        self.latest: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        while not self.caps:
            for kind, fields in self._read():
                if kind == "CAPS":
                    self.caps = fields
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()
        assert kind is not None or self._process.returncode == 0

    def _read(self) -> list[tuple[str, dict[str, Any]]]:
        assert self._process.stdout is not None
        data = self._process.stdout.read1(1 << 16)
        assert data, "the engine has ended"
        records = self._reader.feed(data)
        self.latest.update(records)
        return records

    def ask(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers to requests that all run at once, each in a slot of its own."""
        assert len(requests) <= self._slots
        frames = [
            _core.format_submit(
                number,
                number - 1,
                request.prompt.encode(),
                request.max_tokens,
                0.8,
                0.95,
                {"seed": str(request.seed), "topk": "20", "ignore_eos": "1"},
            )
            for number, request in enumerate(requests, 1)
        ]
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(frames))
        self._process.stdin.flush()
        answers: dict[int, Answer] = {number: [] for number in range(1, len(requests) + 1)}
        texts: dict[int, bytes] = {}
        left = set(answers)
        while left:
            for kind, fields in self._read():
                assert kind not in ("ERROR", "MALFORMED"), fields
                if kind == "DATA":
                    texts[fields["id"]] = fields["data"]
                elif kind == "TOPK":
                    answers[fields["id"]].append((texts.pop(fields["id"]), fields["tokens"]))
                elif kind == "DONE":
                    left.remove(fields["id"])
        return list(answers.values())
