"""Fixtures: coroutine tests, a scripted engine, and a server over it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest

from colibri.engine import Engine
from colibri.engine_process import EngineConfig
from colibri.models import ModelInfo
from colibri.tornado_app import ServeSettings, bind, listen, make_app, make_service

FAKE_ENGINE = (sys.executable, "-m", "colibri", "fake-engine")
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FAST_BACKOFF_S = (0.05, 0.1)


def pytest_configure(config: pytest.Config) -> None:
    """What engines remember between runs lies neither in our models nor in somebody's home."""
    folder = tempfile.TemporaryDirectory(prefix="colibri-state-")
    config.add_cleanup(folder.cleanup)
    os.environ["COLIBRI_STATE_DIR"] = folder.name
    os.environ["KVSAVE"] = "0"


@pytest.fixture(autouse=True)
def _nothing_remembered(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that a test starts know nothing of those before; they keep conversations where the
    test is about that, since what was computed before decides what is read and counted."""
    monkeypatch.setenv("COLIBRI_STATE_DIR", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("KVSAVE", "0")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs coroutine tests, each in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


class FakeEngineFiles:
    """The script of a fake engine, a scenario or the text of a transcript, and what it noted."""

    def __init__(self, folder: Path, script: dict[str, Any] | str) -> None:
        if isinstance(script, str):
            self.path = folder / "transcript.txt"
            self.path.write_text(script, encoding="utf-8")
        else:
            self.path = folder / "scenario.json"
            self.path.write_text(json.dumps(script), encoding="utf-8")

    def config(self, **settings: Any) -> EngineConfig:
        command = (*FAKE_ENGINE, str(self.path))
        return EngineConfig(
            model=self.path.parent, command=command, **{"ctx": 64, "slots": 2, **settings}
        )

    @property
    def received(self) -> list[str]:
        log = Path(f"{self.path}.log")
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []

    @property
    def lives(self) -> int:
        return len(Path(f"{self.path}.lives").read_bytes())

    def count(self, verb: str) -> int:
        return sum(line.split()[0] == verb for line in self.received)


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Waits for a condition, and fails when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, (
            f"not within {timeout_s} s: {inspect.getsource(condition)}"
        )
        await asyncio.sleep(0.01)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]


class Stream:
    """A reply that is read while it comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}

    async def read_head(self) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])
        }

    async def blocks(self) -> AsyncIterator[str]:
        """Events and comments as they stand, without their empty line."""
        while True:
            try:
                block = await self._reader.readuntil(b"\n\n")
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    pytest.fail(f"half an event: {error.partial!r}")
                return
            yield block.decode().removesuffix("\n\n")

    async def data(self) -> AsyncIterator[str]:
        async for block in self.blocks():
            if block.startswith("data: "):
                yield block.removeprefix("data: ")

    async def rest(self) -> bytes:
        return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def abort(self) -> None:
        self._writer.transport.abort()


class Server:
    """The real application on a real socket, over a scripted engine."""

    def __init__(
        self, folder: Path, script: dict[str, Any] | str | None = None, **options: Any
    ) -> None:
        self.files = FakeEngineFiles(folder, script or {})
        self.folder = folder
        self.ready = options.pop("ready", True)
        self.static = options.pop("static", folder / "no-static")
        self.service_options = options.pop("service", {})
        self.model = replace(
            ModelInfo(path=folder, id="fake", template=TEMPLATE), **options.pop("model", {})
        )
        slots = options.pop("slots", 2)
        self.settings = ServeSettings(port=0, **options)
        self.engine = Engine(self.files.config(slots=slots), backoff_s=FAST_BACKOFF_S)
        self.logged: list[str] = []

    async def __aenter__(self) -> Self:
        sockets = bind(self.settings)
        self.port = sockets[0].getsockname()[1]
        self.service = make_service(self.settings, self.engine, self.model, version="1.2.3")
        for name, value in self.service_options.items():
            setattr(self.service, name, value)
        self.http = listen(make_app(self.service, static_folder=self.static), sockets)
        self.engine.start()
        if self.ready:
            await self.engine.wait_ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.http.stop()
        await self.engine.stop(step_s=1.0)
        await asyncio.wait_for(self.http.close_all_connections(), 5)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        host: str | None = None,
    ) -> Stream:
        """Sends a request as it stands; HTTP/1.0, so that the reply is not cut into chunks."""
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        lines = {"Host": host or f"127.0.0.1:{self.port}", **(headers or {})}
        if data or method == "POST":
            lines.setdefault("Content-Type", "application/json")
            lines.setdefault("Content-Length", str(len(data)))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{method} {path} HTTP/1.0\r\n{head}\r\n".encode() + data)
        return Stream(reader, writer)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        host: str | None = None,
    ) -> Answer:
        stream = await self.open(method, path, body, headers, host=host)
        async with asyncio.timeout(20):
            await stream.read_head()
            answer = Answer(stream.status, stream.headers, await stream.rest())
        await stream.close()
        return answer

    async def chat(self, text: str = "hi", **fields: Any) -> Answer:
        return await self.request("POST", "/v1/chat/completions", chat_body(text, **fields))

    async def chat_stream(self, text: str = "hi", **fields: Any) -> Stream:
        stream = await self.open(
            "POST", "/v1/chat/completions", chat_body(text, stream=True, **fields)
        )
        return stream


def chat_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., FakeEngineFiles]:
    def make(**scenario: Any) -> FakeEngineFiles:
        return FakeEngineFiles(tmp_path, scenario)

    return make


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Server]:
    """``async with serve({...scenario}, option=...) as server``."""

    def make(script: dict[str, Any] | str | None = None, **options: Any) -> Server:
        return Server(tmp_path, script, **options)

    return make
