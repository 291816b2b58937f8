from __future__ import annotations

from typing import Any

import pytest

from colibri.commands.run import stats_lines
from colibri.costs import Limit, limit, limit_object, memory, read_rate, shares, uses

# A turn that waits: 6 of 10 s for 3 GB that took 7.5 s to read.
WAITING: dict[str, Any] = {
    "wall_s": 10.0,
    "expert_disk_s": 40.0,
    "expert_wait_s": 6.0,
    "expert_matmul_s": 2.0,
    "attention_s": 0.5,
    "kv_decompress_s": 0.25,
    "head_s": 0.25,
    "ffn_s": 0.25,
    "reading_s": 7.5,
    "uses_ahead": 100,
    "uses_cached": 500,
    "uses_missed": 400,
    "bytes_read": 3_000_000_000,
    "drafted": None,
    "drafted_right": None,
    "drives": [],
}
COMPUTING = WAITING | {"expert_wait_s": 1.0, "expert_matmul_s": 7.0}
NEITHER = WAITING | {"expert_wait_s": 1.0, "expert_matmul_s": 1.0}
# What the C engine tells.
TIMES_ALONE = WAITING | dict.fromkeys(
    ("ffn_s", "reading_s", "uses_ahead", "uses_cached", "uses_missed", "bytes_read", "uses_vram")
)


def test_shares_are_of_the_wall_time_and_none_is_counted_twice() -> None:
    assert shares(WAITING) == pytest.approx(
        {
            "waiting for experts": 0.6,
            "experts": 0.2,
            "attention": 0.05,
            "dense layers": 0.025,
            "output head": 0.025,
            "other": 0.1,
        }
    )
    # Clocks of an engine may disagree by a little, or by much.
    over = shares(WAITING | {"wall_s": 1.0})
    assert sum(over.values()) == pytest.approx(1.0)
    assert over["other"] == 0.0
    assert shares({"wall_s": 0.0}) == shares({}) == {}


def test_the_limit_is_where_most_of_the_time_went() -> None:
    assert limit(WAITING) == Limit(
        "disk",
        "the disk: 60% of 10 s went by waiting for experts (3 GB were read at 0.4 GB/s, 40% of "
        "uses were not in memory); more --ram or a faster drive would help",
    )
    assert limit(COMPUTING) == Limit(
        "computing",
        "memory bandwidth or the processor: 80% of 10 s went into matrix products and attention, "
        "10% into waiting for experts",
    )
    assert limit(NEITHER) == Limit(
        "neither",
        "neither disk nor matrix products: 20% of 10 s went into matrix products and attention, "
        "10% into waiting for experts, and 70% into steps between them",
    )


def test_what_an_engine_does_not_tell_is_not_made_up() -> None:
    assert limit(None) is None
    assert limit(WAITING | dict.fromkeys(WAITING, 0.0)) is None
    assert limit_object(None) is None
    assert limit_object(TIMES_ALONE) == {
        "kind": "disk",
        "text": "the disk: 60% of 10 s went by waiting for experts; more --ram or a faster drive "
        "would help",
    }
    assert uses(TIMES_ALONE) == {}
    assert list(uses(WAITING)) == ["read ahead", "cached", "missed"], "there is no device"
    assert uses(WAITING | {"uses_vram": 9})["on the device"] == 9
    assert read_rate(TIMES_ALONE) is None
    assert read_rate(WAITING | {"bytes_read": 0, "reading_s": 0.0}) is None
    assert read_rate(WAITING) == 4e8


def test_memory_is_by_kind() -> None:
    caps = {"dense_ram": "1500000000", "experts_ram": "x", "conversations_ram": "250000000"}
    assert memory(caps, 0.5) == {
        "dense_gb": 1.5,
        "experts_gb": 0.5,
        "experts_most_gb": None,
        "conversations_most_gb": 0.25,
    }
    assert set(memory({}, None).values()) == {None}


STATS: dict[str, Any] = {
    "completion_tokens": 64,
    "tokens_per_second": 12.25,
    "rss_gb": 2.25,
    "prompt_tokens": 110,
    "cached_tokens": 10,
    "ttft_ms": 2000.0,
}


def test_the_table_tells_what_was_counted() -> None:
    parts = memory({"dense_ram": "1500000000", "conversations_ram": "250000000"}, 0.5)
    said = limit(WAITING)
    assert said is not None
    assert stats_lines(STATS, WAITING, parts) == [
        "prompt  100 tokens in 2 s to the first token: 50.0 tokens/s",
        "answer  64 tokens: 12.2 tokens/s",
        "time    10 s: 60.0% waiting for experts, 20.0% experts, 5.0% attention, "
        "2.5% dense layers, 2.5% output head, 10.0% other",
        "uses    1,000 of experts: 10.0% read ahead, 50.0% cached, 40.0% missed",
        "read    3.0 GB of experts in 7.5 s: 400.0 MB/s",
        "memory  2.25 GB in use: 1.50 GB dense, 0.50 GB experts, 0.25 GB the rest "
        "(conversations grow to 0.25 GB)",
        f"limit   {said.text}",
    ]
    drives = [
        {"mirror": 0, "bytes": 10**9, "bytes_per_second": 200_000_000, "is_dropped": False},
        {"mirror": 1, "bytes": 2 * 10**9, "bytes_per_second": None, "is_dropped": False},
        {"mirror": 3, "bytes": 0, "bytes_per_second": 10**9, "is_dropped": True},
    ]
    assert stats_lines(STATS, WAITING | {"drives": drives}, parts)[5:8] == [
        "        1.0 GB from the model's folder, of late at 200.0 MB/s",
        "        2.0 GB from mirror 1",
        "        0 B from mirror 3, which is used no longer",
    ]
    drafted = WAITING | {"drafted": 1_200, "drafted_right": 900}
    assert stats_lines(STATS, drafted, parts)[5] == "drafts  1,200 tokens, 900 of them needed"
    nothing = stats_lines(STATS | {"ttft_ms": None}, None, memory({}, None))
    assert nothing == [
        "prompt  100 tokens",
        "answer  64 tokens: 12.2 tokens/s",
        "memory  2.25 GB in use",
    ]
