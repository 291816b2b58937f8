"""A live engine under test: what is sent and all it writes."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

from colibri.find_engine import find_engine

MODEL = Path(__file__).parents[1] / "data" / "oracle" / "glm4_moe_lite"
TIMEOUT_S = 30


class Live:
    """An engine process; a context manager that ends it."""

    def __init__(self, *, read: bool = True) -> None:
        self.process = subprocess.Popen(
            [*find_engine(), "--mux", "--model", str(MODEL), "--ctx", "64", "--slots", "2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.output = b""
        self.at = 0
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
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while chunk := self.process.stdout.read1(65536):
            self.output += chunk
        self.closed.set()

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def exit_code(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        assert self.closed.wait(TIMEOUT_S)
        return code

    def expect(self, wanted: re.Pattern[bytes], where: str) -> None:
        """Takes what matches at the present position, waiting for it."""
        deadline = time.monotonic() + TIMEOUT_S
        while (found := wanted.match(self.output, self.at)) is None:
            if self.closed.is_set() or time.monotonic() > deadline or self._hopeless(wanted):
                pytest.fail(f"{where}: wanted {wanted.pattern!r}, got {self.rest()!r}")
            time.sleep(0.002)
        self.at = found.end()

    def wait_for(self, wanted: bytes) -> None:
        """Waits until ``wanted`` has been written."""
        deadline = time.monotonic() + TIMEOUT_S
        while wanted not in self.output:
            assert time.monotonic() < deadline, self.output[-300:]
            assert not self.closed.is_set(), self.output[-300:]
            time.sleep(0.002)

    def _hopeless(self, wanted: re.Pattern[bytes]) -> bool:
        """Whether more output cannot help: more lines are there than the pattern has."""
        lines = wanted.pattern.count(b"\n")
        return self.output.count(b"\n", self.at) > lines and not wanted.match(self.output, self.at)

    def rest(self) -> bytes:
        return self.output[self.at : self.at + 200]
