"""Types of the compiled extension; the public names are re-exported by ``colibri``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, final

__version__: str

def engine_main(args: list[str]) -> int:
    """Run the engine (``colibri-engine ARGS``) on file descriptors 0, 1, 2; return its exit code.

    The interpreter lock is released for the whole run; Python's SIGINT handler is replaced.
    """

class ColibriCoreError(Exception):
    """Any refusal or fault of the engine; ``str()`` is one line.

    Attributes ``code`` (wire code, e.g. ``"BAD_REQUEST"``) and ``hint`` (advice or ``None``).
    """

    code: str
    hint: str | None

@final
class ChatTemplate:
    """A Jinja chat template, rendered by minijinja with a fuel limit."""

    def __new__(
        cls, source: str, *, bos_token: str | None = None, eos_token: str | None = None
    ) -> Self: ...
    def render(self, context_json: str) -> str:
        """Render with the variables of a JSON object.

        Usual keys: ``messages``, ``tools``, ``add_generation_prompt``, ``enable_thinking``.
        Raises ``ColibriCoreError`` for a template that is invalid, too long-running or that
        called ``raise_exception``.
        """

@final
class Tokenizer:
    """A ``tokenizer.json``."""

    def __new__(cls, path: str) -> Self: ...
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text``; no token is added. ``special``: added tokens are recognised."""
    def decode(self, ids: list[int]) -> str: ...
    @property
    def vocab_size(self) -> int: ...

@final
class RecordReader:
    """Incremental parser of the engine's output (engine -> server); total on every byte string."""

    def __new__(cls) -> Self: ...
    def feed(self, data: bytes) -> list[tuple[str, dict[str, Any]]]:
        """Parse more bytes; return the records completed by them as ``(kind, fields)``.

        Before the READY bytes everything else is skipped (other engines print banners).
        Kinds and their fields::

            READY {}
            STAT     {emitted, tok_s, hit_pct, rss_gb [, prompt_tokens, length_limited]}
            HWINFO   {cores, ram_total_gb, ram_avail_gb, ngpu, vram_total_gb, cpu_name, gpu_name}
            GPUS     {gpus: [{used_gb, total_gb, experts}]}
            TIERS    {vram, ram, disk, vram_gb, ram_gb}
            EMAP     {rows, cols, map: bytes}            one byte an expert: tier << 6 | heat
            HITS     {rows, cols, hits: bytes}           bitmap, least significant bit first
            CAPS     {<key>: str}                        values percent-decoded
            ACCEPT   {id, prompt_tokens}
            PREFILL  {id, done, total}
            DATA     {id, data: bytes}
            TOPK     {id, tokens: [(logprob: float, bytes)]}
            REPIN    {layer, expert, old_tier, gpu}
            PERF     {id, wall_s, expert_disk_s, expert_wait_s, expert_matmul_s, attention_s,
                      kv_decompress_s, head_s, ffn_s, reading_s, uses_ahead, uses_cached,
                      uses_missed, bytes_read, uses_vram, experts_ram, drafted, drafted_right,
                      drives: [{mirror, bytes, bytes_per_second, is_dropped}]}
                                                     from ffn_s on None if it does not tell
            ENTROPY  {bits: [float]}
            DONE     {id, emitted, tok_s, hit_pct, rss_gb, prompt_tokens, length_limited: bool}
            ERROR    {id, code, detail: [str]}           detail: remaining words, percent-decoded
            UNKNOWN  {line: bytes}                       a kind this reader does not know
            MALFORMED {line: bytes, reason: str}         a known kind that does not parse
        """
    @property
    def buffered(self) -> int:
        """Bytes of an incomplete record held back."""

@final
class RequestReader:
    """Incremental parser of the engine's input (server -> engine); total on every byte string.

    ``options``: names of the submit options that are accepted, ``None`` for all that are known;
    ``slots``: number of KV slots.
    """

    def __new__(cls, options: list[str] | None, slots: int) -> Self: ...
    def feed(self, data: bytes) -> list[tuple[str, dict[str, Any]]]:
        """Parse more bytes; return the requests completed by them as ``(kind, fields)``.

        Kinds and their fields::

            SUBMIT   {id, slot, max_tokens, temperature, top_p, topk: int | None,
                      token_ids: list[int], payload: bytes}   those of stop_ids and bias
            STOP     {id}
            CANCEL   {id}
            REFUSED  {id, detail}     to be answered by BAD_REQUEST; id 0 if it is unreadable
            LOST     {id, detail}     to be answered by BAD_FRAME; nothing more is read
        """
    def finish(self) -> list[tuple[str, dict[str, Any]]]:
        """Say that no byte follows; return what that completes."""

def format_submit(
    id: int,
    slot: int,
    payload: bytes,
    max_tokens: int,
    temperature: float,
    top_p: float,
    options: dict[str, str],
) -> bytes:
    """A complete SUBMIT frame; raises ``ValueError`` for values the wire cannot carry."""

@final
class Sampling:
    """How tokens are drawn, with the names of the wire; ``colibri.Model`` checks the ranges."""

    def __new__(
        cls,
        *,
        temperature: float,
        top_p: float,
        top_k: int,
        min_p: float,
        repetition: float,
        presence: float,
        frequency: float,
        bias: list[tuple[int, float]],
        seed: int | None,
    ) -> Self: ...

def draw(
    logits: bytes, sampling: Sampling, prompt: list[int], answer: list[int], uniform: float
) -> tuple[int, bytes]:
    """The token that ``uniform`` in [0, 1) stands for, and the scores (f32) it was drawn from.

    ``logits`` is f32 ``[vocab]``, at least one; every id must be below vocab.
    """

@final
class Token:
    @property
    def id(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def logprob(self) -> float: ...

@final
class Generation:
    """Tokens of one generation, computed as they are asked for."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Token: ...

@final
class Model:
    """See ``colibri.Model``."""

    def __new__(
        cls,
        path: str,
        ram_gb: float | None,
        ctx: int,
        threads: int | None,
        progress: Callable[[str, int, int], None] | None = None,
        isa: str | None = None,
        prefill_chunk: int | None = None,
        expert_slots: int | None = None,
        model_dirs: str | None = None,
        vram_gb: float | None = None,
        device: str | None = None,
        kv: str | None = None,
    ) -> Self: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...
    def logits(self, ids: list[int]) -> tuple[bytes, int, int]: ...
    def routing(self, ids: list[int]) -> tuple[bytes, bytes, int, int, int]: ...
    def generate(
        self,
        prompt: str | list[int],
        max_tokens: int,
        sampling: Sampling,
        stop: list[str],
    ) -> Generation: ...

@final
class Batch:
    """Requests side by side on one loaded model, for tests of what must not change a bit.

    ``fewest_experts``: no more experts stay in memory than the engine needs for one token.
    """

    def __new__(cls, path: str, *, slots: int, fewest_experts: bool = False) -> Self: ...
    def run(
        self, requests: list[tuple[int, list[int]]], max_tokens: int
    ) -> tuple[list[tuple[int, list[int], bytes]], list[int]]:
        """Answer all requests, each a slot and a prompt, greedily and past end tokens.

        For each: prompt tokens that its slot had already, tokens, and log-probabilities of all
        tokens at each of them (f32 ``[max_tokens, vocab]``). Then bytes of experts that each step
        of the engine read.
        """

def cache_hits(
    choices: list[int],
    layers: int,
    experts: int,
    top_k: int,
    slots: int,
    rule: str,
) -> int:
    """See ``colibri.traces.Trace.hits``."""

def describe(path: str, model_dirs: str | None = None) -> str:
    """What a model folder holds, as a JSON object (family, sizes, formats, what is not supported).

    Reads headers only. ``model_dirs`` is a list of further folders as in ``COLI_MODEL_DIRS``.
    """

def examine(
    path: str,
    model_dirs: str | None,
    *,
    ram_gb: float | None,
    ctx: int | None,
    slots: int,
    threads: int | None,
    state_dir: str | None = None,
    mirrors: str | None = None,
    vram_gb: float | None = None,
    device: str | None = None,
    kv: str | None = None,
    mtp: bool = True,
) -> str:
    """What is in the way of an engine with these options, found by its own loader.

    A JSON object: ``findings`` (severity, text, hint), ``files``, ``memory``, ``machine``. Reads
    headers and small tensors.
    """

def measure_disk(
    path: str,
    model_dirs: str | None,
    seconds: float,
    progress: Callable[[str, int, int], object],
    mirrors: str | None = None,
) -> str:
    """How fast the model's files and their copies in the folders ``mirrors`` are read in the
    engine's pieces, as a JSON object.

    Takes at most ``seconds``; ``progress`` is called with milliseconds.
    """

def measure_weights(
    path: str,
    model_dirs: str | None,
    threads: int | None,
    seconds: float,
    progress: Callable[[str, int, int], object],
) -> str:
    """How many bytes of the model's own weights the kernels multiply in a second, as a JSON object.

    Loads at most 128 MiB of dense matrices and as much of experts, and takes ``seconds`` for each.
    """

def check_contents(
    path: str, model_dirs: str | None, progress: Callable[[str, int, int], object]
) -> str:
    """Read every byte; a JSON list of findings like those of ``examine``."""

@final
class Conversion:
    """A model folder and what becomes of it; reads headers only until it runs."""

    def __new__(
        cls,
        src: str,
        model_dirs: str | None = None,
        *,
        experts: str,
        group: int,
        dense: str,
        head: str,
        mtp: str,
    ) -> Self: ...
    def summary(self) -> str:
        """What would be written, as a JSON object (files, bytes, kinds, source_bytes)."""
    def run(
        self, dst: str, threads: int | None, progress: Callable[[str, int, int], object]
    ) -> tuple[int, int]:
        """Write it, going on where an earlier run ended; how many files were made and were there.

        ``progress`` is called with stage, bytes done and in all; what it raises ends the run.
        """

@final
class Weights:
    """The tensors of a model folder as plain floats, whatever form they are stored in.

    Raises ``ColibriCoreError`` for a form that does not tell the shapes.
    """

    def __new__(cls, path: str, model_dirs: str | None = None) -> Self: ...
    def tensors(self) -> list[tuple[str, list[int], str, bool]]:
        """Name, shape and stored format (``int4-g64``, ``bf16``) of each tensor, by name.

        The last one says whether kernels quantise what they multiply it with.
        """
    def read(self, name: str) -> bytes:
        """The values of a tensor: f32, row-major."""

def verify_converted(dst: str, progress: Callable[[str, int, int], object]) -> list[str]:
    """One line for each file or tensor of a converted model that is not what was written."""
