"""Golden transcripts played as the engine of a real server: clients get what they say.

The transcripts that engines are judged by, as far as a server can send what is in them, and those
in ``transcripts``, of what engines may say though ours never does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import colibri
from colibri import _core, frames
from colibri.conformance.reverse import SUBMITS, records
from colibri.conformance.transcript import Action, Expect, Pattern, Send, parse
from colibri.engine import Turn
from conftest import Answer, Server, Stream, until

Serve = Callable[..., Server]

GOLDEN = Path(colibri.__file__).parent / "conformance" / "rules"
OURS = Path(__file__).parent / "transcripts"
PATHS = [*sorted(GOLDEN.glob("*.txt")), *sorted(OURS.glob("*.txt"))]
# What a placeholder in DATA is filled with.
FILLED = b"x"
STATUS = {"BAD_REQUEST": 400, "EMPTY_PROMPT": 400, "CONTEXT_EXCEEDED": 400}
# A prompt longer than this is not sent again; the engine takes any other in its place.
LONGEST_PROMPT = 20_000


class NotForServersError(Exception):
    """Why a transcript cannot be played against a server."""


@dataclass
class Request:
    """A SUBMIT of a transcript, and what its client does."""

    prompt: str
    max_tokens: int
    stop: str | None = None
    is_aborted: bool = False

    @property
    def body(self) -> dict[str, Any]:
        fields = {"prompt": self.prompt, "max_tokens": self.max_tokens}
        return fields | ({} if self.stop is None else {"stop": self.stop})


class Plan:
    """What clients have to do for a server to send what a transcript has."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        transcript = parse(self.text, path.name)
        self.requests: list[Request] = []
        self._offered = transcript.needs
        self.slots = transcript.start.slots
        self._reader = _core.RequestReader(None, self.slots)
        self._live: dict[int, Request] = {}
        self._said: dict[int, bytes] = {}
        self._deferred: list[Pattern] = []
        steps = transcript.steps("full" if "full" in transcript.wires else min(transcript.wires))
        for step in steps:
            match step:
                case Send():
                    self._send(step)
                    for pattern in self._deferred:
                        self._hear(pattern)
                    self._deferred.clear()
                case Action(name="signal"):
                    raise NotForServersError("an engine is sent a signal")
                case Action(name="exit") if not self.requests:
                    raise NotForServersError("an engine ends before it is asked anything")
                case Action(name="eof") if self._live:
                    raise NotForServersError("the input ends while a request is in flight")
                case Action():
                    pass
                case Expect(often="~"):
                    self._deferred.append(step.pattern)
                case _:
                    for pattern in records(step):
                        self._hear(pattern)
        if self._live:
            raise NotForServersError("a request has no end")

    def _send(self, step: Send) -> None:
        for kind, fields in self._reader.feed(step.data(self._offered)):
            request = fields["id"]
            if kind == "LOST":
                self._reader = _core.RequestReader(None, self.slots)
            if request == 0:
                continue  # the engine answers it without being asked
            if kind in SUBMITS:
                if request in self._live:
                    raise NotForServersError("an id in flight is used again")
                self._live[request] = Request(
                    _prompt(fields.get("payload", b"")), min(fields.get("max_tokens", 9), 10_000)
                )
                self.requests.append(self._live[request])
            elif request not in self._live:
                raise NotForServersError(f"{kind} for no request in flight")
            elif kind == "CANCEL":
                self._live[request].is_aborted = True
            elif request in self._said:
                self._live[request].stop = self._said[request].decode()
            else:
                raise NotForServersError("STOP before there is text to stop at")

    def _hear(self, pattern: Pattern) -> None:
        if pattern.request is None:
            return
        if pattern.kind == b"DATA":
            literal = len(pattern.parts) == 1 and isinstance(pattern.parts[0], bytes)
            text = bytes(pattern.parts[0]).split(b"\n", 1)[1] if literal else FILLED
            self._said[pattern.request] = text
        elif pattern.kind in (b"DONE", b"ERROR"):
            self._live.pop(pattern.request, None)
            self._said.pop(pattern.request, None)


def _prompt(payload: bytes) -> str:
    """The payload if a client can send it, else any prompt."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "Hello"
    return text if 0 < len(text) <= LONGEST_PROMPT and "\0" not in text else "Hello"


def plan(path: Path) -> Plan | str:
    try:
        return Plan(path)
    except NotForServersError as error:
        return str(error)


PLANS = {path: plan(path) for path in PATHS}
PLAYED = [path for path, found in PLANS.items() if isinstance(found, Plan)]


class Clients:
    """Clients of a server whose engine is watched."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.turns: list[Turn] = []
        self.records: list[frames.Record] = []
        engine = server.engine
        submit, record = engine.submit, engine._record

        def watched_submit(*args: Any, **fields: Any) -> Turn:
            self.turns.append(submit(*args, **fields))
            return self.turns[-1]

        def watched_record(of: frames.Record) -> None:
            self.records.append(of)
            record(of)

        engine.submit = watched_submit  # type: ignore[method-assign]
        engine._record = watched_record  # type: ignore[method-assign]

    async def begin(self, request: Request) -> asyncio.Task[Answer] | None:
        """Sends a request, and waits until the engine has it; an aborted one has no answer."""
        before = len(self.turns)
        task: asyncio.Task[Answer] | None = None
        stream: Stream | None = None
        if request.is_aborted:
            stream = await self.server.open("POST", "/v1/completions", request.body)
        else:
            answer = self.server.request("POST", "/v1/completions", request.body)
            task = asyncio.create_task(answer)
        await until(lambda: len(self.turns) > before, 10)
        if stream is not None:
            stream.abort()
        return task

    def said(self, turn: Turn) -> list[Any]:
        """The records of a turn up to its end."""
        own = [record for record in self.records if getattr(record, "id", None) == turn.id]
        ends = [isinstance(record, frames.Done | frames.Error) for record in own]
        return own[: ends.index(True) + 1]


def check(answer: Answer, request: Request, said: list[Any]) -> None:
    """Compares what a client got with what the engine said."""
    end = said[-1]
    if isinstance(end, frames.Error):
        assert answer.status == STATUS.get(end.code, 500)
        assert answer.error["message"]
        return
    data = b"".join(record.data for record in said if isinstance(record, frames.Data))
    text = data.decode("utf-8", "replace")
    limited = "length" if end.length_limited else "stop"
    assert answer.status == 200
    [choice] = answer.json["choices"]
    assert choice["text"] == (text if request.stop is None else text.split(request.stop)[0])
    assert choice["finish_reason"] == ("stop" if request.stop is not None else limited)
    usage = answer.json["usage"]
    assert usage["completion_tokens"] == end.emitted
    assert usage["prompt_tokens"] == end.prompt_tokens


@pytest.mark.parametrize("path", PLAYED, ids=lambda path: path.stem)
async def test_clients_get_what_the_transcript_says(path: Path, serve: Serve) -> None:
    plan = PLANS[path]
    assert isinstance(plan, Plan)
    server = serve(plan.text, slots=plan.slots, ready=False)
    clients = Clients(server)
    async with server, asyncio.timeout(20):
        await server.engine.wait_ready()
        tasks = [await clients.begin(request) for request in plan.requests]
        for task, request, turn in zip(tasks, plan.requests, clients.turns, strict=True):
            if task is not None:
                check(await task, request, clients.said(turn))
        await until(lambda: server.engine.in_flight == 0)
        assert (await server.request("GET", "/health")).status in (200, 503)


def test_most_transcripts_are_played() -> None:
    left_out = {path.stem: found for path, found in PLANS.items() if isinstance(found, str)}
    assert all(path.parent == GOLDEN for path, found in PLANS.items() if isinstance(found, str))
    assert len(PLAYED) > 2 * len(left_out), left_out
