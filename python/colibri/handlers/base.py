"""What every resource does alike: errors, request ids, who may ask, how much may be sent.

Owns: the order of checks, all error bodies, CORS. Bodies are streamed into a bounded buffer, so
that a refused request is answered before its body is read, and forms are never parsed.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import tornado.web
from tornado.httputil import HTTPServerRequest
from tornado.iostream import StreamClosedError

from colibri.admission import Admission
from colibri.engine import Engine
from colibri.errors import ColibriError, RequestError
from colibri.models import ModelInfo
from colibri.openai.json import dumps, loads
from colibri.prompt import PromptRenderer

log = logging.getLogger("colibri.http")

MAX_BODY_BYTES = 32 << 20
# A body beyond the limit is read and dropped up to this factor, so that the client sees our answer
# and not a reset connection; beyond it the connection is closed.
DISCARD_FACTOR = 4
# As much of the body of a request that is refused by its headers is read and dropped first.
REFUSED_BODY_BYTES = 4 << 20
# Silence that clients and proxies are assumed to bear.
KEEPALIVE_S = 10.0

HEADER_NAMES = re.compile(r"[\w!#$%&'*+.^`|~-]+(?:[ ]*,[ ]*[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

Auth = Literal["open", "key"]


@dataclass
class Service:
    """What the handlers work with.

    Attributes:
        allowed_hosts: host names that requests may be addressed to, without ports.
        cors_origins: origins, other than our own, whose pages may call us.
        telemetry: whether replies may carry the ``colibri`` object.
        keepalive_s: silence after which a stream sends a comment.
        geometry: what ``describe`` told about the model.
    """

    engine: Engine
    admission: Admission
    model: ModelInfo
    renderer: PromptRenderer
    version: str
    created: int
    api_key: str | None = None
    allowed_hosts: frozenset[str] = LOOPBACK_NAMES
    cors_origins: frozenset[str] = frozenset()
    telemetry: bool = True
    max_body_bytes: int = MAX_BODY_BYTES
    keepalive_s: float = KEEPALIVE_S
    geometry: dict[str, Any] = field(default_factory=dict)


@tornado.web.stream_request_body
class BaseHandler(tornado.web.RequestHandler):
    """Base of all resources.

    Attributes:
        auth: for each method the resource implements, whether it needs the key. ``audit`` refuses
            to start a server with a method that is missing here.
    """

    auth: ClassVar[dict[str, Auth]] = {}

    def initialize(self, service: Service) -> None:
        """Takes what the route table gives."""
        self.service = service
        self.request_id = f"req_{uuid.uuid4().hex}"
        self.client_gone = False
        self._body = bytearray()
        self._body_seen = 0
        self._discards = False
        self._work: asyncio.Task[None] | None = None
        # set_default_headers ran before this method.
        self._set_common_headers()

    def _set_common_headers(self) -> None:
        self.set_header("X-Request-Id", self.request_id)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")
        origin = self.request.headers.get("Origin")
        self.set_header("Vary", "Origin")
        if origin is not None and origin in self.service.cors_origins:
            self.set_header("Access-Control-Allow-Origin", origin)
            self.set_header("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")

    # --- before the body ---

    def prepare(self) -> None:
        """Decides on host, origin, key and body type, in this order, before any body is read."""
        connection: Any = self.request.connection
        connection.set_max_body_size(DISCARD_FACTOR * self.service.max_body_bytes)
        try:
            self.check_headers()
        except (ColibriError, tornado.web.HTTPError) as refusal:
            size = self.request.headers.get("Content-Length", "0")
            if not size.isdigit() or not 0 < int(size) <= REFUSED_BODY_BYTES:
                raise
            # Closing with the body unread would reset the connection under our answer.
            self._discards = True
            setattr(self, str(self.request.method).lower(), _raiser(refusal))

    def check_headers(self) -> None:
        """Raises for a request that is refused whatever its body holds."""
        self._check_host()
        if self.request.method == "OPTIONS":
            return
        self._check_origin()
        method = str(self.request.method).lower()
        if self.auth.get(method, "key") == "key" and not self.authorised():
            raise RequestError("a valid API key is needed", code="invalid_api_key", status=401)
        self._check_body_headers()

    def _check_host(self) -> None:
        # A page of a foreign name that resolves to us (DNS rebinding) is told by the Host header.
        if "*" in self.service.allowed_hosts:
            return
        name = host_name(self.request.host)
        if name not in self.service.allowed_hosts:
            raise RequestError(
                f"requests for the host {name!r} are not allowed",
                code="forbidden",
                status=403,
                hint=f"start the server with --allowed-host {name}",
            )

    def _check_origin(self) -> None:
        origin = self.request.headers.get("Origin")
        if origin is None or self.request.method in ("GET", "HEAD"):
            return
        if origin in self.service.cors_origins or _origin_host(origin) == self.request.host:
            return
        raise RequestError(
            "pages of this origin may not call this server",
            code="forbidden",
            status=403,
            hint=f"start the server with --cors-origin {origin}",
        )

    def authorised(self) -> bool:
        """Whether the request carries the key, or none is needed.

        Both headers have the same rights; if both are sent, both must be right.
        """
        expected = self.service.api_key
        if expected is None:
            return True
        given = []
        header = self.request.headers.get("Authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            given.append(token.strip() if scheme.lower() == "bearer" else "")
        if (key := self.request.headers.get("X-Api-Key")) is not None:
            given.append(key)
        matches = [hmac.compare_digest(key.encode(), expected.encode()) for key in given]
        return bool(matches) and all(matches)

    def _check_body_headers(self) -> None:
        headers = self.request.headers
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise RequestError("compressed bodies are not accepted", status=415)
        media = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if media == "multipart/form-data":
            raise RequestError("the body must be JSON", status=415)

    def data_received(self, chunk: bytes) -> None:
        """Collects the body up to the limit and drops the rest."""
        self._body_seen += len(chunk)
        if not self._discards and self._body_seen <= self.service.max_body_bytes:
            self._body += chunk
        else:
            self._body.clear()

    def json_body(self) -> Any:
        """Returns the decoded body.

        Raises:
            RequestError: it is too large or not JSON.
        """
        limit = self.service.max_body_bytes
        if self._body_seen > limit:
            raise RequestError(
                f"the body is larger than {limit} bytes", code="body_too_large", status=413
            )
        data = bytes(self._body)
        self._body.clear()
        try:
            return loads(data)
        except ValueError as error:
            raise RequestError(f"{error}") from error

    # --- clients that leave ---

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` and cancels it when the client goes away."""
        if self.client_gone:
            # It left before the work could begin, and nobody will say so again.
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._work = task
        try:
            await task
        except (asyncio.CancelledError, StreamClosedError):
            if not self.client_gone and not self.request_closed():
                raise
        finally:
            # Our own cancellation (shutdown) ends the work too.
            task.cancel()
            self._work = None

    def request_closed(self) -> bool:
        """Whether the connection is gone."""
        connection: Any = self.request.connection
        return connection.stream is None or bool(connection.stream.closed())

    def on_connection_close(self) -> None:
        """Cancels the work nobody waits for any more."""
        super().on_connection_close()
        self.client_gone = True
        if self._work is not None:
            self._work.cancel()

    # --- replies ---

    def send_json(self, value: Any, status: int = 200) -> None:
        """Finishes with a JSON body."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(dumps(value))

    def options(self, *_args: str) -> None:
        """Answers a preflight: allowed origins learn what they may send."""
        if self.get_header("Access-Control-Allow-Origin") is not None:
            self.set_header("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS")
            asked = self.request.headers.get("Access-Control-Request-Headers", "")
            # What is no list of names is not repeated: it may hold what no header can.
            if not HEADER_NAMES.fullmatch(asked):
                asked = "authorization, content-type"
            self.set_header("Access-Control-Allow-Headers", asked)
            self.set_header("Access-Control-Max-Age", "600")
        self.set_status(204)
        self.finish()

    def get_header(self, name: str) -> str | None:
        """Returns a header of the reply that was set so far."""
        return self._headers.get(name)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Writes any failure as an OpenAI error object."""
        error = kwargs["exc_info"][1] if "exc_info" in kwargs else None
        status, body, retry_after_s = describe_error(error, status_code, self.request_id)
        self._set_common_headers()
        if retry_after_s is not None:
            self.set_header("Retry-After", str(retry_after_s))
        if status == 405:
            self.set_header("Allow", ", ".join(m.upper() for m in [*self.auth, "options"]))
        if status == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        self.send_json(body, status)

    def log_exception(self, *args: Any) -> None:
        """Logs bugs with their traceback; everything raised on purpose is a short line or less."""
        error = args[1]
        if isinstance(error, ColibriError):
            log.info("%s: %s", self.request_id, error)
        elif not isinstance(error, tornado.web.HTTPError | StreamClosedError):
            log.error("%s failed", self.request_id, exc_info=args)


def _raiser(error: Exception) -> Callable[..., None]:
    def refuse(*_args: str) -> None:
        raise error

    return refuse


def describe_error(
    error: BaseException | None, status: int, request_id: str
) -> tuple[int, dict[str, Any], int | None]:
    """Returns status, error body and seconds to wait for any exception.

    Only messages of our own exceptions reach a client: others may hold paths or data.
    """
    retry_after_s = None
    param = None
    if isinstance(error, ColibriError):
        status, kind, code = error.status, error.error_type, error.code
        message = str(error)
        param, retry_after_s = error.param, error.retry_after_s
    else:
        kind = "invalid_request_error" if status < 500 else "server_error"
        code, message = {
            400: ("bad_request", "the request is not valid"),
            404: ("not_found", "there is no such resource"),
            405: ("method_not_allowed", "the resource does not take this method"),
        }.get(status, ("internal_error", f"internal error; the log knows more about {request_id}"))
    if status == 401:
        kind = "authentication_error"
    body: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    if isinstance(error, ColibriError) and error.hint is not None:
        body["hint"] = error.hint
    return status, {"error": body}, retry_after_s


def _origin_host(origin: str) -> str | None:
    """Returns host and port of an origin, ``None`` for what is not an address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def host_name(host: str) -> str:
    """Returns the name in a Host header, in lower case, without port and brackets."""
    host = host.strip().lower()
    if host.startswith("[") and "]" in host:
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def audit(routes: list[Any]) -> None:
    """Refuses a route table in which a method has no decision about the key.

    Raises:
        TypeError: naming resource and method.
    """
    for route in routes:
        handler = route[1]
        if not issubclass(handler, BaseHandler):
            raise TypeError(f"{handler.__name__} is not a BaseHandler")
        for method in ("get", "head", "post", "delete", "patch", "put"):
            implemented = getattr(handler, method) is not getattr(
                tornado.web.RequestHandler, method
            )
            if implemented != (method in handler.auth):
                raise TypeError(f"{handler.__name__}.{method}: no decision about the key")


def log_request(handler: tornado.web.RequestHandler) -> None:
    """Logs a request on one line, without query or body."""
    request: HTTPServerRequest = handler.request
    level: Callable[..., None] = log.warning if handler.get_status() >= 500 else log.info
    level(
        "%s %s %d %.0f ms",
        request.method,
        request.path,
        handler.get_status(),
        request.request_time() * 1000,
    )


class NotFoundHandler(BaseHandler):
    """Every path that no route knows."""

    auth: ClassVar[dict[str, Auth]] = {}

    def check_headers(self) -> None:
        """Refuses after the checks that come before it."""
        super().check_headers()
        if self.request.method != "OPTIONS":
            raise tornado.web.HTTPError(404)
