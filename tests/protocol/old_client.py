"""A client of the legacy protocol as they were written: plain pipes, one line, one answer."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path

from colibri.find_engine import find_engine

MODEL = Path(__file__).parents[1] / "data" / "oracle" / "glm4_moe_lite"
READY = b"\x01\x01READY\x01\x01\n"
END = b"\x01\x01END\x01\x01\n"
TIMEOUT_S = 60


class OldClient:
    """An engine process and what is read of it; a context manager that ends it."""

    def __init__(
        self, folder: Path, *args: str, model: Path = MODEL, env: dict[str, str] | None = None
    ) -> None:
        self.stderr_path = folder / "stderr"
        # What the surroundings of the tests set is not what an old client set.
        cleared = {"SERVE", "SERVE_BATCH", "NGEN", "COLI_TEMP", "NUCLEUS", "SEED", "COLI_MODEL"}
        inherited = {name: value for name, value in os.environ.items() if name not in cleared}
        with self.stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*find_engine(), str(model), *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                env=inherited | ({"SERVE": "1"} if env is None else env),
            )
        self.buffer = b""

    def __enter__(self) -> OldClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text(encoding="utf-8")

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def read_some(self) -> bytes:
        """What comes next, nothing at the end."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
        assert ready, f"nothing comes after {self.buffer[-200:]!r}"
        return os.read(self.process.stdout.fileno(), 65536)

    def until(self, marker: bytes) -> bytes:
        """Everything before the marker, which is taken too."""
        while marker not in self.buffer:
            data = self.read_some()
            assert data, f"the engine ended after {self.buffer[-200:]!r}: {self.stderr}"
            self.buffer += data
        before, _, self.buffer = self.buffer.partition(marker)
        return before

    def line(self) -> bytes:
        return self.until(b"\n")

    def handshake(self) -> list[bytes]:
        """Whatever comes before READY, then STAT and exactly one line more."""
        return [self.until(READY), self.line(), self.line()]

    def answer(self) -> tuple[bytes, bytes]:
        """Text until the END bytes, then one STAT line."""
        return self.until(END), self.line()

    def ask(self, line: bytes) -> tuple[bytes, bytes]:
        self.send(line + b"\n")
        return self.answer()

    def prompt(self, payload: bytes, fields: str) -> tuple[bytes, bytes]:
        header = f"\x02PROMPT {len(payload)} {fields}\n".encode()
        return self.ask(header + payload)

    def exit_code(self) -> int:
        """Reads to the end, as one does who waits for it."""
        deadline = time.monotonic() + TIMEOUT_S
        while data := self.read_some():
            assert time.monotonic() < deadline
            self.buffer += data
        return self.process.wait(TIMEOUT_S)
