from __future__ import annotations

from typing import Any

import pytest

from colibri.command_line import DEFAULT_SLOTS, make_parser
from colibri.commands.plan import lines
from colibri.forecast import predict, served

# A model whose token multiplies by 2 GB of dense weights and 1 GB of experts.
MEMORY: dict[str, Any] = {
    "total_bytes": 64_000_000_000,
    "available_bytes": 60_000_000_000,
    "budget_bytes": 8_000_000_000,
    "process_bytes": 100_000_000,
    "ctx": 4096,
    "slots": 4,
    "dense_bytes": 2_500_000_000,
    "conversation_bytes": 200_000_000,
    "working_bytes": 50_000_000,
    "expert_floor_bytes": 150_000_000,
    "fits": True,
    "fitting_ctx": 4096,
    "experts": 1000,
    "experts_kept": 250,
    "experts_bytes": 20_000_000_000,
    "experts_kept_bytes": 5_000_000_000,
    "device": None,
    "device_experts": 0,
    "device_experts_bytes": 0,
    "history": {"uses": 40_000, "served": 30_000},
    "token": {
        "dense_bytes": 2_000_000_000,
        "expert_bytes": 1_000_000_000,
        "expert_disk_bytes": 800_000_000,
    },
}
WEIGHTS = {
    "dense_bytes_per_second": 10_000_000_000,
    "expert_bytes_per_second": 5_000_000_000,
    "threads": 2,
}
DISK = 1_000_000_000


def test_experts_are_served_as_often_as_they_are_in_memory_or_were_used() -> None:
    assert served(MEMORY) == {"uniform": 0.25, "history": 0.75}
    assert served(MEMORY | {"history": None}) == {"uniform": 0.25, "history": None}
    nothing = {"uses": 0, "served": 0}
    assert served(MEMORY | {"history": nothing}) == {"uniform": 0.25, "history": None}
    device = {"device_experts_bytes": 2_000_000_000}
    assert served(MEMORY | device)["uniform"] == 0.35
    dense = {"experts_bytes": 0, "experts_kept_bytes": 0, "history": None}
    assert served(MEMORY | dense) == {"uniform": 1.0, "history": None}


def test_the_range_is_from_measured_rates() -> None:
    found = predict(MEMORY, DISK, WEIGHTS)
    assert found is not None
    assert found["served"] == [0.25, 0.75]
    assert found["read_bytes_per_token"] == [200_000_000, 600_000_000]
    # Computing takes 0.2 + 0.2 s, a conversation 0.02 s, reading 0.6 s or, beside it, 0.2 s.
    assert found["tokens_per_second"] == pytest.approx([1 / 1.02, 1 / 0.4])
    slow_disk = predict(MEMORY, DISK // 10, WEIGHTS)
    assert slow_disk is not None
    assert slow_disk["tokens_per_second"] == pytest.approx([1 / 6.42, 1 / 2.0])


def test_without_a_history_everything_may_be_served() -> None:
    found = predict(MEMORY | {"history": None}, DISK, WEIGHTS)
    assert found is not None
    assert found["served"] == [0.25, 1.0]
    assert found["read_bytes_per_token"] == [0, 600_000_000]
    # A history of other texts may tell less than equal chances do.
    worse = predict(MEMORY | {"history": {"uses": 10, "served": 1}}, DISK, WEIGHTS)
    assert worse is not None
    assert worse["served"] == [0.1, 0.25]


def test_nothing_is_predicted_from_what_was_not_measured() -> None:
    assert predict(MEMORY, None, WEIGHTS) is None
    assert predict(MEMORY, DISK, WEIGHTS | {"dense_bytes_per_second": None}) is None
    assert predict(MEMORY, DISK, WEIGHTS | {"expert_bytes_per_second": None}) is None
    whole = MEMORY | {"experts_kept_bytes": MEMORY["experts_bytes"], "history": None}
    assert predict(whole, None, WEIGHTS) is not None, "nothing is read"


def report(memory: dict[str, Any], **fields: Any) -> dict[str, Any]:
    empty = {"served": None, "disk": None, "weights": None, "prediction": None, "findings": []}
    return {"path": "/models/x", "memory": memory} | empty | fields


def test_the_plan_tells_every_figure_it_follows_from() -> None:
    told = report(
        MEMORY,
        served=served(MEMORY),
        disk={"bytes_per_second": DISK, "piece_bytes": 4_000_000, "drives": []},
        weights=WEIGHTS,
        prediction=predict(MEMORY, DISK, WEIGHTS),
        findings=[{"severity": "note", "text": "5.0 GB of 20.0 GB", "hint": None}],
    )
    assert lines(told) == [
        "/models/x",
        "  memory:        8.0 GB by --ram, 100.0 MB of it for the process",
        "  dense:         2.5 GB in memory",
        "  conversations: 800.0 MB in memory, 4 of 4,096 tokens",
        "  experts:       250 of 1,000 in memory, 5.0 GB; the other 15.0 GB are read when needed",
        "  fits:          yes; 3.6 GB are needed at least, 23.4 GB for all experts",
        "  served:        25.0% of uses from memory if all experts are taken alike, 75.0% of the "
        "40,000 uses that are remembered",
        "  a token:       multiplies 2.0 GB of dense weights and 1.0 GB of experts, which are "
        "800.0 MB on disk",
        "  disk:          1.0 GB/s measured, in pieces of 4.0 MB",
        "  kernels:       10.0 GB/s dense and 5.0 GB/s experts measured, on 2 threads",
        "  reads:         200.0 MB to 600.0 MB a token",
        "  speed:         0.98 to 2.5 tokens/s of one answer, predicted",
    ]


def test_what_does_not_fit_says_what_would() -> None:
    error = {"severity": "error", "text": "cannot keep the experts", "hint": "raise --ram"}
    tight = MEMORY | {"fits": False, "fitting_ctx": 1024, "history": None}
    said = lines(report(tight, findings=[error]))
    assert said[-2:] == [
        "  fits:          no; 3.6 GB are needed at least, 23.4 GB for all experts; --ctx 1024 fits",
        "error: cannot keep the experts; raise --ram",
    ]
    assert lines(report(None, findings=[error])) == ["/models/x", said[-1]]


def test_the_commands_mean_the_conversations_that_the_server_starts() -> None:
    slots = [make_parser().parse_args([name]).slots for name in ("serve", "web", "doctor", "plan")]
    assert slots == [DEFAULT_SLOTS] * 4
    assert make_parser().parse_args(["plan", "--slots", "2"]).slots == 2
