"""Many streaming chat requests from one process, read as cheaply as Python can."""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from dataclasses import dataclass, field

from measure import cpu_seconds

READ_BYTES = 1 << 16
EVENT = b"data: "
LAST = b"data: [DONE]\n\n"
# Of each answer: the role, the reason of its end, the figures, [DONE].
OTHER_EVENTS = 4
TIME_WRITTEN = re.compile(rb'"content":" *(\d+)"')


@dataclass
class Load:
    """What the clients saw.

    Attributes:
        events: events that carried text.
        bytes: bytes received, HTTP included.
        wall_s: from the first text of any answer to the end of the last.
        cpu_s: the server's processor time between these two.
        latencies_us: from the engine's write to our read, for tokens that are times.
    """

    events: int = 0
    bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    latencies_us: list[int] = field(default_factory=list)


class Client:
    """One connection."""

    def __init__(self, port: int, number: int, max_tokens: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(request(number, max_tokens))
        self.socket.setblocking(False)
        # The end of what was read, in which an event may begin.
        self._tail = b""

    def read(self, load: Load, *, timed: bool) -> bool:
        """Takes what has come; true at the end of the answer."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise RuntimeError(f"an answer broke off after {self._tail!r}")
        load.bytes += len(data)
        if timed:
            now_us = time.monotonic_ns() // 1000
            load.latencies_us += [now_us - int(at) for at in TIME_WRITTEN.findall(data)]
        seen = self._tail + data
        load.events += seen.count(EVENT) - self._tail.count(EVENT)
        self._tail = seen[1 - len(LAST) :]
        return LAST in seen


def stream_all(
    port: int, server_pid: int, streams: int, max_tokens: int, *, timed: bool = False
) -> Load:
    """Streams that many answers at once to their ends."""
    selector = selectors.DefaultSelector()
    for i in range(streams):
        client = Client(port, i, max_tokens)
        selector.register(client.socket, selectors.EVENT_READ, client)
    load = Load()
    wall, cpu = 0.0, 0.0
    while selector.get_map():
        for key, _ in selector.select():
            if key.data.read(load, timed=timed):
                selector.unregister(key.fileobj)
                key.data.socket.close()
        if wall == 0.0 and load.events > streams:
            # Each answer begins with its role, so this is the first text.
            wall, cpu = time.monotonic(), cpu_seconds(server_pid)
    load.wall_s = time.monotonic() - wall
    load.cpu_s = cpu_seconds(server_pid) - cpu
    load.events -= OTHER_EVENTS * streams
    selector.close()
    return load


def request(number: int, max_tokens: int) -> bytes:
    message = {"role": "user", "content": f"Tell story {number}."}
    body = json.dumps({"messages": [message], "max_tokens": max_tokens, "stream": True}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
