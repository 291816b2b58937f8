"""What conversations cost each other: rates by their number, gaps while prompts arrive, as JSON.

    python benchmarks/batching.py MODEL [--slots 1,2,4,8,16] [--rounds 5] [--stall 250,1000]

MODEL is a peer model (see `peers.py`), since every byte of a prompt has to be one token. Rates are
tokens per second of all answers together, after their prompts. For the gaps one answer runs while
prompts of `--prompt` tokens arrive one after another: `p50`, `p99` and `max` are the milliseconds
between two of its tokens, `alone` the median without prompts; `--stall` lists what the engine is
told about how long prompts may hold answers up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import spread, write_report
from peer_workers import Colibri, Timing

SHORT_PROMPT = 16


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what conversations cost each other.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--slots", default="1,2,4,8,16", help="numbers of answers, with commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--stall", default="250,1000", help="milliseconds, with commas")
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    args = parser.parse_args()

    report = {
        "what": "batching",
        "model": args.model.name,
        "threads": args.threads,
        "rates": rates(args),
        "gaps_ms": {stall: gaps(args, stall) for stall in map(int, args.stall.split(","))},
    }
    write_report(report, args.out)


@contextmanager
def engine(args: argparse.Namespace, stall: int | None = None) -> Iterator[Colibri]:
    if stall is not None:
        os.environ["COLIBRI_STALL_MS"] = str(stall)
    worker = Colibri(args.model, args.threads)
    try:
        # Brings all experts into memory.
        worker.prefill(512)
        yield worker
    finally:
        worker.stop()


def rates(args: argparse.Namespace) -> dict[int, Any]:
    numbers = list(map(int, args.slots.split(",")))
    timings: dict[int, list[Timing]] = {number: [] for number in numbers}
    with engine(args) as worker:
        for _ in range(args.rounds):
            for number in numbers:
                timings[number].append(worker.decode(args.tokens, number))
    return {
        number: {
            "tokens_per_second": spread((t.tokens / t.wall_s for t in done), 1),
            "cpu_ms_per_token": spread((1000 * t.cpu_s / t.tokens for t in done), 2),
            "to_the_first": spread(
                (
                    t.tokens / t.wall_s / (first.tokens / first.wall_s)
                    for t, first in zip(done, timings[numbers[0]], strict=True)
                ),
                2,
            ),
        }
        for number, done in timings.items()
    }


def gaps(args: argparse.Namespace, stall: int) -> dict[str, float]:
    """Milliseconds between the tokens of an answer, alone and while prompts arrive."""
    with engine(args, stall) as worker:
        alone, beside = [], []
        worker.submit(1, SHORT_PROMPT, worker.ctx - SHORT_PROMPT)
        answer, last, prompts = worker.next_id - 1, 0.0, 0
        while prompts <= args.prompts:
            for kind, fields in worker.records():
                if kind == "DATA" and fields["id"] == answer:
                    now = time.perf_counter()
                    if last:
                        (beside if prompts else alone).append(1000 * (now - last))
                    last = now
                elif kind == "DONE" and fields["id"] == answer:
                    raise RuntimeError("the answer ended before the prompts; ask for fewer")
                is_over = kind == "DONE" or (prompts == 0 and len(alone) == args.tokens)
                if is_over and prompts <= args.prompts:
                    prompts += 1
                    if prompts <= args.prompts:
                        worker.submit(1, args.prompt, 1, first_slot=1)
    return {
        "alone": round(statistics.median(alone), 1),
        "tokens": len(beside),
        "p50": round(statistics.median(beside), 1),
        "p99": round(statistics.quantiles(beside, n=100)[98], 1),
        "max": round(max(beside), 1),
    }


if __name__ == "__main__":
    main()
