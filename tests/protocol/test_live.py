"""Rules of the serve protocol that a written transcript cannot show: timing, sizes, signals."""

from __future__ import annotations

import signal
import time

import pytest

from live import Live

SHORT = b"SUBMIT 2 1 3 4 0 1 ignore_eos=1\nabc\n"
LONG = b"word " * 400_000


def submit(request: int, payload: bytes) -> bytes:
    return b"SUBMIT %d 0 %d 4 0 1\n%s\n" % (request, len(payload), payload)


def test_a_huge_prompt_does_not_hold_up_the_others() -> None:
    with Live() as engine:
        engine.send(submit(1, LONG) + SHORT + submit(3, b"abc") + b"SUBMIT 1 1 3 1 0 1\nabc\n")
        engine.wait_for(b"ERROR 1 CONTEXT_EXCEEDED")
        done = engine.output.index(b"DONE 2 ")
        assert done < engine.output.index(b"ERROR 1 CONTEXT_EXCEEDED")
        assert b"ERROR 3 SLOT_BUSY\n" in engine.output
        engine.send(submit(4, b"abc"))
        engine.wait_for(b"DONE 4 ")


def test_a_prompt_that_is_being_tokenised_can_be_cancelled_and_its_id_used_again() -> None:
    with Live() as engine:
        engine.send(submit(1, LONG) + b"CANCEL 1\n" + submit(1, b"abc"))
        engine.wait_for(b"DONE 1 ")
        assert engine.output.index(b"ERROR 1 CANCELLED") < engine.output.index(b"ACCEPT 1 ")
        engine.end_input()
        assert engine.exit_code() == 0
        assert b"CONTEXT_EXCEEDED" not in engine.output


def test_interrupts_end_turns_and_a_second_one_the_engine() -> None:
    with Live() as engine:
        engine.wait_for(b"CAPS ")
        engine.process.send_signal(signal.SIGINT)
        engine.send(SHORT)
        engine.wait_for(b"DONE 2 ")
        time.sleep(2.1)  # two interrupts count as one request to end only within two seconds
        engine.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        engine.process.send_signal(signal.SIGINT)
        assert engine.exit_code() == 0


@pytest.mark.parametrize("wanted", [signal.SIGTERM, None], ids=["terminated", "end of input"])
def test_it_ends_with_code_0(wanted: signal.Signals | None) -> None:
    with Live() as engine:
        engine.wait_for(b"CAPS ")
        if wanted is None:
            engine.end_input()
        else:
            engine.process.send_signal(wanted)
        assert engine.exit_code() == 0


def test_termination_does_not_wait_for_a_reader_that_never_reads() -> None:
    with Live(read=False) as engine:
        # More answers than the pipe and the queue hold together.
        engine.send(b"STOP 7\n" * 60_000)
        time.sleep(1)
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(20) == 1
