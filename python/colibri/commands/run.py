"""``colibri run``: one prompt, one continuation on stdout."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from colibri import costs
from colibri.admission import Admission, raw_affinity
from colibri.commands.console import (
    ProgressLine,
    engine_config,
    printable,
    private_engine,
    readable_bytes,
)
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
            tiers = engine.telemetry.tiers
            parts = costs.memory(engine.caps, tiers.ram_gb if tiers else None)
            # Before the engine ends, whose last words would stand on the same line.
            sys.stdout.write("\n")
            sys.stdout.flush()
    if args.stats:
        told = generation.result.colibri
        print("\n".join(stats_lines(told["stats"], told["perf"], parts)), file=sys.stderr)


def stats_lines(
    stats: Mapping[str, Any], perf: Mapping[str, Any] | None, memory: Mapping[str, float | None]
) -> list[str]:
    """Returns the table of ``--stats``, without what the engine does not tell.

    Args:
        stats: of the reply's ``colibri`` object.
        perf: of the same.
        memory: what :func:`colibri.costs.memory` returns.
    """
    computed = stats["prompt_tokens"] - stats["cached_tokens"]
    prompt = f"{computed:,} tokens"
    if ttft_s := (stats["ttft_ms"] or 0) / 1000:
        prompt += f" in {ttft_s:.3g} s to the first token: {_rate(computed / ttft_s)}"
    answer = f"{stats['completion_tokens']:,} tokens: {_rate(stats['tokens_per_second'])}"
    rows = [("prompt", prompt), ("answer", answer)]
    if perf is not None and (parts := costs.shares(perf)):
        told = ", ".join(f"{share:.1%} {name}" for name, share in parts.items())
        rows.append(("time", f"{perf['wall_s']:.3g} s: {told}"))
        counts = costs.uses(perf)
        if total := sum(counts.values()):
            split = ", ".join(f"{count / total:.1%} {name}" for name, count in counts.items())
            rows.append(("uses", f"{total:,} of experts: {split}"))
        if rate := costs.read_rate(perf):
            read = f"{readable_bytes(perf['bytes_read'])} of experts in {perf['reading_s']:.3g} s"
            rows.append(("read", f"{read}: {readable_bytes(int(rate))}/s"))
        rows += [("", _drive(drive)) for drive in perf["drives"]]
        if perf["drafted"]:
            told = f"{perf['drafted']:,} tokens, {perf['drafted_right'] or 0:,} of them needed"
            rows.append(("drafts", told))
    rows.append(("memory", _memory(stats["rss_gb"], memory)))
    if limit := costs.limit(perf):
        rows.append(("limit", limit.text))
    return [f"{name:<8}{text}" for name, text in rows]


def _rate(tokens_per_second: float) -> str:
    digits = 1 if tokens_per_second >= 10 else 2
    return f"{tokens_per_second:.{digits}f} tokens/s"


def _drive(drive: Mapping[str, Any]) -> str:
    folder = f"mirror {drive['mirror']}" if drive["mirror"] else "the model's folder"
    text = f"{readable_bytes(drive['bytes'])} from {folder}"
    if drive["is_dropped"]:
        return f"{text}, which is used no longer"
    rate = drive["bytes_per_second"]
    return text if rate is None else f"{text}, of late at {readable_bytes(rate)}/s"


def _memory(rss_gb: float, parts: Mapping[str, float | None]) -> str:
    text = f"{rss_gb:.2f} GB in use"
    dense, experts = parts["dense_gb"], parts["experts_gb"]
    if dense is not None and experts is not None:
        rest = max(rss_gb - dense - experts, 0.0)
        text += f": {dense:.2f} GB dense, {experts:.2f} GB experts, {rest:.2f} GB the rest"
    if (most := parts["conversations_most_gb"]) is not None:
        text += f" (conversations grow to {most:.2f} GB)"
    return text


def run(args: argparse.Namespace) -> int:
    """Prints the continuation of the prompt."""
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    check_text(text, "the prompt")
    if not text:
        raise RequestError("the prompt is empty")
    asyncio.run(_run(args, text))
    return 0
