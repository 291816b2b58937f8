"""Decode and prefill speed of a model in this process, as JSON with its provenance.

    python benchmarks/demo.py [--model DIR] [--threads N] [--runs 5] [--out FILE]

Each run times one prefill and one decode, back to back, after a warm-up that brings the experts
into memory. Rates are tokens per second; CPU seconds are of the whole process, so their ratio to
wall time tells how busy the machine's other tenants left us.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import colibri
from measure import spread, write_report

PREFILL_TOKENS = 512
DECODE_TOKENS = 128
TEXT = "Once upon a time, there was a little fox who lived near the river. "


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a model's decode and prefill speed.")
    parser.add_argument("--model", help="model folder; the demo model if left out")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    args = parser.parse_args()

    loading = time.perf_counter()
    model = colibri.Model(args.model, threads=args.threads)
    loaded_s = time.perf_counter() - loading
    text = model.encode(TEXT)
    prompt = (text * (PREFILL_TOKENS // len(text) + 1))[:PREFILL_TOKENS]
    run(model, prompt, 0)
    runs = []
    for i in range(args.runs):
        print(f"run {i + 1} of {args.runs}", file=sys.stderr)
        runs.append(run(model, prompt, i + 1))
    report = {
        "what": "one sequence, resident experts",
        "model": args.model or "demo",
        "load_s": round(loaded_s, 3),
        "prefill": summary(runs, "prefill", PREFILL_TOKENS),
        "decode": summary(runs, "decode", DECODE_TOKENS),
    }
    write_report(report, args.out)


def run(model: colibri.Model, prompt: list[int], seed: int) -> dict[str, tuple[float, float]]:
    """Wall and CPU seconds of a whole prefill and of a decode."""
    # The first token differs from run to run, so that nothing of the prompt is reused.
    ids = [prompt[seed % len(prompt)], *prompt[1:]]
    prefill = timed(lambda: next(model.generate(ids, max_tokens=1, temperature=0)))
    generated = 0

    def decode() -> None:
        # A story may end early, so several are told; each has a seed of its own.
        nonlocal generated
        story = 0
        while generated < DECODE_TOKENS:
            story += 1
            left = DECODE_TOKENS - generated
            tokens = model.generate("Once upon a time", max_tokens=left, seed=seed * 1000 + story)
            generated += sum(1 for _ in tokens)

    return {"prefill": prefill, "decode": timed(decode)}


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def summary(runs: list[dict[str, tuple[float, float]]], phase: str, tokens: int) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "tokens_per_second": spread((tokens / one[phase][0] for one in runs), 1),
        "cpu_s_per_wall_s": round(
            sum(one[phase][1] for one in runs) / sum(one[phase][0] for one in runs), 2
        ),
    }


if __name__ == "__main__":
    main()
