from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colibri.errors import ModelError
from colibri.models import demo_folder, map_layers, read_model, resolve_model


def folder(tmp_path: Path, **files: Any) -> Path:
    path = tmp_path / "my-model"
    path.mkdir()
    (path / "config.json").write_text("{}", encoding="utf-8")
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return path


def test_a_missing_folder_is_named_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: no such model folder") as caught:
        resolve_model(str(tmp_path / "nowhere"))
    assert caught.value.hint


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_the_environment_names_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path)
    monkeypatch.setenv("COLI_MODEL", str(path))
    assert resolve_model(None) == path
    with pytest.raises(ModelError):
        resolve_model(str(tmp_path / "other"))


def test_demo_names_the_model_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLI_MODEL", raising=False)
    monkeypatch.setattr("colibri.models.demo_folder", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("demo") == resolve_model(None) == tmp_path
    assert demo_folder().name == "demo_model"


def test_reads_what_the_folder_says(tmp_path: Path) -> None:
    model = read_model(
        folder(
            tmp_path,
            config__json={"max_position_embeddings": 2048, "model_type": "x"},
            tokenizer_config__json={
                "bos_token": {"content": "<s>"},
                "eos_token": "</s>",
                "chat_template": [
                    {"name": "rag", "template": "R"},
                    {"name": "default", "template": "D"},
                ],
            },
            generation_config__json={"temperature": 0.4, "top_p": 0.8},
        )
    )
    assert (model.id, model.template) == ("my-model", "D")
    assert (model.bos_token, model.eos_token) == ("<s>", "</s>")
    assert (model.temperature, model.top_p, model.trained_ctx) == (0.4, 0.8, 2048)


def test_the_template_file_wins_and_odd_values_are_defaults(tmp_path: Path) -> None:
    model = read_model(
        folder(
            tmp_path,
            tokenizer_config__json={"chat_template": "T", "bos_token": None},
            chat_template__jinja="J",
            generation_config__json={"temperature": "hot", "top_p": 7, "do_sample": True},
        ),
        "served/name",
    )
    assert (model.id, model.template, model.bos_token) == ("served/name", "J", None)
    assert (model.temperature, model.top_p) == (0.7, 0.9)


def test_a_model_that_does_not_sample_is_greedy(tmp_path: Path) -> None:
    assert (
        read_model(folder(tmp_path, generation_config__json={"do_sample": False})).temperature == 0
    )


@pytest.mark.parametrize("content", ["[]", "{", "\ud800"[:0] + "nul"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model(folder(tmp_path, config__json=content))


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (
            {"num_hidden_layers": 4, "n_routed_experts": 8, "first_k_dense_replace": 1},
            (1, 2, 3),
        ),
        (
            {
                "num_hidden_layers": 3,
                "n_routed_experts": 8,
                "first_k_dense_replace": 1,
                "num_nextn_predict_layers": 1,
            },
            (1, 2, 3),
        ),
        ({"num_hidden_layers": 4, "num_experts": 8, "mlp_only_layers": [2]}, (0, 1, 3)),
        ({"num_hidden_layers": 4, "num_experts": 8, "decoder_sparse_step": 2}, (1, 3)),
        ({"num_hidden_layers": 3, "num_local_experts": 8}, (0, 1, 2)),
        (
            {
                "num_hidden_layers": 3,
                "n_routed_experts": 8,
                "mlp_layer_types": ["dense", "sparse", "sparse"],
            },
            (1, 2),
        ),
        ({"num_hidden_layers": 3}, None),
        ({"num_hidden_layers": "3", "num_experts": 8}, None),
        ({"num_hidden_layers": 10**9, "num_experts": 8}, None),
    ],
)
def test_map_rows_are_the_layers_with_experts(
    config: dict[str, Any], layers: tuple[int, ...] | None
) -> None:
    assert map_layers(config) == layers
