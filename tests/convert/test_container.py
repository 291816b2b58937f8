"""What the converter writes, read by other means and by the engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest

import colibri
from colibri import _core
from colibri.models import demo_folder
from containers import Integers, floats, read_folder, read_safetensors, write_safetensors

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
DEFAULTS = {"experts": "int4", "group": 64, "dense": "int8", "head": "int8", "mtp": "int8"}
# Of all record and tensor hashes of the converted oracle models.
PINNED = {
    "glm4_moe": "147734b91172560d0e20f795089aff088052a619a36a1ab4681081ee60a1ac14",
    "glm4_moe_lite": "bcbfff093ac5811742e5a86b19efdc3a31f7954c8cc0db2f995228810a0cd354",
}
CONVERTIBLE = sorted(folder.name for folder in ORACLE.iterdir())
SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def convert(source: Path, folder: Path, **options: Any) -> Path:
    conversion = _core.Conversion(str(source), **{**DEFAULTS, **options})
    conversion.run(str(folder), 2, lambda *_: None)
    return folder


def manifest(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return read


def prompts(name: str) -> list[list[int]]:
    reference = json.loads((ORACLE / name / "reference.json").read_text(encoding="utf-8"))
    return [prompt["ids"] + prompt["greedy"] for prompt in reference["prompts"]]


@pytest.fixture(params=["glm4_moe", "glm4_moe_lite"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def converted(name: str, tmp_path: Path) -> Path:
    return convert(ORACLE / name, tmp_path / "converted")


def plain_rounding(weights: np.ndarray, bits: int, group: int) -> np.ndarray:
    """The usual way: the largest magnitude becomes the largest integer."""
    grouped = weights.reshape(len(weights), -1, group)
    most = 2 ** (bits - 1) - 1
    scales = (np.abs(grouped).max(axis=2, keepdims=True) / np.float32(most)).astype("<f2")
    scales = scales.astype(np.float32)
    q = np.rint(grouped / np.where(scales == 0, 1, scales))
    return (q * scales).reshape(weights.shape)


def test_every_matrix_is_closer_than_plain_rounding_would_make_it(
    name: str, converted: Path
) -> None:
    source, _ = read_safetensors(ORACLE / name / "model.safetensors")
    plain, matrices = read_folder(converted)
    bounds = {4: 0.1, 8: 0.007}
    for matrix, integers in matrices.items():
        weights = floats(*source.pop(f"{matrix}.weight"))
        error = np.square(integers.values - weights).sum()
        usual = np.square(plain_rounding(weights, integers.bits, integers.group) - weights).sum()
        assert error <= usual * 1.00001, matrix
        assert error <= bounds[integers.bits] ** 2 * np.square(weights).sum(), matrix
        # Layer 4 predicts a further token.
        is_expert = ".mlp.experts." in matrix and ".layers.4." not in matrix
        assert integers.bits == (4 if is_expert else 8)
    # All that is no matrix of the kernels is as it was.
    assert plain == source
    assert any("kv_b_proj" in tensor for tensor in plain) == (name == "glm4_moe_lite")


def apart(name: str, gate_up: np.ndarray, down: np.ndarray) -> dict[str, np.ndarray]:
    """Matrices `[experts, out, in]` of experts that share tensors."""
    if name == "gpt_oss":
        # Stored transposed, gate and up by turns.
        columns = {
            "gate_proj": gate_up[..., 0::2],
            "up_proj": gate_up[..., 1::2],
            "down_proj": down,
        }
        return {part: values.swapaxes(1, 2) for part, values in columns.items()}
    gate, up = np.split(gate_up, 2, axis=1)
    return {"gate_proj": gate, "up_proj": up, "down_proj": down}


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_5_moe"])
def test_experts_that_share_tensors_are_taken_apart(name: str, converted: Path) -> None:
    source, _ = read_safetensors(ORACLE / name / "model.safetensors")
    plain, matrices = read_folder(converted)
    layers = [tensor.removesuffix(".gate_up_proj") for tensor in source if "gate_up_proj" in tensor]
    layers = [layer for layer in layers if layer.endswith(".experts") and "mtp." not in layer]
    assert len(layers) == 4
    for layer in layers:
        stored = [floats(*source.pop(f"{layer}.{part}")) for part in ("gate_up_proj", "down_proj")]
        for part, values in apart(name, stored[0], stored[1]).items():
            for expert, weights in enumerate(values):
                integers = matrices.pop(f"{layer}.{expert}.{part}")
                error = np.square(integers.values - weights).sum()
                assert error <= 0.1**2 * np.square(weights).sum(), (layer, expert, part)
    # Nothing else is made of them, and their biases are as they were.
    assert not [matrix for matrix in matrices if matrix.startswith(tuple(layers))]
    biases = {tensor for tensor in source if tensor.startswith(tuple(layers))}
    assert len(biases) == (8 if name == "gpt_oss" else 0)
    assert all(plain[bias] == source[bias] for bias in biases)


def test_the_bytes_are_the_same_on_every_machine(name: str, converted: Path) -> None:
    files = manifest(converted)["files"].values()
    hashes = [entry["tensors"] for entry in files if "tensors" in entry]
    digest = blake3.blake3(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    assert digest == PINNED[name]


@pytest.mark.parametrize("name", CONVERTIBLE)
def test_the_engine_computes_with_exactly_these_integers(
    name: str, converted: Path, tmp_path: Path
) -> None:
    """The same integers in a form that was read before there were records give the same bits."""
    plain, matrices = read_folder(converted)
    packed = tmp_path / "packed"
    packed.mkdir()
    for file in SMALL:
        shutil.copy(converted / file, packed)
    for matrix, integers in matrices.items():
        plain |= integers.packed(matrix)
    write_safetensors(packed / "model.safetensors", plain)
    ours, theirs = colibri.Model(converted), colibri.Model(packed)
    for ids in prompts(name):
        assert (ours.logits(ids) == theirs.logits(ids)).all()


# Random weights have no redundancy and choose experts by a hair, so these are wide.
@pytest.mark.parametrize(
    ("options", "bound"),
    [({"experts": "int8", "dense": "bf16", "head": "bf16"}, 0.25), ({}, 0.6)],
    ids=["int8", "int4"],
)
@pytest.mark.parametrize(
    "name", ["glm4_moe", "glm4_moe_lite", "kimi_linear", "qwen3_5_moe", "qwen3_next"]
)
def test_logits_stay_close(
    name: str, options: dict[str, Any], bound: float, tmp_path: Path
) -> None:
    original = colibri.Model(ORACLE / name)
    converted = colibri.Model(convert(ORACLE / name, tmp_path / "converted", **options))
    for ids in prompts(name):
        expected = original.logits(ids)
        assert (converted.logits(ids) - expected).std() <= bound * expected.std()


TEXT = "Once upon a time there was a little bird who lived in a tree. She was happy because"


def test_integers_that_fit_already_are_not_touched(tmp_path: Path) -> None:
    folder = convert(demo_folder(), tmp_path / "converted", group=32, head="bf16")
    original, converted = colibri.Model(demo_folder()), colibri.Model(folder)
    ids = original.encode(TEXT)
    assert (converted.logits(ids) == original.logits(ids)).all()


def test_a_trained_model_says_the_same_after_conversion(tmp_path: Path) -> None:
    folder = convert(demo_folder(), tmp_path / "converted")
    original, converted = colibri.Model(demo_folder()), colibri.Model(folder)
    ids = original.encode(TEXT)
    p, q = (
        logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        for logits in (m.logits(ids).astype(np.float64) for m in (original, converted))
    )
    assert (np.exp(p) * (p - q)).sum(axis=1).mean() <= 0.03
    assert (p.argmax(axis=1) == q.argmax(axis=1)).mean() >= 0.95


def test_the_manifest_is_what_any_blake3_says(converted: Path) -> None:
    files = manifest(converted)["files"]
    present = {path.name for path in converted.iterdir()}
    assert present == {*files, "manifest.json"}
    for file, entry in files.items():
        data = (converted / file).read_bytes()
        assert entry["bytes"] == len(data)
        if "blake3" in entry:
            assert entry["blake3"] == blake3.blake3(data).hexdigest()
            continue
        tensors, _ = read_safetensors(converted / file)
        start = len(data) - sum(len(content) for _, _, content in tensors.values())
        assert entry["header"] == blake3.blake3(data[:start]).hexdigest()
        assert entry["tensors"] == {
            tensor: blake3.blake3(content).hexdigest()
            for tensor, (_, _, content) in tensors.items()
        }


def test_formats_are_told(name: str, converted: Path) -> None:
    told = json.loads(_core.describe(str(converted)))
    source = json.loads(_core.describe(str(ORACLE / name)))
    assert told["supported"]
    assert told["parameters"] == source["parameters"]
    assert told["routed_experts"]["formats"]["int4-g64"] == 48
    config = json.loads((converted / "config.json").read_text(encoding="utf-8"))
    assert config.pop("quantization_config") == {
        "quant_method": "colibri",
        "version": 1,
        **DEFAULTS,
    }
    assert config == json.loads((ORACLE / name / "config.json").read_text(encoding="utf-8"))


def test_what_cannot_be_a_source_is_refused(converted: Path, tmp_path: Path) -> None:
    with pytest.raises(_core.ColibriCoreError, match="converted already"):
        _core.Conversion(str(converted), **DEFAULTS)
    tensors, _ = read_safetensors(ORACLE / "glm4_moe" / "model.safetensors")
    folder = tmp_path / "source"
    folder.mkdir()
    shutil.copy(ORACLE / "glm4_moe" / "config.json", folder)
    up = "model.layers.1.mlp.experts.3.up_proj.weight"
    dense = "model.layers.0.mlp.up_proj.weight"
    nan = bytearray(tensors[up][2])
    nan[-2:] = b"\xc0\x7f"
    for change, words in [
        ({up: None}, "experts.3 is incomplete"),
        ({up.replace("up_proj", "w3"): tensors[up]}, r"experts\.3 has parts by the names of two"),
        ({up.replace("up_proj", "w4"): tensors[up]}, r"the expert tensor .*experts\.3\.w4\.weight"),
        ({dense: ("F8_E4M3", [128, 128], bytes(128 * 128))}, "its scales are lost"),
        ({dense: ("I16", *tensors[dense][1:])}, "f32, f16 or bf16 is expected"),
        ({up: (*tensors[up][:2], bytes(nan))}, "experts.3.up_proj has values that are not finite"),
    ]:
        changed = {name: entry for name, entry in {**tensors, **change}.items() if entry}
        write_safetensors(folder / "model.safetensors", changed)
        with pytest.raises(_core.ColibriCoreError, match=words):
            convert(folder, tmp_path / "never")


def test_the_c_engines_containers_load(name: str, tmp_path: Path) -> None:
    """Rows of int8 and int4, and groups of int4, against the same integers in a known form."""
    source, _ = read_safetensors(ORACLE / name / "model.safetensors")
    flat, packed = dict(source), dict(source)
    for number, tensor in enumerate(source):
        matrix = tensor.removesuffix(".weight")
        if not tensor.endswith("_proj.weight"):
            continue
        weights = floats(*source[tensor])
        bits = 8 if "self_attn" in tensor else 4
        # Where a row is one group, there is nothing else to tell groups by.
        group = 16 if bits == 4 and weights.shape[1] == 64 and number % 2 else weights.shape[1]
        grouped = weights.reshape(len(weights), -1, group)
        scales = np.abs(grouped).max(axis=2) / (2 ** (bits - 1) - 1)
        q = np.rint(grouped / scales[:, :, None]).reshape(weights.shape).astype(np.int8)
        integers = Integers(bits, q, scales)
        for tensors, form in [(flat, integers.flat(matrix)), (packed, integers.packed(matrix))]:
            del tensors[tensor]
            tensors |= form
    models = []
    for form, tensors in [("flat", flat), ("packed", packed)]:
        folder = tmp_path / form
        folder.mkdir()
        for file in SMALL:
            shutil.copy(ORACLE / name / file, folder)
        write_safetensors(folder / "model.safetensors", tensors)
        models.append(colibri.Model(folder))
    for ids in prompts(name):
        logits, expected = (model.logits(ids) for model in models)
        assert (logits == expected).all()
    told = json.loads(_core.describe(str(tmp_path / "flat")))
    assert told["parameters"] is None
    with pytest.raises(_core.ColibriCoreError, match="C engine"):
        _core.Conversion(str(tmp_path / "flat"), **DEFAULTS)
