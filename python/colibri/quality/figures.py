"""How far the predictions of one model are from those of another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Probabilities are float64 and there are several arrays of them; this many each.
BLOCK_ELEMENTS = 1 << 22

Logits = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Figures:
    """A comparison over all positions.

    Attributes:
        positions: how many tokens were predicted.
        kl_mean: Kullback-Leibler divergence of the model from the reference, in nats.
        kl_median: the same, median over positions.
        kl_p99: the same, 99th percentile.
        top1: share of positions where both find the same token the likeliest.
        perplexity: exponential of the model's mean negative log-probability of the text.
    """

    positions: int
    kl_mean: float
    kl_median: float
    kl_p99: float
    top1: float
    perplexity: float


def log_probabilities(logits: Logits) -> NDArray[np.float64]:
    """Returns the logarithm of the softmax of each row."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


class Comparison:
    """Collects the figures, a piece of the text at a time."""

    def __init__(self) -> None:
        self._kl: list[NDArray[np.float64]] = []
        self._surprise: list[NDArray[np.float64]] = []
        self._same = 0

    def add(self, reference: Logits, model: Logits, targets: NDArray[np.integer]) -> None:
        """Adds positions.

        Args:
            reference: logits of the reference ``[positions, vocab]``.
            model: logits of the model, of the same shape.
            targets: the token that follows each position ``[positions]``.
        """
        step = max(1, BLOCK_ELEMENTS // reference.shape[1])
        for first in range(0, len(targets), step):
            rows = slice(first, first + step)
            self._add(reference[rows], model[rows], targets[rows])

    def _add(self, reference: Logits, model: Logits, targets: NDArray[np.integer]) -> None:
        ours, theirs = log_probabilities(model), log_probabilities(reference)
        divergence = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
        # It is never negative; the sum of a very small one may be, by rounding.
        self._kl.append(np.maximum(divergence, 0.0))
        self._surprise.append(-ours[np.arange(len(targets)), targets])
        # Ties go to the lower id, as everywhere in the engine.
        self._same += int((reference.argmax(axis=1) == model.argmax(axis=1)).sum())

    def figures(self) -> Figures:
        """Returns the figures of all that was added; that must be something."""
        kl, surprise = np.concatenate(self._kl), np.concatenate(self._surprise)
        return Figures(
            positions=len(kl),
            kl_mean=float(kl.mean()),
            kl_median=float(np.median(kl)),
            kl_p99=float(np.percentile(kl, 99)),
            top1=self._same / len(kl),
            perplexity=float(np.exp(surprise.mean())),
        )
