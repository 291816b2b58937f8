"""Answers with and without drafts, run by run in turn, as JSON.

    python benchmarks/speculation.py [--model DIR] [--threads 2] [--rounds 7] [--out FILE]

Three kinds of answers: a story drawn at temperature 1, a story of the likeliest tokens, and a text
that was in the prompt before; `prompts` are long ones, of which nothing is said. Ratios are tokens
per second with drafts to those without, and `needed` the share of drafted tokens that were needed.
Memory is what `RAM_GB` allows. `scripts/make_big_model.py --drafts` makes a model that drafts by
itself.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from importlib import resources
from pathlib import Path
from typing import Any

from colibri import _core
from measure import cpu_seconds, spread, write_report
from peer_workers import Colibri, Timing

STORY = "Once upon a time there was a little fox who lived near the river. One day "
KINDS = {
    "drawn": (STORY, 1.0),
    "likeliest": (STORY, 0.0),
    "said before": ((STORY + "he met a frog who could not swim, and they became friends. ") * 3, 0),
}
# Words of a prompt of which one token is answered, in an order of its own each time.
PROMPT_WORDS = 200


class Drafting(Colibri):
    """An engine that drafts where that pays, or never."""

    def __init__(self, model: Path, threads: int, speculate: str) -> None:
        os.environ["COLIBRI_SPECULATE"] = speculate
        super().__init__(model, threads)
        self.drafted = self.needed = 0

    def prompt(self, seed: int) -> Timing:
        """A prompt that nobody has asked before, up to its first token."""
        assert self.process.stdin is not None
        words = random.Random(seed).choices(STORY.split(), k=PROMPT_WORDS)
        options = {"ignore_eos": "1"}
        start, cpu = time.perf_counter(), cpu_seconds(self.process.pid)
        self.process.stdin.write(
            _core.format_submit(self.next_id, 0, " ".join(words).encode(), 1, 0.0, 1.0, options)
        )
        self.process.stdin.flush()
        self.next_id += 1
        while not any(kind == "DONE" for kind, _ in self.records()):
            pass
        wall = time.perf_counter() - start
        return Timing(PROMPT_WORDS, wall, cpu_seconds(self.process.pid) - cpu)

    def answer(self, text: str, temperature: float, seed: int, tokens: int) -> Timing:
        assert self.process.stdin is not None
        options = {"ignore_eos": "1", "seed": str(seed)}
        payload = f"{seed} {text}".encode()
        submit = _core.format_submit(self.next_id, 0, payload, tokens, temperature, 1.0, options)
        self.next_id += 1
        self.process.stdin.write(submit)
        self.process.stdin.flush()
        start = cpu = 0.0
        while True:
            for kind, fields in self.records():
                if kind == "DATA" and not start:
                    start, cpu = time.perf_counter(), cpu_seconds(self.process.pid)
                elif kind == "PERF" and fields.get("drafted"):
                    drafted, needed = fields["drafted"], fields["drafted_right"]
                    self.drafted, self.needed = self.drafted + drafted, self.needed + needed
                elif kind == "DONE":
                    wall = time.perf_counter() - start
                    spent = cpu_seconds(self.process.pid) - cpu
                    return Timing(int(fields["emitted"]) - 1, wall, spent)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare answers with and without drafts.")
    parser.add_argument("--model", type=Path, help="model folder; the demo model if left out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    args = parser.parse_args()

    model = args.model or Path(str(resources.files("colibri") / "demo_model"))
    engines = {name: Drafting(model, args.threads, name) for name in ("auto", "off")}
    timings: dict[str, list[dict[str, Timing]]] = {kind: [] for kind in [*KINDS, "prompts"]}
    drafts = {kind: [0, 0] for kind in KINDS}
    # The first round brings experts into memory and is not counted.
    for i in range(args.rounds + 1):
        for kind, (text, temperature) in KINDS.items():
            order = list(engines) if i % 2 == 0 else list(engines)[::-1]
            auto = engines["auto"]
            auto.drafted = auto.needed = 0
            pair = {name: engines[name].answer(text, temperature, i, args.tokens) for name in order}
            if i:
                timings[kind].append(pair)
                drafts[kind] = [drafts[kind][0] + auto.drafted, drafts[kind][1] + auto.needed]
        pair = {name: engines[name].prompt(i) for name in order}
        if i:
            timings["prompts"].append(pair)
    for engine in engines.values():
        engine.stop()
    results: dict[str, Any] = {kind: figures(pairs) for kind, pairs in timings.items()}
    for kind, (drafted, needed) in drafts.items():
        results[kind] |= {"drafted": drafted, "needed": round(needed / max(drafted, 1), 2)}
    write_report({"what": "drafts", "model": model.name, "results": results}, args.out)


def figures(pairs: list[dict[str, Timing]]) -> dict[str, Any]:
    def rate(timing: Timing) -> float:
        return timing.tokens / timing.wall_s

    return {
        "ratio": spread((rate(pair["auto"]) / rate(pair["off"]) for pair in pairs), 2),
        "cpu_ratio": spread((pair["auto"].cpu_s / pair["off"].cpu_s for pair in pairs), 2),
        "tokens_per_second": {
            name: spread((rate(pair[name]) for pair in pairs), 1) for name in ("auto", "off")
        },
    }


if __name__ == "__main__":
    main()
