"""``colibri bench disk`` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from processes import colibri

MIB = 1 << 20


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drive") / "a shard"
    path.write_bytes(bytes(range(256)) * (2 * MIB // 256) + b"odd")
    return path


def test_every_block_and_depth_is_measured_each_way(shard: Path) -> None:
    done = colibri("bench", "disk", str(shard), "--seconds", "0.02", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["bytes"] == 2 * MIB + 3
    cells = report["cells"]
    ways = {cell["way"] for cell in cells}
    assert "buffered" in ways
    assert ways <= {"buffered", "direct"}
    # Blocks of 4 MiB are longer than the file.
    expected = {(w, b, d) for w in ways for b in (MIB // 4, MIB) for d in (1, 2, 4, 8, 16)}
    assert {(cell["way"], cell["block_bytes"], cell["depth"]) for cell in cells} == expected
    assert all(cell["gb_per_s"] > 0 and cell["cpu_s_per_gb"] >= 0 for cell in cells)


def test_the_table_has_a_row_for_each_block_and_depth(shard: Path) -> None:
    done = colibri("bench", "disk", str(shard), "--seconds", "0.01")
    assert done.returncode == 0, done.stderr
    _, heading, *rows = done.stdout.splitlines()
    assert heading.split()[:3] == ["block", "depth", "buffered"]
    assert [row.split()[:3] for row in rows[:10]] == [
        [str(block), "KiB", str(depth)] for block in (256, 1024) for depth in (1, 2, 4, 8, 16)
    ]


def test_what_cannot_be_measured_is_told_in_a_line(shard: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"x" * 1000)
    for wrong, told in [
        (tmp_path, "is not a regular file"),
        (tmp_path / "none", "is not a regular file"),
        (short, "has 1.0 kB, at least 262.1 kB are read at a time"),
        (Path("/dev/zero"), "is not a regular file"),
    ]:
        done = colibri("bench", "disk", str(wrong))
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: {wrong}: {told}")
    done = colibri("bench", "disk", str(shard), "--seconds", "0")
    assert "--seconds: must be from 0.01 to 3,600" in done.stderr
