"""Commands of the package as processes, over a scripted engine or the real one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request

from conftest import FAKE_ENGINE, FakeEngineFiles


def environment(files: FakeEngineFiles | None) -> dict[str, str]:
    env = {**os.environ, "NO_COLOR": "1"}
    env.pop("COLIBRI_API_KEY", None)
    if files is not None:
        env.pop("COLI_MODEL", None)
        command = [*FAKE_ENGINE, str(files.path)]
        env["COLIBRI_ENGINE"] = shlex.join(command)
    return env


def colibri(
    *args: str, files: FakeEngineFiles | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-bb", "-W", "error", "-m", "colibri", *args],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        env=environment(files),
    )


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    assert len(lines) == 2
    for word in words:
        assert word in done.stderr


class Serving:
    """A server process, its address and what it printed."""

    def __init__(self, files: FakeEngineFiles | None, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "colibri", *args, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=environment(files),
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def url(self) -> str:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for line in self.lines:
                if line.startswith("serving "):
                    return line.split()[-1]
            time.sleep(0.02)
        raise AssertionError(self.lines)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url()}{path}", timeout=10) as reply:
            body: bytes = reply.read()
        return body

    def end(self, number: int) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(15)
        self._reader.join()
        return code

    def close(self) -> None:
        self.end(signal.SIGKILL)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
