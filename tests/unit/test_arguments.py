from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colibri
from colibri import arguments


@pytest.fixture(scope="module")
def model() -> colibri.Model:
    return colibri.Model(ctx=64, threads=1)


def test_values_of_any_fitting_type_are_taken() -> None:
    assert arguments.integer("n", np.int64(3), 1, 9) == 3
    assert arguments.real("x", np.float32(0.5), 0, 1) == 0.5
    assert arguments.real("x", 1, 0, 1) == 1.0
    assert math.copysign(1, arguments.real("x", -0.0, 0, 1)) == 1
    assert arguments.ids("ids", np.array([1, 2], dtype=np.uint16)) == [1, 2]
    assert arguments.ids("ids", (number for number in range(3))) == [0, 1, 2]
    assert arguments.texts("stop", ("a", "b")) == ["a", "b"]
    assert arguments.path("path", Path("x")) == "x"


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("prompt", b"ab", TypeError),
        ("prompt", {"a": 1}, TypeError),
        ("prompt", {1, 2}, TypeError),
        ("prompt", None, TypeError),
        ("prompt", 5, TypeError),
        ("prompt", ["a"], TypeError),
        ("prompt", [-1], ValueError),
        ("prompt", "", ValueError),
        ("prompt", [], ValueError),
        ("prompt", "\ud800", ValueError),
        ("max_tokens", 0, ValueError),
        ("max_tokens", 10**30, ValueError),
        ("max_tokens", 1.5, TypeError),
        ("temperature", 2.1, ValueError),
        ("temperature", math.nan, ValueError),
        ("temperature", 10**400, ValueError),
        ("temperature", "x", TypeError),
        ("top_p", 0, ValueError),
        ("top_p", None, TypeError),
        ("top_k", -1, ValueError),
        ("top_k", 1.5, TypeError),
        ("min_p", 1.1, ValueError),
        ("presence_penalty", -2.1, ValueError),
        ("frequency_penalty", math.nan, ValueError),
        ("repetition_penalty", 0, ValueError),
        ("repetition_penalty", 10.5, ValueError),
        ("logit_bias", [(1, 2)], TypeError),
        ("logit_bias", {"1": 2}, TypeError),
        ("logit_bias", {-1: 2}, ValueError),
        ("logit_bias", {1: 101}, ValueError),
        ("logit_bias", {1: "x"}, TypeError),
        ("seed", -1, ValueError),
        ("seed", 2**64, ValueError),
        ("seed", "x", TypeError),
        ("stop", "abc", TypeError),
        ("stop", b"abc", TypeError),
        ("stop", [""], ValueError),
        ("stop", [1], TypeError),
        ("stop", None, TypeError),
    ],
)
def test_generate_names_the_one_argument_at_once(
    model: colibri.Model, name: str, value: Any, kind: type[Exception]
) -> None:
    values = {"prompt": "hi", name: value}
    with pytest.raises(kind, match=f"^{name}\\b") as caught:
        model.generate(**values)
    others = {"prompt", "max_tokens", "temperature", "top_p", "seed", "stop"} - {name}
    assert not any(other in str(caught.value) for other in others)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("path", b"x", TypeError),
        ("path", 5, TypeError),
        ("path", "\udcff", ValueError),
        ("ctx", 1, ValueError),
        ("ctx", "x", TypeError),
        ("threads", 0, ValueError),
        ("threads", 30_000, ValueError),
        ("threads", 1.0, TypeError),
        ("ram_gb", 0, ValueError),
        ("ram_gb", math.inf, ValueError),
        ("ram_gb", "1", TypeError),
        ("vram_gb", 0, ValueError),
        ("vram_gb", "1", TypeError),
        ("device", "cuda", ValueError),
        ("device", 0, TypeError),
    ],
)
def test_loading_names_the_one_argument(name: str, value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"^{name}\\b"):
        colibri.Model(**{name: value})


def test_ids_and_text_are_not_taken_for_each_other(model: colibri.Model) -> None:
    of_ids: list[Callable[[Any], Any]] = [model.decode, model.logits, model.routing]
    for method in of_ids:
        for value in ("ab", b"ab", {"a": 1}, 5):
            with pytest.raises(TypeError, match=r"^ids must be a list of integers"):
                method(value)
    wrong: Any = b"x"
    with pytest.raises(TypeError, match=r"^text must be a string"):
        model.encode(wrong)


def test_minus_zero_is_greedy(model: colibri.Model) -> None:
    said = [list(model.generate("Once", max_tokens=4, temperature=zero)) for zero in (0.0, -0.0)]
    assert said[0] == said[1]
