"""What the end of a turn waits for its conversation to be written, as JSON.

    python benchmarks/random_model.py MODEL --layers 64 --experts 4
    python benchmarks/saving.py MODEL [--words 2500] [--rounds 3]

Each round a new engine is asked one long prompt, and says one token. `wait_ms` is from that token
to DONE, `prompt_s` from the request to the token, `bytes` how much was kept of the conversation.
`COLIBRI_ENGINE` names another engine to measure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from colibri import _core
from colibri.find_engine import find_engine
from measure import spread, write_report


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the end of a turn waits for.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--words", type=int, default=2500, help="of the prompt")
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    args = parser.parse_args()

    turns = [turn(args) for _ in range(args.rounds)]
    report = {
        "what": "saving",
        "model": args.model.name,
        "tokens": turns[0]["tokens"],
        "bytes": turns[0]["bytes"],
        "prompt_s": spread([turn["prompt_s"] for turn in turns], 2),
        "wait_ms": spread([turn["wait_ms"] for turn in turns], 1),
    }
    write_report(report, args.out)


def turn(args: argparse.Namespace) -> dict[str, Any]:
    """One turn of a new engine that knows nothing."""
    prompt = " ".join(f"and then it was {i}" for i in range(args.words // 5)).encode()
    reader, times, tokens = _core.RecordReader(), {}, 0
    with tempfile.TemporaryDirectory() as state:
        engine = subprocess.Popen(
            [*find_engine(), "--mux", "--ctx", str(args.ctx), str(args.model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"COLIBRI_STATE_DIR": state, "KVSAVE": "1"},
        )
        assert engine.stdin is not None
        assert engine.stdout is not None
        while "DONE" not in times:
            data = engine.stdout.read1(1 << 16)
            if not data:
                raise SystemExit("the engine has ended")
            for kind, fields in reader.feed(data):
                if kind == "ERROR":
                    raise SystemExit(str(fields))
                if kind == "CAPS":
                    engine.stdin.write(_core.format_submit(1, 0, prompt, 1, 0, 1, {}))
                    engine.stdin.flush()
                if kind == "ACCEPT":
                    tokens = fields["prompt_tokens"]
                times.setdefault(kind, time.perf_counter())
        engine.communicate()
        (kept,) = [file.stat().st_size for file in Path(state).rglob(".coli_kv")]
    return {
        "tokens": tokens,
        "bytes": kept,
        "prompt_s": times["DATA"] - times["CAPS"],
        "wait_ms": 1000 * (times["DONE"] - times["DATA"]),
    }


if __name__ == "__main__":
    main()
