"""``colibri bench stream`` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colibri.commands.bench.stream import disk_share, turn_figures
from processes import colibri


@pytest.fixture
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_EXPERT_SLOTS", "5")


@pytest.mark.usefixtures("few_slots")
def test_a_report_has_both_turns_and_the_drive() -> None:
    done = colibri("bench", "stream", "demo", "--tokens", "12", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["turns"]) == {"cold", "warm"}
    for turn in report["turns"].values():
        assert turn["tokens"] == 12
        assert turn["tokens_per_second"] > 0
        assert sum(turn["uses"].values()) == pytest.approx(1)
        assert sum(turn["time"].values()) == pytest.approx(1)
        assert turn["disk_share"] > 0
    assert report["turns"]["cold"]["bytes_read"] > 0
    assert len(report["disk_bytes_per_second"]) == 3
    assert all(rate > 0 for rate in report["disk_bytes_per_second"])
    assert report["page_cache_dropped_bytes"] > 0
    assert report["memory"]["experts_most_gb"] > 0


@pytest.mark.usefixtures("few_slots")
def test_people_can_read_it() -> None:
    done = colibri("bench", "stream", "demo", "--tokens", "4")
    assert done.returncode == 0, done.stderr
    for part in (
        "model   ",
        "memory  ",
        "disk    ",
        "cold    4 tokens",
        "warm    4 tokens",
        "read: ",
    ):
        assert part in done.stdout


def test_a_share_is_of_the_whole_time() -> None:
    turn = {"wall_s": 4.0, "bytes_read": 2_000_000}
    assert disk_share(turn, 1_000_000) == 0.5
    for unknown in ({"wall_s": None, "bytes_read": 1}, {"wall_s": 1.0, "bytes_read": None}):
        assert disk_share(unknown, 1_000_000) is None
    assert disk_share(turn, 0) is None


def test_an_engine_that_tells_little_has_figures_too() -> None:
    stats = {"completion_tokens": 3, "tokens_per_second": 1.5, "ttft_ms": 10.0}
    figures = turn_figures(stats, None)
    assert figures["tokens"] == 3
    assert figures["uses"] is None
    assert figures["bytes_read"] is None
    assert figures["limit"] is None


def test_what_cannot_be_measured_is_told_in_a_line(tmp_path: Path) -> None:
    done = colibri("bench", "stream", str(tmp_path / "nothing"))
    assert done.returncode != 0
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr
