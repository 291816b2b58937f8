"""The engines that `peers.py` compares: each answers the same three questions about one model.

`Colibri` drives `colibri-engine` over its wire, as the server does. `LlamaCpp` calls the C
functions of the `llama-cpp-python` package in a process of its own (`python
benchmarks/peer_workers.py MODEL THREADS copied|mapped`), so that no engine's threads live in
another's process.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from colibri import _core
from colibri.find_engine import find_engine
from measure import cpu_seconds

SEQUENCES = 16
# Of the prompts of everything but the prefill.
SHORT_PROMPT = 16
# Holds any prompt that is asked for, and what 16 sequences of the batch take together.
CTX = 2304
READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Timing:
    """What a number of tokens took."""

    tokens: int
    wall_s: float
    cpu_s: float


class Worker(Protocol):
    """One engine with one model; prompts are random tokens, decoding is greedy."""

    def prefill(self, tokens: int) -> Timing:
        """A prompt of `tokens` up to its first logits."""

    def decode(self, tokens: int, sequences: int) -> Timing:
        """`tokens` more of each of `sequences`, without their prompts."""

    def stop(self) -> None: ...


def random_prompt(length: int) -> bytes:
    """So many tokens: in the vocabulary of the peer model every byte is one, and its own number."""
    return bytes(random.randrange(ord("!"), ord("~") + 1) for _ in range(length))


def in_group(group: Path | None) -> list[str]:
    """What starts a command in a control group."""
    if group is None:
        return []
    return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]


class Colibri:
    """Our engine process."""

    def __init__(
        self,
        model: Path,
        threads: int,
        group: Path | None = None,
        ctx: int = CTX,
        slots: int | None = None,
    ) -> None:
        if slots is None:
            # In little memory there is none to hold ready for conversations that nobody has.
            slots = SEQUENCES if group is None else 1
        arguments = ["--mux", "--model", str(model), "--ctx", str(ctx), "--slots", str(slots)]
        self.process = subprocess.Popen(
            [*in_group(group), *find_engine(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "COLIBRI_THREADS": str(threads), "KVSAVE": "0"},
        )
        self.reader = _core.RecordReader()
        self.ctx = ctx
        self.next_id = 1
        self.prompts: dict[int, int] = {}
        while not any(kind == "CAPS" for kind, _ in self.records()):
            pass

    def records(self) -> list[tuple[str, dict[str, Any]]]:
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), READ_BYTES)
        if not data:
            raise RuntimeError("the engine ended")
        records = self.reader.feed(data)
        for kind, fields in records:
            if kind == "ERROR":
                raise RuntimeError(f"the engine refused: {fields}")
            expected = self.prompts.get(fields.get("id"))
            if kind == "ACCEPT" and expected not in (None, fields["prompt_tokens"]):
                raise RuntimeError("a byte of the prompt is not one token; is this a peer model?")
        return records

    def submit(self, slots: int, prompt: int, tokens: int, first_slot: int = 0) -> None:
        assert self.process.stdin is not None
        for slot in range(first_slot, first_slot + slots):
            self.prompts[self.next_id] = prompt
            payload, options = random_prompt(prompt), {"ignore_eos": "1"}
            self.process.stdin.write(
                _core.format_submit(self.next_id, slot, payload, tokens, 0.0, 1.0, options)
            )
            self.next_id += 1
        self.process.stdin.flush()

    def prefill(self, tokens: int) -> Timing:
        start, cpu = time.perf_counter(), cpu_seconds(self.process.pid)
        self.submit(1, tokens, 1)
        while not any(kind == "DONE" for kind, _ in self.records()):
            pass
        wall = time.perf_counter() - start
        return Timing(tokens, wall, cpu_seconds(self.process.pid) - cpu)

    def decode(self, tokens: int, sequences: int) -> Timing:
        # The clock runs while all of them decode: from the first token of the last one to the last
        # token of the first one.
        self.submit(sequences, SHORT_PROMPT, tokens)
        started: set[int] = set()
        counted = done = 0
        start = end = cpu = cpu_end = 0.0
        while done < sequences:
            for kind, fields in self.records():
                if kind == "DATA" and len(started) < sequences:
                    started.add(fields["id"])
                    start, cpu = time.perf_counter(), cpu_seconds(self.process.pid)
                elif kind == "DATA" and done == 0:
                    counted += 1
                elif kind == "DONE":
                    if done == 0:
                        end, cpu_end = time.perf_counter(), cpu_seconds(self.process.pid)
                    done += 1
        return Timing(counted, end - start, cpu_end - cpu)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


class LlamaCpp:
    """The peer's process; see `serve`."""

    def __init__(self, model: Path, threads: int, group: Path | None = None) -> None:
        # What is mapped from the file can be given up; a copy can not.
        how = "copied" if group is None else "mapped"
        self.process = subprocess.Popen(
            [*in_group(group), sys.executable, __file__, str(model), str(threads), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )

    def ask(self, what: str, *numbers: int) -> Timing:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(what, *numbers, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("llama.cpp ended; is llama-cpp-python installed?")
        return Timing(**json.loads(answer))

    def prefill(self, tokens: int) -> Timing:
        return self.ask("prefill", tokens)

    def decode(self, tokens: int, sequences: int) -> Timing:
        return self.ask("decode", tokens, sequences)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


class LlamaCppModel:
    """A model in llama.cpp, in this process."""

    def __init__(self, model: str, threads: int, how: str) -> None:
        import llama_cpp

        self.c = llama_cpp
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        # Copied weights are put into the layout of its quickest kernels.
        parameters.use_mmap = how == "mapped"
        parameters.use_extra_bufts = not parameters.use_mmap
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), parameters)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = CTX
        context.n_batch = context.n_ubatch = 512
        context.n_seq_max = SEQUENCES if how == "copied" else 1
        context.kv_unified = True
        context.n_threads = context.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )
        self.batch = llama_cpp.llama_batch_init(512, 0, SEQUENCES)

    def forward(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Rows of token, position, sequence, and whether its logits are wanted."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = wanted
        if self.c.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def best(self, row: int) -> int:
        import numpy as np

        logits = self.c.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def clear(self) -> None:
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)

    def prefill(self, tokens: int) -> Timing:
        self.clear()
        ids = random_prompt(tokens)
        clock = Clock()
        self.forward([(token, i, 0, i + 1 == tokens) for i, token in enumerate(ids)])
        self.best(tokens - 1)
        return clock.timing(tokens)

    def decode(self, tokens: int, sequences: int) -> Timing:
        self.clear()
        rows = []
        for sequence in range(sequences):
            ids = random_prompt(SHORT_PROMPT)
            rows += [(t, i, sequence, i + 1 == SHORT_PROMPT) for i, t in enumerate(ids)]
        self.forward(rows)
        latest = [self.best((s + 1) * SHORT_PROMPT - 1) for s in range(sequences)]
        clock = Clock()
        for position in range(SHORT_PROMPT, SHORT_PROMPT + tokens):
            self.forward([(token, position, s, True) for s, token in enumerate(latest)])
            latest = [self.best(s) for s in range(sequences)]
        return clock.timing(tokens * sequences)


class Clock:
    """Wall and processor time of this process from now on."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def timing(self, tokens: int) -> Timing:
        return Timing(tokens, time.perf_counter() - self.wall, time.process_time() - self.cpu)


def serve(model: LlamaCppModel) -> None:
    """Answers lines of a question and its numbers by a timing as JSON."""
    ask = {"prefill": model.prefill, "decode": model.decode}
    for line in sys.stdin:
        what, *numbers = line.split()
        print(json.dumps(vars(ask[what](*map(int, numbers)))), flush=True)


if __name__ == "__main__":
    serve(LlamaCppModel(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
