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
    names = ["f32", "f32, kv bf16", "as stored", "bf16", "f16"]
    expected = [(name, "float") for name in names]
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


def means(report: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(r["format"], r["activations"]): r["figures"]["kl_mean"] for r in report["rows"]}


def test_fewer_bits_cost_more(report: dict[str, Any]) -> None:
    mean = means(report)
    size = {row["format"]: row["bytes"] for row in report["rows"]}
    for group in (32, 64, 128):
        four, eight = f"int4-g{group}", f"int8-g{group}"
        assert mean[four, "float"] > mean[eight, "float"] > mean["f16", "float"] > 0
        assert size[four] <= size[eight] < size["f32"]


def test_rounded_activations_cost_more(text: Path) -> None:
    # In a dense model; where experts are chosen, an error may choose better by chance.
    arguments = ("--text", str(text), "--tokens", "100", "--json")
    mean = means(json.loads(colibri("bench", "quality", str(ORACLES / "llama"), *arguments).stdout))
    for name in INTEGERS:
        assert mean[name, "int8"] > mean[name, "float"] > 0


def chances(folder: Path, ids: list[int]) -> np.ndarray:
    logits = Model(folder, ctx=128).logits(ids)[:-1].astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_figures_are_those_of_the_models_own_logits(
    report: dict[str, Any], text: Path, tmp_path: Path
) -> None:
    ids = Model(MOE).encode(text.read_text(encoding="utf-8"))[:100]
    done = colibri("convert", str(MOE), str(tmp_path / "made"), "--experts", "int8")
    assert done.returncode == 0
    # The model is stored in bf16, so its own logits are the reference.
    reference, converted = chances(MOE, ids), chances(tmp_path / "made", ids)
    (row,) = (
        row["figures"]
        for row in report["rows"]
        if (row["format"], row["activations"]) == ("int8-g64", "int8")
    )
    kl = (reference * np.log(reference / converted)).sum(axis=1)
    assert row["kl_mean"] == pytest.approx(kl.mean(), rel=1e-6)
    assert row["kl_median"] == pytest.approx(np.median(kl), rel=1e-6)
    assert row["top1"] == (reference.argmax(axis=1) == converted.argmax(axis=1)).mean()
    told = converted[np.arange(99), ids[1:]]
    assert row["perplexity"] == pytest.approx(np.prod(told ** (-1 / 99)), rel=1e-9)


def test_the_table_is_for_people(text: Path) -> None:
    done = colibri("bench", "quality", str(MOE), "--text", str(text), "--tokens", "20")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{MOE}: 19 predicted tokens of words.txt")
    assert lines[1].split() == [
        *("format", "activations", "size", "KL", "mean", "median", "p99", "top-1", "perplexity")
    ]
    assert lines[2].split()[:7] == ["f32", "float", *lines[2].split()[2:4], "0", "0", "0"]
    assert len(lines) == 2 + 5 + 2 * len(INTEGERS)
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
