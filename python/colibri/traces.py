"""Recorded routings: which experts each token of a text took, and how caches would have served it.

A trace is a numpy archive (``.npz``) with ``choices`` [tokens, sparse layers, top-k] of uint16,
``experts`` (of a layer) and ``model`` (its name). Placement is decided by the routing alone, so
that caches of any size can be compared on a trace without the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri import _core
from colibri.errors import UsageError
from colibri.model import Model

RULES = ("optimal", "learned", "lru")
# Tokens of one pass; a longer text is routed in pieces, each from its own beginning.
PIECE = 512
# As many as the numbers of a trace can tell apart.
MAX_EXPERTS = 1 << 16
# What numpy says of a file it cannot read is advice to trust it.
HINT = "name a file that 'colibri trace record' has written"


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded routing.

    Attributes:
        choices: experts that each token took, shape [tokens, sparse layers, top-k].
        experts: number of experts of a layer.
        model: name of the model.
    """

    choices: NDArray[np.uint16]
    experts: int
    model: str

    @property
    def size(self) -> int:
        """Experts of all layers."""
        layers: int = self.choices.shape[1]
        return layers * self.experts

    def hits(self, slots: int, rule: str) -> float:
        """Returns the share of uses that a cache of ``slots`` experts serves.

        Raises:
            UsageError: the cache does not hold the experts of one token.
        """
        _, layers, top_k = self.choices.shape
        try:
            hits: int = _core.cache_hits(
                self.choices.ravel().tolist(), layers, self.experts, top_k, slots, rule
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
        return hits / self.choices.size

    def save(self, path: Path) -> None:
        """Writes the archive.

        Raises:
            OSError: naming the file, which then holds no trace.
        """
        try:
            with path.open("wb") as file:
                np.savez_compressed(
                    file, choices=self.choices, experts=self.experts, model=np.array(self.model)
                )
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Reads what :meth:`save` wrote.

        Raises:
            UsageError: it is no trace.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                choices, experts = archive["choices"], int(archive["experts"])
                model = str(archive["model"])
        except OSError:
            raise
        except Exception as error:  # numpy lets through what its readers raise, of any kind
            raise UsageError(f"{path}: no trace of a routing", hint=HINT) from error
        is_routing = choices.ndim == 3 and choices.dtype == np.uint16 and choices.size
        if not is_routing or not 0 < experts <= MAX_EXPERTS:
            raise UsageError(f"{path}: no trace of a routing", hint=HINT)
        if choices.max() >= experts:
            raise UsageError(f"{path}: expert {choices.max()} of {experts}")
        return cls(choices, experts, model)


def record(
    model: Model,
    ids: Sequence[int],
    experts: int,
    name: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trace:
    """Returns which experts the tokens of a text take."""
    pieces = []
    for begin in range(0, len(ids), PIECE):
        choices, _ = model.routing(ids[begin : begin + PIECE])
        pieces.append(choices.astype(np.uint16))
        progress(min(begin + PIECE, len(ids)), len(ids))
    return Trace(np.concatenate(pieces), experts, name)
