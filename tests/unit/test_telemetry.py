from __future__ import annotations

import base64
from typing import Any

import pytest

from colibri import frames
from colibri.telemetry import TURNS_KEPT, TURNS_QUEUED, Telemetry, merge_hits


def test_hits_are_merged_while_a_listener_is_slow() -> None:
    telemetry = Telemetry()
    inbox = telemetry.events.subscribe(None, [])
    telemetry.apply(frames.Hits(2, 8, b"\x01\x00"))
    telemetry.apply(frames.Hits(2, 8, b"\x80\x02"))
    [(_, kind, payload)] = inbox.take()
    assert kind == "hits"
    assert base64.b64decode(payload["data"]) == b"\x81\x02"
    assert inbox.take() == []
    assert telemetry.experts()["hits"] == "8002"
    assert telemetry.experts()["seq"] == 2


def test_merging_hits_of_another_geometry_starts_anew() -> None:
    assert merge_hits(b"\xff", b"\x01\x01") == b"\x01\x01"


def test_a_slow_listener_costs_a_bounded_number_of_events() -> None:
    telemetry = Telemetry()
    inbox = telemetry.events.subscribe(None, [])
    for i in range(1000):
        telemetry.apply(frames.ExpertMap(1, 1, bytes([i % 256])))
        telemetry.apply(frames.Tiers(0, i, 0, 0.0, 0.0))
        telemetry.add_turn({"i": i})
    events = inbox.take()
    kinds = [kind for _, kind, _ in events]
    assert kinds.count("map") == kinds.count("tiers") == 1
    assert kinds.count("turn") == TURNS_QUEUED
    ids = [event_id for event_id, _, _ in events]
    assert ids == sorted(set(ids))
    assert events[-1][2]["i"] == 999
    assert len(telemetry.turns) == TURNS_KEPT
    assert telemetry.turns_seq == 1000


def test_a_listener_gets_the_topics_it_asked_for() -> None:
    telemetry = Telemetry()
    inbox = telemetry.events.subscribe(frozenset({"tiers"}), [("state", {}), ("tiers", {})])
    telemetry.add_turn({})
    assert [kind for _, kind, _ in inbox.take()] == ["tiers"]


def test_a_listener_that_left_gets_nothing() -> None:
    telemetry = Telemetry()
    inbox = telemetry.events.subscribe(None, [])
    telemetry.events.unsubscribe(inbox)
    telemetry.add_turn({})
    assert inbox.take() == []
    assert telemetry.events.listeners == 0


def test_repins_since_a_mark() -> None:
    telemetry = Telemetry()
    telemetry.apply(frames.Repin(1, 2, 0, -1))
    mark = telemetry.repin_mark
    assert telemetry.repins(mark) == []
    telemetry.apply(frames.Repin(1, 3, 1, -1))
    assert telemetry.repins(mark) == [{"layer": 1, "expert": 3, "old_tier": 1, "gpu": -1}]
    assert len(telemetry.repins()) == 2


def test_only_telemetry_is_taken() -> None:
    record: Any = frames.Accept(1, 1)
    with pytest.raises(TypeError):
        Telemetry().apply(record)
