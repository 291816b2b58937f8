"""Tokens and log-probabilities of the demo model, the same bits under every setting of speed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from colibri import Model
from colibri.models import demo_folder
from colibri.quality import HELD_OUT
from machine import BEST, LEVELS
from wire import Request, Wire

TOKENS = 200
# More than two chunks of 64.
PROMPT = HELD_OUT.read_text(encoding="utf-8")[:700]
CHUNKS = ("1", "7", "64", "whole")
MATRIX = list(itertools.product((1, 2), CHUNKS))
# The scalar kernels are slow, so they meet every value but not every pair.
PAIRS = [(2, "1"), (1, "7"), (2, "64")]


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    ids = Model().encode(PROMPT)
    assert len(ids) > 2 * 64
    return ids


@pytest.fixture(scope="module", params=["f32", "bf16"])
def kv(request: pytest.FixtureRequest) -> str:
    """In what keys and values are kept."""
    name: str = request.param
    return name


def generated(
    prompt: list[int], kv: str, isa: str, threads: int, chunk: str
) -> list[tuple[int, int]]:
    """Token ids with the bits of their log-probabilities."""
    size = len(prompt) if chunk == "whole" else int(chunk)
    model = Model(ctx=512, isa=isa, threads=threads, prefill_chunk=size, kv=kv)
    # Without the tokens that would end the story early.
    never = {0: -100.0, 4: -100.0, 6: -100.0}
    tokens = model.generate(
        prompt, max_tokens=TOKENS, temperature=0.8, top_p=0.95, seed=11, logit_bias=never
    )
    return [(token.id, int(np.float32(token.logprob).view(np.uint32))) for token in tokens]


@pytest.fixture(scope="module")
def scalar(prompt: list[int], kv: str) -> list[tuple[int, int]]:
    found = generated(prompt, kv, "scalar", 1, "whole")
    assert len(found) == TOKENS
    assert len({token for token, _ in found}) > 40
    return found


@pytest.mark.parametrize("isa", LEVELS)
def test_bits_are_those_of_the_scalar_kernels(
    isa: str, kv: str, prompt: list[int], scalar: list[tuple[int, int]]
) -> None:
    for threads, chunk in PAIRS if isa == "scalar" else MATRIX:
        found = generated(prompt, kv, isa, threads, chunk)
        assert found == scalar, f"{isa}, {threads} threads, chunks of {chunk}"


def test_another_seed_gives_another_answer(
    prompt: list[int], kv: str, scalar: list[tuple[int, int]]
) -> None:
    model = Model(ctx=512, kv=kv)
    other = model.generate(prompt, max_tokens=TOKENS, temperature=0.8, top_p=0.95, seed=12)
    assert [token.id for token in other] != [token for token, _ in scalar]


def test_rounded_keys_and_values_give_other_bits(prompt: list[int]) -> None:
    first = {kv: generated(prompt, kv, BEST, 1, "whole")[0] for kv in ("f32", "bf16")}
    assert first["f32"] != first["bf16"]


def test_variables_of_the_environment_change_nothing_but_speed(kv: str) -> None:
    request = Request(PROMPT, TOKENS, seed=5)
    answers = []
    settings = [("scalar", 2, 7), (BEST, 1, 4096), (BEST, 1, 1), (BEST, 2, 64)]
    for isa, threads, chunk in settings:
        environment = {"COLIBRI_ISA": isa, "COLIBRI_THREADS": threads, "COLIBRI_KV": kv}
        with Wire(demo_folder(), **environment, COLIBRI_PREFILL_CHUNK=chunk) as engine:
            assert engine.caps["isa"] == isa
            assert engine.caps["threads"] == str(threads)
            assert engine.caps["prefill_chunk"] == str(chunk)
            answers += engine.ask([request])
    assert len(answers[0]) == TOKENS
    assert all(answer == answers[0] for answer in answers[1:])


@pytest.mark.parametrize("isa", sorted({"scalar", BEST}))
def test_sixteen_at_once_are_answered_as_each_alone(isa: str, kv: str) -> None:
    requests = [
        Request(PROMPT[start : start + 40 * (1 + start % 5)], max_tokens=12, seed=start)
        for start in range(1, 17)
    ]
    with Wire(demo_folder(), slots=16, COLIBRI_ISA=isa, COLIBRI_KV=kv) as engine:
        together = engine.ask(requests)
    with Wire(demo_folder(), COLIBRI_ISA=isa, COLIBRI_KV=kv) as engine:
        alone = [engine.ask([request])[0] for request in requests]
    assert {len(answer) for answer in alone} == {12}
    assert together == alone
