"""One chat template, rendered in a process that may die of it (docs/design/0006)."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from colibri.errors import ColibriError, RequestError
from colibri.openai.json import dumps, loads

# The longest conversations of real models take a tenth of this.
RENDER_S = 5.0
# Python has to be read from disk; nothing of the template runs yet.
START_S = 30.0
# The process ends with its input, unless the template keeps it busy.
GRACE_S = 0.5
READ_BYTES = 1 << 20
# How the core begins what it says of a template; here the rest of the sentence says so.
PREFIX = "chat template: "


class TemplateProcess:
    """Renders a template; the process starts with the first rendering, and again after a death.

    Renderings queue for one thread, which alone talks to the process.

    Args:
        template: the arguments of ``_core.ChatTemplate``.
        limit_s: seconds that one rendering may take.
    """

    def __init__(self, template: dict[str, str | None], *, limit_s: float = RENDER_S) -> None:
        self._template = dumps(template).encode()
        self._limit_s = limit_s
        self._worker: _Worker | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="template")

    def render(self, variables: str) -> str:
        """Renders with the variables of a JSON object.

        Raises:
            RequestError: the template refuses them, or fails.
            ColibriError: the process cannot be started.
        """
        return self._thread.submit(self._render, variables).result()

    async def render_async(self, variables: str) -> str:
        """Does the same without blocking the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._render, variables)

    def _render(self, variables: str) -> str:
        worker, self._worker = self._worker, None
        # It may also have been ended between two requests, by whoever was short of memory.
        if worker is None or not worker.alive:
            worker = self._start()
        answer = _ask(worker, variables.encode(), self._limit_s)
        self._worker = worker
        if "error" in answer:
            reason = str(answer["error"]).removeprefix(PREFIX)
            raise RequestError(
                f"the chat template refuses these messages: {reason}", param="messages"
            )
        return str(answer["text"])

    def _start(self) -> _Worker:
        try:
            worker = _Worker()
        except OSError as error:
            raise ColibriError(f"cannot start the template's process: {error.strerror}") from error
        answer = _ask(worker, self._template, START_S)
        if "error" in answer:
            raise _failure(f"is not valid: {str(answer['error']).removeprefix(PREFIX)}")
        return worker


def _ask(worker: _Worker, message: bytes, limit_s: float) -> dict[str, Any]:
    try:
        return worker.ask(message, limit_s)
    except TimeoutError as error:
        worker.kill()
        raise _failure(f"took longer than {limit_s:g} s") from error
    except (OSError, EOFError, ValueError) as error:
        worker.end()
        code = worker.exit_code
        cause = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        raise _failure(f"ended its renderer ({cause})") from error


def _failure(what: str) -> RequestError:
    # Not a status that clients take as a reason to try again: the same would happen.
    return RequestError(
        f"the chat template {what}",
        param="messages",
        code="template_failed",
        hint="the template comes with the model; /v1/completions does without it",
    )


class _Worker:
    """A running ``_template_worker``.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # Not what lies in the current folder, which may be the model's.
                    [sys.executable, "-P", "-m", "colibri._template_worker"],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    # A hostile template is not to write on the terminal by its death.
                    stderr=subprocess.DEVNULL,
                    # A Ctrl-C in the terminal is for us alone.
                    start_new_session=True,
                )
        except OSError:
            self._socket.close()
            raise
        # Also runs when the interpreter ends.
        self.end = weakref.finalize(self, _end, self._socket, self._process)

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int:
        """How the process ended; a negative number is a signal."""
        return self._process.wait()

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self.end()

    def ask(self, message: bytes, limit_s: float) -> dict[str, Any]:
        """Sends a message and returns the answer.

        Raises:
            TimeoutError: it did not come in time.
            OSError, EOFError, ValueError: the process ended or cannot be understood.
        """
        deadline = time.monotonic() + limit_s
        self._socket.settimeout(limit_s)
        self._socket.sendall(len(message).to_bytes(4, "little") + message)
        size = int.from_bytes(self._receive(4, deadline), "little")
        answer: dict[str, Any] = loads(self._receive(size, deadline))
        return answer

    def _receive(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            part = self._socket.recv(min(size - len(data), READ_BYTES))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
