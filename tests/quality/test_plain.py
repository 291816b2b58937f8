"""Weights as plain floats: read from every form, written in three types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colibri import Model, _core
from colibri.errors import ModelError
from colibri.quality.plain import Entry, NotRepresentable, Weights, write_safetensors
from containers import Integers, floats, read_folder, read_safetensors, to_bf16

ORACLES = Path(__file__).parents[1] / "data" / "oracle"
MOE = ORACLES / "glm4_moe_lite"
PROMPT = [1, 5, 9, 33, 70, 120, 200, 250, 300]


def values(weights: _core.Weights, name: str, shape: list[int]) -> np.ndarray:
    return np.frombuffer(weights.read(name), np.float32).reshape(shape)


def test_a_converted_model_is_read_as_its_records_say(tmp_path: Path) -> None:
    conversion = _core.Conversion(
        str(MOE), experts="int4", group=32, dense="int8", head="bf16", mtp="int8"
    )
    conversion.run(str(tmp_path / "made"), None, lambda *_: None)
    plain, matrices = read_folder(tmp_path / "made")
    weights = _core.Weights(str(tmp_path / "made"))
    found = {name: (shape, stored) for name, shape, stored, _ in weights.tensors()}
    assert set(found) == {*plain, *(f"{name}.weight" for name in matrices)}
    for name, (dtype, shape, data) in plain.items():
        assert found[name] == (shape, dtype.lower())
        assert (values(weights, name, shape) == floats(dtype, shape, data)).all(), name
    assert len(matrices) > 50
    for name, matrix in matrices.items():
        shape = list(matrix.q.shape)
        assert found[f"{name}.weight"] == (shape, f"int{matrix.bits}-g{matrix.group}")
        assert (values(weights, f"{name}.weight", shape) == matrix.values).all(), name
    assert Weights(tmp_path / "made").rounds_activations
    assert not Weights(MOE).rounds_activations


def test_packed_integers_and_floats_are_read(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    integers = Integers(4, random.integers(-8, 8, (5, 64)), random.random((5, 2), np.float32))
    vector = random.standard_normal(7).astype(np.float32)
    tensors = integers.packed("a.m") | {
        "a.m.bias": ("F32", [7], vector.tobytes()),
        "b.norm.weight": ("BF16", [7], to_bf16(vector)),
    }
    from containers import write_safetensors as write

    write(tmp_path / "model.safetensors", tensors)
    weights = _core.Weights(str(tmp_path))
    assert weights.tensors() == [
        ("a.m.bias", [7], "f32", False),
        ("a.m.weight", [5, 64], "int4-g32", True),
        ("b.norm.weight", [7], "bf16", False),
    ]
    assert (values(weights, "a.m.weight", [5, 64]) == integers.values).all()
    assert (values(weights, "a.m.bias", [7]) == vector).all()
    with pytest.raises(KeyError):
        weights.read("a.m.weight_scale")


def test_containers_of_the_c_engine_are_refused(tmp_path: Path) -> None:
    from containers import write_safetensors as write

    integers = Integers(8, np.ones((4, 8), np.int64), np.ones((4, 1), np.float32))
    write(tmp_path / "model.safetensors", integers.flat("m"))
    with pytest.raises(NotRepresentable, match="container of the C engine"):
        Weights(tmp_path)


def test_widening_changes_no_bit_of_what_a_float_model_says(tmp_path: Path) -> None:
    Weights(MOE).write(tmp_path / "f32", "f32", lambda *_: None)
    assert {stored for _, _, stored, _ in _core.Weights(str(tmp_path / "f32")).tensors()} == {"f32"}
    expected = Model(MOE, ctx=64).logits(PROMPT)
    assert (Model(tmp_path / "f32", ctx=64).logits(PROMPT) == expected).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_types_are_rounded_to_the_nearest(dtype: str, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    drawn = random.standard_normal((64, 64)) * 10.0 ** random.integers(-9, 4, (64, 64))
    drawn = drawn.astype(np.float32)
    # Exactly between two neighbours of bf16, and of f16.
    drawn[0, :4] = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11]
    told = []
    entries = [
        Entry("m", (64, 64), dtype, lambda: drawn),
        Entry("v", (64,), "f32", lambda: drawn[0]),
    ]
    path = tmp_path / "model.safetensors"
    write_safetensors(path, entries, lambda done, total: told.append((done, total)))
    tensors, _ = read_safetensors(path)
    expected = to_bf16(drawn) if dtype == "bf16" else drawn.astype("<f2").tobytes()
    assert tensors["m"] == (dtype.upper(), [64, 64], expected)
    assert tensors["v"] == ("F32", [64], drawn[0].tobytes())
    assert told == [(256, 256 + 8192), (256 + 8192, 256 + 8192)]


@pytest.mark.parametrize(("dtype", "value"), [("f16", 65520.0), ("bf16", 3.4e38)])
def test_what_a_type_cannot_hold_is_named(dtype: str, value: float, tmp_path: Path) -> None:
    entries = [Entry("a.b", (1, 2), dtype, lambda: np.float32([1.0, value]))]
    with pytest.raises(NotRepresentable, match=f"a.b holds values beyond the range of {dtype}"):
        write_safetensors(tmp_path / "model.safetensors", entries, lambda *_: None)
    assert issubclass(NotRepresentable, ModelError)
