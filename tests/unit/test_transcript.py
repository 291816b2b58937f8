from __future__ import annotations

import pytest

from colibri.conformance.transcript import (
    Action,
    Choice,
    Expect,
    Send,
    Start,
    TranscriptError,
    kind_of,
    parse,
    parse_pattern,
    request_of,
)

HEAD = "rule: a/b\ntag: seed\ntext: So it is.\n\n"


def body(text: str, wire: str = "full") -> list[object]:
    return list(parse(HEAD + text, "t").steps(wire))


def matches(pattern: str, record: bytes, **known: bytes) -> bool:
    return parse_pattern(pattern).match(record, known) is not None


def test_a_head_says_what_the_rule_is_and_how_the_engine_is_started() -> None:
    transcript = parse(
        "# a comment\nrule: turn/ends\ntag: ours\ntext: A turn: it ends.\nsection: 3\n"
        "covers: line:DONE, error:CANCELLED\nwire: full seed\nneeds: seed, topk\nslots: 16\n"
        "ctx: 64\nenv: SERVE_TOPK=1 A=b=c\norder: stream\nwatch: CAPS HITS\n\n$ eof\n",
        "t",
    )
    assert (transcript.rule, transcript.tag, transcript.text) == (
        "turn/ends",
        "ours",
        "A turn: it ends.",
    )
    assert transcript.section == "3"
    assert transcript.covers == {"line:DONE", "error:CANCELLED"}
    assert transcript.wires == {"full", "seed"}
    assert transcript.needs == {"seed", "topk"}
    assert transcript.start == Start(16, 64, (("SERVE_TOPK", "1"), ("A", "b=c")))
    assert transcript.ordered
    assert transcript.watch == {b"CAPS", b"HITS"}


def test_what_a_head_leaves_out_has_defaults() -> None:
    transcript = parse(HEAD, "t")
    assert transcript.wires == {"full", "seed", "upstream"}
    assert transcript.start == Start(slots=2, ctx=4096)
    assert not transcript.ordered
    assert transcript.steps("full") == []


def test_steps_have_the_numbers_of_their_lines() -> None:
    send, expect, more, end = body("> STOP 1\\n\n# why\n< DONE 1 {s}\n* HITS {s}\n\n$ exit 3\n")
    assert send == Send(5, (b"STOP 1\n",))
    assert isinstance(expect, Expect)
    assert (expect.line, expect.often, expect.required) == (7, "<", True)
    assert isinstance(more, Expect)
    assert not more.required
    assert end == Action(10, "exit", "3")


def test_bytes_have_escapes_and_fillings() -> None:
    (send,) = body(r"> a\x00\n\r\t\0\\\xff{fill:3:ab\n}{}é")
    assert isinstance(send, Send)
    assert send.data(()) == b"a\0\n\r\t\0\\\xff" + b"ab\n" * 3 + b"{}\xc3\xa9"
    (large,) = body("> {fill:16777216:a}")
    assert isinstance(large, Send)
    assert len(large.data(())) == 1 << 24


def test_options_are_sent_where_they_are_offered() -> None:
    (send,) = body("> SUBMIT{if:ignore_eos=1}")
    assert isinstance(send, Send)
    assert send.data({"seed", "ignore_eos"}) == b"SUBMIT ignore_eos=1"
    assert send.data({"seed"}) == b"SUBMIT"


def test_steps_are_left_out_in_other_wire_modes() -> None:
    text = "@full,upstream < ACCEPT 1 {n}\n@seed > x\n< DONE 1\n"
    assert [step.line for step in body(text)] == [5, 7]  # type: ignore[attr-defined]
    assert [step.line for step in body(text, "seed")] == [6, 7]  # type: ignore[attr-defined]


def test_choices_are_between_records() -> None:
    (choice,) = body("either\n< A\nor\n< B\neither\n< C\nor\nend\nend\n")
    assert isinstance(choice, Choice)
    assert choice.required
    first, second = choice.branches
    assert [len(first), len(second)] == [1, 2]
    inner = second[1]
    assert isinstance(inner, Choice)
    assert not inner.required


@pytest.mark.parametrize(
    ("pattern", "record", "expected"),
    [
        ("A {n}", b"A 12\n", True),
        ("A {n}", b"A -1\n", False),
        ("A {i}", b"A -1\n", True),
        ("A {n}", b"A 12", False),
        ("A {n}", b"A\n", False),
        ("A {n}", b"A 1 further fields\n", True),
        ("A {n}", b"A 1x\n", False),
        ("A {n:2..4}", b"A 4\n", True),
        ("A {n:2..4}", b"A 5\n", False),
        ("A {n:0..9}", b"A " + b"9" * 5000 + b"\n", False),
        ("A {i:0..9}", b"A -1\n", False),
        ("A {f}", b"A -0.000\n", True),
        ("A {f}", b"A 1\n", False),
        ("A {f}", b"A nan\n", False),
        ("A {f2}", b"A 1.25\n", True),
        ("A {f2}", b"A 1.250\n", False),
        ("A {f3...}", b"A 1.000 2.000 3.000\n", True),
        ("A {f3...}", b"A\n", False),
        ("A {x}", b"A 0aff\n", True),
        ("A {x}", b"A 0af\n", False),
        ("A {x}", b"A 0AFF\n", False),
        ("A {h}", b"A -\n", True),
        ("A {w} 1", b"A b|c 1\n", True),
        ("A {s}|none", b"A some cpu|none\n", True),
        ("A {s}", b"A \n", False),
        ("A {t}|{t}", b"A a cpu|\n", True),
        ("A {t}|{t}", b"A a cpu\n", False),
        (r"\x01R\x01", b"\x01R\x01\n", True),
        ("A.B", b"AxB\n", False),
        ("DATA 1 {data}", b"DATA 1 3\n\xff\n\0\n", True),
        ("DATA 1 {data}", b"DATA 2 3\nabc\n", False),
        (r"DATA 1 3\nabc", b"DATA 1 3\nabc\n", True),
        (r"DATA 1 3\nabc", b"DATA 1 3\nabc x\n", False),
    ],
)
def test_records_match_patterns(pattern: str, record: bytes, expected: bool) -> None:
    assert matches(pattern, record) is expected


def test_placeholders_remember() -> None:
    pattern = parse_pattern("A {n:x} {n:y} {n:x}")
    assert pattern.match(b"A 1 2 1\n", {}) == {"x": b"1", "y": b"2"}
    assert pattern.match(b"A 1 2 3\n", {}) is None
    assert pattern.match(b"A 1 2 1\n", {"y": b"3"}) is None
    assert pattern.match(b"A 1 2 1\n", {"x": b"1"}) == {"y": b"2"}


def test_records_have_a_kind_and_perhaps_a_request() -> None:
    assert parse_pattern(r"\x01\x01READY\x01\x01").kind == b"\x01\x01READY\x01\x01"
    assert parse_pattern("DONE 12 STAT {s}").request == 12
    assert parse_pattern("HITS 3 8 {x}").request is None
    assert kind_of(b"READY\n") == b"READY"
    assert request_of(b"DATA 5 2\nA \n") == 5
    assert request_of(b"DATA x 2\n") is None
    assert request_of(b"DONE " + b"9" * 5000 + b" STAT\n") is None
    assert request_of(b"TIERS 5 2 3\n") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rule: a\n\n", "t:2: the head lacks tag, text"),
        ("rule: a\nrule: b\n", "t:2: not a line of the head"),
        ("color: blue\n", "t:1: not a line of the head"),
        (HEAD.replace("seed", "sead"), "the tag is one of"),
        (HEAD.replace("\n\n", "\nwire: fool\n\n"), "wire modes are"),
        (HEAD.replace("\n\n", "\norder: none\n\n"), "the order is"),
        (HEAD + "? A\nHello\n", "t:6: not a step"),
        (HEAD + ">A\n", "not a step"),
        (HEAD + "> \\q\n", "unknown escape"),
        (HEAD + "> {fill:x:a}\n", "unknown escape"),
        (HEAD + "< A {q}\n", "unknown placeholder"),
        (HEAD + "$ exit\n", "not an action"),
        (HEAD + "@none < A\n", "wire modes are"),
        (HEAD + "either\n< A\n", "a choice has no end"),
        (HEAD + "either\n> A\nend\n", "a choice is between records"),
        (HEAD + "end\n", "not a step"),
        (HEAD.replace("\n\n", "\nslots: two\n\n"), "slots must be an integer of at most 9 digits"),
        (HEAD.replace("\n\n", f"\nctx: {'9' * 5000}\n\n"), "ctx must be an integer of at most 9"),
        (HEAD + "$ signal FOO\n", "not an action: 'signal FOO'"),
        (HEAD + f"$ exit {'9' * 5000}\n", "not an action"),
        (HEAD + f"$ wait {'9' * 5000}\n", "not an action"),
        (HEAD + f"< A {{n:0..{'9' * 5000}}}\n", "unknown placeholder"),
        (HEAD + f"> {{fill:{'9' * 5000}:x}}\n", "unknown escape"),
        (HEAD + "> {fill:99999999:xyz}\n", "more than 64 MiB: {fill:99999999:xyz}"),
        (HEAD + "< A {w:1..2}\n", "only integers have bounds"),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, complaint: str) -> None:
    with pytest.raises(TranscriptError, match=r"^t:") as caught:
        parse(text, "t")
    assert complaint in str(caught.value)
