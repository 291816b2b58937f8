"""Digits of others, and what becomes of more of them than Python reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.conformance.transcript import parse_pattern, request_of
from colibri.decimals import decimal
from colibri.engine import Engine
from colibri.engine_process import EngineConfig, Process

ENDLESS = "9" * 5000


class Quiet(Process):
    def on_output(self, data: bytes) -> None:
        raise AssertionError(data)


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("0", 0),
        (b"0042", 42),
        ("18446744073709551615", 2**64 - 1),
        (ENDLESS, None),
        (ENDLESS.encode(), None),
        ("", None),
        ("-1", None),
        ("1.0", None),
        ("\u0661", None),
        ("\u00b2", None),
    ],
)
def test_digits_are_read(word: str | bytes, number: int | None) -> None:
    assert decimal(word) == number


async def test_progress_of_too_many_digits_is_a_line_like_any_other(tmp_path: Path) -> None:
    logged: list[str] = []
    loaded: list[tuple[str, int, int]] = []
    process = Quiet(on_progress=lambda *told: loaded.append(told), on_log=logged.append)
    script = f"echo progress load 1 {ENDLESS} >&2; echo progress load 1 2 >&2"
    assert await process.run(EngineConfig(tmp_path, command=("sh", "-c", script))) == 0
    assert (logged, loaded) == ([f"progress load 1 {ENDLESS}"], [("load", 1, 2)])


def test_records_of_too_many_digits_are_compared() -> None:
    assert request_of(f"ERROR {ENDLESS} NOT_FOUND\n".encode()) is None
    assert parse_pattern("GPUS {n:0..8}").match(f"GPUS {ENDLESS}\n".encode(), {}) is None


def test_capabilities_of_too_many_digits_are_not_told(tmp_path: Path) -> None:
    engine = Engine(EngineConfig(tmp_path))
    engine.caps = {"layers": f"3,{ENDLESS}"}
    assert engine.map_layers is None
    engine.caps = {"layers": "3,5"}
    assert engine.map_layers == (3, 5)
