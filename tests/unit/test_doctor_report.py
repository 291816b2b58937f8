from __future__ import annotations

from pathlib import Path
from typing import Any

from colibri.commands.doctor import disk_lines, lines, memory_lines, template_findings
from colibri.models import demo_folder

MEMORY: dict[str, Any] = {
    "total_bytes": 64_000_000_000,
    "available_bytes": 60_000_000_000,
    "cgroup_limit_bytes": None,
    "ctx": 4096,
    "slots": 1,
    "dense_bytes": 11_000_000_000,
    "conversation_bytes": 400_000_000,
    "working_bytes": 20_000_000,
    "expert_floor_bytes": 150_000_000,
    "needed_bytes": 11_550_000_000,
    "budget_bytes": None,
    "process_bytes": 30_000_000,
    "experts_bytes": 360_000_000_000,
    "experts_kept_bytes": 42_000_000_000,
    "device_experts_bytes": 0,
    "expert_read_bytes_per_token": 11_000_000_000,
}
DISK = {
    "bytes_per_second": 2_750_000_000,
    "piece_bytes": 19_000_000,
    "threads": 16,
    "drives": [],
}
REPORT: dict[str, Any] = {
    "path": "/models/x",
    "files": None,
    "memory": None,
    "disk": None,
    "machine": {"cpu": "A CPU", "isa": "avx2", "threads": 2, "threads_allowed": 4},
}


def finding(severity: str, text: str, hint: str | None) -> dict[str, Any]:
    return {"severity": severity, "text": text, "hint": hint}


def test_memory_is_told_in_sums() -> None:
    assert memory_lines(MEMORY) == [
        "60.0 GB of 64.0 GB are available",
        "11.6 GB are needed: 11.0 GB dense, 400.0 MB for a conversation of 4,096 tokens, "
        "20.0 MB to work with, "
        "150.0 MB for the experts of one token",
        "there is room for 42.0 GB of 360.0 GB of experts",
    ]
    four = memory_lines(MEMORY | {"slots": 4, "needed_bytes": 12_750_000_000})
    assert "12.8 GB are needed: 11.0 GB dense, 1.6 GB for 4 conversations of 4,096 tok" in four[1]
    asked = memory_lines(MEMORY | {"budget_bytes": 12_000_000_000, "needed_bytes": 11_470_000_000})
    assert asked[1].startswith("11.5 GB are needed: 30.0 MB for the process, 11.0 GB dense, ")
    limited = memory_lines(MEMORY | {"cgroup_limit_bytes": 32_000_000_000, "experts_bytes": 0})
    assert limited == [
        "60.0 GB of 64.0 GB are available, limited to 32.0 GB by the cgroup",
        "11.6 GB are needed: 11.0 GB dense, 400.0 MB for a conversation of 4,096 tokens, "
        "20.0 MB to work with",
    ]


def test_the_speed_of_the_disk_is_what_a_token_waits_for() -> None:
    speed = "2.8 GB/s, in pieces of 19.0 MB on 16 threads"
    worst = "a token none of whose experts are in memory reads 11.0 GB: 4 s"
    assert disk_lines(DISK, MEMORY) == [speed, worst]
    assert disk_lines(DISK, None) == [speed]
    assert disk_lines(DISK | {"bytes_per_second": 0}, MEMORY) == [
        "0 B/s, in pieces of 19.0 MB on 16 threads"
    ]


def test_each_finding_is_one_line() -> None:
    findings = [
        finding("error", "/models/x: 1 of 2 shards not found: b", "download them again"),
        finding("note", "3 tensors of the files are not used", None),
    ]
    assert lines(REPORT | {"findings": findings}) == [
        "/models/x",
        "  machine: A CPU, avx2, 2 of 4 threads",
        "error: /models/x: 1 of 2 shards not found: b; download them again",
        "note: 3 tensors of the files are not used",
    ]
    files = {"shards": 2, "tensors": 1234, "dense_bytes": 10**9, "expert_bytes": 5 * 10**9}
    told = lines(REPORT | {"findings": findings[1:], "files": files})
    assert told[1] == "  files:   2 with 1,234 tensors, 6.0 GB"
    assert told[-1] == "nothing is in the way of running this model"


def test_the_template_is_what_the_server_would_use(tmp_path: Path) -> None:
    assert template_findings(demo_folder()) == []
    [none] = template_findings(tmp_path)
    assert (none["severity"], none["hint"] is None) == ("warning", False)
    (tmp_path / "chat_template.jinja").write_text("{% if", encoding="utf-8")
    [broken] = template_findings(tmp_path)
    assert broken["severity"] == "warning"
    assert "chat template" in broken["text"]
    for half in ('{"bos_token": "\\ud800"}', '{"eos_token": {"content": "\\ud800"}}'):
        (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}", encoding="utf-8")
        (tmp_path / "tokenizer_config.json").write_text(half, encoding="utf-8")
        [unusable] = template_findings(tmp_path)
        assert (unusable["severity"], "surrogate" in unusable["text"]) == ("warning", True)
    (tmp_path / "tokenizer_config.json").write_text("[", encoding="utf-8")
    [unreadable] = template_findings(tmp_path)
    assert unreadable["severity"] == "error"
    assert "tokenizer_config.json: not valid JSON" in unreadable["text"]
