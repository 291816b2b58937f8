"""Logits, routing and greedy text of the oracle models against their references.

The references were computed by transformers in float32; tests/data/README.md says how. Tolerances
are those of float32 arithmetic in another order, as stated there.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colibri
from colibri.cli import main
from colibri.models import read_model

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
LOGITS = 5e-4
WEIGHTS = 1e-4


MODELS = [
    "deepseek_v2",
    "deepseek_v2_groups",
    "deepseek_v2_norm",
    "deepseek_v3",
    "deepseek_v3_fp8",
    "deepseek_v32",
    "dots1",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "glm_moe_dsa_dense",
    "glm_moe_dsa_fp8",
    "glm_moe_dsa_shared",
    "gpt_oss",
    "kimi_k2",
    "kimi_linear",
    "llama",
    "llama_scaled",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_moe_f32",
    "qwen3_moe_mixed",
    "qwen3_next",
    "qwen3_yarn",
]


# Its kernels round activations to 8 bits, which flips experts: the reference does not.
ROUNDED = "gpt_oss_mxfp4"


@pytest.fixture(params=MODELS)
def oracle(request: pytest.FixtureRequest) -> tuple[colibri.Model, dict[str, Any], Any]:
    folder = ORACLE / request.param
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    reference["folder"] = folder
    return colibri.Model(folder), reference, np.load(folder / "reference.npz")


def sequences(reference: dict[str, Any]) -> list[list[int]]:
    return [prompt["ids"] + prompt["greedy"] for prompt in reference["prompts"]]


def end_tokens(folder: Path) -> list[int]:
    config = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    ids: int | list[int] = config["eos_token_id"]
    return ids if isinstance(ids, list) else [ids]


def test_logits_are_within_float32_tolerance(oracle: Any) -> None:
    model, reference, arrays = oracle
    for i, ids in enumerate(sequences(reference)):
        logits = model.logits(ids)
        assert logits.dtype == np.float32
        assert logits.shape == (len(ids), reference["vocab_size"])
        if f"p{i}_logits" in arrays:
            assert np.abs(logits - arrays[f"p{i}_logits"]).max() <= LOGITS
        top = np.take_along_axis(logits, arrays[f"p{i}_top_ids"].astype(np.int64), axis=1)
        assert np.abs(top - arrays[f"p{i}_top_logits"]).max() <= LOGITS


def test_routing_equals_the_reference(oracle: Any) -> None:
    model, reference, arrays = oracle
    if not reference["moe_layers"]:
        experts, weights = model.routing(reference["prompts"][0]["ids"])
        assert experts.size == weights.size == 0
        return
    for i, ids in enumerate(sequences(reference)):
        experts, weights = model.routing(ids)
        assert experts.shape == (len(ids), len(reference["moe_layers"]), weights.shape[2])
        order = np.argsort(experts, axis=2)
        experts = np.take_along_axis(experts, order, axis=2).transpose(1, 0, 2)
        weights = np.take_along_axis(weights, order, axis=2).transpose(1, 0, 2)
        assert (experts == arrays[f"p{i}_experts"]).all()
        assert np.abs(weights - arrays[f"p{i}_expert_weights"]).max() <= WEIGHTS


@pytest.mark.parametrize("name", MODELS)
def test_the_configuration_tells_the_layers_with_experts(name: str) -> None:
    folder = ORACLE / name
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    layers = read_model(folder).map_layers or ()
    assert [n for n in layers if n < reference["num_layers"]] == reference["moe_layers"]


@pytest.mark.parametrize("name", [*MODELS, ROUNDED])
def test_info_says_what_the_reference_has(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    reference = json.loads((ORACLE / name / "reference.json").read_text(encoding="utf-8"))
    assert main(["info", str(ORACLE / name)]) == 0
    told = capsys.readouterr().out
    assert f"family: {reference['arch']}" in told
    assert "supported: yes" in told
    sparse = len(reference["moe_layers"])
    experts = f"in each of {sparse} sparse layers" if sparse else "none, every layer is dense"
    assert experts in told


def test_rounded_activations_stay_near_the_reference() -> None:
    reference = json.loads((ORACLE / ROUNDED / "reference.json").read_text(encoding="utf-8"))
    arrays = np.load(ORACLE / ROUNDED / "reference.npz")
    model = colibri.Model(ORACLE / ROUNDED)
    ours, theirs = (
        np.concatenate(logits).astype(np.float64)
        for logits in zip(
            *(
                (model.logits(ids), arrays[f"p{i}_logits"])
                for i, ids in enumerate(sequences(reference)[:2])
            ),
            strict=True,
        )
    )
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    assert np.median((ours * theirs).sum(axis=1) / norms) >= 0.98
    log_p, log_q = (
        logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) for logits in (theirs, ours)
    )
    assert np.median((np.exp(log_p) * (log_p - log_q)).sum(axis=1)) <= 0.1
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean() >= 0.6


def test_incremental_logits_equal_whole_ones_bit_for_bit(oracle: Any) -> None:
    model, reference, _ = oracle
    prompt = reference["prompts"][1]
    tokens = list(model.generate(prompt["ids"], max_tokens=20, temperature=0))
    ids = [token.id for token in tokens]
    whole = model.logits(prompt["ids"] + ids).astype(np.float64)
    for position, token in enumerate(tokens, start=len(prompt["ids"]) - 1):
        row = whole[position]
        logprob = row[token.id] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert token.logprob == pytest.approx(logprob, abs=1e-6)
    # Up to its end token the reference goes the same way.
    assert ids == prompt["greedy"][: len(ids)]
    assert len(ids) == 20 or prompt["greedy"][len(ids)] in end_tokens(reference["folder"])


def test_the_tokenizer_equals_the_reference(oracle: Any) -> None:
    model, reference, _ = oracle
    for case in reference["tokenizer_cases"]:
        assert model.encode(case["text"]) == case["ids"]


def test_the_table_of_families_is_complete(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "none"}', encoding="utf-8")
    shutil.copy(ORACLE / "llama" / "tokenizer.json", tmp_path)
    with pytest.raises(colibri.errors.EngineError) as caught:
        colibri.Model(tmp_path)
    families = set(str(caught.value.hint).removeprefix("this version runs ").split(", "))
    page = (ORACLE.parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    _head, *rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE)
    assert {family for family, _ in rows} == families
    assert sorted(name for _, name in rows) == sorted(folder.name for folder in ORACLE.iterdir())
