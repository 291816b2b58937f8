"""The server: route table and life."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tornado.httpserver
import tornado.web

from colibri.admission import Admission
from colibri.engine import Engine, EngineState
from colibri.engine_process import EngineConfig
from colibri.errors import UsageError
from colibri.handlers import chat, completions, models, static, telemetry
from colibri.handlers.base import LOOPBACK_NAMES, NotFoundHandler, Service, audit, log_request
from colibri.models import ModelInfo
from colibri.prompt import PromptRenderer

# A client that sends its headers or its body more slowly than this is cut off.
HEADER_TIMEOUT_S = 75
BODY_TIMEOUT_S = 120
MAX_HEADER_BYTES = 64 << 10
BACKLOG = 128
# Requests in flight at shutdown get this long.
DRAIN_S = 10.0


@dataclass(frozen=True)
class ServeSettings:
    """How to serve.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 lets the system choose.
        api_key: key that requests need, ``None`` for none.
        max_queue: requests that may wait.
        allowed_hosts: further host names that requests may be addressed to; ``*`` for all.
        cors_origins: origins of pages, other than ours, that may call the server.
        telemetry: whether replies may carry the ``colibri`` object.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    max_queue: int = 64
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    telemetry: bool = True

    def check(self) -> None:
        """Raises ``UsageError`` for an address that would expose the server without a key."""
        if not self.is_loopback and not self.api_key:
            raise UsageError(
                f"refusing to listen on {self.host} without an API key",
                hint="set COLIBRI_API_KEY or --api-key, or listen on 127.0.0.1",
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK_NAMES or self.host.startswith("127.")

    @property
    def hosts(self) -> frozenset[str]:
        """Every host name that requests may be addressed to."""
        return LOOPBACK_NAMES | {self.host.lower()} | {name.lower() for name in self.allowed_hosts}


def make_service(
    settings: ServeSettings,
    engine: Engine,
    model: ModelInfo,
    *,
    version: str,
    geometry: dict[str, Any] | None = None,
) -> Service:
    """Returns what the handlers share."""
    service = Service(
        engine=engine,
        admission=Admission(engine.config.slots, settings.max_queue),
        model=model,
        renderer=PromptRenderer(model),
        version=version,
        created=int(time.time()),
        api_key=settings.api_key,
        allowed_hosts=settings.hosts,
        cors_origins=frozenset(settings.cors_origins),
        telemetry=settings.telemetry,
        geometry=geometry or {},
    )

    def publish(_state: EngineState) -> None:
        engine.telemetry.events.publish("state", telemetry.state_object(service))

    engine.on_state = publish
    return service


def make_app(service: Service, *, static_folder: Path | None = None) -> tornado.web.Application:
    """Returns the application: the route table, and nothing else.

    Raises:
        TypeError: a resource has a method without a decision about the key.
    """
    table: list[Any] = [
        *chat.ROUTES,
        *completions.ROUTES,
        *models.ROUTES,
        *telemetry.ROUTES,
        *static.ROUTES,
    ]
    audit(table)
    common = {"service": service}
    return tornado.web.Application(
        [(pattern, handler, common) for pattern, handler in table],
        default_handler_class=NotFoundHandler,
        default_handler_args=common,
        log_function=log_request,
        assets=static.list_assets(static_folder or static.static_folder()),
    )


def bind(settings: ServeSettings) -> list[socket.socket]:
    """Takes the port, so that a conflict is known before anything is loaded.

    Raises:
        UsageError: the address cannot be used.
    """
    settings.check()
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # Its IPv4 twin is a socket of its own.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if settings.port == 0 and len(sockets) > 1:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            sock.bind(address)
            sock.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        for sock in sockets:
            sock.close()
        hint = "stop the other program or choose another port with --port"
        if isinstance(error, UnicodeError | socket.gaierror):
            hint = "give --host an address of this machine"
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {reason}",
            hint=hint,
        ) from error
    return sockets


def listen(app: tornado.web.Application, sockets: list[socket.socket]) -> Any:
    """Serves an application on bound sockets; returns the server."""
    server = tornado.httpserver.HTTPServer(
        app,
        max_header_size=MAX_HEADER_BYTES,
        idle_connection_timeout=HEADER_TIMEOUT_S,
        body_timeout=BODY_TIMEOUT_S,
    )
    server.add_sockets(sockets)
    return server


async def serve(
    settings: ServeSettings,
    config: EngineConfig,
    model: ModelInfo,
    sockets: list[socket.socket],
    *,
    version: str,
    geometry: dict[str, Any] | None = None,
    on_log: Callable[[str], None],
    on_state: Callable[[EngineState], None],
    on_ready: Callable[[], None],
) -> None:
    """Serves until SIGINT or SIGTERM.

    The page and ``/health`` answer while the model loads.

    Raises:
        EngineStartError: the first start of the engine failed.
    """
    engine = Engine(config, on_log=on_log)
    service = make_service(settings, engine, model, version=version, geometry=geometry)
    publish = engine.on_state

    def both(state: EngineState) -> None:
        publish(state)
        on_state(state)

    engine.on_state = both
    server = listen(make_app(service), sockets)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        # The first signal lets answers finish; a second one does not wait for them.
        if stopped.is_set():
            engine.abort()
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    waiting = asyncio.ensure_future(stopped.wait())
    try:
        engine.start()
        starting = asyncio.ensure_future(engine.wait_ready())
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            on_ready()
            await waiting
        starting.cancel()
    finally:
        waiting.cancel()
        server.stop()
        await engine.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.close_all_connections(), DRAIN_S)
