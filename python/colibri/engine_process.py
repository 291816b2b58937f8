"""One life of the engine process: spawn, read, write, end.

Owns the pipes and the reason why the process ended. Does not own requests or restarts
(``engine``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from colibri import _core, frames
from colibri.decimals import decimal
from colibri.errors import ProtocolError
from colibri.find_engine import find_engine
from colibri.last_words import LastWords
from colibri.models import demo_folder
from colibri.streams import explain

READ_BYTES = 1 << 16
# A diagnostic line longer than this is cut: stderr is for people.
STDERR_LINE_BYTES = 8192
# An engine that closed its output has this long to end.
EXIT_WAIT_S = 5.0


@dataclass(frozen=True)
class EngineConfig:
    """What the engine is started with.

    Attributes:
        model: folder of the model.
        ctx: most tokens of prompt and answer together.
        slots: KV slots, which is how many requests run at once.
        ram_gb: memory budget in GB, ``None`` for the engine's own choice.
        vram_gb: memory of a device for experts in GB, ``None`` for the engine's own choice.
        threads: worker threads, ``None`` for the engine's own choice.
        protocol: the flags that say what is spoken, and how.
        command: how to start the engine; empty for the usual search.
        is_lasting: whether its conversations may be gone on with by a later one; what a command
            says for itself must not take the place of a server's.
    """

    model: Path
    ctx: int = 4096
    slots: int = 4
    ram_gb: float | None = None
    vram_gb: float | None = None
    threads: int | None = None
    protocol: tuple[str, ...] = ("--mux",)
    command: tuple[str, ...] = ()
    is_lasting: bool = True

    def argv(self) -> list[str]:
        """Returns the complete command line."""
        argv = list(self.command) or find_engine()
        argv += [*self.protocol, "--model", str(self.model)]
        argv += ["--ctx", str(self.ctx), "--slots", str(self.slots)]
        if self.ram_gb is not None:
            argv += ["--ram", f"{self.ram_gb:.15g}"]
        if self.vram_gb is not None:
            argv += ["--vram", f"{self.vram_gb:.15g}"]
        if self.threads is not None:
            argv += ["--threads", str(self.threads)]
        return [*argv, "--progress"]

    def environment(self) -> dict[str, str]:
        """Returns our environment with the same settings, for engines that read no flags.

        ``SNAP`` and ``RAM_GB`` are the names that the C engine has for the model and the budget.
        """
        env = {**os.environ, "SERVE": "1", "SERVE_BATCH": "1"}
        if "--mux" not in self.protocol:
            del env["SERVE_BATCH"]
        env |= {"KV_SLOTS": str(self.slots), "CTX": str(self.ctx)}
        env |= {"COLI_MODEL": str(self.model), "SNAP": str(self.model)}
        if self.ram_gb is not None:
            env["RAM_GB"] = f"{self.ram_gb:.15g}"
        if self.vram_gb is not None:
            env["VRAM_GB"] = f"{self.vram_gb:.15g}"
        if not self.is_lasting:
            env["KVSAVE"] = "0"
        if self.model == demo_folder():
            # What a run leaves behind has no place in an installed package.
            home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
            env.setdefault("COLIBRI_STATE_DIR", str(Path(home) / "colibri"))
        return env

    def cannot_start(self, error: OSError) -> tuple[str, str]:
        """Returns the cause and the advice where starting failed with ``error``."""
        reason, hint = explain(error)
        cause = f"cannot start {self.argv()[0]}: {error.strerror or reason}"
        return cause, hint or "set COLIBRI_ENGINE to the engine's command"


class Process(ABC):
    """A running engine, whatever it speaks.

    Args:
        on_progress: called with (stage, done, total) while the model loads.
        on_log: called with each other line of the engine's stderr.
    """

    def __init__(
        self,
        *,
        on_progress: Callable[[str, int, int], None],
        on_log: Callable[[str], None],
    ) -> None:
        self._on_progress = on_progress
        self._on_log = on_log
        self._words = LastWords()
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._broken: str | None = None

    async def run(self, config: EngineConfig) -> int:
        """Starts the process and serves its output until it has ended; returns the exit code.

        A negative code is the signal that ended it. Cancelling kills the process.

        Raises:
            OSError: the command cannot be started.
            UsageError: there is no such command.
        """
        output, engine_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *config.argv(),
                env=config.environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=engine_end,
                stderr=asyncio.subprocess.PIPE,
                # A Ctrl-C in the terminal is for us alone; we tell the engine what to do.
                start_new_session=True,
            )
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(engine_end)
        self._process = process
        if self._stopping:
            self._signal(signal.SIGKILL)
        # The pipe was asked for, so the stream exists.
        stderr = asyncio.create_task(
            self._read_stderr(cast("asyncio.StreamReader", process.stderr))
        )
        try:
            await self._read_output(output)
            try:
                await asyncio.wait_for(process.wait(), EXIT_WAIT_S)
            except TimeoutError:
                self.kill("the engine closed its output and had to be ended")
            code = await process.wait()
            # A child of the engine may hold stderr open for ever.
            await asyncio.wait({stderr}, timeout=1.0)
            return code
        finally:
            stderr.cancel()
            if process.returncode is None:
                self._signal(signal.SIGKILL)
                await process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def write(self, frame: bytes) -> None:
        """Sends one complete frame; a no-op once the process is gone (its death is reported)."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return
        process.stdin.write(frame)

    async def stop(self, step_s: float) -> None:
        """Ends the process: closes stdin, then SIGTERM, then SIGKILL, ``step_s`` apart."""
        self._stopping = True
        process = self._process
        if process is None:
            # One that is being started is ended by who starts it.
            return
        if process.stdin is not None:
            process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), step_s)
                return
            self._signal(number)
        await process.wait()

    def interrupt(self) -> None:
        """Sends SIGINT, which ends what is being answered."""
        self._signal(signal.SIGINT)

    def kill(self, why: str) -> None:
        """Ends a process that can no longer be understood."""
        self._broken = self._broken or why
        self._signal(signal.SIGKILL)

    @property
    def hint(self) -> str | None:
        """Advice the engine printed with its error."""
        return self._words.hint

    def cause(self, code: int) -> str:
        """Says in one line why the process ended with ``code``."""
        if self._broken is not None:
            return self._broken
        if code < 0:
            cause = f"killed by signal {-code} ({_signal_name(-code)})"
            if code == -signal.SIGKILL and not self._stopping:
                cause += ": possibly out of memory"
        else:
            cause = f"exited with code {code}"
        if self._words.error is not None:
            return f"{self._words.error} ({cause})"
        if self._words.best is not None:
            return f"{cause}; its last words: {self._words.best}"
        return cause

    @property
    def error(self) -> str | None:
        """The error the engine printed, without our words about the exit."""
        return self._words.error

    @abstractmethod
    def on_output(self, data: bytes) -> None:
        """Takes what the engine wrote.

        Raises:
            ProtocolError: it cannot be understood.
        """

    async def _read_output(self, descriptor: int) -> None:
        """Serves the engine's output to its end."""
        loop = asyncio.get_running_loop()
        blocks = _Blocks(self._take_output, loop.create_future())
        transport, _ = await loop.connect_read_pipe(lambda: blocks, os.fdopen(descriptor, "rb", 0))
        try:
            await blocks.ended
        finally:
            transport.close()

    def _take_output(self, data: bytes) -> None:
        if self._broken is not None:
            return
        try:
            self.on_output(data)
        except ProtocolError as error:
            self.kill(str(error))

    async def _read_stderr(self, stream: asyncio.StreamReader) -> None:
        pending = b""
        while data := await stream.read(READ_BYTES):
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._stderr_line(line)
            if len(pending) > STDERR_LINE_BYTES:
                self._stderr_line(pending[:STDERR_LINE_BYTES])
                pending = b""
        if pending:
            self._stderr_line(pending)

    def _stderr_line(self, raw: bytes) -> None:
        line = raw.decode("utf-8", "replace").rstrip()
        if not line:
            return
        if progress := _parse_progress(line):
            self._on_progress(*progress)
        elif not self._words.take(line):
            self._on_log(line)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class _Blocks(asyncio.Protocol):
    """Hands over what is read as soon as it is; a stream reader would need a task to wake up."""

    def __init__(self, take: Callable[[bytes], None], ended: asyncio.Future[None]) -> None:
        self._take = take
        self.ended = ended

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except Exception as error:
            if not self.ended.done():
                self.ended.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class EngineProcess(Process):
    """A running engine that speaks mux.

    Args:
        on_record: called for each record, in order.
        on_pause: called after the records of one read, when no more are there for now.
        on_progress: called with (stage, done, total) while the model loads.
        on_log: called with each other line of the engine's stderr.
    """

    def __init__(
        self,
        *,
        on_record: Callable[[frames.Record], None],
        on_pause: Callable[[], None],
        on_progress: Callable[[str, int, int], None],
        on_log: Callable[[str], None],
    ) -> None:
        super().__init__(on_progress=on_progress, on_log=on_log)
        self._on_record = on_record
        self._on_pause = on_pause
        self._reader = _core.RecordReader()

    def on_output(self, data: bytes) -> None:
        """Passes complete records on."""
        for kind, values in self._reader.feed(data):
            self._on_record(frames.to_record(kind, values))
        self._on_pause()


def _parse_progress(line: str) -> tuple[str, int, int] | None:
    words = line.split()
    if len(words) != 4 or words[0] != "progress":
        return None
    done, total = map(decimal, words[2:])
    return None if done is None or total is None else (words[1], done, total)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
