"""``POST /v1/chat/completions``, and the way both generating endpoints answer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar, Literal

from tornado.iostream import StreamClosedError

from colibri.admission import Affinity, chat_affinity
from colibri.errors import ColibriError, RequestError
from colibri.generation import Delta, Generation, Prompt, Result, Text
from colibri.handlers.base import Auth, BaseHandler, describe_error
from colibri.handlers.event_stream import EventStream
from colibri.openai.json import dumps
from colibri.openai.schema import Sampling, check_prompt_size, engine_options, parse_chat
from colibri.openai.stream import DONE, ChunkWriter, Reply, comment, sse
from colibri.text_filters import role_markers

log = logging.getLogger("colibri.http")

# Names every client may use for the one model there is.
MODEL_ALIASES = frozenset({"default", "colibri"})


class GenerationHandler(BaseHandler):
    """Base of the endpoints that generate text."""

    def check_model(self, name: str | None) -> None:
        """Refuses a request for a model that is not served here."""
        served = self.service.model.id
        if name is not None and name != served and name not in MODEL_ALIASES:
            raise RequestError(
                f"the model {name!r} is not served here; this server has {served!r}",
                param="model",
                code="model_not_found",
                status=404,
            )

    def build_prompt(
        self, text: str, sampling: Sampling, affinity: Affinity, *, thinks: bool = False
    ) -> Prompt:
        """Joins a rendered prompt with what the request and the model say about sampling."""
        model, engine = self.service.model, self.service.engine
        engine.check_ready()
        return Prompt(
            text=text,
            max_tokens=sampling.max_tokens,
            temperature=model.temperature if sampling.temperature is None else sampling.temperature,
            top_p=model.top_p if sampling.top_p is None else sampling.top_p,
            affinity=affinity,
            stop=sampling.stop + role_markers(model.template),
            options=engine_options(sampling, engine.options),
            thinks=thinks,
            topk=self.telemetry_wanted() == "topk",
        )

    def telemetry_wanted(self) -> Literal["off", "on", "topk"]:
        """What the reply carries: no ``colibri`` object, all but the alternatives, or all."""
        asked = self.request.headers.get("X-Colibri-Telemetry", "").strip().lower()
        if asked == "off" or not self.service.telemetry:
            return "off"
        return "topk" if asked == "topk" else "on"

    def _colibri(self, result: Result) -> dict[str, Any] | None:
        return None if self.telemetry_wanted() == "off" else result.colibri

    async def answer(self, prompt: Prompt, sampling: Sampling, *, chat: bool) -> None:
        """Generates and replies, as a stream or in one piece."""
        reply = Reply(self.service.model.id, chat=chat)
        async with Generation(self.service.engine, self.service.admission, prompt) as generation:
            if sampling.stream:
                await self._stream(
                    generation, ChunkWriter(reply, include_usage=sampling.include_usage)
                )
            else:
                await self._whole(generation, reply)

    async def _whole(self, generation: Generation, reply: Reply) -> None:
        await generation.start()
        parts: dict[str, list[str]] = {"content": [], "reasoning": []}
        async for delta in generation:
            if isinstance(delta, Text):
                parts[delta.kind].append(delta.text)
        result = generation.result
        self.set_header("X-Colibri-Queue-Wait-Ms", f"{result.queue_wait_ms:.0f}")
        self.send_json(
            reply.whole(
                content="".join(parts["content"]),
                reasoning="".join(parts["reasoning"]),
                finish_reason=result.finish_reason,
                usage=result.usage(),
                colibri=self._colibri(result),
            )
        )

    async def _stream(self, generation: Generation, chunks: ChunkWriter) -> None:
        # The status is decided by ACCEPT. A long queue cannot wait for that in silence: clients
        # give up, and an error after it is an event of the stream.
        start = asyncio.ensure_future(generation.start())
        events = EventStream(self, self.service.keepalive_s)
        try:
            done, _ = await asyncio.wait({start}, timeout=self.service.keepalive_s)
            if done:
                start.result()
            await events.begin(chunks.role() if self.chat_shape else comment("accepted"))
            try:
                while not start.done():
                    await events.send(comment("queued"))
                    await asyncio.wait({start}, timeout=self.service.keepalive_s)
                start.result()
                events.watch_silence()
                await self._send_deltas(generation, events, chunks)
            except StreamClosedError:
                raise
            except Exception as error:
                self._break_stream(error)
                return
        finally:
            start.cancel()
            events.end()
        self.finish(DONE)

    chat_shape: ClassVar[bool] = True

    async def _send_deltas(
        self, generation: Generation, events: EventStream, chunks: ChunkWriter
    ) -> None:
        outlet = _Outlet(events, chunks)
        while deltas := await generation.take(outlet):
            # Here the client's slowness is waited for; meanwhile the turn keeps what comes.
            await events.send(outlet.encode(deltas))
        result = generation.result
        figures = chunks.figures(result.usage(), self._colibri(result))
        await events.send(chunks.finish(result.finish_reason) + figures)

    def _break_stream(self, error: Exception) -> None:
        """Ends a stream that has begun with an error event and without ``[DONE]``."""
        if not isinstance(error, ColibriError):
            log.error("%s failed within its stream", self.request_id, exc_info=error)
        _, body, _ = describe_error(error, 500, self.request_id)
        self.finish(sse(dumps(body)))


class _Outlet:
    """Writes what comes to the client, as long as the client takes it."""

    def __init__(self, events: EventStream, chunks: ChunkWriter) -> None:
        self._events = events
        self._chunks = chunks

    def is_open(self) -> bool:
        return self._events.is_open()

    def put(self, deltas: list[Delta]) -> None:
        self._events.put(self.encode(deltas))

    def encode(self, deltas: list[Delta]) -> bytes:
        return b"".join(map(self._event, deltas))

    def _event(self, delta: Delta) -> bytes:
        if isinstance(delta, Text):
            return self._chunks.text(delta.kind, delta.text)
        return comment(f"prefill {delta.done}/{delta.total}")


class ChatHandler(GenerationHandler):
    """``POST /v1/chat/completions``."""

    auth: ClassVar[dict[str, Auth]] = {"post": "key"}

    async def post(self) -> None:
        """Answers a conversation."""
        request = parse_chat(self.json_body())
        self.check_model(request.sampling.model)
        renderer = self.service.renderer
        text = await renderer.render_async(request.messages, request.template_variables)
        check_prompt_size(text, "messages")
        prompt = self.build_prompt(
            text, request.sampling, chat_affinity(request.messages), thinks=renderer.thinks
        )
        await self.while_connected(self.answer(prompt, request.sampling, chat=True))


ROUTES: list[tuple[str, Any]] = [(r"/v1/chat/completions", ChatHandler)]
