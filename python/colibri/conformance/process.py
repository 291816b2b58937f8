"""One engine process with its pipes and all that it forks, without waits that have no end."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO

from colibri.conformance.matcher import Mismatch, Records
from colibri.conformance.monitor import Monitor
from colibri.errors import EngineStartError

READ_BYTES = 1 << 16
# Of its output, what is kept to show.
SEEN_BYTES = 240
# Of its stderr, what is kept to explain its end.
ERROR_BYTES = 64 << 10
# More than any rule makes an engine say.
OUTPUT_BYTES = 64 << 20
# So long it has to end by itself.
GRACE_S = 0.5
# A child of an engine that has ended may hold its output open; nothing comes after so long.
CHILD_S = 0.25
EXIT_USAGE = 2


class Silence(Mismatch):
    """Nothing came within the time allowed."""


class Endless(Silence):
    """It came and came, and was not over within the time allowed."""


class TooMuch(Endless):
    """It came and came, more than is read."""


class _Errors(threading.Thread):
    """Reads stderr to its end, so that no engine waits for us, and keeps the last of it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._kept = b""
        self.start()

    def run(self) -> None:
        """Until the engine and all its children have closed it."""
        with self._pipe:
            while data := os.read(self._pipe.fileno(), READ_BYTES):
                self._kept = (self._kept + data)[-ERROR_BYTES:]

    def text(self) -> str:
        """What was kept, of an engine that has ended."""
        # A child of the engine may hold it open for ever.
        self.join(1.0)
        return self._kept.decode("utf-8", "replace")


class Process:
    """A running engine; ``close`` ends it.

    Attributes:
        monitor: is told all bytes both ways, once it is set.
        sent: all that was written to it; who wants less of it may empty it.
        taken: how many of its records were taken since time was last allowed.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> None:
        self.monitor: Monitor | None = None
        self.sent = b""
        self._timeout_s = timeout_s
        self._over_at = math.inf
        self.taken = 0
        self._received_bytes = 0
        # What was said before there was a monitor, and whether it was sent.
        self._before: list[tuple[bool, bytes]] = []
        self._records: deque[bytes] = deque()
        self._parser = Records()
        self._output_ended = False
        self._tail = b""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(env),
                # What it forks is ended with it, and a Ctrl-C in the terminal is for us alone.
                start_new_session=True,
            )
        except OSError as error:
            raise EngineStartError(
                f"{command[0]} cannot be started: {error.strerror}", exit_code=EXIT_USAGE
            ) from error
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        if stdin is None or stdout is None or stderr is None:
            raise AssertionError("pipes were asked for")
        self._stdin, self._stdout, self._errors = stdin, stdout, _Errors(stderr)
        os.set_blocking(stdin.fileno(), False)

    def watch(self, monitor: Monitor) -> None:
        """Tells a monitor all that was said so far, and from now on everything."""
        for was_sent, data in self._before:
            (monitor.sent if was_sent else monitor.received)(data)
        self._before.clear()
        self.monitor = monitor

    def allow(self, seconds: float) -> None:
        """From now on, all that is waited for must come within this time and ``OUTPUT_BYTES``."""
        self._over_at = time.monotonic() + seconds
        self.taken = 0
        self._received_bytes = 0

    def send(self, data: bytes) -> None:
        """Writes all of ``data``, reading meanwhile.

        Raises:
            Mismatch: the engine does not read, or has ended.
        """
        self.sent += data
        if self.monitor is not None:
            self.monitor.sent(data)
        else:
            self._before.append((True, data))
        left = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            deadline = self._deadline(self._timeout_s)
            while left:
                wait_s = deadline - time.monotonic()
                ready = [key.fileobj for key, _ in selector.select(max(0.0, wait_s))]
                if not ready or wait_s <= 0:
                    raise Silence(f"it reads nothing for {self._timeout_s:g} s")
                if self._stdout in ready and not self._read():
                    selector.unregister(self._stdout)
                if self._stdin in ready:
                    try:
                        left = left[os.write(self._stdin.fileno(), left[: 1 << 16]) :]
                        deadline = self._deadline(self._timeout_s)
                    except BrokenPipeError:
                        raise Mismatch(f"it {self._how_it_ended()}") from None

    def end_input(self) -> None:
        """Closes its input."""
        if self.monitor is not None:
            self.monitor.input_ended()
        self._stdin.close()

    def signal(self, name: str) -> None:
        """Sends it a signal."""
        number = signal.Signals[f"SIG{name}"]
        if self.monitor is not None:
            self.monitor.signalled(number)
        self._process.send_signal(number)

    def record(self, timeout_s: float | None = None) -> bytes | None:
        """The next record, ``None`` at the end of its output.

        Raises:
            Silence: nothing came in time, or no end of it.
            Mismatch: what came cannot be cut into records.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = self._deadline(timeout_s)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while not self._records and not self._output_ended:
                # What comes without ever completing a record must not keep us for ever.
                wait_s = deadline - time.monotonic()
                has_ended = self._process.poll() is not None
                is_readable = bool(selector.select(max(0.0, min(wait_s, CHILD_S))))
                if wait_s <= 0:
                    raise Silence(f"no record came for {timeout_s:g} s")
                if is_readable:
                    self._read()
                elif has_ended:
                    self._output_ended = True
        if time.monotonic() > self._over_at:
            raise Endless("it goes on and on")
        if not self._records:
            return None
        self.taken += 1
        return self._records.popleft()

    def exit_code(self) -> int:
        """How it ended, negative for a signal.

        Raises:
            Silence: it does not end.
        """
        try:
            code = self._process.wait(self._left_s())
        except subprocess.TimeoutExpired:
            raise Silence(f"it does not end within {self._timeout_s:g} s") from None
        if self.monitor is not None:
            self.monitor.ended(code)
        return code

    @property
    def is_alive(self) -> bool:
        """Whether it runs and its output is open."""
        return self._process.poll() is None and not self._output_ended

    @property
    def seen(self) -> bytes:
        """The last bytes of its output."""
        return self._tail

    def last_words(self) -> str:
        """Why it ended, as it said on stderr: the last line that is an error, else the last."""
        lines = [line.strip() for line in self._errors.text().split("\n") if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error:")]
        return (errors or lines or [""])[-1]

    def close(self) -> None:
        """Ends it and what it forked: soon if they are willing, else at once."""
        self._stdin.close()
        self._stdout.close()
        try:
            self._end_group(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        finally:
            self._end_group(signal.SIGKILL)
            self._process.wait()

    def _end_group(self, number: int) -> None:
        # Where nothing of it is left, or nothing but what was not waited for yet.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self) -> bool:
        data = os.read(self._stdout.fileno(), READ_BYTES)
        if not data:
            self._output_ended = True
            return False
        self._tail = (self._tail + data)[-SEEN_BYTES:]
        self._received_bytes += len(data)
        if self._received_bytes > OUTPUT_BYTES:
            raise TooMuch(f"too much output: more than {OUTPUT_BYTES >> 20} MiB")
        if self.monitor is not None:
            self.monitor.received(data)
        else:
            self._before.append((False, data))
        self._records.extend(self._parser.feed(data))
        return True

    def _deadline(self, seconds: float) -> float:
        return min(time.monotonic() + seconds, self._over_at)

    def _left_s(self) -> float:
        return max(0.0, self._deadline(self._timeout_s) - time.monotonic())

    def _how_it_ended(self) -> str:
        try:
            return f"ended with exit code {self._process.wait(self._left_s())}"
        except subprocess.TimeoutExpired:
            return "closed its input"
