"""``colibri chat``: a conversation in the terminal over an engine of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from dataclasses import replace

from colibri.admission import Admission
from colibri.commands.console import ProgressLine, engine_config, private_engine
from colibri.commands.run import sampling, write_answer
from colibri.engine import Engine
from colibri.errors import ColibriError, RequestError
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
        self.reset()

    def reset(self) -> None:
        """Forgets everything but the system message."""
        system = self._args.system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    async def answer(self, text: str) -> None:
        """Prints the answer to a message; Ctrl-C ends it early and keeps what was said.

        Raises:
            ColibriError: there is no answer; the message is not part of the conversation then.
        """
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


def _read_line() -> str | None:
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


def run(args: argparse.Namespace) -> int:
    """Talks until the input ends."""
    folder = resolve_model(args.model)
    model = read_model(folder)
    renderer = PromptRenderer(model)
    if not renderer.available:
        raise RequestError(
            "this model has no chat template", hint="use 'colibri run' to continue a text"
        )
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() editing and history
    # The prompt blocks; the loop runs only while there is something to wait for.
    with asyncio.Runner() as runner:
        context = private_engine(engine_config(args, model, 1), ProgressLine())
        engine = runner.run(context.__aenter__())
        try:
            talk = Conversation(args, model, renderer, engine)
            if sys.stdin.isatty():
                print(f"{model.id}: {HELP}", file=sys.stderr)
            return _loop(runner, talk)
        finally:
            runner.run(context.__aexit__(None, None, None))


def _loop(runner: asyncio.Runner, talk: Conversation) -> int:
    code = 0
    while (line := _read_line()) is not None:
        text = line.strip()
        if text in ("/quit", "/exit"):
            break
        if text == "/help":
            print(HELP, file=sys.stderr, flush=True)
            continue
        if text == "/reset":
            talk.reset()
        elif text.startswith("/"):
            print(f"error: unknown command {text}\nhint: {HELP}", file=sys.stderr)
        elif text:
            try:
                runner.run(talk.answer(text))
                code = 0
            except ColibriError as error:
                print(f"\nerror: {error}", file=sys.stderr)
                if error.hint is not None:
                    print(f"hint: {error.hint}", file=sys.stderr)
                code = 1
            print(flush=True)
    return code
