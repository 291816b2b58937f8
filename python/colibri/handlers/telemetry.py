"""Health, the expert map, recent turns, and the stream of events."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, ClassVar

from colibri.costs import memory
from colibri.errors import RequestError
from colibri.handlers.base import Auth, BaseHandler, Service
from colibri.openai.json import dumps
from colibri.openai.stream import sse

PING_S = 15.0
# The least time between two batches of events, which bounds ``hits`` to ten a second.
BATCH_S = 0.1
# Browsers and tabs of one machine; more is a leak somewhere.
MAX_LISTENERS = 64


def state_object(service: Service) -> dict[str, Any]:
    """Returns the body of ``GET /api/state``, which is also the ``state`` event."""
    engine = service.engine
    telemetry = engine.telemetry
    expert_map = telemetry.map
    layers = engine.map_layers or service.model.map_layers
    if expert_map is not None and layers is not None and len(layers) != expert_map.rows:
        # A guess that disagrees with the engine is worse than none.
        layers = None
    state = engine.state
    return {
        "state": state.name,
        "stage": state.stage,
        "done": state.done,
        "total": state.total,
        "reason": state.reason,
        "hint": state.hint,
        "retry_in_s": state.retry_in_s,
        "restarts": state.restarts,
        "model": service.model.id,
        "architecture": service.model.config.get("model_type"),
        "geometry": service.geometry,
        "generation": {
            "temperature": service.model.temperature,
            "top_p": service.model.top_p,
        },
        "has_chat_template": service.renderer.available,
        "thinks": service.renderer.thinks,
        "trained_ctx": service.model.trained_ctx,
        "rows": expert_map.rows if expert_map else 0,
        "cols": expert_map.cols if expert_map else 0,
        "layers": layers,
        "ctx": engine.ctx,
        "slots": service.admission.slots,
        "active": service.admission.active,
        "queued": service.admission.queued,
        "tiers": None if telemetry.tiers is None else asdict(telemetry.tiers),
        "hwinfo": None if telemetry.hwinfo is None else asdict(telemetry.hwinfo),
        "version": service.version,
    }


class HealthHandler(BaseHandler):
    """``GET /health``: open, but only the key holder sees more than the state."""

    auth: ClassVar[dict[str, Auth]] = {"get": "open", "head": "open"}

    def get(self) -> None:
        """Answers 200 while requests are taken, else 503 with the reason."""
        engine, admission = self.service.engine, self.service.admission
        state = engine.state
        is_ready = state.name == "ready"
        body: dict[str, Any] = {"status": "ok" if is_ready else "error", "state": state.name}
        if not is_ready:
            self.set_header("Retry-After", "2")
        if self.authorised():
            telemetry = engine.telemetry
            # Its name is the body's ``state`` already.
            details = state.to_dict()
            del details["name"]
            body |= {
                "engine": details,
                "scheduler": {
                    "queued": admission.queued,
                    "max_queue": admission.max_queue,
                    "admitted": admission.admitted,
                    "rejected": admission.rejected,
                },
                "kv_slots": admission.slots,
                "in_flight": engine.in_flight,
                "tiers": None if telemetry.tiers is None else asdict(telemetry.tiers),
                "hwinfo": None if telemetry.hwinfo is None else asdict(telemetry.hwinfo),
                "version": self.service.version,
            }
        self.send_json(body, 200 if is_ready else 503)

    def head(self) -> None:
        """Answers like GET, without the body."""
        self.get()


class ExpertsHandler(BaseHandler):
    """``GET /experts``."""

    auth: ClassVar[dict[str, Auth]] = {"get": "key"}

    def get(self) -> None:
        """Returns map, hits and what belongs to them from the latest records."""
        self.send_json(self.service.engine.telemetry.experts())


class ProfileHandler(BaseHandler):
    """``GET /profile``."""

    auth: ClassVar[dict[str, Auth]] = {"get": "key"}

    def get(self) -> None:
        """Returns the recent turns, oldest first, and what the engine's memory is for."""
        engine = self.service.engine
        telemetry = engine.telemetry
        experts_gb = telemetry.tiers.ram_gb if telemetry.tiers else None
        self.send_json(
            {
                "seq": telemetry.turns_seq,
                "turns": list(telemetry.turns),
                "memory": memory(engine.caps, experts_gb),
            }
        )


class StateHandler(BaseHandler):
    """``GET /api/state``."""

    auth: ClassVar[dict[str, Auth]] = {"get": "key"}

    def get(self) -> None:
        """Returns what a page needs to know first."""
        self.send_json(state_object(self.service))


class EventsHandler(BaseHandler):
    """``GET /api/events``: changes as server-sent events.

    Every connection begins with snapshots, so a client that reconnects has missed nothing it
    needs. What a slow client has not taken is merged, not queued.
    """

    auth: ClassVar[dict[str, Auth]] = {"get": "key"}
    ping_s: ClassVar[float] = PING_S

    async def get(self) -> None:
        """Streams until the client leaves."""
        await self.while_connected(self._stream())

    async def _stream(self) -> None:
        hub = self.service.engine.telemetry.events
        if hub.listeners >= MAX_LISTENERS:
            raise RequestError("too many listeners", code="too_many_listeners", status=503)
        asked = self.request.query_arguments.get("topics")
        topics = (
            None if asked is None else frozenset(asked[-1].decode("ascii", "replace").split(","))
        )
        snapshots = [("state", state_object(self.service))]
        snapshots += self.service.engine.telemetry.snapshots()
        inbox = hub.subscribe(topics, snapshots)
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")
        try:
            while True:
                for event_id, kind, payload in inbox.take():
                    self.write(sse(dumps(payload), event=kind, event_id=event_id))
                await self.flush()
                await asyncio.sleep(BATCH_S)
                try:
                    await asyncio.wait_for(inbox.wait(), self.ping_s)
                except TimeoutError:
                    self.write(sse("{}", event="ping"))
        finally:
            hub.unsubscribe(inbox)


ROUTES: list[tuple[str, Any]] = [
    (r"/health", HealthHandler),
    (r"/experts", ExpertsHandler),
    (r"/profile", ProfileHandler),
    (r"/api/state", StateHandler),
    (r"/api/events", EventsHandler),
]
