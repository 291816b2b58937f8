"""A model in this process, with numpy arrays for what the engine computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from colibri import _core
from colibri.errors import EngineError
from colibri.models import resolve_model


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

    Raises:
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
    ) -> None:
        folder = resolve_model(None if path is None else str(path), environment=False)
        try:
            self._model = _core.Model(str(folder), ram_gb, ctx, threads, progress)
        except _core.ColibriCoreError as error:
            raise _engine_error(error) from error

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of ``text``; no token is added."""
        return self._model.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids."""
        return self._model.decode(list(ids))

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Returns the logits after each token, shape [tokens, vocab]."""
        try:
            data, rows, cols = self._model.logits(list(ids))
        except _core.ColibriCoreError as error:
            raise _engine_error(error) from error
        return np.frombuffer(data, dtype=np.float32).reshape(rows, cols)

    def routing(self, ids: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Returns which experts each token took and with which weights.

        Both arrays have the shape [tokens, sparse layers, top-k].
        """
        try:
            experts, weights, tokens, layers, top_k = self._model.routing(list(ids))
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
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[Token]:
        """Yields the continuation of ``prompt`` token by token.

        Args:
            prompt: text as it stands (no chat template), or token ids.
            max_tokens: most tokens to generate.
            temperature: 0 always takes the most likely token.
            top_p: probability mass to sample from.
            seed: makes the draw repeatable.
            stop: texts that end the answer; they are not part of it.
        """
        source = prompt if isinstance(prompt, str) else list(prompt)
        try:
            for token in self._model.generate(
                source, max_tokens, temperature, top_p, seed, list(stop)
            ):
                yield Token(token.id, token.text, token.logprob)
        except _core.ColibriCoreError as error:
            raise _engine_error(error) from error


def _engine_error(error: _core.ColibriCoreError) -> EngineError:
    return EngineError(str(error), hint=error.hint)
