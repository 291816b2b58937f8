"""Our engine and llama.cpp on the same weights, run by run in turn, as JSON.

    pip install gguf llama-cpp-python      # the latter built natively from its source package
    python scripts/make_peer_model.py MODELS
    python benchmarks/peers.py MODELS [--pairs Q4_0:int4-g64] [--threads 2] [--rounds 5] [--out F]

MODELS holds `small-bf16.gguf` and the same weights in `small-hf`; each pair is made of them once,
by llama.cpp's quantiser and by `colibri convert`. Rates are tokens per second. Ratios are ours to
theirs, of neighbouring runs. `of_ceiling` is the share of what this machine reads from memory at
the same number of threads, measured in every round, that the weights of each decoded token are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from colibri import _core
from measure import spread, write_report
from peer_workers import SEQUENCES, Colibri, LlamaCpp, Timing, Worker

# What our names stand for; those of the peer are its own.
FORMATS = {
    "int4-g32": ["--experts", "int4", "--dense", "int4", "--group", "32"],
    "int4-g64": ["--experts", "int4", "--dense", "int4", "--group", "64"],
    "int8-g32": ["--experts", "int8", "--dense", "int8", "--group", "32"],
}
TASKS = {
    "prefill of 512": lambda worker: worker.prefill(512),
    "decode of 1": lambda worker: worker.decode(64, 1),
    f"decode of {SEQUENCES}": lambda worker: worker.decode(24, SEQUENCES),
}
CEILING_BYTES = 1 << 29


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare with llama.cpp on the same weights.")
    parser.add_argument("models", type=Path, help="folder with small-bf16.gguf and small-hf")
    parser.add_argument("--pairs", default="Q4_0:int4-g32,Q4_0:int4-g64,Q8_0:int8-g32")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    args = parser.parse_args()

    results = [
        {"theirs": theirs, "ours": ours, "threads": threads}
        | compare(args.models, theirs, ours, threads, args.rounds)
        for theirs, ours in (pair.split(":") for pair in args.pairs.split(","))
        for threads in map(int, args.threads.split(","))
    ]
    write_report({"what": "ours and llama.cpp", "results": results}, args.out)


def compare(models: Path, theirs: str, ours: str, threads: int, rounds: int) -> dict[str, Any]:
    our_model, their_model = converted(models, ours), quantised(models, theirs)
    timings: dict[str, list[tuple[Timing, Timing]]] = defaultdict(list)
    ceilings = []
    with contextlib.ExitStack() as stack:
        workers: list[Worker] = [Colibri(our_model, threads), LlamaCpp(their_model, threads)]
        for worker in workers:
            stack.callback(worker.stop)
        # Brings all experts into memory and threads to their places.
        for task in TASKS.values():
            for worker in workers:
                task(worker)
        for i in range(rounds):
            print(f"{ours} and {theirs}, {threads} threads: round {i + 1}", file=sys.stderr)
            ceilings.append(read_rate(threads))
            for name, task in TASKS.items():
                # Whoever comes second finds the caches of the other; each does so half the time.
                order = workers if i % 2 == 0 else workers[::-1]
                done = [task(worker) for worker in order]
                pair = done if i % 2 == 0 else done[::-1]
                timings[name].append((pair[0], pair[1]))
    token_bytes = active_bytes(our_model)
    report: dict[str, Any] = {"read_gb_s": spread((rate / 1e9 for rate in ceilings), 1)}
    for name, pairs in timings.items():
        report[name] = {
            "ratio": spread((rate(a) / rate(b) for a, b in pairs), 2),
            "cpu_ratio": spread((cpu_per_token(a) / cpu_per_token(b) for a, b in pairs), 2),
            "ours": figures([a for a, _ in pairs]),
            "theirs": figures([b for _, b in pairs]),
        }
    report["decode of 1"]["of_ceiling"] = spread(
        (
            rate(ours) * token_bytes / ceiling
            for (ours, _), ceiling in zip(timings["decode of 1"], ceilings, strict=True)
        ),
        2,
    )
    return report


def rate(timing: Timing) -> float:
    return timing.tokens / timing.wall_s


def cpu_per_token(timing: Timing) -> float:
    return timing.cpu_s / timing.tokens


def figures(timings: list[Timing]) -> dict[str, Any]:
    return {
        "tokens_per_second": spread(map(rate, timings), 1),
        "cpu_ms_per_token": spread((1000 * cpu_per_token(t) for t in timings), 2),
    }


def active_bytes(model: Path) -> float:
    """Bytes of the weights that one decoded token reads: all but the embedding and idle experts."""
    info = json.loads(_core.describe(str(model)))
    head = info["vocabulary"] * info["hidden"]
    # Two matrices of that shape in the dense part, of which one row of the embedding is read.
    dense = info["dense"]["bytes"] - head * (1 + 2 / 32)
    return dense + info["routed_experts"]["bytes"] * info["experts_per_token"] / info["experts"]


def read_rate(threads: int) -> float:
    """Bytes a second that so many threads read from memory together."""
    arrays = [np.ones(CEILING_BYTES // 8, np.uint64) for _ in range(threads)]
    readers = [threading.Thread(target=array.sum) for array in arrays]
    start = time.perf_counter()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return threads * CEILING_BYTES / (time.perf_counter() - start)


def converted(models: Path, name: str) -> Path:
    target = models / f"ours-{name}"
    command = [sys.executable, "-m", "colibri", "convert", str(models / "small-hf"), str(target)]
    subprocess.run([*command, *FORMATS[name]], check=True)
    return target


def quantised(models: Path, name: str) -> Path:
    target = models / f"small-{name}.gguf"
    if not target.exists():
        import llama_cpp

        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
        part = target.with_suffix(".part")
        source = str(models / "small-bf16.gguf").encode()
        if llama_cpp.llama_model_quantize(source, str(part).encode(), parameters) != 0:
            raise RuntimeError(f"llama.cpp cannot make {target.name}")
        part.rename(target)
    return target


if __name__ == "__main__":
    main()
