from __future__ import annotations

import json
import os
import re
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
        ({"num_hidden_layers": 2, "num_experts": 8, "mlp_only_layers": 5}, (0, 1)),
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


SMALL_FILES = [
    "config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", SMALL_FILES)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    path = folder(tmp_path)
    (path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path / name)
    elif kind == "device":
        (path / name).symlink_to("/dev/zero")
    else:
        (path / name).mkdir()
    with pytest.raises(ModelError, match=rf"{re.escape(name)}: not a regular file$"):
        read_model(path)


@pytest.mark.parametrize("name", SMALL_FILES)
@pytest.mark.parametrize("target", ["nothing", "itself"])
def test_a_link_to_nothing_is_not_taken_for_absence(tmp_path: Path, name: str, target: str) -> None:
    path = folder(tmp_path)
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(name if target == "itself" else target)
    with pytest.raises(ModelError, match=re.escape(name)):
        read_model(path)
    assert resolve_model(str(path)) == path


@pytest.mark.parametrize("odd", [[], {}, None, 1, "x", True, [[]]])
def test_templates_by_name_may_hold_anything(tmp_path: Path, odd: Any) -> None:
    named = [odd, {"name": odd, "template": "N"}, {"name": "default", "template": odd}]
    model = read_model(folder(tmp_path, tokenizer_config__json={"chat_template": named}))
    assert model.template == (odd if isinstance(odd, str) else None)


def test_no_more_than_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri.models.MAX_CONFIG_BYTES", 10)
    assert read_model(folder(tmp_path, chat_template__jinja="x" * 10)).template == "x" * 10
    path = tmp_path / "my-model" / "chat_template.jinja"
    path.write_text("x" * 11, encoding="utf-8")
    with pytest.raises(ModelError, match="too large"):
        read_model(path.parent)


def test_a_template_file_has_one_kind_of_line_end(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "chat_template.jinja").write_bytes(b"a\r\nb\n")
    assert read_model(path).template == "a\nb\n"


def test_a_path_that_is_not_utf8_is_refused_with_a_name_one_can_read(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.mkdir()
    (path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match=r"caf\\udce9: the path is not UTF-8") as caught:
        resolve_model(str(path))
    str(caught.value).encode()
    assert caught.value.hint
