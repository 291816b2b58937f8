"""One engine process with its pipes, without threads and without waits that have no end."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence

from colibri.conformance.matcher import Mismatch, Records
from colibri.conformance.monitor import Monitor
from colibri.errors import EngineStartError

READ_BYTES = 1 << 16
# Of its output, what is kept to show.
SEEN_BYTES = 240
EXIT_USAGE = 2


class Silence(Mismatch):
    """Nothing came within the time allowed."""


class Endless(Silence):
    """It came and came, and was not over within the time allowed."""


class Process:
    """A running engine; ``close`` ends it.

    Attributes:
        monitor: is told all bytes both ways, once it is set.
        sent: all that was written to it; who wants less of it may empty it.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> None:
        self.monitor: Monitor | None = None
        self.sent = b""
        self._timeout_s = timeout_s
        self._over_at = math.inf
        # What was said before there was a monitor, and whether it was sent.
        self._before: list[tuple[bool, bytes]] = []
        self._records: deque[bytes] = deque()
        self._parser = Records()
        self._output_ended = False
        self._tail = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                env=dict(env),
            )
        except OSError as error:
            self._errors.close()
            raise EngineStartError(
                f"{command[0]} cannot be started: {error.strerror}", exit_code=EXIT_USAGE
            ) from error
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise AssertionError("pipes were asked for")
        self._stdin, self._stdout = stdin, stdout
        os.set_blocking(stdin.fileno(), False)

    def watch(self, monitor: Monitor) -> None:
        """Tells a monitor all that was said so far, and from now on everything."""
        for was_sent, data in self._before:
            (monitor.sent if was_sent else monitor.received)(data)
        self._before.clear()
        self.monitor = monitor

    def allow(self, seconds: float) -> None:
        """From now on, all that is waited for must have come within this time."""
        self._over_at = time.monotonic() + seconds

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
            Silence: nothing came in time.
            Mismatch: what came cannot be cut into records.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = self._deadline(timeout_s)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while not self._records and not self._output_ended:
                # What comes without ever completing a record must not keep us for ever.
                wait_s = deadline - time.monotonic()
                if not selector.select(max(0.0, wait_s)) or wait_s <= 0:
                    raise Silence(f"no record came for {timeout_s:g} s")
                self._read()
        if time.monotonic() > self._over_at:
            raise Endless("it goes on and on")
        return self._records.popleft() if self._records else None

    def exit_code(self) -> int:
        """How it ended, negative for a signal.

        Raises:
            Silence: it does not end.
        """
        try:
            code = self._process.wait(self._timeout_s)
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
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error:")]
        return (errors or lines or [""])[-1]

    def close(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._stdout.close()
        self._errors.close()

    def _read(self) -> bool:
        data = os.read(self._stdout.fileno(), READ_BYTES)
        if not data:
            self._output_ended = True
            return False
        self._tail = (self._tail + data)[-SEEN_BYTES:]
        if self.monitor is not None:
            self.monitor.received(data)
        else:
            self._before.append((False, data))
        self._records.extend(self._parser.feed(data))
        return True

    def _deadline(self, seconds: float) -> float:
        return min(time.monotonic() + seconds, self._over_at)

    def _how_it_ended(self) -> str:
        try:
            return f"ended with exit code {self._process.wait(self._timeout_s)}"
        except subprocess.TimeoutExpired:
            return "closed its input"
