"""One turn from prompt to result: the path every endpoint and the terminal share.

Owns: waiting for a slot, whole characters, stop strings, thinking, the figures of the turn.
Does not own: how any of it is written to a client.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from colibri import frames
from colibri.admission import Admission, Affinity, Lease
from colibri.costs import limit_object
from colibri.engine import Engine, Event, Turn
from colibri.errors import EngineError
from colibri.text_filters import Kind, StopFilter, ThinkFilter

# Alternatives per token in the telemetry of an answer, as many as the wire's own default.
TOPK = 5


@dataclass(frozen=True)
class Prompt:
    """What to generate.

    Attributes:
        text: the rendered prompt.
        max_tokens: most tokens; ``None`` is the room that the context leaves.
        temperature: 0 to 2.
        top_p: above 0, at most 1.
        stop: texts that end the answer.
        options: extensions of SUBMIT; each must be offered by the engine.
        affinity: names the conversation.
        thinks: whether thinking is to be told from the answer.
        topk: whether alternatives per token are wanted.
    """

    text: str
    max_tokens: int | None
    temperature: float
    top_p: float
    affinity: Affinity
    stop: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    thinks: bool = False
    topk: bool = False


class Text(NamedTuple):
    """A piece of the answer; never empty."""

    kind: Kind
    text: str


class Progress(NamedTuple):
    """Prompt tokens processed so far."""

    done: int
    total: int


Delta: TypeAlias = Text | Progress


class Outlet(Protocol):
    """Takes pieces of an answer at once, which spares a task that waits for each."""

    def is_open(self) -> bool:
        """Whether it takes some now."""

    def put(self, deltas: list[Delta]) -> None:
        """Takes some; does not fail."""


@dataclass(frozen=True)
class Result:
    """How the turn ended.

    Attributes:
        finish_reason: ``stop`` or ``length``.
        done: the engine's closing figures.
        completion_tokens: tokens up to the one that ended the answer.
        cached_tokens: prompt tokens that were not processed again.
        ttft_ms: time from sending to the first token, ``None`` without one.
        queue_wait_ms: time spent waiting for a slot.
        colibri: the object of protocol.md section 7.
    """

    finish_reason: str
    done: frames.Done
    completion_tokens: int
    cached_tokens: int
    ttft_ms: float | None
    queue_wait_ms: float
    colibri: dict[str, Any]

    def usage(self) -> dict[str, Any]:
        """Returns the ``usage`` object of OpenAI."""
        return {
            "prompt_tokens": self.done.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.done.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Generation:
    """A turn in progress; a context manager that cancels whatever is left of it.

    The slot returns to ``admission`` when the engine has finished with it, which is after the
    context was left if the turn was cancelled.
    """

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        prompt: Prompt,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._prompt = prompt
        self._clock = clock
        self._turn: Turn | None = None
        self._stop = StopFilter(prompt.stop)
        inside = prompt.thinks and prompt.text.rstrip().endswith("<think>")
        self._think = ThinkFilter(inside=inside) if prompt.thinks else None
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._out: list[Delta] = []
        self._topk: list[list[dict[str, Any]]] = []
        self._tokens = 0
        self._last_token_counts = False
        self._cached_tokens: int | None = None
        self._first_token_at: float | None = None
        self._submitted_at = 0.0
        self._repin_mark = 0
        self.queue_wait_ms = 0.0
        self.prompt_tokens: int | None = None
        self._result: Result | None = None

    @property
    def result(self) -> Result:
        """How the turn ended; only after ``take`` has returned nothing."""
        if self._result is None:
            raise RuntimeError("the turn has not ended")
        return self._result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._turn is not None and self._result is None:
            self._turn.cancel()

    async def start(self) -> None:
        """Waits for a slot and until the engine has accepted the prompt.

        Raises:
            QueueFull: too many are waiting.
            RequestError: the engine refuses it.
            EngineError: the engine is not ready or died.
        """
        self._engine.check_ready()
        asked_at = self._clock()
        lease = await self._admission.acquire(self._prompt.affinity)
        self.queue_wait_ms = (self._clock() - asked_at) * 1000
        self._turn = self._submit(lease)
        self._take(self._turn, await self._turn.take())

    def _submit(self, lease: Lease) -> Turn:
        prompt, engine = self._prompt, self._engine
        options = dict(prompt.options)
        if prompt.topk and "topk" in engine.options:
            options.setdefault("topk", str(TOPK))
        self._submitted_at = self._clock()
        self._repin_mark = engine.telemetry.repin_mark
        try:
            return engine.submit(
                prompt.text.encode(),
                slot=lease.slot,
                max_tokens=prompt.max_tokens or engine.ctx,
                temperature=prompt.temperature,
                top_p=prompt.top_p,
                options=options,
                on_end=lease.release,
            )
        except BaseException:
            lease.release()
            raise

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while deltas := await self.take():
            for delta in deltas:
                yield delta

    async def take(self, outlet: Outlet | None = None) -> list[Delta]:
        """Waits for pieces and returns all there are, none at the end; safe to cancel.

        Args:
            outlet: gets what comes during the wait as long as it is open.
        """
        turn = self._turn
        if turn is None:
            raise RuntimeError("start() comes first")

        def pass_on(events: list[Event]) -> bool:
            if outlet is None or not outlet.is_open():
                return False
            self._take(turn, events)
            out, self._out = self._out, []
            if out:
                outlet.put(out)
            return True

        while not self._out and self._result is None:
            events = await turn.take(pass_on)
            self._take(turn, events)
            if not events and self._result is None:
                raise EngineError("the engine ended the request without figures")
        out, self._out = self._out, []
        return out

    def stop(self) -> None:
        """Ends the answer here, as a success."""
        self._stop.stopped = True
        if self._turn is not None:
            self._turn.stop()

    def _take(self, turn: Turn, events: list[Event]) -> None:
        for event in events:
            self._take_one(turn, event)

    def _take_one(self, turn: Turn, event: Event) -> None:
        match event:
            case frames.Data():
                if self._first_token_at is None:
                    self._first_token_at = self._clock()
                for token in event.tokens():
                    self._token(turn, token)
            case frames.Accept():
                # Engines of the first protocol version send none.
                self.prompt_tokens = event.prompt_tokens
            case frames.Prefill():
                if self._cached_tokens is None:
                    self._cached_tokens = event.done
                self._out.append(Progress(event.done, event.total))
            case frames.TopK():
                # An engine may send them unasked (SERVE_TOPK=1), and they make replies large.
                if self._prompt.topk and self._last_token_counts:
                    self._topk.append([_alternative(*token) for token in event.tokens])
            case frames.Done():
                self._add(turn, self._utf8.decode(b"", final=True))
                self._emit(self._stop.flush())
                if self._think is not None:
                    self._out.extend(Text(*piece) for piece in self._think.flush())
                self._finish(turn, event)
            case _:
                raise TypeError(f"not an event of a request: {event!r}")

    def _token(self, turn: Turn, data: bytes) -> None:
        # Tokens that were on their way when the answer ended are no part of it; how many there
        # are is chance.
        self._last_token_counts = not self._stop.stopped
        if self._last_token_counts:
            self._tokens += 1
            self._add(turn, self._utf8.decode(data))

    def _add(self, turn: Turn, text: str) -> None:
        was_stopped = self._stop.stopped
        self._emit(self._stop.push(text))
        if self._stop.stopped and not was_stopped:
            turn.stop()

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._think is None:
            self._out.append(Text("content", text))
        else:
            self._out.extend(Text(*piece) for piece in self._think.push(text))

    def _finish(self, turn: Turn, done: frames.Done) -> None:
        telemetry = self._engine.telemetry
        ttft_ms = None
        if self._first_token_at is not None:
            ttft_ms = round((self._first_token_at - self._submitted_at) * 1000, 3)
        stopped = self._stop.stopped
        limited = done.length_limited and not stopped
        reason = "length" if limited else "stop"
        completion_tokens = self._tokens if stopped else done.emitted
        cached = self._cached_tokens or 0
        stats = {
            "completion_tokens": completion_tokens,
            "tokens_per_second": done.tok_s,
            "cache_hit_percent": done.hit_pct,
            "rss_gb": done.rss_gb,
            "prompt_tokens": done.prompt_tokens,
            "cached_tokens": cached,
            "length_limited": limited,
            "ttft_ms": ttft_ms,
        }
        perf = None
        if turn.perf is not None:
            perf = asdict(turn.perf)
            del perf["id"]
        # The engine sends ENTROPY and GPUS right before DONE, so the latest are this turn's.
        self._result = result = Result(
            finish_reason=reason,
            done=done,
            completion_tokens=completion_tokens,
            cached_tokens=cached,
            ttft_ms=ttft_ms,
            queue_wait_ms=round(self.queue_wait_ms, 3),
            colibri={
                "stats": stats,
                "perf": perf,
                "topk": self._topk or None,
                "entropy": telemetry.entropy.bits if telemetry.entropy else None,
                "gpus": telemetry.gpus.gpus if telemetry.gpus else [],
                "repin": telemetry.repins(self._repin_mark),
            },
        )
        telemetry.add_turn(
            {
                "time": round(time.time(), 3),
                "slot": turn.slot,
                "finish_reason": reason,
                "queue_wait_ms": result.queue_wait_ms,
                **stats,
                **(perf or {}),
                "limit": limit_object(perf),
            }
        )


def _alternative(logprob: float, data: bytes) -> dict[str, Any]:
    return {"text": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": logprob}
