"""Experts that are read before it is certain that they are needed decide speed alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colibri.models import demo_folder
from colibri.quality import HELD_OUT
from wire import Answer, Request, Wire

TEXT = HELD_OUT.read_text(encoding="utf-8")
REQUESTS = [Request(TEXT[start : start + 300], 100, start) for start in (0, 300, 600)]


def answers(state: Path, **settings: object) -> tuple[list[Answer], dict[str, Any]]:
    """An answer by itself and three at once, and what the last turn cost.

    Nothing is remembered of earlier runs, so that only guesses read ahead.
    """
    with Wire(demo_folder(), slots=3, COLIBRI_STATE_DIR=state, **settings) as wire:
        return wire.ask(REQUESTS[:1]) + wire.ask(REQUESTS), wire.latest["PERF"]


@pytest.fixture(scope="module")
def resident(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    return answers(tmp_path_factory.mktemp("state"))[0]


@pytest.mark.parametrize("slots", [1, 3, 10])
def test_bits_are_the_same_with_and_without(
    slots: int, resident: list[Answer], tmp_path: Path
) -> None:
    ahead = {}
    for prefetch in ("auto", "off"):
        found, perf = answers(
            tmp_path / prefetch, COLIBRI_PREFETCH=prefetch, COLIBRI_EXPERT_SLOTS=slots
        )
        assert found == resident
        assert perf["uses_missed"] > 0
        ahead[prefetch] = perf["uses_ahead"]
    assert ahead["off"] == 0
    # With one slot a layer the five layers together hold hardly more than a token's experts.
    assert ahead["auto"] > 0 or slots == 1


def test_nothing_is_guessed_where_everything_is_in_memory(tmp_path: Path) -> None:
    _, perf = answers(tmp_path, COLIBRI_EXPERT_SLOTS="all")
    assert perf["uses_ahead"] == 0
    assert perf["uses_missed"] == 0
