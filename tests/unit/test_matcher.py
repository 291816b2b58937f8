from __future__ import annotations

import pytest

from colibri.conformance.matcher import Matcher, Mismatch, Records
from colibri.conformance.transcript import Action, Send, parse

HEAD = "rule: a/b\ntag: seed\ntext: So it is.\n{}\n"
READY = b"\x01\x01READY\x01\x01\n"


def play(text: str, *records: str, head: str = "", wire: str = "full") -> Matcher:
    """The matcher after these records; whatever is due meanwhile is done."""
    matcher = Matcher(parse(HEAD.format(head) + text, "t"), wire)
    for record in ("", *records):
        if record:
            matcher.take(record.encode() + b"\n")
        while matcher.due is not None:
            matcher.done()
    return matcher


def test_records_come_as_written() -> None:
    assert play("< A 1\n< B 2\n", "A 1", "B 2").is_complete
    assert not play("< A 1\n< B 2\n", "A 1").is_complete
    with pytest.raises(Mismatch, match=r"wanted A 1 \(line 5\), B 2 \(line 6\), not 'B 2"):
        play("< A 1\n< B 2\n", "B 2")
    with pytest.raises(Mismatch, match="wanted no such record"):
        play("< A 1\n", "A 1", "A 1")


def test_the_records_of_requests_interleave() -> None:
    text = "< DATA 1 {data}\n< DONE 1\n< DATA 2 {data}\n< DONE 2\n"
    assert play(text, "DATA 2 1\nx", "DATA 1 1\nx", "DONE 1", "DONE 2").is_complete
    with pytest.raises(Mismatch):
        play(text, "DONE 2")
    with pytest.raises(Mismatch):
        play(text, "DATA 2 1\nx", head="order: stream\n")


def test_kinds_that_are_not_named_are_skipped() -> None:
    assert play("< DONE 1\n", "HITS 1", "DATA 1 1\nx", "NEW 1 2", "DONE 1").is_complete
    assert play("< DATA 1 {data}\n", "DATA 2 1\nx", "DATA 1 1\nx").is_complete
    for record in ("DONE 2", "ERROR 1 X", "STAT 0"):
        with pytest.raises(Mismatch):
            play("< DONE 1\n", record)
    with pytest.raises(Mismatch):
        play("< DONE 1\n", "HITS 1", head="watch: HITS CAPS\n")
    with pytest.raises(Mismatch):
        play("< DATA 1 {data}\n< DONE 1\n", "DATA 1 1\nx", "DATA 1 1\nx")


@pytest.mark.parametrize(
    ("step", "counts"),
    [("<", {1}), ("~", {1}), ("-", {1}), ("+", {1, 2, 3}), ("?", {0, 1}), ("*", {0, 1, 2, 3})],
)
def test_steps_say_how_often(step: str, counts: set[int]) -> None:
    for count in range(4):
        records = [*(count * ["A 1"]), "B 2"]
        try:
            complete = play(f"{step} A 1\n< B 2\n", *records).is_complete
        except Mismatch:
            complete = False
        assert complete is (count in counts)


def test_optional_records_may_come_in_any_order() -> None:
    text = "* A 1\n? B 2\n* C 3\n< D 4\n"
    assert play(text, "C 3", "B 2", "A 1", "C 3", "D 4").is_complete
    with pytest.raises(Mismatch):
        play(text, "B 2", "B 2")


def test_what_is_remembered_must_come_again() -> None:
    assert play("< A {n:x}\n< B {n:x}\n", "A 5", "B 5").is_complete
    with pytest.raises(Mismatch):
        play("< A {n:x}\n< B {n:x}\n", "A 5", "B 6")
    assert play("< ACCEPT 1 {n:x}\n< ACCEPT 2 {n:x}\n", "ACCEPT 2 7", "ACCEPT 1 7").is_complete


def test_branches_may_begin_alike() -> None:
    text = "either\n< A 1\n< A 2\n< B 2\nor\n* A {n}\n< B 0\nend\n< C\n"
    assert play(text, "A 1", "A 2", "B 2", "C").is_complete
    assert play(text, "A 1", "A 2", "B 0", "C").is_complete
    assert play(text, "B 0", "C").is_complete
    with pytest.raises(Mismatch):
        play(text, "A 1", "B 2")
    assert play("either\n< A\nor\nend\n< B\n", "B").is_complete
    assert not play("either\n< A\nor\n< B\nend\n").is_complete


def test_bytes_are_due_once_the_records_before_them_have_come() -> None:
    matcher = Matcher(parse(HEAD.format("") + "* A 1\n< B 2\n> x\n< C 3\n$ eof\n", "t"), "full")
    assert matcher.due is None
    matcher.take(b"A 1\n")
    assert matcher.due is None
    matcher.take(b"B 2\n")
    assert isinstance(matcher.due, Send)
    with pytest.raises(Mismatch):
        matcher.take(b"C 3\n")  # before it was asked for
    matcher.done()
    assert matcher.due is None
    matcher.take(b"C 3\n")
    assert isinstance(matcher.due, Action)
    assert not matcher.is_complete
    matcher.done()
    assert matcher.is_complete


def test_bytes_do_not_wait_for_records_that_say_so() -> None:
    text = "+ DATA 1 {data}\n~ DONE 1\n> STOP 1\\n\n? ERROR 1 X\n"
    for early in (True, False):
        matcher = Matcher(parse(HEAD.format("") + text, "t"), "full")
        matcher.take(b"DATA 1 0\n\n")
        if early:
            matcher.take(b"DONE 1\n")
        assert isinstance(matcher.due, Send)
        matcher.done()
        assert matcher.is_complete is early
        if not early:
            matcher.take(b"DATA 1 0\n\n")
            matcher.take(b"DONE 1\n")
        matcher.take(b"ERROR 1 X\n")
        assert matcher.is_complete
        with pytest.raises(Mismatch):
            matcher.take(b"DONE 1\n")


def test_optional_records_may_still_come_after_bytes() -> None:
    matcher = Matcher(parse(HEAD.format("") + "* A 1\n> x\n< B 2\n", "t"), "full")
    assert isinstance(matcher.due, Send)
    matcher.done()
    matcher.take(b"A 1\n")
    matcher.take(b"B 2\n")
    assert matcher.is_complete


def cut(data: bytes) -> list[bytes]:
    whole = list(Records().feed(data))
    reader = Records()
    split = [record for i in range(len(data)) for record in reader.feed(data[i : i + 1])]
    assert split == whole
    return whole


def test_output_is_cut_into_records() -> None:
    endless = b"DATA 1 " + b"9" * 5000 + b"\n"
    text = b"STAT 0\nDATA 1 3\n\nA\n\nDATA 1 0\n\nDATA x\n" + endless + b"DONE 1\nDATA 1 4\nab"
    assert cut(b"a banner\nloading" + READY + text) == [
        READY,
        b"STAT 0\n",
        b"DATA 1 3\n\nA\n\n",
        b"DATA 1 0\n\n",
        b"DATA x\n",
        endless,
        b"DONE 1\n",
    ]
    assert cut(b"no engine\n") == []


def test_a_payload_without_its_newline_is_told() -> None:
    records = Records()
    with pytest.raises(Mismatch, match="no newline after the payload"):
        list(records.feed(READY + b"DATA 1 1\nab"))
