"""``colibri doctor`` and ``info`` beside the engine: the same folders, the same sentences."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colibri
from colibri import _core
from colibri.errors import EngineError
from containers import Tensors, read_safetensors, write_safetensors
from processes import colibri as command

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
FAMILIES = sorted(folder.name for folder in ORACLE.iterdir())
SHARDED = "glm_moe_dsa"
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
HINT = "fp8 files as published have tensors for each expert; take those, or bf16"
CONVERSION = {"experts": "int4", "group": 64, "dense": "int8", "head": "int8", "mtp": "int8"}


def examine(folder: Path, dirs: str | None = None, **options: Any) -> dict[str, Any]:
    options = {"ram_gb": None, "ctx": None, "slots": 1, "threads": None, **options}
    report: dict[str, Any] = json.loads(_core.examine(str(folder), dirs, **options))
    return report


def refusals(report: dict[str, Any]) -> list[str]:
    return [found["text"] for found in report["findings"] if found["severity"] == "error"]


def deep_findings(folder: Path) -> list[str]:
    found = json.loads(_core.check_contents(str(folder), None, lambda *_: None))
    return [finding["text"] for finding in found]


def copy(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(ORACLE / name, folder))


def change(folder: Path, edit: Callable[[Tensors], None]) -> None:
    path = folder / "model.safetensors"
    tensors, metadata = read_safetensors(path)
    edit(tensors)
    write_safetensors(path, tensors, metadata, align=8)


def reconfigure(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | fields), encoding="utf-8")


def engine_says(folder: Path) -> str:
    with pytest.raises(EngineError) as refused:
        colibri.Model(folder)
    return str(refused.value)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_doctor_is_content_with_what_the_engine_loads(name: str) -> None:
    report = examine(ORACLE / name)
    assert refusals(report) == []
    colibri.Model(ORACLE / name)
    memory, files = report["memory"], report["files"]
    told = json.loads(_core.describe(str(ORACLE / name)))
    assert files["dense_bytes"] == told["dense"]["bytes"]
    assert files["expert_bytes"] == told["routed_experts"]["bytes"]
    assert (memory["experts_bytes"] > 0) == (files["expert_bytes"] > 0)
    parts = memory["dense_bytes"] + memory["conversation_bytes"] + memory["expert_floor_bytes"]
    assert memory["needed_bytes"] == parts + memory["working_bytes"]
    assert deep_findings(ORACLE / name) == []


def without_experts(tensors: Tensors) -> None:
    for expert, part in ((7, "up_proj"), (9, "gate_proj"), (10, "down_proj")):
        del tensors[f"model.layers.1.mlp.experts.{expert}.{part}.weight"]


def with_another_shape(tensors: Tensors) -> None:
    dtype, _, data = tensors["model.layers.0.self_attn.q_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.weight"] = (dtype, [32, 128], data)


def with_another_type(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = ("I32", [64], bytes(256))


def with_a_nan(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = ("F32", [64], np.full(64, np.nan, "<f4").tobytes())


def without_a_head(tensors: Tensors) -> None:
    del tensors["lm_head.weight"]


FAULTS: dict[Callable[[Tensors], None], str] = {
    without_experts: "model.layers.1.mlp.experts: experts 7, 9-10 are missing or incomplete",
    with_another_shape: "tensor model.layers.0.self_attn.q_proj.weight has shape [32, 128]",
    with_another_type: "tensor model.norm.weight is stored as I32",
    with_a_nan: "tensor model.norm.weight has values that are not finite",
    without_a_head: "tensor lm_head.weight is missing",
}


@pytest.mark.parametrize("edit", FAULTS, ids=lambda edit: edit.__name__)
def test_what_the_engine_refuses_the_doctor_says_in_the_same_words(
    edit: Callable[[Tensors], None], tmp_path: Path
) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    change(folder, edit)
    [told] = refusals(examine(folder))
    assert FAULTS[edit] in told
    assert engine_says(folder) == told


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    edits = [edit for edit in FAULTS if edit not in (with_a_nan, with_another_type)]
    for edit in edits:
        change(folder, edit)
    (folder / "tokenizer.json").unlink()
    told = refusals(examine(folder))
    for words in [FAULTS[edit] for edit in edits] + ["tokenizer.json: not found"]:
        assert any(words in line for line in told), told
    assert len(told) == len(edits) + 1
    shutil.copy(ORACLE / "qwen3_moe" / "tokenizer.json", folder)
    said = engine_says(folder)
    assert all(FAULTS[edit] in said for edit in edits)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "unheard_of"}, 'model_type "unheard_of"'),
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_act": "gelu"}, 'hidden_act "gelu"'),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok is 17"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "3 heads over 2 key heads"),
        ({"head_dim": 15}, "15 rotated components"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rms_norm_eps": "NaN"}, "rms_norm_eps"),
        ({"vocab_size": 511}, "[512, 64]"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"hidden_size": 2**40}, "hidden_size is 1099511627776"),
        ({"head_dim": 2**20}, "model.layers.0.self_attn.q_proj.weight has shape [64, 64]"),
        ({"num_hidden_layers": 4096, "num_experts": 65536}, "experts 16-65535 are missing"),
        ({"eos_token_id": 512}, "eos_token_id 512 is outside"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_configuration_that_contradicts_the_files_is_refused_by_name(
    fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    # It would go before config.json.
    (folder / "generation_config.json").unlink()
    reconfigure(folder, **fields)
    told = refusals(examine(folder))
    assert any(words in line for line in told), told
    said = engine_says(folder)
    # The engine tells the first few of many.
    assert told[0] in said
    assert len(said) < 10_000


def test_a_nan_in_a_configuration_is_no_json(tmp_path: Path) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    text = (folder / "config.json").read_text(encoding="utf-8")
    text = text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": NaN')
    (folder / "config.json").write_text(text, encoding="utf-8")
    told = refusals(examine(folder))
    assert any("config.json: not valid JSON" in line for line in told)
    assert engine_says(folder) in told


def test_shards_that_are_missing_are_counted_and_named(tmp_path: Path) -> None:
    for i, name in enumerate(SHARDS):
        folder = copy(SHARDED, tmp_path / str(i))
        (folder / name).unlink()
        [told] = refusals(examine(folder))
        assert told == f"{folder}: 1 of 2 shards not found: {name}"
        assert engine_says(folder) == told
        # Without an index, the name of the other one tells.
        (folder / "model.safetensors.index.json").unlink()
        assert refusals(examine(folder)) == [told]
        done = command("doctor", str(folder))
        assert done.returncode == 1
        assert f"error: {told}; download them again" in done.stdout


def test_a_model_may_be_spread_over_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = copy(SHARDED, tmp_path / "model"), tmp_path / "other"
    other.mkdir()
    (folder / SHARDS[1]).rename(other / SHARDS[1])
    assert len(refusals(examine(folder))) == 1
    assert refusals(examine(folder, str(other))) == []
    assert refusals(examine(folder, f"{folder};{other}")) == []
    assert "--model-dirs" in str(examine(folder, f"{other}:{tmp_path}/none")["findings"])
    monkeypatch.setenv("COLI_MODEL_DIRS", str(other))
    assert command("doctor", str(folder)).returncode == 0
    assert command("info", str(folder)).returncode == 0
    done = command("run", "--model", str(folder), "--max-tokens", "4", "w1 w2")
    assert done.returncode == 0, done.stderr
    made = tmp_path / "made"
    text = tmp_path / "text"
    text.write_text("w1 w2 w3 w4 w5 w6 w7 w8", encoding="utf-8")
    for arguments in (
        ("convert", str(folder), str(made), "--verify"),
        ("trace", "record", str(folder), "--text", str(text), "-o", str(tmp_path / "trace")),
    ):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
    whole = colibri.Model(ORACLE / SHARDED, model_dirs="").logits([1, 2, 3])
    assert (colibri.Model(folder).logits([1, 2, 3]) == whole).all()
    # Beside a model that an index describes, and one that lists all there is.
    done = command(
        "bench", "quality", str(folder), "--against", str(made), "--text", str(text), "--json"
    )
    assert done.returncode == 0, done.stderr
    rows = {row["format"]: row for row in json.loads(done.stdout)["rows"]}
    stored_row = rows["as stored"]
    assert stored_row["figures"]["kl_mean"] == 0, stored_row
    stored = sum(path.stat().st_size for path in (ORACLE / SHARDED).glob("*.safetensors"))
    assert 0.9 * stored < stored_row["bytes"] < stored
    with pytest.raises(colibri.EngineError, match=SHARDS[1]):
        colibri.Model(folder, model_dirs="")
    assert (colibri.Model(folder, model_dirs=f"{folder}:{other}").logits([1, 2, 3]) == whole).all()
    # The same shard twice is refused, whichever is meant.
    shutil.copy(other / SHARDS[1], folder)
    done = command("run", "--model", str(folder), "--max-tokens", "4", "w1 w2")
    assert done.returncode == 1
    assert f"{other / SHARDS[1]}: is in {folder} too; remove one of them" in done.stderr
    report = command("doctor", "--json", str(folder))
    assert report.returncode == 1
    assert f"{SHARDS[1]}: is in {folder} too" in report.stdout


def test_a_tensor_in_two_files_is_refused_by_name(tmp_path: Path) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    tensors, _ = read_safetensors(folder / "model.safetensors")
    both = {name: tensors[name] for name in ("lm_head.weight", "model.norm.weight")}
    write_safetensors(folder / "more.safetensors", both, align=8)
    [told] = refusals(examine(folder))
    first = f"{folder / 'more.safetensors'}: tensor lm_head.weight and 1 others are in "
    assert told == f"{first}{folder / 'model.safetensors'} too"
    assert engine_says(folder) == told


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_a_file_that_was_cut_is_one_finding(keep: int, tmp_path: Path) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    [told] = refusals(examine(folder))
    assert told.startswith(f"{path}: ")
    assert engine_says(folder) == told


def test_a_header_claims_more_than_a_number_holds(tmp_path: Path) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    shape = struct.pack("<2q", 2**33, 2**30)
    entries = {f"x{i}.weight_shape": ("I64", [2], shape) for i in range(4)}
    words = {f"x{i}.weight_packed": ("I32", [1, 1], bytes(4)) for i in range(4)}
    change(folder, lambda tensors: tensors.update(entries | words))
    told = json.loads(_core.describe(str(folder)))
    assert told["parameters"] == told["parameters_active"] == 2**64 - 1


def test_memory_that_is_too_small_is_refused_as_the_engine_does() -> None:
    folder = ORACLE / "qwen3_moe"
    [told] = refusals(examine(folder, ram_gb=1e-5))
    assert told.startswith("cannot place the dense weights: need ")
    with pytest.raises(EngineError) as refused:
        colibri.Model(folder, ram_gb=1e-5)
    assert str(refused.value) == told
    small = examine(folder, ram_gb=0.001)
    assert "cannot keep the 4 experts of one token in memory" in refusals(small)[0]
    done = command("doctor", "--ram", "0.001", str(folder))
    assert done.returncode == 1
    assert "--ram 0.0" in done.stdout
    assert "would fit" in done.stdout


def test_every_byte_of_a_container_is_compared(tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    _core.Conversion(str(ORACLE / "glm4_moe"), **CONVERSION).run(str(folder), 2, lambda *_: None)
    report = examine(folder)
    assert report["files"]["tensors_with_hash"] == report["files"]["tensors"] > 0
    assert deep_findings(folder) == []
    path = folder / "model-experts-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert refusals(examine(folder)) == []
    [told] = deep_findings(folder)
    assert "is damaged: its blake3 is not the manifest's" in told
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert any(
        "is not the file that the manifest describes" in line for line in deep_findings(folder)
    )
    done = command("doctor", "--deep", str(folder))
    assert done.returncode == 1
    assert told in done.stdout


def test_values_that_are_not_finite_are_found_in_matrices(tmp_path: Path) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")

    def spoil(tensors: Tensors) -> None:
        dtype, shape, data = tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
        values = np.frombuffer(data, "<u2").copy()
        # Infinity, minus infinity and no number, in bf16.
        values[:3] = 0x7F80, 0xFF80, 0x7FC0
        tensors["model.layers.1.mlp.experts.3.up_proj.weight"] = (dtype, shape, values.tobytes())

    change(folder, spoil)
    assert refusals(examine(folder)) == []
    [told] = deep_findings(folder)
    assert "model.layers.1.mlp.experts.3.up_proj.weight has 3 values that are not finite" in told


def test_exponents_that_are_none_are_found_in_mxfp4(tmp_path: Path) -> None:
    folder = copy("gpt_oss_mxfp4", tmp_path / "model")
    assert deep_findings(folder) == []
    name = "model.layers.1.mlp.experts.down_proj_scales"

    def spoil(tensors: Tensors) -> None:
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, b"\xff\xff" + data[2:])

    change(folder, spoil)
    [told] = deep_findings(folder)
    assert f"{name} has 2 values that are not finite" in told


@pytest.mark.parametrize("text", ["", "{}", '{"version": 1}'])
def test_a_manifest_that_is_not_ours_is_in_nobodys_way(tmp_path: Path, text: str) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    colibri.Model(folder)
    assert deep_findings(folder) == []


def test_what_a_file_is_called_stays_on_its_line(tmp_path: Path) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    change(folder, lambda tensors: tensors.update({"a\n\x1b[2J\u2028\u202eb": ("U8", [1], b"x")}))
    [note] = [f["text"] for f in examine(folder)["findings"] if f["severity"] == "note"]
    assert note.isprintable()
    done = command("info", str(folder))
    assert done.returncode == 0


def test_the_disk_is_measured_on_the_models_own_files() -> None:
    stages = []
    figures = json.loads(
        _core.measure_disk(
            str(ORACLE / "qwen3_moe"), None, 5.0, lambda *stage: stages.append(stage)
        )
    )
    assert figures["pieces_of"] == "experts"
    tensors, _ = read_safetensors(ORACLE / "qwen3_moe" / "model.safetensors")
    sizes = [len(data) for name, (_, _, data) in tensors.items() if ".experts." in name]
    # So few bytes are all read, in far less than the time there is.
    assert figures["bytes"] == sum(sizes)
    assert figures["piece_bytes"] == max(sizes)
    assert 0 < figures["seconds"] < 5
    assert stages
    assert all(stage == "measuring the disk" for stage, _, _ in stages)


def test_a_report_is_json_and_people_can_read_it(tmp_path: Path) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{% for %}", encoding="utf-8")
    done = command("doctor", "--deep", "--json", str(folder))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["deep"]
    assert report["disk"]["bytes_per_second"] > 0
    assert report["machine"]["threads"] >= 1
    [finding] = report["findings"]
    assert finding["severity"] == "warning"
    assert "chat template" in finding["text"]
    done = command("doctor", str(folder))
    assert done.returncode == 0
    for part in ("  files: ", "  memory: ", "  disk: ", "  machine: ", "warning: ", "nothing is"):
        assert part in done.stdout
    assert command("doctor").returncode == 0


def test_info_tells_sizes_and_what_is_not_supported(tmp_path: Path) -> None:
    folder = copy("qwen3_moe", tmp_path / "model")
    told = command("info", str(folder)).stdout
    for part in (
        "family: qwen3_moe",
        "supported: yes",
        "experts: 16 in each of 4 sparse layers",
        "context: 4,096",
        "largest expert:\n    size: 6.1 kB",
        "total size: 632.2 kB",
    ):
        assert part in told, told
    reconfigure(folder, hidden_act="gelu")
    described = json.loads(command("info", "--json", str(folder)).stdout)
    assert described["supported"] is False
    assert described["reason"] in refusals(examine(folder))
    change(folder, without_experts)
    reconfigure(folder, hidden_act="silu")
    described = json.loads(command("info", "--json", str(folder)).stdout)
    assert FAULTS[without_experts] in described["reason"]


def test_fp8_experts_that_share_a_tensor_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = copy("qwen3_5_moe", tmp_path / "model")

    def quantise(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("experts.gate_up_proj")]:
            _, shape, data = tensors[name]
            tensors[name] = ("F8_E4M3", shape, data[::2])
            scales = np.ones((shape[0], 1, 1), np.float32)
            tensors[f"{name}_scale_inv"] = ("F32", list(scales.shape), scales.tobytes())

    change(folder, quantise)
    reconfigure(folder, quantization_config={"quant_method": "fp8"})
    [told] = refusals(examine(folder))
    name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    assert told == f"not supported: fp8 in {name}, a tensor of all experts"
    assert engine_says(folder) == told
    assert json.loads(_core.describe(str(folder)))["reason"] == told
    done = command("convert", "--dry-run", str(folder))
    assert done.returncode == 1
    assert done.stderr == f"error: {told}\nhint: {HINT}\n"
