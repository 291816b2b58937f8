"""Supervision and routing of requests, over a scripted engine and real pipes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri import frames
from colibri.engine import QUEUE_TOKENS, Engine, Event, Turn
from colibri.engine_process import EngineConfig
from colibri.errors import (
    EngineDied,
    EngineError,
    EngineStartError,
    EngineUnavailable,
    RequestError,
)
from colibri.fake_engine import LAST_MAP
from conftest import FAST_BACKOFF_S, FakeEngineFiles, until

Fake = Callable[..., FakeEngineFiles]


class Running:
    """A started engine that is stopped at the end."""

    def __init__(self, files: FakeEngineFiles, *, answer_s: float = 5.0, **settings: Any) -> None:
        self.log: list[str] = []
        self.engine = Engine(
            files.config(**settings),
            on_log=self.log.append,
            backoff_s=FAST_BACKOFF_S,
            answer_s=answer_s,
        )

    async def __aenter__(self) -> Engine:
        self.engine.start()
        return self.engine

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop(step_s=1.0)
        assert self.engine.in_flight == 0


def submit(engine: Engine, prompt: str = "a b c", **fields: Any) -> Turn:
    values = {"slot": 0, "max_tokens": 1000, "temperature": 0.0, "top_p": 1.0, **fields}
    return engine.submit(prompt.encode(), **values)


async def events(turn: Turn) -> list[Event]:
    out = []
    while some := await turn.take():
        out += some
    return out


def text(of: list[Event]) -> str:
    return b"".join(event.data for event in of if isinstance(event, frames.Data)).decode()


async def test_a_turn_from_accept_to_done(fake: Fake) -> None:
    async with Running(fake(prefill=[[2, 3]], topk=True)) as engine:
        await engine.wait_ready()
        assert (engine.ctx, engine.slots) == (64, 2)
        assert engine.options == {"seed", "topk"}
        ended: list[bool] = []
        turn = submit(engine, on_end=lambda: ended.append(True))
        got = await events(turn)
        assert got[0] == frames.Accept(turn.id, 3)
        assert got[1] == frames.Prefill(turn.id, 2, 3)
        assert text(got) == "Hello there, friend."
        assert isinstance(got[3], frames.TopK)
        assert got[3].tokens == [(-0.1, b"Hello"), (-2.5, b"")]
        done = got[-1]
        assert isinstance(done, frames.Done)
        assert (done.emitted, done.prompt_tokens, done.length_limited) == (5, 3, False)
        assert turn.perf is not None
        assert turn.perf.expert_wait_s == 0.05
        assert ended == [True]
        telemetry = engine.telemetry
        assert telemetry.tiers == frames.Tiers(0, 11, 5, 0.0, 0.01)
        assert telemetry.entropy == frames.Entropy([1.5, 2.25])
        assert telemetry.map is not None
        assert telemetry.map.map == LAST_MAP


ENDLESS = f"progress experts 3 {'9' * 5000}"


async def test_noise_before_ready_is_skipped_and_progress_is_state(fake: Fake) -> None:
    files = fake(
        banner="some engine v1\nREADY or not\n",
        stderr=["progress experts 3 9", "progress experts many 9", "warming up", ENDLESS],
        load_s=0.2,
    )
    running = Running(files)
    states = []
    running.engine.on_state = states.append
    async with running as engine:
        await engine.wait_ready()
    loading = [s for s in states if s.name == "loading"]
    assert [(s.stage, s.done, s.total) for s in loading] == [("experts", 3, 9)]
    assert running.log == ["progress experts many 9", "warming up", ENDLESS]


async def test_an_engine_without_caps_becomes_ready(fake: Fake) -> None:
    async with Running(fake(caps=None)) as engine:
        await engine.wait_ready()
        assert engine.options == frozenset()
        assert text(await events(submit(engine))) == "Hello there, friend."


async def test_a_failed_first_start_is_reported_once_with_its_hint(fake: Fake) -> None:
    files = fake(stderr=["error: no such tensor", "hint: convert again"], exit_before_ready=1)
    running = Running(files)
    async with running as engine:
        with pytest.raises(EngineStartError, match=r"^no such tensor$") as caught:
            await engine.wait_ready()
        assert (caught.value.hint, caught.value.exit_code) == ("convert again", 1)
        assert engine.state.name == "failed"
        with pytest.raises(EngineUnavailable, match="no such tensor"):
            submit(engine)
        await asyncio.sleep(3 * FAST_BACKOFF_S[0])
        assert files.lives == 1
    assert running.log == []


async def test_a_silent_exit_is_reported_with_its_code(fake: Fake) -> None:
    async with Running(fake(exit_before_ready=2)) as engine:
        with pytest.raises(EngineStartError, match="exited with code 2") as caught:
            await engine.wait_ready()
        assert caught.value.exit_code == 2


async def test_a_missing_command_is_a_start_error(fake: Fake, tmp_path: Any) -> None:
    engine = Engine(EngineConfig(tmp_path, command=(str(tmp_path / "absent"),)))
    engine.start()
    with pytest.raises(EngineStartError, match="cannot start"):
        await engine.wait_ready()
    await engine.stop()


async def test_death_fails_what_is_in_flight_and_the_next_life_serves(fake: Fake) -> None:
    files = fake(lives=[{"kill_after": 2, "token_s": 0.01}])
    async with Running(files, slots=2) as engine:
        await engine.wait_ready()
        first, second = submit(engine, slot=0), submit(engine, slot=1)
        for turn in (first, second):
            with pytest.raises(EngineDied, match=r"killed by signal 9 .* possibly out of memory"):
                await events(turn)
        assert engine.state.name == "restarting"
        assert engine.state.reason is not None
        assert "signal 9" in engine.state.reason
        with pytest.raises(EngineUnavailable):
            submit(engine)
        await until(lambda: engine.state.name == "ready")
        assert engine.state.restarts == 1
        assert text(await events(submit(engine))) == "Hello there, friend."
    assert files.lives == 2


async def test_the_cause_holds_the_last_words(fake: Fake) -> None:
    files = fake(exit_after=1, last_words="cannot allocate 3 GB")
    async with Running(files) as engine:
        await engine.wait_ready()
        with pytest.raises(EngineDied, match="exited with code 70; its last words: cannot alloc"):
            await events(submit(engine))


async def test_failing_starts_are_retried_with_growing_waits(fake: Fake) -> None:
    fails = {"exit_before_ready": 1}
    files = fake(lives=[{"exit_after": 1}, fails, fails])
    async with Running(files) as engine:
        await engine.wait_ready()
        waits = []
        engine.on_state = lambda state: waits.append(state.retry_in_s)
        with pytest.raises(EngineDied):
            await events(submit(engine))
        await until(lambda: engine.state.name == "ready")
        assert [wait for wait in waits if wait is not None] == [0.05, 0.1, 0.1]
        assert engine.state.restarts == 3


async def test_only_a_life_that_served_begins_the_waits_again(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colibri.engine.STABLE_S", 0.2)
    fails = {"exit_before_ready": 1, "load_s": 0.1}
    files = fake(lives=[{"exit_after": 1}, fails, fails, fails, {"exit_after": 1}])
    async with Running(files) as engine:
        await engine.wait_ready()
        waits = []
        engine.on_state = lambda state: waits.append(state.retry_in_s)
        for restarts in (4, 5):
            await asyncio.sleep(0.3)
            with pytest.raises(EngineDied):
                await events(submit(engine))
            await until(lambda n=restarts: engine.state.restarts == n)
            await until(lambda: engine.state.name == "ready")
        # Three that did not start come in between; time that passes meanwhile is nobody's service.
        assert [wait for wait in waits if wait is not None] == [0.05, 0.1, 0.1, 0.1, 0.05]


HANDSHAKE = (
    b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\nHWINFO 2 8.0 4.0 0 0.0 cpu|none\nGPUS 0\n"
    b"TIERS 0 1 1 0.00 0.01\nEMAP 1 2 4001\nCAPS proto=1 ctx=64 slots=1\n"
)
# A telemetry block in full, then shorter ones, so that the session stays short.
ANSWER = (
    b"ACCEPT 1 3\nACCEPT 2 3\nPREFILL 1 0 3\nDATA 1 2\n\xc3\xbc\nTOPK 1 1 -0.1000 c3bc\n"
    b"DATA 2 1\ny\nREPIN 1 0 0 -1\nDATA 1 1\nx\n"
    b"HWINFO 2 8.0 4.0 0 0.0 cpu|none\nPERF 1 1 1 1 1 1 1 1\nENTROPY 0.5\nGPUS 0\n"
    b"TIERS 0 1 1 0.00 0.01\nEMAP 1 2 4001\nHITS 1 2 01\nDONE 1 STAT 2 1.00 1.0 0.01 3 0\n"
    b"HITS 1 2 00\nERROR 2 ENGINE disk\n"
)
NEXT_ANSWER = b"ACCEPT 3 3\nDATA 3 2\n\xc3\xbc\nDATA 3 1\nx\nDONE 3 STAT 2 1.00 1.0 0.01 3 0\n"
# Writes the first $1 bytes of the transcript $0 and ends; the answer begins after $2 bytes, when
# two requests of two lines each have come. Its second life plays $0.next and takes one request.
CUT_ENGINE = """
file=$0 size=$1
if [ -e "$0.died" ]; then file=$0.next size=99999; fi
: > "$0.died"
head -c $(( size < $2 ? size : $2 )) "$file"
if [ "$size" -ge "$2" ]; then
    read -r _ && read -r _
    if [ "$file" = "$0" ]; then read -r _ && read -r _; fi
    tail -c +$(( $2 + 1 )) "$file" | head -c $(( size - $2 ))
fi
"""


async def outcome(turn: Turn) -> str:
    try:
        return text(await events(turn))
    except EngineDied:
        return "died"
    except EngineError as error:
        return str(error)


async def outcomes_of_two(config: EngineConfig) -> tuple[str, str]:
    """What becomes of two requests of a dying engine, whose next life must serve a third."""
    engine = Engine(config, backoff_s=(0.0,))
    engine.start()
    async with asyncio.timeout(10):
        try:
            await engine.wait_ready()
        except EngineStartError:
            found = ["start", "start"]
        else:
            turns = [submit(engine, slot=0), submit(engine, slot=1)]
            found = await asyncio.gather(*map(outcome, turns))
            await until(lambda: engine.state.restarts == 1 and engine.state.name == "ready")
            assert text(await events(submit(engine))) == "üx"
    assert engine.in_flight == 0
    await engine.stop()
    return found[0], found[1]


async def test_death_at_every_byte_is_noticed(tmp_path: Path) -> None:
    """Whatever the last byte was, each request fails or is complete."""
    transcript = tmp_path / "transcript"
    transcript.write_bytes(HANDSHAKE + ANSWER)
    (tmp_path / "transcript.next").write_bytes(HANDSHAKE + NEXT_ANSWER)
    outcomes = []
    for size in range(len(HANDSHAKE + ANSWER) + 1):
        (tmp_path / "transcript.died").unlink(missing_ok=True)
        shell = ("/bin/sh", "-c", CUT_ENGINE, str(transcript), str(size), str(len(HANDSHAKE)))
        outcomes.append(await outcomes_of_two(EngineConfig(tmp_path, command=shell)))
    failed = "the engine failed this request: disk"
    assert [pair for pair, _ in itertools.groupby(outcomes)] == [
        ("start", "start"),
        ("died", "died"),
        ("üx", "died"),
        ("üx", failed),
    ]
    assert outcomes.count(("üx", failed)) == 1


async def test_cancel_frees_the_slot_when_the_engine_says_so(fake: Fake) -> None:
    files = fake(repeat=1000, token_s=0.005)
    async with Running(files) as engine:
        await engine.wait_ready()
        ended: list[bool] = []
        turn = submit(engine, on_end=lambda: ended.append(True))
        await turn.take()
        turn.cancel()
        turn.cancel()
        assert ended == []
        await until(lambda: ended == [True])
        assert files.count("CANCEL") == 1
        turn.cancel()
        turn.stop()
        await asyncio.sleep(0.05)
        assert files.count("CANCEL") + files.count("STOP") == 1


@pytest.mark.parametrize("verb", ["STOP", "CANCEL"])
async def test_an_engine_that_falls_silent_is_ended_once_it_was_told_to_end_a_turn(
    fake: Fake, verb: str
) -> None:
    files = fake(lives=[{"silent_after": 1}])
    async with Running(files, answer_s=0.2) as engine:
        await engine.wait_ready()
        ended: list[str] = []
        first = submit(engine, slot=0, on_end=lambda: ended.append("first"))
        await first.take()
        other = submit(engine, slot=1)
        await asyncio.sleep(0.3)  # a long silence is no fault by itself
        assert engine.state.name == "ready"
        if verb == "STOP":
            first.stop()
        else:
            first.cancel()
        with pytest.raises(EngineDied, match=rf": it did not answer {verb} for 0\.2 s$"):
            await events(other)
        assert ended == ["first"]
        assert engine.state.reason == f"it did not answer {verb} for 0.2 s"
        await until(lambda: engine.state.name == "ready")
        assert text(await events(submit(engine))) == "Hello there, friend."
    assert files.lives == 2


async def test_an_engine_that_goes_on_with_a_stopped_turn_is_let_finish(fake: Fake) -> None:
    """Those of the first protocol do not know STOP; each record shows that they live."""
    files = fake(deaf=True, repeat=4, token_s=0.05)
    async with Running(files, answer_s=0.4) as engine:
        await engine.wait_ready()
        stopped, cancelled = submit(engine, slot=0), submit(engine, slot=1)
        await stopped.take()
        stopped.stop()
        cancelled.cancel()
        assert isinstance((await events(stopped))[-1], frames.Done)
        await until(lambda: engine.in_flight == 0)
        await asyncio.sleep(0.5)
        assert engine.state.name == "ready"
    assert files.lives == 1


async def test_stop_ends_as_a_success(fake: Fake) -> None:
    async with Running(fake(repeat=1000, token_s=0.005)) as engine:
        await engine.wait_ready()
        turn = submit(engine)
        await turn.take()
        turn.stop()
        assert isinstance((await events(turn))[-1], frames.Done)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ("ENGINE disk%20read%20failed", EngineError, "disk read failed"),
        ("BAD_REQUEST no%20such%20option", RequestError, "no such option"),
        ("EMPTY_PROMPT", RequestError, "empty"),
        ("CONTEXT_EXCEEDED 300 255", RequestError, "300 tokens, the context takes at most 255"),
        ("CONTEXT_EXCEEDED 300 255 least", RequestError, "has at least 300 tokens, the context"),
        ("SLOT_BUSY", EngineError, "SLOT_BUSY"),
        ("NEVER_HEARD_OF x y", EngineError, "NEVER_HEARD_OF x y"),
        ("NOT_FOUND", EngineError, "NOT_FOUND"),
    ],
)
async def test_errors_of_the_engine_keep_their_meaning(
    fake: Fake, error: str, kind: type[Exception], message: str
) -> None:
    async with Running(fake(error_after=1, error=error)) as engine:
        await engine.wait_ready()
        with pytest.raises(kind, match=message):
            await events(submit(engine))
        assert engine.state.name == "ready"


@pytest.mark.parametrize(
    "raw",
    [
        "FUTURE 1 2 3\n",
        "TIERS one two\n",
        "EMAP 2 8 zz\n",
        "HITS 1\n",
        "PERF x\n",
        "DATA 999 1\nx\n",
        "DONE 999 STAT 1 1.0 1.0 1.0 1 0\n",
        "ERROR 999 NOT_FOUND\n",
        "ERROR 0 BAD_REQUEST\n",
        "\n",
    ],
)
async def test_lies_that_are_harmless_are_skipped(fake: Fake, raw: str) -> None:
    files = fake(raw_after=2, raw=raw)
    async with Running(files) as engine:
        await engine.wait_ready()
        assert text(await events(submit(engine))) == "Hello there, friend."
    assert files.lives == 1


@pytest.mark.parametrize(
    "raw", ["DATA 1 x\n", "DONE 1 STAT\n", "ERROR 0 BAD_FRAME\n", "DATA 1 99999999999999\n"]
)
async def test_lies_that_would_hang_a_request_restart_the_engine(fake: Fake, raw: str) -> None:
    files = fake(lives=[{"raw_after": 2, "raw": raw}])
    async with Running(files) as engine:
        await engine.wait_ready()
        async with asyncio.timeout(5):
            with pytest.raises(EngineDied, match=r"malformed|boundary"):
                await events(submit(engine))
        await until(lambda: engine.state.name == "ready")
        assert text(await events(submit(engine))) == "Hello there, friend."


async def test_a_consumer_that_does_not_read_delays_nobody(fake: Fake) -> None:
    files = fake(tokens=["x"], repeat=3 * QUEUE_TOKENS)
    async with Running(files) as engine:
        await engine.wait_ready()
        slow = submit(engine, slot=0, max_tokens=10_000)
        await until(lambda: engine.in_flight == 0)
        quick = submit(engine, "quick", slot=1)
        assert len(text(await events(quick))) == 64  # the most this context takes
        got = await events(slow)
        assert text(got) == "x" * 64


def test_waiting_records_are_bounded_and_no_text_is_lost() -> None:
    turn = Turn(1, 0, lambda: None)
    for i in range(3 * QUEUE_TOKENS):
        turn.push(frames.Data(1, bytes([97 + i % 26])))
        if i % 7 == 0:
            turn.push(frames.TopK(1, []))
    done = frames.Done(1, 1, 0.0, 0.0, 0.0, 1, False)
    turn.push(done)
    turn.end()
    got = asyncio.run(events(turn))
    assert len(got) <= QUEUE_TOKENS + 2
    expected = "".join(chr(97 + i % 26) for i in range(3 * QUEUE_TOKENS))
    assert text(got) == expected
    assert got[-1] == done


async def test_what_is_there_is_taken_together_and_a_wait_can_be_given_up() -> None:
    turn = Turn(1, 0, lambda: None)
    waiting = asyncio.ensure_future(turn.take())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    first, second, third = (frames.Data(1, text) for text in (b"a", b"b", b"c"))
    waiting = asyncio.ensure_future(turn.take())
    await asyncio.sleep(0)
    turn.push(first)
    turn.push(second)
    turn.deliver()
    assert await waiting == [first, second]
    turn.push(third)
    turn.end(EngineDied("it broke"))
    assert await turn.take() == [third]
    with pytest.raises(EngineDied, match="it broke"):
        await turn.take()


async def test_a_consumer_that_waits_is_passed_what_it_takes() -> None:
    turn = Turn(1, 0, lambda: None)
    first, second, third = (frames.Data(1, text) for text in (b"a", b"b", b"c"))
    passed: list[Event] = []
    room = 1

    def pass_on(events: list[Event]) -> bool:
        taken = len(passed) + len(events) <= room
        passed.extend(events if taken else [])
        return taken

    waiting = asyncio.ensure_future(turn.take(pass_on))
    await asyncio.sleep(0)
    turn.push(first)
    turn.deliver()
    await asyncio.sleep(0)
    assert (passed, waiting.done()) == ([first], False)
    turn.push(second)
    turn.deliver()
    assert (await waiting, passed) == ([second], [first])
    # What comes while nobody waits is kept.
    turn.push(third)
    turn.deliver()
    assert (await turn.take(pass_on), passed) == ([third], [first])
    room = 9
    waiting = asyncio.ensure_future(turn.take(pass_on))
    await asyncio.sleep(0)
    turn.push(first)
    turn.end()
    assert (await waiting, passed) == ([], [first, first])


async def test_a_fault_of_a_consumer_is_raised_where_it_waits() -> None:
    turn = Turn(1, 0, lambda: None)

    def pass_on(events: list[Event]) -> bool:
        raise ValueError(f"cannot take {events}")

    waiting = asyncio.ensure_future(turn.take(pass_on))
    await asyncio.sleep(0)
    turn.push(frames.Data(1, b"a"))
    turn.deliver()
    with pytest.raises(ValueError, match="cannot take"):
        await waiting


async def test_stopping_lets_requests_finish(fake: Fake) -> None:
    files = fake(token_s=0.02)
    running = Running(files)
    async with running as engine:
        await engine.wait_ready()
        turn = submit(engine)
        got = await turn.take()
        await engine.stop(step_s=5.0)
        assert text(got + await events(turn)) == "Hello there, friend."
        assert engine.state.name == "stopped"
    assert files.received[-1] == "EOF"


async def test_a_deaf_engine_is_ended_by_force(fake: Fake) -> None:
    files = fake(repeat=100_000, token_s=1.0)
    async with Running(files) as engine:
        await engine.wait_ready()
        turn = submit(engine, max_tokens=60)
        await turn.take()
        await engine.stop(step_s=0.1)
        with pytest.raises(EngineDied):
            await events(turn)


async def test_values_the_wire_cannot_carry_are_refused(fake: Fake) -> None:
    async with Running(fake()) as engine:
        await engine.wait_ready()
        with pytest.raises(RequestError):
            submit(engine, temperature=float("nan"))
        assert engine.in_flight == 0
