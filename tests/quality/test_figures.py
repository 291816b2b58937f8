"""Divergence, agreement and perplexity of distributions that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from colibri.quality import figures
from colibri.quality.figures import Comparison, Figures


def compare(reference: list[list[float]], model: list[list[float]], targets: list[int]) -> Figures:
    """Compares probabilities."""
    comparison = Comparison()
    logits = (np.log(np.float64(rows)).astype(np.float64) + 3.0 for rows in (reference, model))
    comparison.add(*logits, np.asarray(targets))
    return comparison.figures()


def test_figures_of_known_distributions() -> None:
    half = [0.5, 0.25, 0.25]
    even = [1 / 3, 1 / 3, 1 / 3]
    found = compare([half, half, even, half], [half, even, half, [0.1, 0.1, 0.8]], [0, 1, 2, 2])
    kl = [
        0.0,
        0.5 * math.log(1.5) + 0.5 * math.log(0.75),
        (math.log(2 / 3) + 2 * math.log(4 / 3)) / 3,
        0.5 * math.log(5) + 0.25 * math.log(2.5) + 0.25 * math.log(0.3125),
    ]
    assert found.positions == 4
    assert found.kl_mean == pytest.approx(sum(kl) / 4, rel=1e-12)
    assert found.kl_median == pytest.approx(sum(sorted(kl)[1:3]) / 2, rel=1e-12)
    # 99 % of the way over three gaps between four values.
    low, high = sorted(kl)[2:]
    assert found.kl_p99 == pytest.approx(low + 0.97 * (high - low), rel=1e-12)
    # Ties go to the first, so even rows choose what half rows do.
    assert found.top1 == 0.75
    product = 0.5 * (1 / 3) * 0.25 * 0.8
    assert found.perplexity == pytest.approx(product ** (-1 / 4), rel=1e-12)


def test_equal_logits_have_no_divergence_at_all() -> None:
    logits = np.random.default_rng(1).standard_normal((50, 300)).astype(np.float32) * 9
    comparison = Comparison()
    comparison.add(logits, logits.copy(), np.arange(50))
    found = comparison.figures()
    assert (found.kl_mean, found.kl_median, found.kl_p99, found.top1) == (0.0, 0.0, 0.0, 1.0)


def test_divergence_goes_from_the_reference_to_the_model() -> None:
    one = compare([[0.9, 0.1]], [[0.5, 0.5]], [0]).kl_mean
    other = compare([[0.5, 0.5]], [[0.9, 0.1]], [0]).kl_mean
    assert one == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))
    assert other == pytest.approx(0.5 * math.log(5 / 9) + 0.5 * math.log(5))


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    reference = random.standard_normal((37, 11)).astype(np.float32)
    model = reference + random.standard_normal((37, 11)).astype(np.float32) / 8
    targets = random.integers(0, 11, 37)
    whole, pieces, blocks = Comparison(), Comparison(), Comparison()
    whole.add(reference, model, targets)
    for first in range(0, 37, 5):
        rows = slice(first, first + 5)
        pieces.add(reference[rows], model[rows], targets[rows])
    monkeypatch.setattr(figures, "BLOCK_ELEMENTS", 25)
    blocks.add(reference, model, targets)
    assert whole.figures() == pieces.figures() == blocks.figures()
    assert whole.figures().kl_mean > 0


def test_large_logits_do_not_overflow() -> None:
    comparison = Comparison()
    rows = np.float32([[3e38, 0.0, -3e38]])
    comparison.add(rows, rows, np.asarray([0]))
    assert comparison.figures().perplexity == 1.0
