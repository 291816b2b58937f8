"""What the subcommands share: progress on stderr, and an engine of their own."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TextIO

from colibri.engine import Engine, EngineState
from colibri.engine_process import EngineConfig
from colibri.models import ModelInfo

# Progress of shorter work is not worth a line where nobody may be watching.
QUIET_S = 2.0
# Least time between two updates of the line.
UPDATE_S = 0.1
DEFAULT_CTX = 4096
CLEAR_LINE = "\r\x1b[K"


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

    def update(self, stage: str, done: int, total: int, unit: Callable[[int], str] = str) -> None:
        """Shows how far a stage is; ``unit`` writes an amount."""
        now = self._clock()
        if self._is_terminal:
            if stage == self._stage and now - self._last < UPDATE_S and done != total:
                return
            self._stream.write(f"{CLEAR_LINE}{stage} {_amount(done, total, unit)}")
        else:
            if now - self._last < QUIET_S:
                return
            self._stream.write(f"{stage} {_amount(done, total, unit)}\n")
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

    def on_state(self, state: EngineState) -> None:
        """Shows the loading progress of an engine."""
        if state.name == "loading" and state.stage is not None:
            if state.stage == "load":
                # The one stage of our engine; it counts bytes.
                self.update("loading", state.done, state.total, readable_bytes)
            else:
                self.update(f"loading {state.stage}", state.done, state.total)
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
        model=model.path, ctx=ctx, slots=slots, ram_gb=args.ram, threads=args.threads
    )


@asynccontextmanager
async def private_engine(config: EngineConfig, progress: ProgressLine) -> AsyncIterator[Engine]:
    """Starts an engine for this command alone and ends it afterwards.

    Raises:
        EngineStartError: it did not start.
    """
    engine = Engine(config, on_log=progress.log)
    engine.on_state = progress.on_state
    engine.start()
    try:
        await engine.wait_ready()
        yield engine
    finally:
        progress.clear()
        await engine.stop()
