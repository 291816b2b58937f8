"""``colibri chat --legacy``: a conversation over the protocol of one answer at a time.

The engine keeps the conversation here, so this works with any engine that speaks legacy.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import signal
import sys
from dataclasses import replace
from typing import cast

from colibri.commands.console import (
    ProgressLine,
    converse,
    enable_editing,
    engine_config,
    printable,
)
from colibri.errors import EngineDied, RequestError, UsageError
from colibri.legacy_process import LegacyEngine, Stat
from colibri.models import read_model, resolve_model
from colibri.streams import check_text

HELP = (
    "/more continues an answer that was cut, /reset forgets the conversation, /quit or /exit ends, "
    "Ctrl-C stops an answer and a second one an engine that goes on, /help says this"
)
# Texts that begin with this byte are commands.
COMMAND = "\x02"


class Conversation:
    """What is asked and how the answer is shown."""

    def __init__(self, engine: LegacyEngine) -> None:
        self._engine = engine
        self._decoder = _decoder()

    async def answer(self, text: str) -> None:
        """Prints the answer to a message; Ctrl-C ends it early, a second one ends the program.

        Raises:
            EngineDied: the engine ended.
            KeyboardInterrupt: the engine does not end the answer.
            RequestError: the engine refuses it; it is not part of the conversation then.
            UsageError: no line can carry the message.
        """
        check_text(text, "the message")
        if text.startswith(COMMAND):
            raise UsageError("the message begins with a control character")
        self._decoder = _decoder()
        await self._show(text.encode())

    async def more(self) -> None:
        """Prints more of an answer that was cut.

        Raises:
            EngineDied: the engine ended.
            KeyboardInterrupt: the engine does not end the answer.
            RequestError: the engine refuses it.
        """
        await self._show(b"\x02MORE")

    async def reset(self) -> None:
        """Forgets the conversation.

        Raises:
            EngineDied: the engine ended.
        """
        async for _ in self._engine.ask(b"\x02RESET"):
            pass

    async def _show(self, line: bytes) -> None:
        loop = asyncio.get_running_loop()
        answering = cast("asyncio.Task[None]", asyncio.current_task())
        interrupted = False

        def on_interrupt() -> None:
            nonlocal interrupted
            if interrupted:
                answering.cancel()
            else:
                interrupted = True
                self._engine.interrupt()

        loop.add_signal_handler(signal.SIGINT, on_interrupt)
        stat = None
        try:
            async for event in self._engine.ask(line):
                if isinstance(event, Stat):
                    stat = event
                else:
                    # An answer may be cut within a character and go on later.
                    sys.stdout.write(printable(self._decoder.decode(event), sys.stdout))
                    sys.stdout.flush()
        except asyncio.CancelledError:
            self._engine.give_up()
            raise KeyboardInterrupt from None
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            print(flush=True)
            if answering.cancelling():
                print("notice: the engine does not stop, so it is ended", file=sys.stderr)
        if stat is not None and stat.emitted == 0 and (reason := await self._engine.refusal()):
            raise RequestError(reason, hint="/reset forgets the conversation")
        if stat is not None and stat.length_limited:
            print("notice: the answer was cut; /more continues it", file=sys.stderr, flush=True)


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


def run(args: argparse.Namespace) -> int:
    """Talks until the input ends."""
    if args.system is not None:
        raise UsageError(
            "--system does not go with --legacy", hint="that protocol has no system messages"
        )
    model = read_model(resolve_model(args.model))
    protocol = ["--legacy"]
    for flag, value in (
        ("--ngen", args.max_tokens),
        ("--temperature", args.temperature),
        ("--top-p", args.top_p),
        ("--seed", args.seed),
    ):
        if value is not None:
            protocol += [flag, str(value)]
    config = replace(engine_config(args, model, 1), protocol=tuple(protocol))
    enable_editing()
    progress = ProgressLine()
    # The prompt blocks; the loop runs only while there is something to wait for.
    with asyncio.Runner() as runner:
        engine = LegacyEngine(config, on_progress=progress.on_loading, on_log=progress.log)
        try:
            runner.run(engine.start())
            progress.clear()
            if sys.stdin.isatty():
                print(f"{model.id}: {HELP}", file=sys.stderr)
            talk = Conversation(engine)
            commands = {"/reset": talk.reset, "/more": talk.more}
            return converse(runner, talk.answer, commands, HELP, fatal=(EngineDied,))
        finally:
            progress.clear()
            runner.run(engine.stop())
