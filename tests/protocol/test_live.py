"""Rules of the serve protocol that a written transcript cannot show: timing, sizes, signals."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from colibri.find_engine import find_engine
from live import MODEL, Live

SHORT = b"SUBMIT 2 1 3 4 0 1 ignore_eos=1\nabc\n"
LONG = b"word " * 400_000


def submit(request: int, payload: bytes) -> bytes:
    return b"SUBMIT %d 0 %d 4 0 1\n%s\n" % (request, len(payload), payload)


def test_a_prompt_that_is_hopeless_by_its_length_is_refused_at_once() -> None:
    with Live() as engine:
        engine.send(submit(1, LONG) + SHORT)
        engine.wait_for(b"DONE 2 ")
        refusal = re.search(rb"ERROR 1 CONTEXT_EXCEEDED (\d+) 63 least\n", engine.output)
        assert refusal is not None
        assert refusal.start() < engine.output.index(b"ACCEPT 2 ")
        # "word" and " word" are the least that such a text can be made of; it is at least that.
        assert 63 < int(refusal[1]) <= 400_001


@pytest.fixture
def forgetful(tmp_path: Path) -> Path:
    """A model whose tokenizer may drop any amount of text, so that no length rules a prompt out."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def test_a_huge_prompt_does_not_hold_up_the_others(forgetful: Path) -> None:
    with Live(model=forgetful) as engine:
        engine.send(submit(1, LONG) + SHORT + submit(3, b"abc") + b"SUBMIT 1 1 3 1 0 1\nabc\n")
        engine.wait_for(b"ERROR 1 CONTEXT_EXCEEDED")
        done = engine.output.index(b"DONE 2 ")
        assert done < engine.output.index(b"ERROR 1 CONTEXT_EXCEEDED")
        assert b"ERROR 3 SLOT_BUSY\n" in engine.output
        engine.send(submit(4, b"abc"))
        engine.wait_for(b"DONE 4 ")


def test_a_huge_prompt_does_not_hold_up_a_long_one(forgetful: Path) -> None:
    with Live(model=forgetful) as engine:
        long = b"word " * 5000
        engine.send(submit(1, LONG) + b"SUBMIT 2 1 %d 4 0 1\n%s\n" % (len(long), long))
        engine.wait_for(b"ERROR 2 CONTEXT_EXCEEDED")
        assert b"ERROR 1 " not in engine.output
        engine.send(b"CANCEL 1\n")
        engine.wait_for(b"ERROR 1 CANCELLED")


def test_a_prompt_that_is_being_tokenised_can_be_cancelled_and_its_id_used_again(
    forgetful: Path,
) -> None:
    with Live(model=forgetful) as engine:
        engine.send(submit(1, LONG) + b"CANCEL 1\n" + submit(1, b"abc"))
        engine.wait_for(b"DONE 1 ")
        assert engine.output.index(b"ERROR 1 CANCELLED") < engine.output.index(b"ACCEPT 1 ")
        engine.end_input()
        assert engine.exit_code() == 0
        assert b"CONTEXT_EXCEEDED" not in engine.output


def test_two_interrupts_end_an_engine_whose_output_nobody_reads() -> None:
    with Live(read=False) as engine:
        engine.send(b"STOP 7\n" * 60_000)
        time.sleep(1)
        engine.signal(signal.SIGINT)
        time.sleep(0.2)
        engine.signal(signal.SIGINT)
        assert engine.process.wait(20) == 1


def test_termination_does_not_wait_for_a_reader_that_never_reads() -> None:
    with Live(read=False) as engine:
        # More answers than the pipe and the queue hold together.
        engine.send(b"STOP 7\n" * 60_000)
        time.sleep(1)
        engine.signal(signal.SIGTERM)
        assert engine.process.wait(20) == 1


HOSTILE = {
    "a command": b"CANCEL 2\n",
    "frames": b"\nCANCEL 2\nSUBMIT 9 0 1 1 0 1\nx\n",
    "a handshake": b"\x01\x01READY\x01\x01\n",
    "an end": b"\x01\x01END\x01\x01\nSTAT 0 0.00 0.0 0.01\n",
    "a record": b"DONE 1 STAT 1 0.00 0.0 0.01 1 0\n",
    "a legacy command": b"\x02RESET\n",
    "line ends": b"\r\n\r\n\n",
    "NUL": b"a\0\nCANCEL 2\n",
    "no UTF-8": b"\xff\xfe\xc3\x28\xed\xa0\x80",
    "half a character": b"\xf0\x9f",
    "special tokens": b"[gMASK]<sop><|user|></think>",
    "nothing": b"",
    "one byte": b"\n",
    "16 MiB": (b"CANCEL 2\n" * (2 << 20))[: 16 << 20],
    "more than 16 MiB": b"x" * ((16 << 20) + 1),
}


def good(engine: Live, request: int) -> None:
    """One valid request is answered."""
    start = len(engine.output)
    engine.send(b"SUBMIT %d 1 3 2 0 1 ignore_eos=1\nabc\n" % request)
    engine.wait_for(b"\nDONE %d STAT 2 " % request, start)


def test_payloads_are_never_obeyed() -> None:
    with Live() as engine:
        for payload in HOSTILE.values():
            start = len(engine.output)
            # A request on the other slot that a payload might cancel.
            engine.send(b"SUBMIT 2 1 3 50 0 1 ignore_eos=1\nabc\n" + submit(1, payload))
            engine.wait_for(b"\nDONE 2 STAT 50 ", start)
            good(engine, 3)
            engine.wait_for_end(1, start)
        engine.end_input()
        assert engine.exit_code() == 0
    assert engine.monitor.exercised["bad-request"] == 2


FIELDS = ("id", "slot", "bytes", "max_tokens", "temperature", "top_p", "option")
WRONG = {
    "id": ("0", "-1", "+1", "x", "1.0", "0x1", "18446744073709551616", "1e3"),
    "slot": ("2", "-1", "x", "18446744073709551616", "1.0"),
    "bytes": ("16777217", "1073741824"),
    "max_tokens": ("0", "-1", "2147483648", "x", "1.0", "1e1"),
    "temperature": ("-0.1", "2.1", "nan", "inf", "-inf", "1e400", "0x1p0", "x", "-0", "+1", "."),
    "top_p": ("0", "1.1", "nan", "-1", "x", "1e-", "+1"),
    "option": ("x", "=", "x=1", "seed=", "seed=-1", "topk=21", "stop_ids=,", "5", "grammar=5"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_headers_with_a_wrong_field_are_refused_and_their_payload_is_skipped(field: str) -> None:
    payload = b"STOP 8\nCANCEL 8\n"
    with Live() as engine:
        for number, wrong in enumerate(WRONG[field], 100):
            values = dict(
                zip(FIELDS, ("7", "0", str(len(payload)), "1", "0", "1", ""), strict=True)
            )
            values[field] = wrong
            extra = 5 if wrong in ("5", "grammar=5") else 0
            size = int(values["bytes"]) if field == "bytes" else len(payload) + extra
            if size > 1 << 25:
                continue  # a payload that long is tested elsewhere
            engine.send(("SUBMIT " + " ".join(filter(None, values.values())) + "\n").encode())
            engine.send((payload + bytes(65 for _ in range(extra))).ljust(size, b"x") + b"\n")
            good(engine, number)
        engine.end_input()
        assert engine.exit_code() == 0
        assert engine.monitor.exercised["bad-request"] == len(WRONG[field]) - (field == "bytes")
        assert engine.output.count(b" NOT_FOUND") == 0


@pytest.mark.parametrize("count", range(6))
def test_headers_that_lack_fields_are_refused(count: int) -> None:
    """Without ``bytes`` the end of the frame is unknown; with it the payload is skipped."""
    header = " ".join(["SUBMIT", *("7", "0", "3", "1", "0")[:count]])
    with Live() as engine:
        engine.send(f"{header}\n".encode())
        if count < 3:
            engine.wait_for(b" BAD_FRAME")
            assert engine.exit_code() == 3
        else:
            engine.send(b"abc\n")
            good(engine, 8)
            assert b"\nERROR 7 BAD_REQUEST" in engine.output


def long_prompt(number: int) -> bytes:
    """4,000 tokens that share no beginning with those of another number."""
    return b"%d" % number + b" d" * 3999


def test_cancel_during_a_long_prefill_takes_effect_within_one_wave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Short waves, so that a prompt of this length takes a while on any machine.
    monkeypatch.setenv("COLIBRI_PREFILL_CHUNK", "16")
    progress, seconds = [], []
    with Live(ctx=4096) as engine:
        for number in range(10):
            prompt = long_prompt(number)
            start = len(engine.output)
            engine.send(submit(1, prompt))
            # The second record comes in the midst of the prompt.
            engine.wait_for(b"\nPREFILL 1 ", start)
            engine.wait_for(b"\nPREFILL 1 ", engine.output.index(b"\nPREFILL 1 ", start) + 1)
            cancelled = time.monotonic()
            engine.send(b"CANCEL 1\n")
            engine.wait_for(b"\nERROR 1 CANCELLED\n", start)
            seconds.append(time.monotonic() - cancelled)
            seen = re.findall(rb"(?m)^PREFILL 1 (\d+) (\d+)$", engine.output[start:])
            assert seen[0] == (b"0", b"4000")
            assert 0 < int(seen[-1][0]) < 3900
            # The first PREFILL of the same prompt tells how far the cancelled one has come.
            start = len(engine.output)
            engine.send(submit(2, prompt))
            engine.wait_for(b"\nPREFILL 2 ", start)
            engine.send(b"CANCEL 2\n")
            # What was left of it may have been computed before.
            engine.wait_for_end(2, start)
            [reused] = re.findall(rb"\nPREFILL 2 (\d+) ", engine.output[start:])[:1]
            progress.append(int(reused) - int(seen[-1][0]))
    # Other processes may keep us from sending at once, but not each time.
    assert min(progress) <= 16, progress
    assert max(seconds) < 5, seconds


def test_stop_right_behind_its_submit_ends_as_a_success() -> None:
    with Live(ctx=4096) as engine:
        for number, prompt in enumerate((b"abc", b"x" * 3000, long_prompt(0), b"word " * 800), 1):
            start = len(engine.output)
            engine.send(submit(number, prompt) + b"STOP %d\n" % number)
            engine.wait_for(b"\nDONE %d STAT 0 0.00 " % number, start)
        engine.end_input()
        assert engine.exit_code() == 0
        assert engine.monitor.exercised["stop"] == 4


def test_aborted_requests_leave_nothing_behind() -> None:
    rng = random.Random(3)
    slots = 4
    number = warm = 0
    with Live(ctx=4096, slots=slots) as engine:
        # Some have ended before their CANCEL is read.
        while (aborted := engine.monitor.exercised["cancel"]) < 250:
            number += 1
            assert number < 1000
            prompt = rng.randbytes(rng.choice((3, 30, 1000))).replace(b"\0", b"x")
            start = len(engine.output)
            slot = rng.randrange(slots)
            header = b"SUBMIT %d %d %d 3000 0 1 ignore_eos=1\n" % (number, slot, len(prompt))
            engine.send(header + prompt + b"\n")
            time.sleep(rng.choice((0.0, 0.001, 0.01)))
            engine.send(b"CANCEL %d\n" % number)
            engine.wait_for(b"\nERROR %d " % number, start)
            if aborted == 50:
                warm = engine.rss()
        grown = engine.rss() - warm
        for slot in range(slots):
            engine.send(b"SUBMIT %d %d 3 2 0 1 ignore_eos=1\nabc\n" % (1000 + slot, slot))
            engine.wait_for(b"\nDONE %d STAT 2 " % (1000 + slot))
        engine.end_input()
        assert engine.exit_code() == 0
    assert grown < 8 << 20, grown


@pytest.mark.parametrize("reader", ["full disk", "gone"])
def test_answers_go_on_where_nobody_can_be_told_of_anything(reader: str, tmp_path: Path) -> None:
    if reader == "gone":
        theirs, ours = os.pipe()
        os.close(theirs)
    else:
        ours = os.open("/dev/full", os.O_WRONLY)
    command = [*find_engine(), "--mux", "--model", str(MODEL), "--ctx", "64"]
    settings = {"COLIBRI_STATE_DIR": str(tmp_path), "KVSAVE": "1"}
    for _ in range(2):
        done = subprocess.run(
            command,
            input=submit(1, b"abc"),
            stdout=subprocess.PIPE,
            stderr=ours,
            env={**os.environ, **settings},
            timeout=60,
        )
        assert b"\nDONE 1 " in done.stdout
        assert done.returncode == 0
        # What stands in the way of a conversation is told at the start, and when it is to be saved.
        (kept,) = tmp_path.glob("*/.coli_kv")
        if kept.is_file():
            kept.unlink()
            kept.mkdir()
    os.close(ours)
