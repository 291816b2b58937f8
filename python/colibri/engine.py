"""The supervised engine: requests go in, events come out, deaths are survived.

Owns: which request an output record belongs to, the engine's state, restarts with back-off.
Does not own: pipes (``engine_process``), who may start when (``admission``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from colibri import _core, frames
from colibri.decimals import decimal
from colibri.engine_process import EngineConfig, EngineProcess
from colibri.errors import (
    EngineDied,
    EngineStartError,
    EngineUnavailable,
    ProtocolError,
    RequestError,
    UsageError,
    of_refusal,
)
from colibri.telemetry import Telemetry

log = logging.getLogger("colibri.engine")

# A consumer that lags by more than this many records gets the following DATA merged.
QUEUE_TOKENS = 256
# Seconds before the n-th restart; the last one repeats.
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# A process that served this long starts the back-off again.
STABLE_S = 60.0
# Time for each of the three ways to end an engine: closed stdin, SIGTERM, SIGKILL.
STOP_STEP_S = 10.0
LOADING_STOP_STEP_S = 0.5
# An engine that was told to end a turn and says nothing more of it for this long hangs. A step of
# a huge model that is read from a slow disk takes 20 s.
ANSWER_S = 120.0
# An engine without CAPS counts as ready this long after READY.
CAPS_WAIT_S = 0.5

Event: TypeAlias = frames.Accept | frames.Prefill | frames.Data | frames.TopK | frames.Done


@dataclass(frozen=True)
class EngineState:
    """What the engine is doing.

    Attributes:
        name: starting, loading, ready, restarting, failed, stopping or stopped.
        stage: what is being loaded, while loading.
        done: progress of that stage.
        total: its end.
        reason: why it failed or restarts.
        hint: advice that goes with the reason.
        retry_in_s: time until the next start, while restarting.
        restarts: how often it was restarted.
    """

    name: str = "starting"
    stage: str | None = None
    done: int = 0
    total: int = 0
    reason: str | None = None
    hint: str | None = None
    retry_in_s: float | None = None
    restarts: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a JSON object."""
        return asdict(self)


class Turn:
    """One request in the engine.

    Take its events until there are none, which is after ``Done``. Exactly one of these is called
    to end it early: ``stop`` (the answer is complete) or ``cancel`` (nobody wants it). The engine
    is finished with the slot only when ``on_end`` was called, which may be after the last consumer
    has gone.

    Back-pressure: the wire cannot pause one request, and the reader must not wait for one slow
    consumer, so beyond ``QUEUE_TOKENS`` waiting records the text of new DATA is appended to the
    last one. A consumer that never reads thus costs the bytes of its own answer, which max_tokens
    and the context bound, and delays nobody.
    """

    def __init__(self, turn_id: int, slot: int, on_end: Callable[[], None]) -> None:
        self.id = turn_id
        self.slot = slot
        self.perf: frames.Perf | None = None
        self._on_end = on_end
        self._events: list[Event] = []
        self._waiting: asyncio.Future[None] | None = None
        self._pass_on: Callable[[list[Event]], bool] | None = None
        self._error: Exception | None = None
        self._ended = False
        self._abandoned = False
        self._send: Callable[[bytes], None] = _discard
        self._on_silence: Callable[[str], None] = _discard
        self._answer_s = ANSWER_S
        # What it was told, while the end that must follow has not come.
        self._told = ""
        self._silence: asyncio.TimerHandle | None = None

    async def take(self, pass_on: Callable[[list[Event]], bool] | None = None) -> list[Event]:
        """Waits for events and returns all there are, none after the last; safe to cancel.

        Args:
            pass_on: is offered what comes during the wait and says whether it took all of it; then
                the wait goes on. It saves the task switch, half of what a token costs here.

        Raises:
            RequestError: the engine refused it.
            EngineError: it failed, or the engine died.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._ended:
                return []
            self._pass_on = pass_on
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        events, self._events = self._events, []
        return events

    def deliver(self) -> None:
        """Hands what was pushed to whoever waits for it."""
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        if self._events and self._pass_on is not None:
            try:
                if self._pass_on(self._events):
                    self._events = []
            except Exception as error:
                # The consumer's fault is raised where the consumer waits, not in the reader.
                self._events = []
                self._error = error
        if self._events or self._ended or self._error is not None:
            waiting.set_result(None)

    def stop(self) -> None:
        """Asks the engine to end the turn as a success; ``Done`` follows."""
        if not self._ended:
            self._tell("STOP")

    def cancel(self) -> None:
        """Asks the engine to drop the turn; its events no longer matter."""
        if not self._ended and not self._abandoned:
            self._abandoned = True
            self._events.clear()
            self._tell("CANCEL")

    def _tell(self, verb: str) -> None:
        self._send(f"{verb} {self.id}\n".encode())
        self._told = verb
        self._expect_answer()

    def _expect_answer(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(
            self._answer_s, self._on_silence, self._told
        )

    def connect(
        self,
        send: Callable[[bytes], None],
        on_silence: Callable[[str], None],
        answer_s: float = ANSWER_S,
    ) -> None:
        """Says where STOP and CANCEL are written, and who is told that one was not answered.

        Args:
            send: takes a frame.
            on_silence: takes STOP or CANCEL, ``answer_s`` after it or after the last record that
                followed: an engine that does not know STOP still ends at the turn's limit.
            answer_s: how long the engine may say nothing.
        """
        self._send = send
        self._on_silence = on_silence
        self._answer_s = answer_s

    def push(self, event: Event) -> None:
        """Takes an event from the engine; ``deliver`` follows."""
        if self._silence is not None:
            self._expect_answer()
        if self._abandoned:
            return
        if len(self._events) >= QUEUE_TOKENS:
            last = self._events[-1]
            if isinstance(event, frames.Data) and isinstance(last, frames.Data):
                # How much each token added stays known: a stop string ends the answer at one.
                sizes = last.sizes if isinstance(last, frames.DataRun) else [len(last.data)]
                sizes.append(len(event.data))
                self._events[-1] = frames.DataRun(event.id, last.data + event.data, sizes)
                return
            if isinstance(event, frames.TopK):
                # Alternatives are advisory; text is not.
                return
        self._events.append(event)

    def end(self, error: Exception | None = None) -> None:
        """Marks the engine as finished with it."""
        if self._ended:
            return
        self._ended = True
        self._error = error
        if self._silence is not None:
            self._silence.cancel()
        self.deliver()
        self._on_end()


def _discard(_what: bytes | str) -> None:
    """The engine is gone; its requests have been failed already."""


class Engine:
    """The engine, kept alive.

    Args:
        config: what to start.
        telemetry: receives every record that is not of one request.
        on_log: called with each log line of the engine.
        backoff_s: waits before the first, second, ... restart.
        answer_s: how long it may leave STOP or CANCEL unanswered before it is killed.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        telemetry: Telemetry | None = None,
        on_log: Callable[[str], None] = log.info,
        backoff_s: tuple[float, ...] = BACKOFF_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.config = config
        self.telemetry = telemetry or Telemetry()
        self.caps: dict[str, str] = {}
        self._on_log = on_log
        self._backoff_s = backoff_s
        self._answer_s = answer_s
        self._state = EngineState()
        self._changed = asyncio.Event()
        self._turns: dict[int, Turn] = {}
        # Those with events that were not delivered yet.
        self._fresh: set[Turn] = set()
        self._ids = count(1)
        self._process: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready_timer: asyncio.TimerHandle | None = None
        # Of the turn that ends next.
        self._prof: frames.Prof | None = None
        self._was_ready = False
        # Of this process, once it is.
        self._ready_at: float | None = None
        self._start_error: EngineStartError | None = None
        self.on_state: Callable[[EngineState], None] = lambda _state: None

    # --- state ---

    @property
    def state(self) -> EngineState:
        """What the engine is doing now."""
        return self._state

    @property
    def in_flight(self) -> int:
        """Requests the engine has not finished with."""
        return len(self._turns)

    @property
    def ctx(self) -> int:
        """Most tokens of prompt and answer together, as the engine reports it."""
        return _positive(self.caps.get("ctx"), self.config.ctx)

    @property
    def slots(self) -> int:
        """KV slots, as the engine reports them."""
        return _positive(self.caps.get("slots"), self.config.slots)

    @property
    def options(self) -> frozenset[str]:
        """Extensions of SUBMIT this engine takes."""
        return frozenset(filter(None, self.caps.get("submit", "").split(",")))

    @property
    def map_layers(self) -> tuple[int, ...] | None:
        """Real layer number of each row of the expert map, if the engine tells."""
        words = self.caps.get("layers", "").split(",")
        numbers = tuple(number for word in words if (number := decimal(word)) is not None)
        return numbers if len(numbers) == len(words) else None

    def check_ready(self) -> None:
        """Raises ``EngineUnavailable`` unless requests can be sent now."""
        state = self._state
        if state.name == "ready":
            return
        message = f"the engine is {state.name}"
        if state.stage is not None:
            message += f" ({state.stage}"
            if state.total > 0:
                # Some stages count bytes, others tensors; a share suits all.
                message += f" {100 * state.done // state.total} %"
            message += ")"
        if state.reason is not None:
            message += f": {state.reason}"
        raise EngineUnavailable(message, hint=state.hint)

    # --- life ---

    def start(self) -> None:
        """Begins to start the engine and to keep it alive."""
        self._task = asyncio.create_task(self._supervise(), name="engine supervisor")
        self._task.add_done_callback(self._supervisor_ended)

    async def wait_ready(self) -> None:
        """Waits until the engine takes requests.

        Raises:
            EngineStartError: its first start failed; later failures are retried instead.
        """
        while self._state.name != "ready":
            if self._start_error is not None:
                raise self._start_error
            if self._state.name == "stopped":
                raise EngineStartError("the engine was stopped")
            self._changed.clear()
            await self._changed.wait()

    async def stop(self, step_s: float | None = None) -> None:
        """Ends the engine gracefully and stops keeping it alive."""
        if self._task is None:
            return
        if step_s is None:
            # A model that is still loading holds nothing worth waiting for.
            step_s = STOP_STEP_S if self._state.name == "ready" else LOADING_STOP_STEP_S
        self._set(replace(self._state, name="stopping"))
        if self._process is not None:
            await self._process.stop(step_s)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        self._set(EngineState(name="stopped", restarts=self._state.restarts))

    def _supervisor_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        log.critical("the engine's supervisor failed", exc_info=task.exception())
        self._start_error = EngineStartError("internal error while watching the engine")
        self._set(EngineState(name="failed", reason=str(self._start_error)))

    def abort(self) -> None:
        """Ends the engine at once, whatever it is doing."""
        if self._process is not None:
            self._process.kill("it was told to end at once")

    async def _supervise(self) -> None:
        attempt = 0
        while True:
            cause, hint = await self._run_once()
            ready_at, self._ready_at = self._ready_at, None
            if self._state.name == "stopping":
                return
            if not self._was_ready and self._start_error is not None:
                self._set(EngineState(name="failed", reason=cause, hint=hint))
                return
            now = asyncio.get_running_loop().time()
            if ready_at is not None and now - ready_at > STABLE_S:
                attempt = 0
            wait_s = self._backoff_s[min(attempt, len(self._backoff_s) - 1)]
            attempt += 1
            log.error("engine ended: %s; next start in %g s", cause, wait_s)
            self._set(
                EngineState(
                    name="restarting",
                    reason=cause,
                    hint=hint,
                    retry_in_s=wait_s,
                    restarts=self._state.restarts + 1,
                )
            )
            await asyncio.sleep(wait_s)
            self._set(EngineState(name="starting", restarts=self._state.restarts))

    async def _run_once(self) -> tuple[str, str | None]:
        """Runs one process to its end, fails what was in flight, and says why it ended."""
        self.caps = {}
        process = EngineProcess(
            on_record=self._record,
            on_pause=self._deliver,
            on_progress=self._progress,
            on_log=self._on_log,
        )
        self._process = process
        exit_code = 1
        cause = "the engine was stopped"
        hint: str | None = None
        try:
            code = await process.run(self.config)
        except UsageError as error:
            cause, hint = str(error), error.hint
        except OSError as error:
            cause, hint = self.config.cannot_start(error)
        else:
            cause, hint = process.cause(code), process.hint
            exit_code = code if code > 0 else 1
        finally:
            self._process = None
            if self._ready_timer is not None:
                self._ready_timer.cancel()
                self._ready_timer = None
            # Also on cancellation: nobody may wait for a process that is gone.
            self._fail_all(cause)
        if not self._was_ready:
            message = process.error or f"the engine did not start: {cause}"
            self._start_error = EngineStartError(message, hint=hint, exit_code=exit_code)
        return cause, hint

    def _fail_all(self, cause: str) -> None:
        turns, self._turns = self._turns, {}
        for turn in turns.values():
            turn.connect(_discard, _discard)
            turn.end(EngineDied(f"the engine ended during this request: {cause}"))

    # --- requests ---

    def submit(
        self,
        prompt: bytes,
        *,
        slot: int,
        max_tokens: int,
        temperature: float,
        top_p: float,
        options: dict[str, str] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> Turn:
        """Sends a request to the engine.

        Args:
            prompt: the rendered text.
            slot: a slot no other request is using.
            max_tokens: most tokens to generate; cut to the context.
            temperature: 0 to 2.
            top_p: above 0, at most 1.
            options: extensions; each must be in ``self.options``.
            on_end: called once when the engine is finished with the request.

        Raises:
            EngineUnavailable: the engine takes no requests now.
            RequestError: a value the wire cannot carry.
        """
        self.check_ready()
        process = self._process
        if process is None:
            raise EngineUnavailable("the engine is ending")
        turn = Turn(next(self._ids), slot, on_end)
        try:
            frame = _core.format_submit(
                turn.id,
                slot,
                prompt,
                min(max_tokens, max(self.ctx, 1)),
                temperature,
                top_p,
                options or {},
            )
        except ValueError as error:
            raise RequestError(str(error)) from error
        turn.connect(process.write, partial(self._hangs, process), self._answer_s)
        self._turns[turn.id] = turn
        process.write(frame)
        return turn

    def _hangs(self, process: EngineProcess, verb: str) -> None:
        process.kill(f"it did not answer {verb} for {self._answer_s:g} s")

    # --- what the engine says ---

    def _record(self, record: frames.Record) -> None:
        match record:
            case frames.Data() | frames.TopK() | frames.Accept() | frames.Prefill():
                if turn := self._turns.get(record.id):
                    turn.push(record)
                    self._fresh.add(turn)
            case frames.Done():
                if turn := self._turns.pop(record.id, None):
                    if turn.perf is None and self._prof is not None:
                        turn.perf = self._prof.to_perf(record.id)
                    turn.push(record)
                    turn.end()
                self._prof = None
            case frames.Error():
                self._error(record)
            case frames.Perf():
                if turn := self._turns.get(record.id):
                    turn.perf = record
            case frames.Prof():
                self._prof = record
            case frames.Ready():
                self._ready_timer = asyncio.get_running_loop().call_later(
                    CAPS_WAIT_S, self._become_ready
                )
            case frames.Caps():
                self.caps = record.values
                self._become_ready()
            case frames.Malformed():
                log.warning("malformed record: %s: %.200r", record.reason, record.line)
                if frames.breaks_requests(record):
                    raise ProtocolError(f"the engine sent a malformed record: {record.reason}")
            case frames.Unknown() | frames.Stat():
                pass
            case _:
                self.telemetry.apply(record)

    def _deliver(self) -> None:
        """Delivers once what a read of the pipe brought, so that it is written together."""
        for turn in self._fresh:
            turn.deliver()
        self._fresh.clear()

    def _become_ready(self) -> None:
        if self._ready_timer is not None:
            self._ready_timer.cancel()
            self._ready_timer = None
        if self._state.name in ("starting", "loading"):
            self._was_ready = True
            self._ready_at = asyncio.get_running_loop().time()
            self._set(EngineState(name="ready", restarts=self._state.restarts))

    def _error(self, record: frames.Error) -> None:
        turn = self._turns.get(record.id)
        if turn is None:
            if record.code == "BAD_FRAME":
                raise ProtocolError("the engine lost the boundary of a frame")
            if record.code != "NOT_FOUND":  # a STOP or CANCEL that crossed its DONE is normal
                log.warning("error for request %d: %s", record.id, record.code)
            return
        del self._turns[record.id]
        turn.end(of_refusal(record.code, record.detail))

    def _progress(self, stage: str, done: int, total: int) -> None:
        if self._state.name in ("starting", "loading"):
            self._set(replace(self._state, name="loading", stage=stage, done=done, total=total))

    def _set(self, state: EngineState) -> None:
        self._state = state
        self._changed.set()
        self.on_state(state)


def _positive(text: str | None, otherwise: int) -> int:
    return decimal(text or "") or otherwise
