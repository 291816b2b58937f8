"""``colibri trace``: record a routing, and compare how caches of experts would serve it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from colibri.commands.console import ProgressLine, terminate_cleanly
from colibri.commands.serve import describe_or_raise
from colibri.errors import UsageError
from colibri.model import Model
from colibri.models import resolve_model
from colibri.traces import PIECE, RULES, Trace, record

# So much of a text is read for each token that is asked for.
CHARACTERS_PER_TOKEN = 32
SHARES = (5, 10, 25, 50)


def run(args: argparse.Namespace) -> int:
    """Runs the subcommand."""
    terminate_cleanly()
    return {"record": _record, "replay": _replay, "compare": _compare}[args.action](args)


def _record(args: argparse.Namespace) -> int:
    folder = resolve_model(args.model)
    if not args.output.parent.is_dir():
        # Said before the text is routed, which may take long.
        raise UsageError(f"{args.output.parent}: no such folder")
    is_text = args.output.exists() and args.text.exists() and args.output.samefile(args.text)
    if is_text or args.output.resolve().parent == folder.resolve():
        # It replaces what is there.
        raise UsageError(f"{args.output}: a trace does not take the place of a text or a model")
    described: dict[str, Any] = describe_or_raise(str(folder))
    if not described["experts"]:
        raise UsageError(f"{folder}: the model has no routed experts")
    with args.text.open(encoding="utf-8") as file:
        text = file.read(args.tokens * CHARACTERS_PER_TOKEN)
    model = Model(folder, ctx=min(PIECE, described["context"] or PIECE), ram_gb=args.ram)
    ids = model.encode(text)[: args.tokens]
    if not ids:
        raise UsageError(f"{args.text}: no text")
    progress = ProgressLine()
    try:
        trace = record(
            model,
            ids,
            described["experts"],
            folder.name,
            lambda done, total: progress.update("routing tokens", done, total),
        )
    finally:
        progress.clear()
    trace.save(args.output)
    tokens, layers, top_k = trace.choices.shape
    print(f"{args.output}: {tokens:,} tokens, {layers} layers, {top_k} of {trace.experts} experts")
    return 0


def _replay(args: argparse.Namespace) -> int:
    trace = Trace.load(args.trace)
    served = trace.hits(args.slots, args.rule)
    print(f"{served:.2%} of uses served by {args.slots:,} of {trace.size:,} experts ({args.rule})")
    return 0


def _compare(args: argparse.Namespace) -> int:
    rows = []
    for path in args.traces:
        trace = Trace.load(path)
        for share in SHARES:
            slots = max(trace.size * share // 100, trace.choices.shape[2])
            hits = {rule: trace.hits(slots, rule) for rule in RULES}
            rows.append({"trace": path.stem, "share": share, "slots": slots, **hits})
    if args.json:
        json.dump(rows, sys.stdout, indent=2)
        print()
        return 0
    print("| trace | in memory | " + " | ".join(RULES) + " | learned / optimal | lru / optimal |")
    print("|---|---|" + "---|" * (len(RULES) + 2))
    for row in rows:
        cells = [f"{row[rule]:.1%}" for rule in RULES]
        cells += [_ratio(row[rule], row["optimal"]) for rule in ("learned", "lru")]
        print(f"| {row['trace']} | {row['share']} % | " + " | ".join(cells) + " |")
    return 0


def _ratio(served: float, best: float) -> str:
    return f"{served / best:.0%}" if best else "-"
