"""Many streaming chat requests from one process, read as cheaply as Python can."""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from measure import cpu_seconds

READ_BYTES = 1 << 16
EVENT = b"data: "
LAST = b"data: [DONE]\n\n"
TIME_WRITTEN = re.compile(rb'"content":" *(\d+)"')


@dataclass
class Load:
    """What the clients saw.

    Attributes:
        events: events of all kinds.
        bytes: bytes received, HTTP included.
        wall_s: from the first text of any answer to the end of the last.
        cpu_s: the server's processor time between these two.
        steady_events: events while all answers were streaming, that is until the first has ended.
        steady_cpu_s: the server's processor time for these.
        latencies_us: from the engine's write to our read, for tokens that are times.
    """

    events: int = 0
    bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    steady_events: int = 0
    steady_cpu_s: float = 0.0
    latencies_us: list[int] = field(default_factory=list)


class Client:
    """One connection."""

    def __init__(self, port: int, path: str, body: dict[str, Any]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(request(path, body))
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
    port: int, server_pid: int, path: str, bodies: list[dict[str, Any]], *, timed: bool = False
) -> Load:
    """Streams the answers to all requests at once to their ends."""
    selector = selectors.DefaultSelector()
    for body in bodies:
        client = Client(port, path, body)
        selector.register(client.socket, selectors.EVENT_READ, client)
    load = Load()
    wall, cpu, events = 0.0, 0.0, 0
    while selector.get_map():
        for key, _ in selector.select():
            if key.data.read(load, timed=timed):
                if not load.steady_events:
                    load.steady_events = load.events - events
                    load.steady_cpu_s = cpu_seconds(server_pid) - cpu
                selector.unregister(key.fileobj)
                key.data.socket.close()
        if wall == 0.0 and load.events > len(bodies):
            # A chat begins with its role, so this is the first text.
            wall, cpu, events = time.monotonic(), cpu_seconds(server_pid), load.events
    load.wall_s = time.monotonic() - wall
    load.cpu_s = cpu_seconds(server_pid) - cpu
    selector.close()
    return load


def request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data
