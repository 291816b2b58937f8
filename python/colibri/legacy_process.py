"""An engine that speaks the legacy protocol, from the side of a client.

Owns: what of the engine's output is an answer, and its start and end. Does not own: what is asked
(``commands.legacy_chat``), the process itself (``engine_process``). Engines of other makers are met
too: they print banners before READY and any lines after it, and end an answer in two forms.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from colibri.engine import LOADING_STOP_STEP_S, STOP_STEP_S
from colibri.engine_process import EngineConfig, Process
from colibri.errors import EngineDied, EngineError, EngineStartError, ProtocolError
from colibri.last_words import REQUEST_ERROR
from colibri.text_filters import held_back

READY = b"\x01\x01READY\x01\x01"
END = b"\x01\x01END\x01\x01"
# A line that says what an answer cost; anything longer is something else.
MAX_STAT_BYTES = 4096
_STAT = re.compile(rb"STAT +(\d{1,18})(?: +[^ =]+){3}(?: +(\d{1,18}) +(\d+)\b(?!=))?")
# How much later than an empty answer its reason may come.
REFUSAL_WAIT_S = 0.2


@dataclass(frozen=True, slots=True)
class Stat:
    """What the line behind an answer says.

    Attributes:
        emitted: tokens of the answer.
        prompt_tokens: ``None`` where the engine does not say.
        length_limited: whether a limit ended the answer; ``None`` where the engine does not say.
    """

    emitted: int
    prompt_tokens: int | None = None
    length_limited: bool | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine takes lines."""


Event: TypeAlias = Ready | bytes | Stat


def parse_stat(line: bytes) -> Stat:
    """Reads STAT with four fields or with six; further ones are ignored.

    Raises:
        ProtocolError: it is no such line.
    """
    found = _STAT.match(line)
    if found is None:
        raise ProtocolError(f"the engine sent {line[:80]!r} where STAT belongs")
    emitted, prompt_tokens, limited = found.groups()
    if limited is None:
        return Stat(int(emitted))
    return Stat(int(emitted), int(prompt_tokens), limited != b"0")


class AnswerReader:
    """Incremental parser of the engine's output; the same for every split of the same bytes."""

    def __init__(self) -> None:
        self._held = b""
        self._read: Callable[[list[Event]], bool] = self._banner

    def feed(self, data: bytes) -> Iterator[Event]:
        """Takes more bytes; yields ``Ready``, pieces of answers, and a ``Stat`` behind each.

        What follows ``Ready`` is the first answer, to nothing: lines of the handshake and, once an
        empty line was sent, an end.

        Raises:
            ProtocolError: an answer's end is not followed by STAT; what came before was yielded.
        """
        self._held += data
        more = True
        while more:
            events: list[Event] = []
            more = self._read(events)
            yield from events

    def _banner(self, events: list[Event]) -> bool:
        _, found, rest = self._held.partition(READY)
        if not found:
            self._held = self._held[len(self._held) - held_back(self._held, (READY,)) :]
            return False
        events.append(Ready())
        self._held = rest
        self._read = self._text
        return True

    def _text(self, events: list[Event]) -> bool:
        text, found, rest = self._held.partition(END)
        if found:
            # It belongs to the end: most answers have it, exact prompts' have not.
            text = text.removesuffix(b"\n")
            self._held = rest
            self._read = self._stat
        else:
            keep = held_back(text, (b"\n" + END, END))
            self._held = text[len(text) - keep :]
            text = text[: len(text) - keep]
        if text:
            events.append(text)
        return bool(found)

    def _stat(self, events: list[Event]) -> bool:
        # The rest of the line of END, then that of STAT.
        lines = self._held.split(b"\n", 2)
        if len(lines) < 3:
            if len(self._held) > MAX_STAT_BYTES:
                raise ProtocolError("the engine sent no STAT behind an answer")
            return False
        events.append(parse_stat(lines[1]))
        self._held = lines[2]
        self._read = self._text
        return True


class LegacyProcess(Process):
    """A running engine that speaks legacy; ``None`` on ``events`` says that it has ended."""

    def __init__(
        self, *, on_progress: Callable[[str, int, int], None], on_log: Callable[[str], None]
    ) -> None:
        super().__init__(on_progress=on_progress, on_log=on_log)
        self._reader = AnswerReader()
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()

    def on_output(self, data: bytes) -> None:
        """Queues what has come."""
        for event in self._reader.feed(data):
            self.events.put_nowait(event)


class LegacyEngine:
    """One conversation with an engine of its own.

    Args:
        config: what to start; its ``protocol`` flags ask for legacy.
        on_progress: called with (stage, done, total) while the model loads.
        on_log: called with each other line of the engine's stderr.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_progress: Callable[[str, int, int], None],
        on_log: Callable[[str], None],
    ) -> None:
        self._config = config
        self._on_log = on_log
        self._process = LegacyProcess(on_progress=on_progress, on_log=self._log)
        # Of the present answer, which has one at most; an engine may say more of them.
        self._refusals: asyncio.Queue[str] = asyncio.Queue(maxsize=1)
        self._life: asyncio.Task[int] | None = None
        self._ready = False

    async def start(self) -> None:
        """Starts the engine and waits until it answers.

        Raises:
            EngineStartError: it did not start.
            UsageError: there is no such command.
        """
        events = self._process.events
        self._life = asyncio.create_task(self._process.run(self._config))
        self._life.add_done_callback(lambda _: events.put_nowait(None))
        if await events.get() is None:
            cause, hint, code = await self._end(self._life)
            message = self._process.error or f"the engine did not start: {cause}"
            raise EngineStartError(message, hint=hint, exit_code=code)
        # Asking for nothing finds the end of the handshake, however many lines it has.
        async for _ in self.ask(b""):
            pass
        self._ready = True

    async def ask(self, line: bytes) -> AsyncIterator[bytes | Stat]:
        """Sends one line; yields pieces of the answer, then its ``Stat``.

        Raises:
            EngineDied: the engine ended.
        """
        if self._life is None:
            raise EngineError("the engine was not started")
        if not self._refusals.empty():
            # It came too late for the answer it was about, or that had one all the same.
            self._on_log(self._refusals.get_nowait())
        self._process.write(line + b"\n")
        while (event := await self._process.events.get()) is not None:
            if not isinstance(event, Ready):
                yield event
            if isinstance(event, Stat):
                return
        cause, hint, _ = await self._end(self._life)
        raise EngineDied(f"the engine ended during this answer: {cause}", hint=hint)

    async def refusal(self) -> str | None:
        """Returns why there was no answer, if the engine says so; it does that beside the wire."""
        with contextlib.suppress(TimeoutError):
            line = await asyncio.wait_for(self._refusals.get(), REFUSAL_WAIT_S)
            return REQUEST_ERROR.sub("", line, count=1)
        return None

    def interrupt(self) -> None:
        """Ends the present answer; it can be continued."""
        self._process.interrupt()

    def give_up(self) -> None:
        """Says that the engine does not end its answer, so that ``stop`` is quick."""
        self._ready = False

    async def stop(self) -> None:
        """Ends the engine."""
        # One that loads or answers nobody has nothing worth waiting for.
        await self._process.stop(STOP_STEP_S if self._ready else LOADING_STOP_STEP_S)
        if self._life is not None:
            # How it ended was told before, if anybody waited for an answer.
            await asyncio.wait({self._life})

    def _log(self, line: str) -> None:
        if REQUEST_ERROR.match(line) and not self._refusals.full():
            self._refusals.put_nowait(line)
        else:
            self._on_log(line)

    async def _end(self, life: asyncio.Task[int]) -> tuple[str, str | None, int]:
        """Returns why the engine ended, the advice that goes with it, and an exit code."""
        try:
            code = await life
        except OSError as error:
            return *self._config.cannot_start(error), 1
        return self._process.cause(code), self._process.hint, code if code > 0 else 1
