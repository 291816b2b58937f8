"""The sending side of a streamed reply.

Owns: back-pressure, framing, comments that break a silence. Does not own: what is sent.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tornado.web import RequestHandler

from colibri.openai.stream import comment


class EventStream:
    """Server-sent events to one client.

    Events go straight to the socket while it takes all of them. On the way through ``write`` and
    ``flush`` of the handler each would cost three futures and four callbacks, which is more than
    everything else that happens to a token.

    Args:
        handler: the request; ``begin`` sends its status and headers.
        keepalive_s: silence after which a comment is sent.
    """

    def __init__(self, handler: RequestHandler, keepalive_s: float) -> None:
        self._handler = handler
        self._keepalive_s = keepalive_s
        connection: Any = handler.request.connection
        self._stream = connection.stream
        self._loop = asyncio.get_running_loop()
        self._chunked = False
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, data: bytes) -> None:
        """Sends the headers and the first event."""
        handler = self._handler
        handler.set_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.set_header("Cache-Control", "no-cache")
        handler.set_header("X-Accel-Buffering", "no")
        handler.write(data)
        sent = handler.flush()
        # Tornado decides on it while it writes the headers.
        self._chunked = handler._headers.get("Transfer-Encoding") == "chunked"
        self._sent_at = self._loop.time()
        await sent

    async def send(self, data: bytes) -> None:
        """Sends complete events; waits for a client that does not take them.

        Raises:
            StreamClosedError: the client is gone.
        """
        waiting = self.put(data)
        if waiting is not None:
            await waiting

    def is_open(self) -> bool:
        """Whether the client has taken everything so far."""
        return not self._stream.closed() and not self._stream.writing()

    def put(self, data: bytes) -> asyncio.Future[None] | None:
        """Sends complete events; returns what to wait for unless the socket took all at once."""
        stream = self._stream
        self._sent_at = self._loop.time()
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self.is_open():
            try:
                sent = stream.socket.send(data)
            except OSError:
                # It is full, or it is broken, which the stream finds out and knows to report.
                sent = 0
            if sent == len(data):
                return None
            data = data[sent:]
        waiting: asyncio.Future[None] = stream.write(data)
        return waiting

    def watch_silence(self) -> None:
        """Sends a comment whenever nothing was sent for a while, until ``end``.

        One timer serves the whole stream and looks when the last event was sent: one for each
        token would cost as much as sending it.
        """
        silent_s = self._loop.time() - self._sent_at
        if silent_s >= self._keepalive_s:
            silent_s = 0.0
            if self.is_open():
                self.put(comment("keepalive"))
        self._timer = self._loop.call_later(self._keepalive_s - silent_s, self.watch_silence)

    def end(self) -> None:
        """Stops watching."""
        if self._timer is not None:
            self._timer.cancel()
