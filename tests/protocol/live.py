"""A live engine under test: what is sent and all it writes."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from colibri.conformance.monitor import Monitor
from colibri.find_engine import find_engine

MODEL = Path(__file__).parents[1] / "data" / "oracle" / "glm4_moe_lite"
TIMEOUT_S = 30


class Live:
    """An engine process; a context manager that ends it. The monitor hears all that is said."""

    def __init__(
        self, *, read: bool = True, ctx: int = 64, slots: int = 2, model: Path = MODEL
    ) -> None:
        self.process = subprocess.Popen(
            [
                *find_engine(),
                *("--mux", "--model", str(model)),
                *("--ctx", str(ctx), "--slots", str(slots)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.monitor = Monitor("full", slots)
        self.lock = threading.Lock()
        self.output = b""
        self.closed = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        if read:
            self.reader.start()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.reader.is_alive():
            self.reader.join()
        assert self.monitor.findings == []
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while chunk := self.process.stdout.read1(65536):
            with self.lock:
                self.monitor.received(chunk)
            self.output += chunk
        self.closed.set()

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with self.lock:
            self.monitor.sent(data)
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        with self.lock:
            self.monitor.input_ended()
        self.process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        with self.lock:
            self.monitor.signalled(number)
        self.process.send_signal(number)

    def exit_code(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        assert self.closed.wait(TIMEOUT_S)
        self.monitor.ended(code)
        assert self.monitor.findings == []
        return code

    def wait_for(self, wanted: bytes, start: int = 0) -> None:
        """Waits until ``wanted`` has been written, behind the first ``start`` bytes."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.output.find(wanted, start) < 0:
            assert time.monotonic() < deadline, self.output[-300:]
            assert not self.closed.is_set(), self.output[-300:]
            time.sleep(0.002)

    def wait_for_end(self, request: int, start: int) -> None:
        """Waits until a request has its terminal record, behind the first ``start`` bytes."""
        end = re.compile(rb"\n(?:DONE|ERROR) %d " % request)
        deadline = time.monotonic() + TIMEOUT_S
        while end.search(self.output, start) is None:
            assert time.monotonic() < deadline, self.output[start:]
            time.sleep(0.002)

    def rss(self) -> int:
        """The engine's resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) << 10
