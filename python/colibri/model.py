"""A model in this process, with numpy arrays for what the engine computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from colibri import _core, arguments, models
from colibri.errors import EngineError

MAX_RAM_GB = 1e6


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    Attributes:
        id: its index in the vocabulary.
        text: what it adds to the text; empty while a character is incomplete.
        logprob: natural logarithm of its probability at temperature 1.
    """

    id: int
    text: str
    logprob: float


class Model:
    """A loaded model.

    Args:
        path: the model's folder; ``None`` is the model that comes with the package.
        ram_gb: memory budget of this process in GB (1e9 bytes), weights, experts and context
            together; ``None`` takes what is available.
        ctx: most tokens of prompt and answer together.
        threads: worker threads; ``None`` is one for each allowed core.
        progress: called with (stage, done, total) while loading.
        isa: instruction set of the kernels (scalar, avx2, avxvnni, avx512, vnni,
            neon); ``None`` is the best that the CPU has. The results are the same.
        prefill_chunk: most tokens of a prompt that ``generate`` computes in one step; ``None`` is
            the engine's choice. The results are the same.
        expert_slots: experts of each layer that are in memory at most, which any layers may use;
            ``None`` keeps as many as the budget holds. The results are the same.
        model_dirs: further folders with shards of the model, separated by colons; ``None`` is what
            ``COLI_MODEL_DIRS`` says.
        vram_gb: memory of ``device`` in GB (1e9 bytes) for experts.
        device: what holds the hottest experts: ``host``, a part of this machine's own memory beside
            ``ram_gb``, for tests and measurements; ``None`` is none. The results are the same.
        kv: in what keys and values are kept: ``f32`` or ``bf16``, which takes half of the memory
            and rounds them; ``None`` is ``f32``.

    Raises:
        TypeError, ValueError: naming the argument that cannot be used.
        ModelError: there is no such folder.
        EngineError: the engine refuses the model.
    """

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        ram_gb: float | None = None,
        ctx: int = 4096,
        threads: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        isa: str | None = None,
        prefill_chunk: int | None = None,
        expert_slots: int | None = None,
        model_dirs: str | None = None,
        vram_gb: float | None = None,
        device: str | None = None,
        kv: str | None = None,
    ) -> None:
        name = None if path is None else arguments.path("path", path)
        if ram_gb is not None:
            ram_gb = arguments.real("ram_gb", ram_gb, 0, MAX_RAM_GB, above_low=True)
        if vram_gb is not None:
            vram_gb = arguments.real("vram_gb", vram_gb, 0, MAX_RAM_GB, above_low=True)
        if device is not None:
            device = arguments.text("device", device)
        if kv is not None:
            kv = arguments.text("kv", kv)
        ctx = arguments.integer("ctx", ctx, 2, arguments.MAX_TOKENS)
        if threads is not None:
            threads = arguments.integer("threads", threads, 1, arguments.MAX_THREADS)
        if isa is not None:
            isa = arguments.text("isa", isa)
        if prefill_chunk is not None:
            prefill_chunk = arguments.integer(
                "prefill_chunk", prefill_chunk, 1, arguments.MAX_PREFILL_CHUNK
            )
        if expert_slots is not None:
            expert_slots = arguments.integer(
                "expert_slots", expert_slots, 1, arguments.MAX_EXPERT_SLOTS
            )
        dirs = (
            models.model_dirs() if model_dirs is None else arguments.text("model_dirs", model_dirs)
        )
        folder = models.resolve_model(name, environment=False)
        try:
            self._model = _core.Model(
                str(folder),
                ram_gb,
                ctx,
                threads,
                progress,
                isa,
                prefill_chunk,
                expert_slots,
                dirs,
                vram_gb,
                device,
                kv,
            )
        except _core.ColibriCoreError as error:
            raise _engine_error(error) from error

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of ``text``; no token is added."""
        return self._model.encode(arguments.text("text", text))

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids."""
        return self._model.decode(arguments.ids("ids", ids))

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Returns the logits after each token, shape [tokens, vocab]."""
        try:
            data, rows, cols = self._model.logits(arguments.ids("ids", ids))
        except _core.ColibriCoreError as error:
            raise _engine_error(error) from error
        return np.frombuffer(data, dtype=np.float32).reshape(rows, cols)

    def routing(self, ids: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Returns which experts each token took and with which weights.

        Both arrays have the shape [tokens, sparse layers, top-k].
        """
        try:
            experts, weights, tokens, layers, top_k = self._model.routing(arguments.ids("ids", ids))
        except _core.ColibriCoreError as error:
            raise _engine_error(error) from error
        shape = (tokens, layers, top_k)
        return (
            np.frombuffer(experts, dtype=np.int32).reshape(shape),
            np.frombuffer(weights, dtype=np.float32).reshape(shape),
        )

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        top_k: int = 0,
        min_p: float = 0.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[Token]:
        """Returns an iterator over the continuation of ``prompt``, token by token.

        Args:
            prompt: text as it stands (no chat template), or token ids.
            max_tokens: most tokens to generate.
            temperature: 0 always takes the most likely token.
            top_p: probability mass to sample from.
            top_k: sample among this many most likely tokens; 0 is all.
            min_p: drop tokens less likely than this fraction of the most likely one.
            presence_penalty: lowers the logits of tokens in the answer once, -2 to 2.
            frequency_penalty: lowers them for each occurrence, -2 to 2.
            repetition_penalty: divides positive and multiplies negative logits of tokens in
                prompt and answer; 1 changes nothing, at most 10.
            logit_bias: added to the logits of these token ids, -100 to 100.
            seed: makes the draw repeatable.
            stop: texts that end the answer; they are not part of it.

        Raises:
            TypeError, ValueError: naming the argument that cannot be used.
            EngineError: from the iterator, the engine failed.
        """
        source: str | list[int]
        if isinstance(prompt, str):
            source = arguments.text("prompt", prompt)
        else:
            source = arguments.ids("prompt", prompt, "a string or a list of integers")
        if not source:
            raise ValueError("prompt must not be empty")
        if seed is not None:
            seed = arguments.integer("seed", seed, 0, arguments.MAX_SEED)
        sampling = _core.Sampling(
            temperature=arguments.real("temperature", temperature, 0, 2),
            top_p=arguments.real("top_p", top_p, 0, 1, above_low=True),
            top_k=arguments.integer("top_k", top_k, 0, arguments.MAX_ID),
            min_p=arguments.real("min_p", min_p, 0, 1),
            presence=arguments.real("presence_penalty", presence_penalty, -2, 2),
            frequency=arguments.real("frequency_penalty", frequency_penalty, -2, 2),
            repetition=arguments.real(
                "repetition_penalty", repetition_penalty, 0, 10, above_low=True
            ),
            bias=arguments.biases("logit_bias", {} if logit_bias is None else logit_bias),
            seed=seed,
        )
        # Checked before the iterator begins, so that the wrong call itself fails.
        return self._tokens(
            source,
            arguments.integer("max_tokens", max_tokens, 1, arguments.MAX_TOKENS),
            sampling,
            arguments.texts("stop", stop),
        )

    def _tokens(
        self, prompt: str | list[int], max_tokens: int, sampling: _core.Sampling, stop: list[str]
    ) -> Iterator[Token]:
        try:
            for token in self._model.generate(prompt, max_tokens, sampling, stop):
                yield Token(token.id, token.text, token.logprob)
        except _core.ColibriCoreError as error:
            raise _engine_error(error) from error


def _engine_error(error: _core.ColibriCoreError) -> EngineError:
    return EngineError(str(error), hint=error.hint)
