from __future__ import annotations

import sys
from pathlib import Path

import pytest

from colibri.engine_process import EngineConfig
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
    config = EngineConfig(Path("m"), ctx=3000, slots=2, ram_gb=1.5, threads=3, command=("e",))
    assert " ".join(config.argv()) == (
        "e --mux --model m --ctx 3000 --slots 2 --ram 1.5 --threads 3 --progress"
    )
    assert "--ram" not in EngineConfig(Path("m"), command=("e",)).argv()
