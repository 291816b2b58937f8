"""What a long context costs: prompts of several lengths and decoding behind them, as JSON.

    python benchmarks/context.py MODEL [--engine NAME=COMMAND ...] [--contexts 0,2048,8192]

Each engine is a command line (`NAME` is what the report calls it), by default the installed one;
several are alive at once and asked in turn, so that what else the machine does meets all alike.
Prompts are read once per engine; the answers behind them, `--rounds` times `--tokens` tokens, find
them in their slots. `read_gb_s` is what so many threads read from memory, measured in every round;
`says_the_same` tells whether an engine gave the first one's text behind each context.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from colibri import _core
from colibri.find_engine import find_engine
from measure import cpu_seconds, spread, write_report
from peer_workers import SHORT_PROMPT, Colibri, Timing
from peers import read_rate


class Reader(Colibri):
    """An engine with a slot for each context."""

    def __init__(self, args: argparse.Namespace, command: str | None) -> None:
        if command:
            os.environ["COLIBRI_ENGINE"] = command
        contexts = list(args.contexts)
        room = max(contexts) + SHORT_PROMPT + args.tokens
        super().__init__(args.model, args.threads, ctx=room, slots=len(contexts))

    def ask(self, slot: int, prompt: bytes, tokens: int) -> tuple[Timing, Timing, bytes]:
        """The prompt up to the first token, the others, and what was said."""
        assert self.process.stdin is not None
        start, cpu = time.perf_counter(), cpu_seconds(self.process.pid)
        options = {"ignore_eos": "1"}
        submit = _core.format_submit(self.next_id, slot, prompt, tokens, 0.0, 1.0, options)
        self.next_id += 1
        self.process.stdin.write(submit)
        self.process.stdin.flush()
        said, first, length = b"", None, 0
        while True:
            for kind, fields in self.records():
                if kind == "ACCEPT":
                    length = fields["prompt_tokens"]
                elif kind == "DATA":
                    said += fields["data"]
                    if first is None:
                        first, cpu_first = time.perf_counter(), cpu_seconds(self.process.pid)
                elif kind == "DONE":
                    end, cpu_end = time.perf_counter(), cpu_seconds(self.process.pid)
                    if first is None:
                        first, cpu_first = end, cpu_end
                    read = Timing(length, first - start, cpu_first - cpu)
                    return read, Timing(tokens - 1, end - first, cpu_end - cpu_first), said


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what long contexts cost.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--engine", action="append", metavar="NAME=COMMAND", default=[])
    parser.add_argument("--contexts", default="0,2048,8192", help="bytes of prompts, with commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24, help="of each answer")
    parser.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    args = parser.parse_args()
    args.contexts = list(map(int, args.contexts.split(",")))

    # Nothing of random text was said before.
    os.environ["COLIBRI_SPECULATE"] = "off"
    commands = dict(pair.split("=", 1) for pair in args.engine) or {"engine": None}
    engines = {name: Reader(args, command) for name, command in commands.items()}
    draw = random.Random(1)
    prompts = [
        bytes(draw.randrange(ord("!"), ord("~") + 1) for _ in range(context + SHORT_PROMPT))
        for context in args.contexts
    ]
    reads: dict[tuple[str, int], Timing] = {}
    decodes: dict[tuple[str, int], list[Timing]] = {}
    answers: dict[tuple[str, int], set[bytes]] = {}
    for engine in engines.values():
        # Brings experts into memory.
        engine.ask(0, prompts[-1][::-1][:512], 8)
    for slot, prompt in enumerate(prompts):
        for name, engine in engines.items():
            reads[name, slot] = engine.ask(slot, prompt, 1)[0]
    print("prompts are read", file=sys.stderr, flush=True)
    ceilings = []
    for i in range(args.rounds):
        ceilings.append(read_rate(args.threads))
        for name in list(engines) if i % 2 == 0 else list(engines)[::-1]:
            for slot, prompt in enumerate(prompts):
                _, timing, said = engines[name].ask(slot, prompt, args.tokens)
                decodes.setdefault((name, slot), []).append(timing)
                answers.setdefault((name, slot), set()).add(said)
    for engine in engines.values():
        engine.stop()

    def figures(name: str, slot: int) -> dict[str, Any]:
        read, done = reads[name, slot], decodes[name, slot]
        return {
            "prompt_tokens": read.tokens,
            "prefill_tokens_per_second": round(read.tokens / read.wall_s, 1),
            "prefill_cpu_ms_per_token": round(1000 * read.cpu_s / read.tokens, 2),
            "decode_ms": spread((1000 * t.wall_s / t.tokens for t in done), 2),
            "decode_cpu_ms": spread((1000 * t.cpu_s / t.tokens for t in done), 2),
        }

    results = {name: [figures(name, slot) for slot in range(len(prompts))] for name in engines}
    report = {
        "what": "contexts",
        "model": args.model.name,
        "threads": args.threads,
        "engines": {name: command or find_engine() for name, command in commands.items()},
        "read_gb_s": spread((rate / 1e9 for rate in ceilings), 1),
        "says_the_same": {
            name: all(
                answers[name, slot] == answers[next(iter(engines)), slot]
                for slot in range(len(prompts))
            )
            for name in engines
        },
        "results": results,
    }
    write_report(report, args.out)


if __name__ == "__main__":
    main()
