"""``colibri run``: one prompt, one continuation on stdout."""

from __future__ import annotations

import argparse
import asyncio
import sys

from colibri.admission import Admission, raw_affinity
from colibri.commands.console import ProgressLine, engine_config, printable, private_engine
from colibri.engine import Engine
from colibri.errors import RequestError
from colibri.generation import Generation, Progress, Prompt, Text
from colibri.models import ModelInfo, read_model, resolve_model
from colibri.prompt import PromptRenderer
from colibri.streams import check_text
from colibri.text_filters import role_markers

DEFAULT_MAX_TOKENS = 256

# Arguments that go to the engine as an option, with its name on the wire.
_OPTIONS = {
    "seed": "seed",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition",
    "presence_penalty": "presence",
    "frequency_penalty": "frequency",
}


def sampling(args: argparse.Namespace, model: ModelInfo, engine: Engine, text: str) -> Prompt:
    """Joins a rendered prompt with the arguments and the model's defaults.

    Raises:
        RequestError: an argument was given that the engine does not support.
    """
    options = {}
    for argument, option in _OPTIONS.items():
        value = getattr(args, argument)
        if value is None:
            continue
        if option not in engine.options:
            name = argument.replace("_", "-")
            raise RequestError(f"this engine does not support --{name}", hint="leave it out")
        options[option] = str(value)
    return Prompt(
        text=text,
        max_tokens=args.max_tokens,
        temperature=model.temperature if args.temperature is None else args.temperature,
        top_p=model.top_p if args.top_p is None else args.top_p,
        affinity=raw_affinity(text),
        stop=role_markers(model.template),
        options=options,
    )


async def write_answer(generation: Generation, progress: ProgressLine) -> str:
    """Prints an answer as it comes, thinking on stderr; returns the answer without thinking."""
    await generation.start()
    parts = []
    async for delta in generation:
        match delta:
            case Progress(done, total):
                if done < total:
                    progress.update("reading the prompt", done, total)
            case Text("content", text):
                progress.clear()
                parts.append(text)
                sys.stdout.write(printable(text, sys.stdout))
                sys.stdout.flush()
            case Text(_, text):
                progress.clear()
                sys.stderr.write(printable(text, sys.stderr))
                sys.stderr.flush()
    return "".join(parts)


async def _run(args: argparse.Namespace, text: str) -> None:
    folder = resolve_model(args.model)
    model = read_model(folder)
    if args.as_chat:
        text = await PromptRenderer(model).render_async([{"role": "user", "content": text}])
    if args.max_tokens is None:
        args.max_tokens = DEFAULT_MAX_TOKENS
    progress = ProgressLine()
    async with private_engine(engine_config(args, model, 1), progress) as engine:
        prompt = sampling(args, model, engine, text)
        async with Generation(engine, Admission(1, 0), prompt) as generation:
            await write_answer(generation, progress)
            # Before the engine ends, whose last words would stand on the same line.
            sys.stdout.write("\n")
            sys.stdout.flush()


def run(args: argparse.Namespace) -> int:
    """Prints the continuation of the prompt."""
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    check_text(text, "the prompt")
    if not text:
        raise RequestError("the prompt is empty")
    asyncio.run(_run(args, text))
    return 0
