"""What the engine last reported, the recent turns, and the stream of changes.

Owns: latest snapshots, a ring of turns, one bounded inbox per listener.
Does not own: HTTP (``handlers.telemetry``).
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from itertools import count
from typing import Any

from colibri import frames

TURNS_KEPT = 120
REPINS_KEPT = 1024
# A listener that lags by more turns than this loses the oldest; GET /profile has them.
TURNS_QUEUED = 64


def merge_hits(old: bytes, new: bytes) -> bytes:
    """Returns the union of two bitmaps; a changed geometry starts anew."""
    if len(old) != len(new):
        return new
    return (int.from_bytes(old, "little") | int.from_bytes(new, "little")).to_bytes(
        len(new), "little"
    )


def map_event(record: frames.ExpertMap) -> dict[str, Any]:
    """Returns the ``map`` event: the whole map in base64."""
    data = base64.b64encode(record.map).decode()
    return {"rows": record.rows, "cols": record.cols, "data": data}


class Inbox:
    """What one listener has not seen yet: the latest of each kind, hits merged, turns queued."""

    def __init__(self, topics: frozenset[str] | None) -> None:
        self._topics = topics
        self._latest: dict[str, tuple[int, Any]] = {}
        self._hits: tuple[int, frames.Hits] | None = None
        self._turns: deque[tuple[int, Any]] = deque(maxlen=TURNS_QUEUED)
        self._wake = asyncio.Event()

    def put(self, event_id: int, kind: str, payload: Any) -> None:
        """Adds an event; never grows beyond one of a kind and ``TURNS_QUEUED`` turns."""
        if self._topics is not None and kind not in self._topics:
            return
        if kind == "turn":
            self._turns.append((event_id, payload))
        elif kind == "hits":
            if self._hits is not None:
                merged = merge_hits(self._hits[1].hits, payload.hits)
                payload = frames.Hits(payload.rows, payload.cols, merged)
            self._hits = (event_id, payload)
        else:
            self._latest[kind] = (event_id, payload)
        self._wake.set()

    async def wait(self) -> None:
        """Returns when there is something to take."""
        await self._wake.wait()

    def take(self) -> list[tuple[int, str, Any]]:
        """Returns and removes everything, as (id, kind, payload) with growing ids."""
        events = [(event_id, kind, payload) for kind, (event_id, payload) in self._latest.items()]
        events += [(event_id, "turn", payload) for event_id, payload in self._turns]
        if self._hits is not None:
            event_id, hits = self._hits
            data = base64.b64encode(hits.hits).decode()
            events.append((event_id, "hits", {"rows": hits.rows, "cols": hits.cols, "data": data}))
        self._latest.clear()
        self._turns.clear()
        self._hits = None
        self._wake.clear()
        return sorted(events, key=lambda event: event[0])


class EventHub:
    """Hands each event to every listener."""

    def __init__(self) -> None:
        self._inboxes: set[Inbox] = set()
        self._ids = count(1)

    def publish(self, kind: str, payload: Any) -> None:
        """Gives an event to every listener."""
        event_id = next(self._ids)
        for inbox in self._inboxes:
            inbox.put(event_id, kind, payload)

    def subscribe(
        self, topics: frozenset[str] | None, snapshots: Iterable[tuple[str, Any]]
    ) -> Inbox:
        """Adds a listener that first receives ``snapshots``."""
        inbox = Inbox(topics)
        for kind, payload in snapshots:
            inbox.put(next(self._ids), kind, payload)
        self._inboxes.add(inbox)
        return inbox

    def unsubscribe(self, inbox: Inbox) -> None:
        """Removes a listener."""
        self._inboxes.discard(inbox)

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._inboxes)


class Telemetry:
    """The latest records and the recent turns."""

    def __init__(self) -> None:
        self.events = EventHub()
        self.hwinfo: frames.HwInfo | None = None
        self.gpus: frames.Gpus | None = None
        self.tiers: frames.Tiers | None = None
        self.map: frames.ExpertMap | None = None
        self.hits: frames.Hits | None = None
        self.entropy: frames.Entropy | None = None
        self.hits_seq = 0
        self.turns: deque[dict[str, Any]] = deque(maxlen=TURNS_KEPT)
        self.turns_seq = 0
        self._repins: deque[frames.Repin] = deque(maxlen=REPINS_KEPT)
        self._repins_seq = 0

    def apply(self, record: frames.Record) -> None:
        """Takes a record of the engine."""
        match record:
            case frames.HwInfo():
                self.hwinfo = record
            case frames.Gpus():
                self.gpus = record
            case frames.Tiers():
                self.tiers = record
                self.events.publish("tiers", asdict(record))
            case frames.ExpertMap():
                self.map = record
                self.events.publish("map", map_event(record))
            case frames.Hits():
                self.hits = record
                self.hits_seq += 1
                self.events.publish("hits", record)
            case frames.Entropy():
                self.entropy = record
            case frames.Repin():
                self._repins.append(record)
                self._repins_seq += 1
            case _:
                raise TypeError(f"not a telemetry record: {record!r}")

    def add_turn(self, turn: dict[str, Any]) -> None:
        """Records a finished turn."""
        self.turns_seq += 1
        turn = {"seq": self.turns_seq, **turn}
        self.turns.append(turn)
        self.events.publish("turn", turn)

    @property
    def repin_mark(self) -> int:
        """A position in the stream of repins, for ``repins``."""
        return self._repins_seq

    def repins(self, since: int = 0) -> list[dict[str, int]]:
        """Returns the repins after a mark, as far as they are kept."""
        fresh = min(self._repins_seq - since, len(self._repins))
        return [asdict(repin) for repin in list(self._repins)[len(self._repins) - fresh :]]

    def snapshots(self) -> list[tuple[str, Any]]:
        """Returns what a new listener must know first."""
        events: list[tuple[str, Any]] = []
        if self.tiers is not None:
            events.append(("tiers", asdict(self.tiers)))
        if self.map is not None:
            events.append(("map", map_event(self.map)))
        return events

    def experts(self) -> dict[str, Any]:
        """Returns the body of ``GET /experts``."""
        expert_map, hits = self.map, self.hits
        return {
            "rows": expert_map.rows if expert_map else 0,
            "cols": expert_map.cols if expert_map else 0,
            "map": expert_map.map.hex() if expert_map else "",
            "hits": hits.hits.hex() if hits else "",
            "seq": self.hits_seq,
            "gpus": self.gpus.gpus if self.gpus else [],
            "entropy": self.entropy.bits if self.entropy else [],
            "repin": self.repins(),
        }
