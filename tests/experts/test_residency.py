"""Where experts are decides speed alone: tokens and log-probabilities are always the same."""

from __future__ import annotations

import numpy as np
import pytest

from colibri import Model
from colibri.quality import HELD_OUT

TOKENS = 300
PROMPT = HELD_OUT.read_text(encoding="utf-8")[:700]


def generated(expert_slots: int | None, threads: int) -> list[tuple[int, int]]:
    """Token ids with the bits of their log-probabilities."""
    model = Model(ctx=768, threads=threads, expert_slots=expert_slots)
    # Without the tokens that would end the story early.
    never = {0: -100.0, 4: -100.0, 6: -100.0}
    tokens = model.generate(
        PROMPT, max_tokens=TOKENS, temperature=0.8, top_p=0.95, seed=11, logit_bias=never
    )
    return [(token.id, int(np.float32(token.logprob).view(np.uint32))) for token in tokens]


@pytest.fixture(scope="module")
def resident() -> list[tuple[int, int]]:
    found = generated(None, 2)
    assert len(found) == TOKENS
    return found


# The first is no more than the experts of one token in one layer.
@pytest.mark.parametrize(
    ("expert_slots", "threads"), [(1, 2), (2, 1), (3, 2), (5, 1), (16, 2), (31, 1)]
)
def test_bits_are_those_with_every_expert_in_memory(
    expert_slots: int, threads: int, resident: list[tuple[int, int]]
) -> None:
    assert generated(expert_slots, threads) == resident


def test_slots_that_cannot_be_are_refused() -> None:
    for wrong in (0, -1, 65537):
        with pytest.raises(ValueError, match="expert_slots must be from 1 to 65536"):
            Model(expert_slots=wrong)
