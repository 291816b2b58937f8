"""What wire and server cost beside a decode step at 16 slots, as JSON.

    python benchmarks/wire.py [--model DIR] [--tokens 100] [--rounds 5] [--out FILE]

The same 16 requests, three ways, turn by turn:

- "file": the engine writes its records to a file that nobody waits for;
- "pipe": to a pipe that a loop reads and forgets;
- "server": to `colibri serve`, with 16 streaming HTTP clients.

A step's time is what the engine reports of itself (`tok_s` of DONE, the median of the 16). The
cost is also given as processor time a step, which says more on a shared machine: of engine and
server together (`cpu_ms_per_step`, without the clients), of the server alone (`server_cpu_ms`), and
of the engine's threads that do nothing but read and write (`io_cpu_ms`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colibri import _core
from colibri.find_engine import find_engine
from colibri.models import resolve_model
from http_load import stream_all
from measure import cpu_seconds, spread, write_report

SLOTS = 16
CTX = 1024
DONE = re.compile(rb"^DONE \d+ STAT (\d+) (\S+) ", re.MULTILINE)
SERVING = re.compile(r"^serving .* at \S+:(\d+)/$")
# A story of the demo model is longer than 100 tokens, so that all slots are busy to the end. Its
# answers in a chat are shorter.
SAMPLING = {
    "prompt": "Once upon a time",
    "temperature": 0.7,
    "top_p": 0.9,
    "stream": True,
}
READ_BYTES = 1 << 16
FILE_LOOK_S = 0.05
# Of the engine's threads, those that compute: the first, and the named ones of the team.
COMPUTING = re.compile(r"colibri-\d+")

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure wire and server beside a decode step.")
    parser.add_argument("--model", help="model folder; the demo model if left out")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    args = parser.parse_args()

    folder = resolve_model(args.model)
    bodies = [{**SAMPLING, "seed": i, "max_tokens": args.tokens} for i in range(SLOTS)]
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        to_file = Engine(folder, bodies, Path(scratch) / "records")
        stack.callback(to_file.stop)
        to_pipe = Engine(folder, bodies, None)
        stack.callback(to_pipe.stop)
        server = Server(folder, bodies)
        stack.callback(server.stop)
        ways = {"file": to_file, "pipe": to_pipe, "server": server}
        rounds: dict[str, list[Figures]] = {name: [] for name in ways}
        for i in range(-1, args.rounds):
            for name, way in ways.items():
                figures = way.round()
                print(f"round {i + 1} of {args.rounds}, {name}: {figures}", file=sys.stderr)
                # The first one warms up.
                if i >= 0:
                    rounds[name].append(figures)
    write_report(summary(args, rounds), args.out)


def summary(args: argparse.Namespace, rounds: dict[str, list[Figures]]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "what": "decode steps at 16 slots without a reader, with a reader, with the server",
        "model": args.model or "demo",
        "tokens_per_slot": args.tokens,
    }
    for name, of in rounds.items():
        report[name] = {key: spread((figures[key] for figures in of), 3) for key in of[0]}
    for name, base in (("pipe", "file"), ("server", "pipe"), ("server", "file")):
        for figure in ("step_ms", "cpu_ms_per_step"):
            pairs = zip(rounds[name], rounds[base], strict=True)
            report[f"{figure}_{name}_to_{base}"] = spread(
                (one[figure] / other[figure] for one, other in pairs), 4
            )
    # Of the quickest step that was seen: the others had to share the machine.
    step_ms = min(figures["step_ms"] for figures in rounds["file"])
    report["wire_and_server_cpu_percent_of_step"] = spread(
        (100 * (one["server_cpu_ms"] + one["io_cpu_ms"]) / step_ms for one in rounds["server"]), 2
    )
    return report


class Engine:
    """An engine that writes to a file, or to a pipe that we read."""

    def __init__(self, folder: Path, bodies: list[dict[str, Any]], records: Path | None) -> None:
        self.output = None if records is None else records.open("xb")
        self.process = subprocess.Popen(
            [*find_engine(), "--mux", *engine_arguments(folder)],
            stdin=subprocess.PIPE,
            stdout=self.output or subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "KVSAVE": "0"},
        )
        self.records = None if records is None else records.open("rb", buffering=0)
        self.bodies = bodies
        self.next_id = 1
        self.read_until(lambda text: b"\nCAPS " in text)

    def round(self) -> Figures:
        before = engine_times(self.process.pid)
        assert self.process.stdin is not None
        for slot, body in enumerate(self.bodies):
            frame = _core.format_submit(
                self.next_id,
                slot,
                body["prompt"].encode(),
                body["max_tokens"],
                body["temperature"],
                body["top_p"],
                {"seed": str(body["seed"])},
            )
            self.process.stdin.write(frame)
            self.next_id += 1
        self.process.stdin.flush()
        text = self.read_until(lambda text: len(DONE.findall(text)) == SLOTS)
        turns = [(int(emitted), float(tok_s)) for emitted, tok_s in DONE.findall(text)]
        return step_figures(
            turns, self.bodies[0]["max_tokens"], before, engine_times(self.process.pid)
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def read_until(self, complete: Callable[[bytes], bool]) -> bytes:
        text = b""
        while not complete(text):
            if self.records is not None:
                time.sleep(FILE_LOOK_S)
                text += self.records.read()
            else:
                assert self.process.stdout is not None
                text += os.read(self.process.stdout.fileno(), READ_BYTES)
            if self.process.poll() is not None:
                raise RuntimeError(f"the engine ended: {text[-200:]!r}")
        return text


class Server:
    """`colibri serve` with its own engine."""

    def __init__(self, folder: Path, bodies: list[dict[str, Any]]) -> None:
        self.bodies = bodies
        command = [sys.executable, "-m", "colibri", "serve", *engine_arguments(folder)]
        self.process = subprocess.Popen(
            [*command, "--port", "0"], stderr=subprocess.PIPE, encoding="utf-8"
        )
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        self.port = next(int(found[1]) for line in lines if (found := SERVING.match(line)))
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.engine = next(
            int(pid)
            for pid in children.read_text(encoding="utf-8").split()
            if b"--mux" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    def round(self) -> Figures:
        before = engine_times(self.engine)
        load = stream_all(self.port, self.process.pid, "/v1/completions", self.bodies)
        after = engine_times(self.engine)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/profile") as reply:
            profile = json.load(reply)["turns"][-SLOTS:]
        turns = [(turn["completion_tokens"], turn["tokens_per_second"]) for turn in profile]
        tokens = self.bodies[0]["max_tokens"]
        figures = step_figures(turns, tokens, before, after)
        # Without the ends of the answers, which are no part of a step.
        server_cpu_ms = round(1000 * load.steady_cpu_s / (load.steady_events / SLOTS), 4)
        return figures | {
            "cpu_ms_per_step": figures["cpu_ms_per_step"] + server_cpu_ms,
            "server_cpu_ms": server_cpu_ms,
        }

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def engine_arguments(folder: Path) -> list[str]:
    return ["--model", str(folder), "--ctx", str(CTX), "--slots", str(SLOTS)]


def engine_times(pid: int) -> tuple[float, float]:
    """Processor seconds of all threads, and of those that do not compute."""
    io = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text(encoding="utf-8").strip()
        if int(task.name) != pid and not COMPUTING.fullmatch(name):
            io += int((task / "schedstat").read_text(encoding="utf-8").split()[0])
    return cpu_seconds(pid), io / 1e9


def step_figures(
    turns: list[tuple[int, float]],
    tokens: int,
    before: tuple[float, float],
    after: tuple[float, float],
) -> Figures:
    if any(emitted != tokens for emitted, _ in turns):
        raise RuntimeError(f"not all answers have {tokens} tokens: {turns}")
    return {
        "step_ms": round(1000 / statistics.median(tok_s for _, tok_s in turns), 3),
        # Reading the prompts is in these, and the same in all ways.
        "cpu_ms_per_step": round(1000 * (after[0] - before[0]) / tokens, 4),
        "io_cpu_ms": round(1000 * (after[1] - before[1]) / tokens, 4),
    }


if __name__ == "__main__":
    main()
