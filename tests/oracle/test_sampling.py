"""Draws against an independent numpy implementation of the documented stages.

The order and the formulas are those of docs/protocol.md section 2.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri import _core


@dataclass
class Options:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: list[tuple[int, float]] = field(default_factory=list)


Logits = NDArray[np.float32]


def engine_draw(
    logits: Logits, options: Options, prompt: list[int], answer: list[int], uniform: float
) -> tuple[int, Logits]:
    sampling = _core.Sampling(**asdict(options), seed=0)
    token, scores = _core.draw(logits.tobytes(), sampling, prompt, answer, uniform)
    return token, np.frombuffer(scores, dtype=np.float32)


def expected_scores(
    logits: Logits, options: Options, prompt: list[int], answer: list[int]
) -> NDArray[np.float64]:
    scores = logits.astype(np.float64)
    for token, bias in options.bias:
        scores[token] += bias
    seen = np.isin(np.arange(len(scores)), prompt + answer)
    penalised = np.where(scores > 0, scores / options.repetition, scores * options.repetition)
    scores = np.where(seen, penalised, scores)
    for token, count in Counter(answer).items():
        scores[token] -= count * options.frequency + options.presence
    return scores


def expected_token(scores: Logits, options: Options, uniform: float) -> tuple[int, bool]:
    """The token, and whether a rounding error could make it another one."""
    order = np.lexsort((np.arange(len(scores)), -scores))
    if options.temperature == 0:
        return int(order[0]), False
    # The largest score is subtracted in f32, as a softmax in that precision does.
    shifted = (scores - scores.max()).astype(np.float32) / np.float32(options.temperature)
    weights = np.exp(shifted.astype(np.float64))[order]
    edges = []
    if options.top_k:
        weights = weights[: options.top_k]
    before = np.concatenate(([0.0], np.cumsum(weights)[:-1]))
    wanted = weights.sum() * float(np.float32(options.top_p))
    edges.append(np.abs(before[1:] - wanted) / weights.sum())
    in_nucleus = before < wanted
    in_nucleus[0] = True
    weights = weights[in_nucleus]
    least = float(np.float32(options.min_p)) * weights[0]
    edges.append(np.abs(weights - least)[1:] / weights[0] if options.min_p else np.array([]))
    weights = weights[weights >= least]
    sums = np.cumsum(weights) / weights.sum()
    edges.append(np.abs(sums[:-1] - uniform))
    at = int(np.searchsorted(sums, uniform, side="right"))
    # An edge met exactly is no rounding error where all weights are equal.
    equal = np.ptp(weights) == 0
    near = [float(edge.min()) for edge in edges if len(edge)]
    return int(order[min(at, len(weights) - 1)]), not equal and min(near, default=1.0) < 1e-6


def random_case(rng: np.random.Generator) -> tuple[Logits, Options, list[int], list[int]]:
    vocab = int(rng.choice([1, 2, 5, 50, 500]))
    kind = rng.integers(4)
    if kind == 0:
        logits = np.full(vocab, rng.normal())
    elif kind == 1:
        logits = rng.integers(-3, 4, vocab) / 2
    else:
        logits = rng.normal(0, rng.choice([0.1, 3, 30]), vocab)
    ids = rng.integers(0, vocab, 12)
    options = Options(
        temperature=float(rng.choice([0, 1e-4, 0.3, 0.7, 1, 2])),
        top_p=float(rng.choice([1e-30, 0.1, 0.5, 0.9, 0.99, 1])),
        top_k=int(rng.choice([0, 1, 2, 40, vocab, vocab + 1, 2**32 - 1])),
        min_p=float(rng.choice([0, 1e-6, 0.05, 0.5, 1])),
    )
    if rng.random() < 0.7:
        options.repetition = float(rng.choice([1e-300, 0.5, 1, 1.1, 10]))
        options.presence = float(rng.choice([-2, 0, 0.5, 2]))
        options.frequency = float(rng.choice([-2, 0, 0.25, 2]))
    if rng.random() < 0.5:
        biased = rng.integers(0, vocab, rng.integers(1, 4))
        options.bias = [(int(id), float(rng.choice([-100, -1, 0.5, 100]))) for id in biased]
    return logits.astype(np.float32), options, ids[:5].tolist(), ids[5:].tolist()


def test_random_draws_equal_numpy() -> None:
    rng = np.random.default_rng(20)
    compared = 0
    for _ in range(10_000):
        logits, options, prompt, answer = random_case(rng)
        uniform = float(rng.choice([0.0, 1 - 2.0**-53, rng.random(), rng.random()]))
        token, scores = engine_draw(logits, options, prompt, answer, uniform)
        wanted = expected_scores(logits, options, prompt, answer)
        highest = np.finfo(np.float32).max
        np.testing.assert_allclose(scores, wanted.clip(-highest, highest), rtol=1e-7, atol=1e-12)
        if options.repetition < 1e-9:
            continue  # the scores dwarf any difference between their neighbours
        expected, undecided = expected_token(scores, options, uniform)
        if not undecided:
            compared += 1
            assert token == expected, (logits, options, prompt, answer, uniform)
    assert compared > 7_000


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_biases_force_and_forbid(temperature: float) -> None:
    logits = np.array([20.0, 0.0, -20.0, 5.0], dtype=np.float32)
    forced = Options(temperature=temperature, bias=[(2, 100.0)])
    forbidden = Options(temperature=temperature, bias=[(0, -100.0)])
    for uniform in np.linspace(0, 1, 100, endpoint=False):
        assert engine_draw(logits, forced, [], [], uniform)[0] == 2
        assert engine_draw(logits, forbidden, [], [], uniform)[0] != 0


@pytest.mark.parametrize(
    ("options", "reached"),
    [
        (Options(top_k=1), {0}),
        (Options(top_k=2), {0, 1}),
        (Options(top_k=9), {0, 1, 2, 3}),
        (Options(min_p=1.0), {0, 1, 2, 3}),
        (Options(top_p=1e-30), {0}),
        (Options(top_p=0.5), {0, 1}),
        (Options(top_p=0.51), {0, 1, 2}),
        (Options(top_k=2, top_p=0.5), {0}),
    ],
)
def test_equals_are_cut_at_the_lower_ids(options: Options, reached: set[int]) -> None:
    logits = np.full(4, 0.25, dtype=np.float32)
    uniforms = np.linspace(0, 1, 40, endpoint=False)
    assert {engine_draw(logits, options, [], [], u)[0] for u in uniforms} == reached
