"""``colibri chat``: a conversation in the terminal over an engine of its own."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import replace

from colibri.admission import Admission
from colibri.commands import legacy_chat
from colibri.commands.console import (
    ProgressLine,
    converse,
    enable_editing,
    engine_config,
    private_engine,
)
from colibri.commands.run import sampling, write_answer
from colibri.engine import Engine
from colibri.errors import RequestError
from colibri.generation import Generation
from colibri.models import ModelInfo, read_model, resolve_model
from colibri.prompt import PromptRenderer
from colibri.streams import check_text

HELP = (
    "/reset forgets the conversation, /quit or /exit ends, Ctrl-C stops an answer, /help says this"
)


class Conversation:
    """The messages so far and how the next answer is made."""

    def __init__(
        self, args: argparse.Namespace, model: ModelInfo, renderer: PromptRenderer, engine: Engine
    ) -> None:
        self._args = args
        self._model = model
        self._renderer = renderer
        self._engine = engine
        self._admission = Admission(1, 0)
        self._progress = ProgressLine()
        self.messages: list[dict[str, str]] = []
        self._forget()

    def _forget(self) -> None:
        system = self._args.system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    async def reset(self) -> None:
        """Forgets everything but the system message."""
        self._forget()

    async def answer(self, text: str) -> None:
        """Prints the answer to a message; Ctrl-C ends it early and keeps what was said.

        Raises:
            ColibriError: there is no answer; the message is not part of the conversation then.
        """
        try:
            await self._answer(text)
        finally:
            print(flush=True)

    async def _answer(self, text: str) -> None:
        check_text(text, "the message")
        messages = [*self.messages, {"role": "user", "content": text}]
        rendered = await self._renderer.render_async(messages)
        prompt = replace(
            sampling(self._args, self._model, self._engine, rendered),
            thinks=self._renderer.thinks,
        )
        loop = asyncio.get_running_loop()
        async with Generation(self._engine, self._admission, prompt) as generation:
            loop.add_signal_handler(signal.SIGINT, generation.stop)
            try:
                said = await write_answer(generation, self._progress)
            finally:
                loop.remove_signal_handler(signal.SIGINT)
                self._progress.clear()
        self.messages = [*messages, {"role": "assistant", "content": said}]


def run(args: argparse.Namespace) -> int:
    """Talks until the input ends."""
    if args.legacy:
        return legacy_chat.run(args)
    folder = resolve_model(args.model)
    model = read_model(folder)
    renderer = PromptRenderer(model)
    if not renderer.available:
        raise RequestError(
            "this model has no chat template", hint="use 'colibri run' to continue a text"
        )
    enable_editing()
    # The prompt blocks; the loop runs only while there is something to wait for.
    with asyncio.Runner() as runner:
        context = private_engine(engine_config(args, model, 1), ProgressLine())
        engine = runner.run(context.__aenter__())
        try:
            talk = Conversation(args, model, renderer, engine)
            if sys.stdin.isatty():
                print(f"{model.id}: {HELP}", file=sys.stderr)
            return converse(runner, talk.answer, {"/reset": talk.reset}, HELP)
        finally:
            runner.run(context.__aexit__(None, None, None))
