"""What an engine has read and what it takes when it says READY."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from colibri import _core
from colibri.find_engine import find_engine
from colibri.models import demo_folder
from containers import read_safetensors

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
MB = 1_000_000
# Of what the dense part takes.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Started:
    """An engine that is ready: its CAPS and TIERS, resident bytes now and at most so far."""

    caps: dict[str, str]
    expert_bytes: int
    resident: int
    peak: int


@contextmanager
def engine(folder: Path) -> Iterator[Started]:
    command = [*find_engine(), "--mux", "--model", str(folder), "--threads", "2", "--ctx", "256"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        expert_bytes = 0
        for line in process.stdout:
            if line.startswith(b"TIERS "):
                expert_bytes = int(float(line.split()[5]) * 1e9)
            if line.startswith(b"CAPS "):
                break
        else:
            pytest.fail("the engine ended before it was ready")
        caps = dict(field.split("=", 1) for field in line.decode().split()[1:])
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        rss, peak = (int(re.findall(rf"{key}:\s+(\d+)", status)[0]) for key in ("VmRSS", "VmHWM"))
        yield Started(caps, expert_bytes, rss * 1024, peak * 1024)
        process.stdin.close()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.parametrize("name", sorted(folder.name for folder in ORACLE.iterdir()))
def test_loading_reads_the_dense_part_once_and_no_expert(name: str) -> None:
    config = json.loads((ORACLE / name / "config.json").read_text(encoding="utf-8"))
    # Of the layer behind the last, which predicts further tokens, copies of the model's own
    # matrices are not used, nor are such layers that are apart, nor what looks at pictures.
    layers = config.get("text_config", config)["num_hidden_layers"]
    copies = [f"model.layers.{layers}.{name}." for name in ("embed_tokens", "shared_head.head")]
    beyond = (*copies, "mtp.", "model.visual.")
    dense = 0
    for path in ORACLE.joinpath(name).glob("*.safetensors"):
        tensors, _ = read_safetensors(path)
        used = [(n, data) for n, (_, _, data) in tensors.items() if not n.startswith(beyond)]
        dense += sum(len(data) for n, data in used if ".experts." not in n)
    with engine(ORACLE / name) as started:
        assert int(started.caps["experts_read"]) == 0
        assert int(started.caps["dense_read"]) == dense


def write_zeros(folder: Path, layers: int, hidden: int) -> None:
    """Writes a model whose weights are all zero, as a file that takes no room on disk."""
    heads, experts, width, vocabulary = hidden // 64, 8, 128, 2048
    config = {
        "model_type": "qwen3_moe",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "head_dim": 64,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "num_hidden_layers": layers,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": width,
        "intermediate_size": hidden,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "vocab_size": vocabulary,
        "eos_token_id": 0,
    }
    shapes = {
        "model.embed_tokens": [vocabulary, hidden],
        "lm_head": [vocabulary, hidden],
        "model.norm": [hidden],
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        shapes |= {
            f"{prefix}.input_layernorm": [hidden],
            f"{prefix}.post_attention_layernorm": [hidden],
            f"{attention}.q_norm": [64],
            f"{attention}.k_norm": [64],
            f"{attention}.q_proj": [hidden, hidden],
            f"{attention}.k_proj": [hidden // 2, hidden],
            f"{attention}.v_proj": [hidden // 2, hidden],
            f"{attention}.o_proj": [hidden, hidden],
            f"{prefix}.mlp.gate": [experts, hidden],
        }
        for expert in range(experts):
            part = f"{prefix}.mlp.experts.{expert}"
            shapes |= {
                f"{part}.gate_proj": [width, hidden],
                f"{part}.up_proj": [width, hidden],
                f"{part}.down_proj": [hidden, width],
            }
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").symlink_to(demo_folder() / "tokenizer.json")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_what_is_resident_is_the_dense_part_and_the_experts_in_memory(tmp_path: Path) -> None:
    write_zeros(tmp_path / "small", 1, 128)
    write_zeros(tmp_path / "large", 16, 2048)
    told = json.loads(
        _core.examine(str(tmp_path / "large"), None, ram_gb=None, ctx=256, slots=1, threads=2)
    )
    dense: int = told["memory"]["dense_bytes"]
    assert dense > 400 * MB
    with engine(tmp_path / "small") as started:
        base = started.resident - started.expert_bytes
    with engine(tmp_path / "large") as started:
        expected = dense + started.expert_bytes
        assert abs(started.resident - base - expected) < TOLERANCE * expected
        # No tensor was in memory twice on the way.
        assert started.peak - base < (1 + TOLERANCE) * expected
        assert int(started.caps["experts_read"]) == 0
