from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from colibri.commands import console
from colibri.engine_process import EngineConfig, EngineProcess
from colibri.find_engine import find_engine


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_ENGINE", "'/opt/my engine' --flag")
    assert find_engine() == ["/opt/my engine", "--flag"]


def test_then_the_command_beside_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLIBRI_ENGINE", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_engine() == [str(tmp_path / "python"), "-P", "-m", "colibri._engine_entry"]
    command = tmp_path / "colibri-engine"
    command.write_text("#!/bin/sh\n", encoding="utf-8")
    assert find_engine()[1:] == ["-P", "-m", "colibri._engine_entry"]  # not executable yet
    command.chmod(0o755)
    assert find_engine() == [str(command)]


def test_every_setting_reaches_the_command_line() -> None:
    config = EngineConfig(
        Path("m"), ctx=3000, slots=2, ram_gb=1.5, vram_gb=80, threads=3, command=("e",)
    )
    assert " ".join(config.argv()) == (
        "e --mux --model m --ctx 3000 --slots 2 --ram 1.5 --vram 80 --threads 3 --progress"
    )
    assert "--ram" not in EngineConfig(Path("m"), command=("e",)).argv()


def test_every_setting_reaches_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVE_BATCH", "0")
    monkeypatch.setenv("CTX", "7")
    monkeypatch.setenv("RAM_GB", "9")
    monkeypatch.setenv("HINT", "kept")
    config = EngineConfig(Path("m"), ctx=3000, slots=2, ram_gb=1.5, vram_gb=0.25)
    mux = {"SERVE": "1", "SERVE_BATCH": "1", "KV_SLOTS": "2", "CTX": "3000", "RAM_GB": "1.5"}
    mux |= {"VRAM_GB": "0.25"}
    mux |= {"COLI_MODEL": "m", "SNAP": "m"}
    assert config.environment() == {**os.environ, **mux}
    # Without a budget, what the user has set for the engine holds.
    legacy = EngineConfig(Path("m"), protocol=("--legacy", "--ngen", "5")).environment()
    assert (legacy["SERVE"], legacy["RAM_GB"]) == ("1", "9")
    assert "SERVE_BATCH" not in legacy


def test_what_a_command_says_for_itself_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVSAVE", raising=False)
    assert "KVSAVE" not in EngineConfig(Path("m")).environment()
    assert EngineConfig(Path("m"), is_lasting=False).environment()["KVSAVE"] == "0"
    started: list[EngineConfig] = []

    class Stub:
        def __init__(self, config: EngineConfig, **_: object) -> None:
            started.append(config)

        def start(self) -> None: ...

        async def wait_ready(self) -> None: ...

        async def stop(self) -> None: ...

    async def use() -> None:
        async with console.private_engine(EngineConfig(Path("m")), console.ProgressLine()):
            pass

    monkeypatch.setattr(console, "Engine", Stub)
    asyncio.run(use())
    assert [config.is_lasting for config in started] == [False]


def engine_process(log: list[str]) -> EngineProcess:
    return EngineProcess(
        on_record=lambda _record: None,
        on_pause=lambda: None,
        on_progress=lambda _stage, _done, _total: None,
        on_log=log.append,
    )


def test_an_engine_that_is_being_started_can_be_stopped() -> None:
    async def start_and_stop() -> int:
        process = engine_process([])
        shell = ("sh", "-c", "exec sleep 99")
        life = asyncio.create_task(process.run(EngineConfig(Path("m"), command=shell)))
        await process.stop(1.0)
        return await asyncio.wait_for(life, 20)

    assert asyncio.run(start_and_stop()) == -signal.SIGKILL


def test_an_engine_is_started_with_that_environment() -> None:
    log: list[str] = []
    process = engine_process(log)
    shell = ("sh", "-c", 'echo "$SERVE $SERVE_BATCH $KV_SLOTS $CTX $COLI_MODEL $SNAP" >&2')
    assert asyncio.run(process.run(EngineConfig(Path("m"), slots=3, command=shell))) == 0
    assert log == ["1 1 3 4096 m m"]
