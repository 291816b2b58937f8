"""What the subcommands share: progress on stderr, and an engine of their own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import FrameType
from typing import TextIO

from colibri.engine import Engine, EngineState
from colibri.engine_process import EngineConfig
from colibri.errors import ColibriError, Terminated
from colibri.models import ModelInfo

# Progress of shorter work is not worth a line where nobody may be watching.
QUIET_S = 2.0
# Least time between two updates of the line.
UPDATE_S = 0.1
DEFAULT_CTX = 4096
CLEAR_LINE = "\r\x1b[K"


def terminate_cleanly() -> None:
    """Lets every ``finally`` end engines and remove folders when the process is terminated."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup it stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _terminate)


def _terminate(number: int, _frame: FrameType | None) -> None:
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Terminated(number)


class ProgressLine:
    """One updating line on a terminal, a line now and then elsewhere."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._started = clock()
        self._last = self._started
        self._is_terminal = self._stream.isatty()
        self._shown = False
        self._stage = ""

    def update(
        self,
        stage: str,
        done: int,
        total: int,
        unit: Callable[[int], str] = str,
        note: str = "",
    ) -> None:
        """Shows how far a stage is; ``unit`` writes an amount, ``note`` follows it."""
        now = self._clock()
        if self._is_terminal:
            if stage == self._stage and now - self._last < UPDATE_S and done != total:
                return
            self._stream.write(f"{CLEAR_LINE}{stage} {_amount(done, total, unit)}{note}")
        else:
            if now - self._last < QUIET_S:
                return
            self._stream.write(f"{stage} {_amount(done, total, unit)}{note}\n")
        self._stream.flush()
        self._shown = True
        self._stage = stage
        self._last = now

    def clear(self) -> None:
        """Removes the line before other output."""
        if self._shown and self._is_terminal:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()
        self._shown = False

    def on_loading(self, stage: str, done: int, total: int) -> None:
        """Shows how far an engine has loaded."""
        if stage == "load":
            # The one stage of our engine; it counts bytes.
            self.update("loading", done, total, readable_bytes)
        else:
            self.update(f"loading {stage}", done, total)

    def on_state(self, state: EngineState) -> None:
        """Shows the loading progress of an engine."""
        if state.name == "loading" and state.stage is not None:
            self.on_loading(state.stage, state.done, state.total)
        elif state.name in ("ready", "failed"):
            self.clear()

    def log(self, line: str) -> None:
        """Prints a line of the engine without tearing the progress line."""
        self.clear()
        print(line, file=self._stream, flush=True)


# Model output is not trusted: on a terminal, control characters could rewrite what was printed.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str, stream: TextIO) -> str:
    """Returns text as it may be written: without control characters if this is a terminal."""
    return text.translate(_CONTROLS) if stream.isatty() else text


def readable_bytes(count: int) -> str:
    """Returns a size in the decimal unit that suits it."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def _amount(done: int, total: int, unit: Callable[[int], str]) -> str:
    if total <= 0:
        return unit(done)
    return f"{unit(done)}/{unit(total)} ({100 * done // total} %)"


def engine_config(args: argparse.Namespace, model: ModelInfo, slots: int) -> EngineConfig:
    """Returns what to start from the arguments."""
    ctx = args.ctx or min(DEFAULT_CTX, model.trained_ctx or DEFAULT_CTX)
    return EngineConfig(
        model=model.path,
        ctx=ctx,
        slots=slots,
        ram_gb=args.ram,
        vram_gb=args.vram,
        threads=args.threads,
    )


@asynccontextmanager
async def private_engine(config: EngineConfig, progress: ProgressLine) -> AsyncIterator[Engine]:
    """Starts an engine for this command alone and ends it afterwards.

    Raises:
        EngineStartError: it did not start.
    """
    engine = Engine(replace(config, is_lasting=False), on_log=progress.log)
    engine.on_state = progress.on_state
    engine.start()
    try:
        await engine.wait_ready()
        yield engine
    finally:
        progress.clear()
        await engine.stop()


def read_line() -> str | None:
    """Returns the next line of the user, ``None`` at the end.

    Raises:
        KeyboardInterrupt: Ctrl-C where nobody can be asked whether it was meant.
    """
    is_terminal = sys.stdin.isatty()
    asked = False
    while True:
        try:
            return input("> " if is_terminal else "")
        except EOFError:
            if is_terminal:
                print()
            return None
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print()
            if asked:
                return None
            # It was perhaps meant for the answer that has just ended.
            print("press Ctrl-C again or type /quit to leave", file=sys.stderr, flush=True)
            asked = True


def converse(
    runner: asyncio.Runner,
    answer: Callable[[str], Awaitable[None]],
    commands: Mapping[str, Callable[[], Awaitable[None]]],
    explanation: str,
    fatal: tuple[type[ColibriError], ...] = (),
) -> int:
    """Takes the user's lines until they end; returns the exit code, 1 if any of them failed.

    What follows a line that failed answers another conversation than the one that was asked for, so
    a script must learn of it even if all is well at the end.

    Args:
        runner: runs what has to be waited for; waiting for the user blocks.
        answer: prints the answer to a message.
        commands: what words with a slash do, besides ``/quit``, ``/exit`` and ``/help``.
        explanation: what ``/help`` says.
        fatal: errors that end the conversation; others end an answer.
    """

    async def act(text: str) -> None:
        await (commands[text]() if text in commands else answer(text))

    code = 0
    while (line := read_line()) is not None:
        text = line.strip()
        if text in ("/quit", "/exit"):
            break
        if text == "/help":
            print(explanation, file=sys.stderr, flush=True)
        elif text.startswith("/") and text not in commands:
            print(f"error: unknown command {text}\nhint: {explanation}", file=sys.stderr)
            code = 1
        elif text:
            try:
                runner.run(act(text))
            except fatal:
                raise
            except ColibriError as error:
                print(f"error: {error}", file=sys.stderr)
                if error.hint is not None:
                    print(f"hint: {error.hint}", file=sys.stderr)
                code = 1
    return code


def enable_editing() -> None:
    """Gives the user's lines editing and history, where Python has them."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - input() uses what is imported
