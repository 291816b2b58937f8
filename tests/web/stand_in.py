"""A scripted server for the browser tests.

Serves the built page and plays the endpoints that it uses, so that a test decides what the engine
says and when. What it cannot know, such as a real engine's timing, is tested against the real
server.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

CSP = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
STATS = {
    "completion_tokens": 24,
    "tokens_per_second": 41.7,
    "cache_hit_percent": 93.4,
    "rss_gb": 1.2,
    "prompt_tokens": 17,
    "cached_tokens": 9,
    "length_limited": False,
    "ttft_ms": 180.0,
}


@dataclass
class Script:
    """What the next answers are, and how they arrive."""

    text: str = "Once upon a time there was a little fox.\n\nIt was **brave**."
    chunk_bytes: int = 31
    delay_s: float = 0.005
    finish: str = "stop"
    # An HTTP status with an error body instead of an answer.
    refuse: tuple[int, dict[str, Any]] | None = None
    # Sent as a frame after the text, instead of the statistics.
    stream_error: dict[str, Any] | None = None
    # Stay silent after the text until the client goes away.
    hang: bool = False


@dataclass
class StandIn:
    """State that tests read and change; all of it behind one lock."""

    dist: Path
    rows: int = 5
    cols: int = 32
    script: Script = field(default_factory=Script)
    api_key: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    # What `GET /profile` knows, oldest first.
    turns: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.lock = threading.Condition()
        self.cells = bytes(self.rows * self.cols)
        self.events: list[tuple[int, str, str]] = []
        self.closing = False
        # Raised to cut every open event stream, as a restart of the server does.
        self.generation = 0
        self.event_streams = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(self))
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.closing = True
            self.lock.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def state(self) -> dict[str, Any]:
        counts = [sum(1 for cell in self.cells if cell >> 6 == tier) for tier in range(3)]
        return {
            "state": "ready",
            "reason": None,
            "stage": None,
            "done": 0,
            "total": 0,
            "model": "colibri-demo",
            "version": "0.1.0",
            "ctx": 2048,
            "slots": 2,
            "layers": [row + 1 for row in range(self.rows)],
            "rows": self.rows,
            "cols": self.cols,
            "hwinfo": {
                "cores": 8,
                "ram_total_gb": 31.2,
                "ram_avail_gb": 24.0,
                "ngpu": 1,
                "vram_total_gb": 12.0,
                "cpu_name": "Example CPU 8-Core",
                "gpu_name": "Example GPU",
            },
            "tiers": {
                "vram": counts[2],
                "ram": counts[1],
                "disk": counts[0],
                "vram_gb": 0.0021 * counts[2],
                "ram_gb": 0.0021 * counts[1],
            },
            "generation": {"temperature": 0.7, "top_p": 0.95},
            **self.engine,
        }

    def set_map(self, cells: bytes) -> None:
        assert len(cells) == self.rows * self.cols
        self.cells = cells
        self.push("map", self.block(cells))

    def light(self, experts: set[int]) -> None:
        bits = bytearray((self.rows * self.cols + 7) // 8)
        for index in experts:
            bits[index // 8] |= 1 << (index % 8)
        self.push("hits", self.block(bytes(bits)))

    def block(self, data: bytes) -> dict[str, Any]:
        return {"rows": self.rows, "cols": self.cols, "data": base64.b64encode(data).decode()}

    def push(self, event: str, data: dict[str, Any]) -> None:
        with self.lock:
            self.events.append((len(self.events) + 1, event, json.dumps(data)))
            self.lock.notify_all()

    def set_engine(self, **change: Any) -> None:
        self.engine = {**self.engine, **change}
        self.push("state", self.state())

    def cut_event_streams(self) -> None:
        with self.lock:
            self.generation += 1
            self.lock.notify_all()

    def wait_for_stream(self, there: bool = True, timeout: float = 5.0) -> None:
        with self.lock:
            assert self.lock.wait_for(lambda: (self.event_streams > 0) is there, timeout)

    def paths(self) -> list[str]:
        return [request["path"] for request in self.requests]


def frames(script: Script) -> Iterator[bytes]:
    """The byte stream of one answer; text is cut inside characters on purpose by the writer."""

    def frame(**more: Any) -> bytes:
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "demo",
        }
        return b"data: " + json.dumps({**body, **more}, ensure_ascii=False).encode() + b"\n\n"

    words = script.text.split(" ")
    for i, word in enumerate(words):
        piece = word if i == 0 else f" {word}"
        delta = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
        yield frame(choices=[delta])
    if script.hang:
        return
    if script.stream_error is not None:
        yield b"data: " + json.dumps({"error": script.stream_error}).encode() + b"\n\n"
        return
    yield frame(choices=[{"index": 0, "delta": {}, "finish_reason": script.finish}])
    yield frame(choices=[], colibri={"stats": STATS, "perf": None, "topk": None})
    yield b"data: [DONE]\n\n"


def handler_for(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Keep the test output to the tests."""

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            stand_in.requests.append({"path": path, "headers": dict(self.headers)})
            if path.startswith(("/api", "/v1", "/experts", "/profile")) and not self.authorised():
                return
            if path == "/api/state":
                self.json(200, stand_in.state())
            elif path == "/experts":
                self.json(200, self.experts())
            elif path == "/profile":
                self.json(200, {"seq": len(stand_in.turns), "turns": stand_in.turns})
            elif path == "/v1/models":
                self.json(200, {"object": "list", "data": [{"id": "colibri-demo"}]})
            elif path == "/api/events":
                self.events()
            else:
                self.static(path)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            stand_in.requests.append({"path": self.path, "body": json.loads(body)})
            if not self.authorised():
                return
            script = stand_in.script
            if script.refuse is not None:
                status, error = script.refuse
                self.json(status, {"error": error})
                return
            self.start_stream()
            data = b"".join(frames(script))
            try:
                for at in range(0, len(data), script.chunk_bytes):
                    self.chunk(data[at : at + script.chunk_bytes])
                    time.sleep(script.delay_s)
                while script.hang and not stand_in.closing:
                    self.chunk(b": still here\n\n")
                    time.sleep(0.02)
                self.chunk(b"")
            except ConnectionError:
                stand_in.cancelled.set()
                self.close_connection = True

        def authorised(self) -> bool:
            if stand_in.api_key is None:
                return True
            if self.headers.get("Authorization") == f"Bearer {stand_in.api_key}":
                return True
            self.json(
                401, {"error": {"message": "Missing or wrong API key.", "code": "invalid_api_key"}}
            )
            return False

        def experts(self) -> dict[str, Any]:
            size = (stand_in.rows * stand_in.cols + 7) // 8
            return {
                "rows": stand_in.rows,
                "cols": stand_in.cols,
                "map": stand_in.cells.hex(),
                "hits": bytes(size).hex(),
                "seq": len(stand_in.events),
                "gpus": [],
                "entropy": None,
                "repin": [],
            }

        def events(self) -> None:
            last = self.headers.get("Last-Event-ID")
            self.start_stream()
            with stand_in.lock:
                generation = stand_in.generation
                # Without an id the client fetches the snapshots: history would be noise.
                position = len(stand_in.events) if last is None else int(last)
                stand_in.event_streams += 1
                stand_in.lock.notify_all()
            try:
                self.chunk(b": hello\n\n")
                while True:
                    with stand_in.lock:
                        while len(stand_in.events) == position:
                            if stand_in.closing or stand_in.generation != generation:
                                raise ConnectionResetError
                            if not stand_in.lock.wait(1.0):
                                break
                        batch = stand_in.events[position:]
                        position = len(stand_in.events)
                    for number, event, data in batch:
                        self.chunk(f"id: {number}\nevent: {event}\ndata: {data}\n\n".encode())
                    if not batch:
                        self.chunk(b"event: ping\ndata: {}\n\n")
            except ConnectionError:
                self.close_connection = True
            finally:
                with stand_in.lock:
                    stand_in.event_streams -= 1
                    stand_in.lock.notify_all()

        def static(self, path: str) -> None:
            target = (stand_in.dist / path.lstrip("/")).resolve()
            if not target.is_relative_to(stand_in.dist) or not target.is_file():
                target = stand_in.dist / "index.html"
            kind = mimetypes.guess_type(target.name)[0] or "application/octet-stream"
            self.answer(200, kind, target.read_bytes())

        def json(self, status: int, value: dict[str, Any]) -> None:
            self.answer(status, "application/json", json.dumps(value).encode())

        def answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.common(kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def start_stream(self) -> None:
            self.send_response(200)
            self.common("text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def common(self, kind: str) -> None:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Security-Policy", CSP)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Request-Id", "req-7")

        def chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    return Handler
