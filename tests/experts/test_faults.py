"""Files that change, shrink or cannot be written while an engine runs: no wrong token, no hang."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri import Model, _core
from colibri.errors import EngineError
from colibri.find_engine import find_engine
from colibri.models import demo_folder

PROMPT = "Once upon a time"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the demo model whose files look long written."""
    model = Path(shutil.copytree(demo_folder(), tmp_path / "model"))
    for path in model.iterdir():
        os.utime(path, (1e9, 1e9))
    return model


def change_one_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(b"nothing")
    other.rename(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (change_one_byte, "the file was changed since it was opened"),
        (cut, "the file is shorter than when it was opened"),
    ],
)
def test_a_file_that_changes_fails_those_who_need_it(
    folder: Path, change: Callable[[Path], None], told: str
) -> None:
    model = Model(folder, expert_slots=1)
    assert list(model.generate(PROMPT, max_tokens=4, temperature=0))
    for path in folder.glob("*.safetensors"):
        change(path)
    for _ in range(2):
        with pytest.raises(EngineError, match=rf"\.safetensors: {told}$"):
            list(model.generate(PROMPT, max_tokens=40, temperature=0))


def test_a_file_that_is_replaced_is_used_on_as_it_was(folder: Path) -> None:
    expected = [t.id for t in Model().generate(PROMPT, max_tokens=20, temperature=0)]
    model = Model(folder, expert_slots=1)
    for path in folder.glob("*.safetensors"):
        replace(path)
    assert [t.id for t in model.generate(PROMPT, max_tokens=20, temperature=0)] == expected


def test_a_full_disk_costs_the_history_alone(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    engine = [*find_engine(), "--mux", "--model", str(folder), "--expert-slots", "2"]
    # No file may grow: what ENOSPC does, for this process alone.
    command = ["sh", "-c", 'ulimit -f 0; trap "" XFSZ; exec "$@"', "sh", *engine]
    done = subprocess.run(
        command,
        input=_core.format_submit(1, 0, PROMPT.encode(), 8, 0.0, 1.0, {"seed": "1"}),
        capture_output=True,
        env={**os.environ, "COLIBRI_STATE_DIR": str(state)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\nDONE 1 " in done.stdout
    told = [line for line in done.stderr.splitlines() if b"not remembered" in line]
    assert len(told) == 1, done.stderr
    assert not list(state.rglob("*usage*"))
