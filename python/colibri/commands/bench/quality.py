"""``colibri bench quality``: what each format of weights costs in predictions."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from colibri import _core
from colibri.commands.console import ProgressLine, readable_bytes, terminate_cleanly
from colibri.commands.serve import describe_or_raise
from colibri.errors import ModelError, UsageError
from colibri.models import resolve_model
from colibri.quality import HELD_OUT
from colibri.quality.compare import Bench, Row

# So much of a text is read for each token that is asked for.
CHARACTERS_PER_TOKEN = 32
HEADINGS = ("format", "activations", "size", "KL mean", "median", "p99", "top-1", "perplexity")


def run(args: argparse.Namespace) -> int:
    """Measures the formats of a model and prints the table."""
    folder = resolve_model(args.model)
    others = {name: resolve_model(name) for name in args.against}
    path = args.text or HELD_OUT
    with path.open(encoding="utf-8") as file:
        text = file.read(args.tokens * CHARACTERS_PER_TOKEN)
    every = _encode(folder, text)
    ids = every[: args.tokens]
    if len(ids) < 2:
        raise UsageError(f"{path}: a text of {len(ids)} tokens, of which none can be predicted")
    for name, other in others.items():
        if _encode(other, text) != every:
            raise ModelError(
                f"{name}: its tokenizer gives other tokens for the text than the model's",
                hint="folders of one model can be compared, with one tokenizer",
            )
    context = describe_or_raise(str(folder))["context"]
    terminate_cleanly()
    progress = ProgressLine()
    with tempfile.TemporaryDirectory(prefix="colibri-quality-") as temporary:
        limit = context if isinstance(context, int) else None
        bench = Bench(folder, ids, limit, Path(temporary), progress.update)
        try:
            rows = list(bench.rows(others))
        finally:
            progress.clear()
    for reason in bench.left_out:
        print(f"notice: left out: {reason}", file=sys.stderr)
    if args.json:
        report = {"model": str(folder), "text": str(path), "tokens": len(ids)}
        measured = [asdict(row) for row in rows]
        print(json.dumps({**report, "rows": measured, "left_out": bench.left_out}, indent=2))
    else:
        positions = rows[0].figures.positions
        print(f"{folder}: {positions:,} predicted tokens of {path.name}; KL in nats against f32")
        print("\n".join(table(rows)))
    return 0


def _encode(folder: Path, text: str) -> list[int]:
    try:
        return _core.Tokenizer(str(folder / "tokenizer.json")).encode(text)
    except _core.ColibriCoreError as error:
        raise ModelError(str(error), hint=error.hint) from error


def table(rows: Sequence[Row]) -> list[str]:
    """Returns the lines of the table for people."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]


def _cells(row: Row) -> tuple[str, ...]:
    figures = row.figures
    return (
        row.format,
        row.activations,
        readable_bytes(row.bytes),
        *(f"{kl:.2g}" for kl in (figures.kl_mean, figures.kl_median, figures.kl_p99)),
        f"{100 * figures.top1:.2f} %",
        f"{figures.perplexity:.4f}",
    )
