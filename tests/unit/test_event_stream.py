"""The sending side of a stream over sockets that take as much as a test wants."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tornado.iostream import StreamClosedError

from colibri.handlers.event_stream import EventStream


class Socket:
    """Takes so many bytes in all, then blocks or is broken."""

    def __init__(self, room: int, error: type[OSError] = BlockingIOError) -> None:
        self.room = room
        self.error = error
        self.taken = b""

    def send(self, data: bytes) -> int:
        taken = data[: self.room]
        if not taken:
            raise self.error
        self.room -= len(taken)
        self.taken += taken
        return len(taken)


class Stream:
    """Stands for Tornado's; ``drain`` is the socket having room again."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.buffer = b""
        self.waiting: asyncio.Future[None] | None = None

    def closed(self) -> bool:
        return isinstance(self.socket.error(), ConnectionError) and self.socket.room == 0

    def writing(self) -> bool:
        return bool(self.buffer)

    def write(self, data: bytes) -> asyncio.Future[None]:
        if self.closed():
            raise StreamClosedError
        self.buffer += data
        self.waiting = asyncio.get_running_loop().create_future()
        return self.waiting

    def drain(self) -> None:
        assert self.waiting is not None
        self.socket.taken += self.buffer
        self.buffer = b""
        self.waiting.set_result(None)


class Handler:
    """As much of a request handler as a stream of events needs."""

    def __init__(self, stream: Stream, *, chunked: bool) -> None:
        self.request = self
        self.connection = self
        self.stream = stream
        self._headers = {"Transfer-Encoding": "chunked"} if chunked else {}
        self.written = b""

    def set_header(self, name: str, value: str) -> None:
        self._headers[name] = value

    def write(self, data: bytes) -> None:
        self.written += data

    async def flush(self) -> None:
        return


async def begin(stream: Stream, *, chunked: bool = False, keepalive_s: float = 60) -> EventStream:
    handler: Any = Handler(stream, chunked=chunked)
    events = EventStream(handler, keepalive_s)
    await events.begin(b"first")
    assert handler.written == b"first"
    assert handler._headers["Content-Type"].startswith("text/event-stream")
    return events


@pytest.mark.parametrize("chunked", [False, True])
async def test_what_the_socket_takes_is_sent_without_waiting(chunked: bool) -> None:
    stream = Stream(Socket(1000))
    events = await begin(stream, chunked=chunked)
    await events.send(b"data: 1\n\n")
    assert stream.socket.taken == (b"9\r\ndata: 1\n\n\r\n" if chunked else b"data: 1\n\n")
    assert stream.waiting is None


@pytest.mark.parametrize("room", [0, 1, 5])
async def test_the_rest_is_waited_for_and_comes_in_order(room: int) -> None:
    stream = Stream(Socket(room))
    events = await begin(stream)
    first = asyncio.ensure_future(events.send(b"data: 1\n\n"))
    await asyncio.sleep(0)
    assert not first.done()
    assert len(stream.socket.taken) == room
    # There is room again, but what waits goes first.
    stream.socket.room = 1000
    second = asyncio.ensure_future(events.send(b"data: 2\n\n"))
    await asyncio.sleep(0)
    stream.drain()
    await second
    assert stream.socket.taken == b"data: 1\n\ndata: 2\n\n"
    first.cancel()


async def test_a_client_that_is_gone_is_reported() -> None:
    events = await begin(Stream(Socket(0, ConnectionResetError)))
    with pytest.raises(StreamClosedError):
        await events.send(b"data: 1\n\n")


async def test_silence_is_broken_until_the_end_but_not_behind_what_waits() -> None:
    stream = Stream(Socket(1000))
    events = await begin(stream, keepalive_s=0.02)
    events.watch_silence()
    await asyncio.sleep(0.2)
    assert stream.socket.taken.startswith(b": keepalive\n\n" * 2)
    stream.socket.room = 0
    blocked = asyncio.ensure_future(events.send(b"data: 1\n\n"))
    await asyncio.sleep(0.1)
    assert stream.buffer == b"data: 1\n\n"
    stream.drain()
    await blocked
    events.end()
    stream.socket.room = 1000
    taken = stream.socket.taken
    await asyncio.sleep(0.1)
    assert stream.socket.taken == taken


async def test_events_keep_the_comment_away() -> None:
    stream = Stream(Socket(1000))
    events = await begin(stream, keepalive_s=0.5)
    events.watch_silence()
    for _ in range(40):
        await events.send(b".")
        await asyncio.sleep(0.02)
    events.end()
    assert stream.socket.taken == b"." * 40
