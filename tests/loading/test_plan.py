"""``colibri plan`` beside the engine: the same figures, before loading and after."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from colibri import _core
from colibri.engine import Engine
from colibri.engine_process import EngineConfig
from colibri.models import demo_folder
from processes import assert_refused
from processes import colibri as command

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
FAMILIES = ["glm4_moe_lite", "gpt_oss", "llama", "qwen3_next"]


def planned(*args: str) -> dict[str, Any]:
    # On a busy machine, progress is told on stderr.
    done = command("plan", "--json", *args)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


async def started(folder: Path, slots: int, ctx: int) -> dict[str, str]:
    """What the engine says of itself once it has loaded."""
    engine = Engine(EngineConfig(model=folder, ctx=ctx, slots=slots, ram_gb=None, threads=1))
    engine.start()
    try:
        await engine.wait_ready()
        return engine.caps
    finally:
        await engine.stop()


@pytest.mark.parametrize("kv", ["f32", "bf16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_planned_is_what_the_engine_does(
    name: str, kv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLIBRI_KV", kv)
    folder = Path(shutil.copytree(ORACLE / name, tmp_path / name))
    report = planned("--slots", "3", "--ctx", "64", str(folder))
    memory = report["memory"]
    caps = asyncio.run(started(folder, 3, 64))
    assert memory["dense_bytes"] == int(caps["dense_ram"])
    assert memory["slots"] * memory["conversation_bytes"] == int(caps["conversations_ram"])
    assert memory["experts_kept_bytes"] == int(caps["experts_ram"])
    assert memory["experts_kept"] == memory["experts"]
    assert memory["fits"]
    assert report["served"]["uniform"] == 1.0
    assert 0 < memory["token"]["dense_bytes"] <= memory["dense_bytes"]
    assert (memory["token"]["expert_bytes"] > 0) == (memory["experts"] > 0)
    least, most = report["prediction"]["tokens_per_second"]
    assert 0 < least <= most
    assert report["prediction"]["read_bytes_per_token"] == [0, 0]


def test_keys_and_values_in_bf16_take_half(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = planned(str(ORACLE / "llama"))["memory"]["conversation_bytes"]
    monkeypatch.setenv("COLIBRI_KV", "bf16")
    assert planned(str(ORACLE / "llama"))["memory"]["conversation_bytes"] * 2 == whole > 0
    monkeypatch.setenv("COLIBRI_KV", "int8")
    line = "COLIBRI_KV: 'int8' is not known"
    assert_refused(command("plan", str(ORACLE / "llama")), 1, line)


def test_a_budget_leaves_some_experts_on_disk_and_history_says_which_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLIBRI_STATE_DIR", raising=False)
    folder = Path(shutil.copytree(demo_folder(), tmp_path / "model"))
    # What is kept for small things is a share of the budget, so one of that size is asked about.
    everything = planned("--ram", "0.1", "--slots", "1", "--ctx", "256", str(folder))["memory"]
    # Room for about half of the experts beside the rest.
    half = everything["experts_bytes"] // 2
    bytes_before = everything["dense_bytes"] + everything["conversation_bytes"]
    bytes_before += everything["working_bytes"]
    ram = (everything["process_bytes"] + bytes_before + half) / 1e9
    args = ["--slots", "1", "--ctx", "256", "--ram", f"{ram:.6f}", str(folder)]
    memory = planned(*args)["memory"]
    assert 0 < memory["experts_kept"] < memory["experts"] == 160
    assert memory["history"] is None
    kept = memory["experts_kept_bytes"] / memory["experts_bytes"]
    # The size of the process differs a little from one start to the next.
    assert kept == pytest.approx(0.5, abs=0.25)
    # Twelve experts of the first sparse layer, without the lines that say of which model.
    told = json.loads(_core.describe(str(folder), None))
    layer = told["layers"] - told["sparse_layers"]
    uses = [(0, 45), (1, 45)] + [(expert, 1) for expert in range(2, 12)]
    history = "".join(f"{layer} {expert} {count}\n" for expert, count in uses)
    (folder / ".coli_usage").write_text(history, encoding="utf-8")
    report = planned(*args)
    assert report["memory"]["history"] == {"uses": 100, "served": 100}
    assert report["served"]["history"] == 1.0
    # It is looked for where the engine would.
    monkeypatch.setenv("COLIBRI_STATE_DIR", str(tmp_path / "state"))
    assert planned(*args)["memory"]["history"] is None


def test_what_does_not_fit_is_told_with_what_would() -> None:
    done = command("plan", "--ram", "0.02", "demo")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    [fits] = [line for line in lines if line.startswith("  fits:")]
    assert fits.split(maxsplit=2)[1] == "no;"
    assert lines[-1].startswith("error: cannot ")
    assert "predicted" not in done.stdout


def test_a_model_that_is_not_whole_is_not_planned(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ORACLE / "llama", tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    done = command("plan", str(folder))
    assert done.returncode == 1
    assert any(line.startswith("error: ") for line in done.stdout.splitlines())


def test_a_device_takes_experts_off_memory_and_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["--slots", "1", "--ctx", "256", str(demo_folder())]
    plain = planned(*args)["memory"]
    assert (plain["device"], plain["device_experts"], plain["device_experts_bytes"]) == (None, 0, 0)
    asked = planned("--ram", "0.1", *args)["memory"]
    monkeypatch.setenv("COLIBRI_DEVICE", "host")
    a_quarter = plain["experts_bytes"] / 4 / 1e9
    report = planned("--vram", f"{a_quarter:.6f}", *args)
    memory = report["memory"]
    assert memory["device"] == "host"
    assert memory["device_experts"] in (39, 40)
    assert memory["experts_kept"] + memory["device_experts"] == memory["experts"] == 160
    # What has no room in memory may have some on the device.
    small = asked["process_bytes"] + asked["needed_bytes"] + asked["experts_bytes"] // 4
    report = planned("--vram", f"{a_quarter:.6f}", "--ram", f"{small / 1e9:.6f}", *args)
    memory = report["memory"]
    assert 0 < memory["experts_kept"] < 120
    in_reach = memory["experts_kept_bytes"] + memory["device_experts_bytes"]
    assert report["served"]["uniform"] == pytest.approx(in_reach / memory["experts_bytes"])
    [told] = [line for line in _plan("--vram", f"{a_quarter:.6f}", *args) if "experts:" in line]
    assert " on the device host, " in told


def _plan(*args: str) -> list[str]:
    return command("plan", *args).stdout.splitlines()


@pytest.mark.parametrize("name", ["plan", "doctor"])
def test_settings_of_a_device_that_the_engine_refuses_or_ignores_are_told(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored = command(name, "--vram", "1", "demo")
    assert ignored.returncode == 0
    lines = ignored.stdout.splitlines()
    assert [line for line in lines if line.startswith("warning: ")] == [
        "warning: no device is in use, so --vram changes nothing; set COLIBRI_DEVICE, or leave "
        "--vram out"
    ]
    monkeypatch.setenv("COLIBRI_DEVICE", "host")
    refused = command(name, "demo")
    assert refused.returncode == 1
    [line] = [line for line in refused.stdout.splitlines() if line.startswith("error: ")]
    assert "COLIBRI_DEVICE (--device): host is a part of memory whose size --vram GB" in line
    monkeypatch.setenv("COLIBRI_DEVICE", "abacus")
    assert_refused(command(name, "demo"), 1, "COLIBRI_DEVICE: there is no device 'abacus'")


def test_copies_on_other_drives_are_measured_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, empty = tmp_path / "mirror", tmp_path / "empty"
    mirror.mkdir()
    shutil.copy(demo_folder() / "model.safetensors", mirror)
    monkeypatch.setenv("COLI_MODEL_MIRROR", f"{empty}:{mirror}")
    report = planned("demo")
    drives = {drive["mirror"]: drive["bytes"] for drive in report["disk"]["drives"]}
    assert set(drives) == {0, 2}
    assert all(count > 0 for count in drives.values())
    assert sum(drives.values()) == report["disk"]["bytes"]
    lines = _plan("demo")
    [disk] = [line for line in lines if line.startswith("  disk:")]
    assert "% from the model's folder, " in disk
    assert "% from mirror 2" in disk
    [warning] = [line for line in lines if line.startswith("warning: ")]
    assert warning.startswith(f"warning: the model mirror {empty} is not used: ")
    monkeypatch.delenv("COLI_MODEL_MIRROR")
    assert planned("demo")["disk"]["drives"] == []


def test_the_plan_for_people_has_the_same_figures() -> None:
    done = command("plan", "demo")
    assert done.returncode == 0, done.stderr
    names = [line.split(":")[0].strip() for line in done.stdout.splitlines()[1:]]
    assert names == [
        "memory",
        "dense",
        "conversations",
        "experts",
        "fits",
        "served",
        "a token",
        "disk",
        "kernels",
        "reads",
        "speed",
    ]
