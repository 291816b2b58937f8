"""Every model with a reference, in every condition that must not change its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix_checks import CHECKS

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
MODELS = sorted(folder.name for folder in ORACLE.iterdir())


@pytest.mark.parametrize("condition", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_the_answer_is_the_same(name: str, condition: str, tmp_path: Path) -> None:
    CHECKS[condition](ORACLE / name, tmp_path)
