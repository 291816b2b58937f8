"""Which instruction sets there are, and what is said of settings that cannot be used."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from colibri import Model
from colibri.find_engine import find_engine
from machine import BEST, LEVELS, NEEDED
from wire import Wire

ORACLE = Path(__file__).parents[1] / "data" / "oracle" / "qwen3_moe"


@pytest.mark.parametrize("name", NEEDED)
def test_every_level_that_the_cpu_has_can_be_chosen_and_no_other(name: str) -> None:
    if name in LEVELS:
        Model(ORACLE, ctx=64, isa=name)
    else:
        with pytest.raises(ValueError, match=f"this CPU lacks {name}"):
            Model(ORACLE, ctx=64, isa=name)


def test_the_best_level_is_the_default() -> None:
    with Wire(ORACLE, ctx=64) as engine:
        assert engine.caps["isa"] == BEST
        assert "prefill_chunk" not in engine.caps


def test_arguments_of_the_model_are_checked() -> None:
    with pytest.raises(ValueError, match='unknown instruction set "sse"'):
        Model(ORACLE, isa="sse")
    for wrong in (0, -1, 65537, 10**30):
        with pytest.raises(ValueError, match="prefill_chunk must be from 1 to 65536"):
            Model(ORACLE, prefill_chunk=wrong)
    with pytest.raises(TypeError, match="prefill_chunk must be an integer"):
        Model(ORACLE, prefill_chunk="64")


@pytest.mark.parametrize("protocol", ["--mux", "--legacy"])
@pytest.mark.parametrize(
    ("variable", "wrong"),
    [
        ("COLIBRI_PREFILL_CHUNK", "0"),
        ("COLIBRI_PREFILL_CHUNK", "many"),
        ("COLIBRI_PREFILL_CHUNK", "65537"),
        ("COLIBRI_PREFILL_CHUNK", "1" * 40),
        ("COLIBRI_ISA", "sse"),
        ("COLIBRI_THREADS", "0"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, wrong: str, protocol: str) -> None:
    done = subprocess.run(
        [*find_engine(), protocol, "--model", str(ORACLE)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, variable: wrong},
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line]
    assert lines[0].startswith(f"error: invalid value '{wrong}'")
    assert lines[-1] == f"hint: the value is that of the environment variable {variable}"
    if variable == "COLIBRI_PREFILL_CHUNK":
        assert lines[0].endswith("must be an integer from 1 to 65536")
