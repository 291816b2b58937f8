"""``colibri bench quality`` as a command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri import Model
from processes import colibri

ORACLES = Path(__file__).parents[1] / "data" / "oracle"
MOE = ORACLES / "qwen3_moe"
INTEGERS = [f"{bits}-g{group}" for bits in ("int8", "int4") for group in (32, 64, 128)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("The quick brown fox jumps over the lazy dog, said 17 owls.\n" * 9, "utf-8")
    return path


@pytest.fixture(scope="module")
def report(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    same = tmp_path_factory.mktemp("against") / "same"
    shutil.copytree(MOE, same)
    done = colibri(
        *("bench", "quality", str(MOE), "--against", str(same)),
        *("--text", str(text), "--tokens", "100", "--json"),
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    found["same"] = str(same)
    return found


def test_every_format_has_its_rows(report: dict[str, Any]) -> None:
    rows = [(row["format"], row["activations"]) for row in report["rows"]]
    expected = [("f32", "float"), ("as stored", "float"), ("bf16", "float"), ("f16", "float")]
    for name in INTEGERS:
        expected += [(name, "int8"), (name, "float")]
    assert rows == [*expected, (report["same"], "float")]
    assert report["tokens"] == 100
    assert report["left_out"] == []
    assert all(row["figures"]["positions"] == 99 for row in report["rows"])


def test_what_is_equal_has_no_divergence(report: dict[str, Any]) -> None:
    # The model is stored in bf16, so nothing is lost there.
    for row in report["rows"]:
        equal = row["format"] in ("f32", "as stored", "bf16", report["same"])
        figures = row["figures"]
        assert (figures["kl_mean"] == 0) == equal
        assert (figures["kl_p99"] == 0) == equal
        if equal:
            assert figures["top1"] == 1
            assert figures["perplexity"] == report["rows"][0]["figures"]["perplexity"]


def test_fewer_bits_and_rounded_activations_cost_more(report: dict[str, Any]) -> None:
    mean = {(r["format"], r["activations"]): r["figures"]["kl_mean"] for r in report["rows"]}
    size = {row["format"]: row["bytes"] for row in report["rows"]}
    for group in (32, 64, 128):
        four, eight = f"int4-g{group}", f"int8-g{group}"
        assert mean[four, "float"] > 4 * mean[eight, "float"] > 0
        assert mean[eight, "int8"] > mean[eight, "float"]
        assert mean["f16", "float"] < mean[eight, "float"]
        assert size[four] <= size[eight] < size["f32"]


def test_perplexity_is_that_of_the_models_own_logits(report: dict[str, Any], text: Path) -> None:
    model = Model(MOE, ctx=128)
    ids = model.encode(text.read_text(encoding="utf-8"))[:100]
    logits = model.logits(ids).astype(np.float64)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    told = [chances[at, ids[at + 1]] for at in range(99)]
    expected = np.prod(np.asarray(told) ** (-1 / 99))
    assert report["rows"][1]["figures"]["perplexity"] == pytest.approx(expected, rel=1e-9)


def test_the_table_is_for_people(text: Path) -> None:
    done = colibri("bench", "quality", str(MOE), "--text", str(text), "--tokens", "20")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{MOE}: 19 predicted tokens of words.txt")
    assert lines[1].split() == [
        *("format", "activations", "size", "KL", "mean", "median", "p99", "top-1", "perplexity")
    ]
    assert lines[2].split()[:7] == ["f32", "float", *lines[2].split()[2:4], "0", "0", "0"]
    assert len(lines) == 2 + 4 + 2 * len(INTEGERS)
    assert len({len(line) for line in lines[1:]}) == 1


def refused(*args: str) -> list[str]:
    done = colibri("bench", *args)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: ")), done.stderr
    return lines


def test_what_cannot_be_measured_is_refused_in_a_line(text: Path, tmp_path: Path) -> None:
    other = str(ORACLES / "mixtral")
    lines = refused("quality", str(MOE), "--against", other, "--text", str(text))
    assert (
        lines[0]
        == f"error: {other}: its tokenizer gives other tokens for the text than the model's"
    )
    assert "no such model folder" in refused("quality", str(tmp_path / "none"))[0]
    gone = refused("quality", str(MOE), "--against", str(tmp_path / "none"))
    assert "no such model folder" in gone[0]
    assert "No such file" in refused("quality", str(MOE), "--text", str(tmp_path / "none"))[0]
    (tmp_path / "short").write_text("a", encoding="utf-8")
    short = refused("quality", str(MOE), "--text", str(tmp_path / "short"))
    assert "a text of 1 tokens" in short[0]
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refused("quality", str(MOE), "--text", str(tmp_path / "bytes"))[0]
    assert "must be from 2" in refused("quality", str(MOE), "--tokens", "1")[0]
    assert "MEASUREMENT" in refused()[0]
    unconvertible = Path(shutil.copytree(MOE, tmp_path / "container"))
    done = colibri("convert", str(MOE), str(tmp_path / "converted"))
    assert done.returncode == 0
    assert unconvertible.exists()
    said = refused("quality", str(tmp_path / "converted"), "--text", str(text))
    assert "it is converted already" in said[0]
