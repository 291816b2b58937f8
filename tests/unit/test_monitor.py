"""The model of the protocol: a good conversation passes, and each fault breaks its rule."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.conformance.monitor import RULES, Monitor

READY = b"\x01\x01READY\x01\x01\n"
HWINFO = b"HWINFO 2 8.0 4.0 0 0.0 A CPU|none\n"
CAPS = b"CAPS proto=1 ctx=64 slots=2 vocab=512 model=m submit=seed,topk layers=1,2\n"
ENTROPY = b"ENTROPY 0.000 1.500\n"
GPUS = b"GPUS 0\n"
TIERS = b"TIERS 0 3 3 0.00 0.01\n"
EMAP = b"EMAP 2 3 400041000141\n"
HITS = b"HITS 2 3 2a\n"
PERF = b"PERF 1 1.000000 0.000000 0.000000 0.500000 0.100000 0.000000 0.100000\n"
PROF = b"PROF 1.000 4 3 0.000 -0.000 0.500 0.100 0.100 9\n"
HANDSHAKE = READY + b"STAT 0 0.00 0.0 0.01\n" + HWINFO + GPUS + TIERS + EMAP
BLOCK = HWINFO + PERF + ENTROPY + GPUS + TIERS + EMAP + HITS
ANSWER = (
    b"ACCEPT 1 4\nPREFILL 1 0 4\nPREFILL 1 4 4\n"
    b"DATA 1 2\n\xc3\xa9\nTOPK 1 2 -0.1000 c3a9 -3.0000 -\n"
    b"DATA 1 0\n\nTOPK 1 2 -0.5000 41 -0.5000 42\n" + HITS + b"REPIN 1 2 0 -1\n"
    b"DATA 1 2\n\xbf\xc3\nTOPK 1 2 -0.1000 ff -0.2000 fe\n" + BLOCK
)
SUBMIT = b"SUBMIT 1 0 7 3 0 1 topk=2\nDONE 1\n\n"
# What is sent, and what comes after it and before the next.
GOOD: list[tuple[bytes, bytes]] = [
    (b"", HANDSHAKE + CAPS),
    (SUBMIT, ANSWER + b"DONE 1 STAT 3 12.50 75.0 0.01 4 1\n"),
    (
        b"SUBMIT 2 0 3 9 0 1\nabc\nSUBMIT 3 0 1 9 0 1\nx\nSUBMIT 2 1 1 9 0 1\nx\n",
        b"ACCEPT 2 2\nERROR 3 SLOT_BUSY\nERROR 2 DUPLICATE_ID\nPREFILL 2 1 2\nDATA 2 1\nx\n",
    ),
    (
        b"STOP 2\n",
        BLOCK.replace(b"PERF 1", b"PERF 2") + b"DONE 2 STAT 1 0.00 0.0 0.01 2 0\n",
    ),
    (b"CANCEL 2\nSTOP 7\n", b"ERROR 2 NOT_FOUND\nERROR 7 NOT_FOUND\n"),
    (b"SUBMIT 4 0 3 9 0 1\nabc\nCANCEL 4\n", b"ACCEPT 4 2\nERROR 4 CANCELLED\n"),
    (b"SUBMIT 5 0 0 9 0 1\n\n", b"ERROR 5 EMPTY_PROMPT\n"),
    (b"SUBMIT 6 0 1 9 0 1\nx\n", b"ERROR 6 CONTEXT_EXCEEDED 70 63\n"),
    (b"SUBMIT 8 0 1 9 3 1\nx\n", b"ERROR 8 BAD_REQUEST temperature%20is%20wrong\n"),
    (b"jump\n", b"ERROR 0 BAD_REQUEST unknown%20verb\n"),
    (b"SUBMIT 9 0 x 9 0 1\nSTOP 1\n", b"ERROR 9 BAD_FRAME length\n"),
]
SEED = [
    (b"", HANDSHAKE),
    (b"SUBMIT 1 0 1 9 0 1\nx\nSTOP 1\n", b"DATA 1 1\nx\n" + HITS + BLOCK),
    (b"", b"DONE 1 STAT 1 0.00 75.0 0.01 4 0\n"),
    (b"SUBMIT 1 0 1 9 0 1 seed=1\nx\n", b"ERROR 1 BAD_REQUEST\n"),
]
UPSTREAM = [
    (b"", HANDSHAKE),
    (b"SUBMIT 1 0 1 9 0 1\nx\n", b"ACCEPT 1 4\nDATA 1 1\nx\nDATA 1 1\ny\n"),
    (b"", HWINFO + GPUS + TIERS + EMAP + HITS + PROF + b"DONE 1 STAT 2 1.25 75.0 0.01 4 0\n"),
]


def watch(
    conversation: Iterable[tuple[bytes, bytes]], *, wire: str = "full", exit_code: int = 0
) -> Monitor:
    monitor = Monitor(wire, 2)
    for sent, received in conversation:
        monitor.sent(sent)
        monitor.received(received)
    monitor.input_ended()
    monitor.ended(exit_code)
    return monitor


def broken(monitor: Monitor) -> set[str]:
    return {finding.rule for finding in monitor.findings}


def test_good_conversations_pass_and_exercise_the_rules() -> None:
    monitor = watch(GOOD, exit_code=3)
    assert monitor.findings == []
    assert set(monitor.exercised) == {rule.id for rule in RULES}
    assert watch(SEED, wire="seed").findings == []
    assert watch(UPSTREAM, wire="upstream").findings == []


def test_rules_are_well_formed() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert {rule.tag for rule in RULES} == {"seed", "compat", "ours"}
    assert {rule.section for rule in RULES} <= set("12345")


# A step of GOOD, what is replaced there, by what, and the rules that this breaks.
FAULTS = [
    ("handshake", 0, GPUS + TIERS, TIERS + GPUS),
    ("handshake", 0, TIERS, b""),
    ("handshake", 1, b"ACCEPT", b"STAT 0 0.00 0.0 0.01\nACCEPT"),
    ("caps", 0, b"proto=1", b"proto=2"),
    ("caps", 0, b"vocab=512 ", b""),
    ("caps", 0, b"slots=2", b"slots=3"),
    ("quiet-start", 0, READY, b"engine v1\n" + READY),
    ("syntax", 1, TIERS, b"TIERS 0 x 3 0.00 0.01\n" + TIERS),
    ("syntax", 1, EMAP, b"EMAP 2 3 4000\n" + EMAP),
    ("format", 1, b" 12.50 ", b" 12.5 "),
    ("format", 1, b"HITS 2 3 2a", b"HITS 2 3 2A"),
    ("format", 1, b"ENTROPY 0.000", b"ENTROPY 0.0"),
    ("format", 1, b"-0.1000", b"-0.1"),
    ("format", 1, b"GPUS 0\n", b"GPUS 0\r\n"),
    ("format", 1, b"A CPU", b"A\tCPU"),
    ("format", 0, b"STAT 0 0.00", b"STAT 1 0.00"),
    ("kinds", 1, b"ACCEPT", b"HELLO\nACCEPT"),
    ("kinds", 1, HWINFO, HWINFO + PROF),
    ("one-answer", 1, b"ACCEPT 1 4\n", b""),
    ("one-answer", 1, b"ACCEPT 1 4\n", b"ACCEPT 1 4\nACCEPT 1 4\n"),
    ("one-answer", 7, b"ERROR 6 CONTEXT_EXCEEDED 70 63\n", b""),
    ("one-end", 1, b"DONE 1 STAT 3 12.50 75.0 0.01 4 1\n", b""),
    ("one-end", 1, b"DONE 1 STAT", BLOCK + b"DONE 1 STAT 0 0.00 0.0 0.01 4 0\nDONE 1 STAT"),
    ("in-flight", 1, b"DATA 1 2\n\xc3", b"DATA 9 1\nx\nDATA 1 2\n\xc3"),
    ("in-flight", 5, b"CANCELLED\n", b"CANCELLED\nDATA 4 1\nx\n"),
    ("bad-request", 8, b"BAD_REQUEST", b"EMPTY_PROMPT"),
    ("bad-request", 8, b"ERROR 8 BAD_REQUEST temperature%20is%20wrong\n", b""),
    (
        "bad-request",
        8,
        b"ERROR 8 BAD_REQUEST temperature%20is%20wrong\n",
        b"ACCEPT 8 1\n",
    ),
    ("bad-request", 9, b"ERROR 0", b"ERROR 5"),
    ("bad-frame", 10, b"ERROR 9 BAD_FRAME length\n", b""),
    ("bad-frame", 10, b"BAD_FRAME", b"BAD_REQUEST"),
    ("not-found", 10, b"length\n", b"length\nERROR 1 NOT_FOUND\n"),
    ("slot-busy", 2, b"ERROR 3 SLOT_BUSY", b"ACCEPT 3 1"),
    ("slot-busy", 7, b"CONTEXT_EXCEEDED 70 63", b"SLOT_BUSY"),
    ("duplicate-id", 7, b"CONTEXT_EXCEEDED 70 63", b"DUPLICATE_ID"),
    ("empty-prompt", 6, b"ERROR 5 EMPTY_PROMPT", b"ACCEPT 5 1"),
    ("empty-prompt", 6, b"ERROR 5 EMPTY_PROMPT\n", b""),
    ("empty-prompt", 1, b"ACCEPT 1 4\n", b"ACCEPT 1 4\nERROR 1 EMPTY_PROMPT\n"),
    ("context", 7, b"70 63", b"63 63"),
    ("context", 7, b"70 63", b"70 62"),
    ("context", 7, b" 70 63", b""),
    ("context", 1, b"ACCEPT 1 4", b"ACCEPT 1 64"),
    ("not-found", 4, b"ERROR 7 NOT_FOUND", b"ERROR 8 NOT_FOUND"),
    ("stop", 4, b"ERROR 7 NOT_FOUND\n", b""),
    ("cancel", 4, b"ERROR 2 NOT_FOUND\n", b""),
    ("cancel", 3, b"HWINFO", b"ERROR 2 CANCELLED\nHWINFO"),
    ("error-code", 8, b"BAD_REQUEST", b"WRONG"),
    ("data-count", 1, b"STAT 3", b"STAT 2"),
    ("prompt-tokens", 1, b"0.01 4 1", b"0.01 5 1"),
    ("prompt-tokens", 1, b"PREFILL 1 4 4", b"PREFILL 1 4 5"),
    ("prefill", 1, b"PREFILL 1 0 4", b"PREFILL 1 4 4"),
    ("prefill", 1, b"PREFILL 1 0 4\nPREFILL 1 4 4", b"PREFILL 1 2 4\nPREFILL 1 1 4"),
    ("prefill", 1, b"PREFILL 1 4 4", b"PREFILL 1 5 4"),
    ("prefill", 1, b"PREFILL 1 0 4\nPREFILL 1 4 4\n", b""),
    ("prefill", 1, b"DATA 1 0", b"PREFILL 1 4 4\nDATA 1 0"),
    ("length-limited", 1, b"0.01 4 1", b"0.01 4 0"),
    ("length-limited", 3, b"0.01 2 0", b"0.01 2 1"),
    ("utf8", 1, b"\n\xc3\xa9\n", b"\na\xc3\n"),
    ("topk-place", 1, b"TOPK 1 2 -0.1000 c3a9 -3.0000 -\n", b""),
    ("topk-place", 1, b"TOPK 1 2 -0.1000 c3", b"REPIN 1 2 0 -1\nTOPK 1 2 -0.1000 c3"),
    ("topk-place", 2, b"\nx\n", b"\nx\nTOPK 2 5" + 5 * b" -1.0000 41" + b"\nDATA 2 1\nx\n"),
    ("topk-values", 1, b"-3.0000 -", b"-0.0500 -"),
    ("topk-values", 1, b"TOPK 1 2 -0.1000 c3a9 -3.0000 -", b"TOPK 1 1 -0.1000 c3a9"),
    ("topk-values", 1, b"-0.1000 c3", b"0.1000 c3"),
    ("block", 1, ENTROPY + GPUS, GPUS + ENTROPY),
    ("block", 1, BLOCK, b""),
    ("block", 1, BLOCK, BLOCK + HWINFO),
    ("block", 1, b"REPIN", TIERS + b"REPIN"),
    ("block", 3, b"PERF 2", b"PERF 1"),
    ("hits-active", 4, b"ERROR 2", HITS + b"ERROR 2"),
    ("rates", 1, b" 75.0 ", b" 100.1 "),
    ("rates", 3, b"STAT 1 0.00", b"STAT 1 9.00"),
    ("geometry", 1, HITS + b"REPIN", b"HITS 3 3 2a00\nREPIN"),
    ("geometry", 1, b"HITS 2 3 2a", b"HITS 2 3 6a"),
    ("tier-sum", 0, TIERS, b"TIERS 0 3 4 0.00 0.01\n"),
    ("tier-sum", 3, TIERS, b"TIERS 0 3 4 0.00 0.01\n"),
    ("tier-bits", 1, TIERS, b"TIERS 1 2 3 0.00 0.01\n"),
    ("tier-bits", 1, b"EMAP 2 3 40", b"EMAP 2 3 c0"),
    ("heat", 3, b"400041000141", b"400041000041"),
    ("entropy", 1, b"0.000 1.500", b"1.500"),
    ("entropy", 1, b"0.000 1.500", b"0.000 1.600"),
    ("repin", 1, b"REPIN 1 2", b"REPIN 1 3"),
    ("repin", 1, b"REPIN 1 2", b"REPIN 0 2"),
    ("hwinfo", 3, b"8.0 4.0", b"4.0 8.0"),
    ("whole-records", 10, b"length\n", b"length\nDATA 9"),
]


@pytest.mark.parametrize(("rule", "step", "old", "new"), FAULTS)
def test_a_fault_breaks_its_rule(rule: str, step: int, old: bytes, new: bytes) -> None:
    conversation = list(GOOD)
    sent, received = conversation[step]
    assert old in received
    conversation[step] = (sent, received.replace(old, new, 1))
    assert rule in broken(watch(conversation, exit_code=3))


def test_every_rule_can_be_broken() -> None:
    elsewhere = {"check-order", "hits-cadence", "after-end", "exit-code"}
    assert {fault[0] for fault in FAULTS} | elsewhere == {rule.id for rule in RULES}


@pytest.mark.parametrize(
    ("wire", "step", "old", "new", "rule"),
    [
        ("seed", 0, EMAP, EMAP + CAPS, "kinds"),
        ("seed", 1, b"DATA", b"ACCEPT 1 4\nDATA", "kinds"),
        ("seed", 1, b"DATA", b"PREFILL 1 0 4\nDATA", "kinds"),
        ("seed", 2, b"DONE", b"DONE 1 STAT 1 0.00 0.0 0.01 4 0\n" + BLOCK + b"DONE", "one-end"),
        ("upstream", 1, b"DATA", b"PREFILL 1 0 4\nDATA", "kinds"),
        ("upstream", 1, b"DATA", HITS + b"DATA", "kinds"),
        ("upstream", 1, b"DATA 1 1\ny", b"TOPK 1 1 -0.1000 41\nDATA 1 1\ny", "kinds"),
        ("upstream", 2, GPUS, PERF + GPUS, "kinds"),
        ("upstream", 2, PROF, b"", "block"),
        ("upstream", 2, b" 4 0\n", b" 4 1\n", None),  # where the context ends is not known
    ],
)
def test_the_other_wires_have_their_own_records(
    wire: str, step: int, old: bytes, new: bytes, rule: str | None
) -> None:
    conversation = list(SEED if wire == "seed" else UPSTREAM)
    sent, received = conversation[step]
    assert old in received
    conversation[step] = (sent, received.replace(old, new, 1))
    assert broken(watch(conversation, wire=wire)) == ({rule} if rule else set())


def test_slot_busy_comes_before_duplicate_id() -> None:
    submit = b"SUBMIT 2 0 1 9 0 1\nx\n"
    end = BLOCK.replace(b"PERF 1", b"PERF 2") + b"DONE 2 STAT 0 0.00 0.0 0.01 1 0\n"
    for code, rules in ((b"SLOT_BUSY", set()), (b"DUPLICATE_ID", {"check-order"})):
        answer = b"ACCEPT 2 1\nERROR 2 %b\n" % code + end
        assert broken(watch([GOOD[0], (2 * submit, answer)])) == rules


def test_behind_a_broken_handshake_requests_are_judged() -> None:
    handshake = READY + b"STAT 0 0.00 0.0 0.01\n"
    answer = b"DATA 1 1\nx\n"
    for emitted, rules in ((1, set()), (2, {"data-count"})):
        done = b"DONE 1 STAT %d 0.00 75.0 0.01 4 0\n" % emitted
        conversation = [(b"", handshake), (b"SUBMIT 1 0 1 9 0 1\nx\n", answer + BLOCK + done)]
        assert broken(watch(conversation, wire="seed")) - {"length-limited"} == rules | {
            "handshake"
        }


def test_kinds_that_servers_skip_can_be_no_fault() -> None:
    monitor = Monitor("seed", 2, may_say_more=True)
    monitor.received(HANDSHAKE)
    monitor.sent(b"SUBMIT 1 0 1 9 0 1\nx\n")
    monitor.received(b"ACCEPT 1 4\nHELLO\nDATA 1 1\nx\n" + BLOCK + PROF)
    assert broken(monitor) == set()
    monitor.received(b"DONE 1 STAT 2 0.00 75.0 0.01 4 0\n")
    assert broken(monitor) == {"data-count"}
    assert "kinds" not in monitor.exercised


def test_hits_come_every_few_steps() -> None:
    answer = b"ACCEPT 1 2\nPREFILL 1 0 2\n" + 13 * b"DATA 1 1\nx\n"
    conversation = [GOOD[0], (b"SUBMIT 1 0 1 20 0 1\nx\n", answer)]
    assert "hits-cadence" in broken(watch(conversation))


@pytest.mark.parametrize(
    ("tokens", "broken_rules"),
    [
        ([b"\xe2\x82", b"\xac"], {"utf8"}),
        ([b"a\xf0", b"", b"\x9f"], {"utf8"}),
        ([b"\xc7", b"\xd1an"], set()),  # no character could come of it
        ([b"\xff", b"\x80\x80", b"\xe2x"], set()),
        ([b"ab\xe2"], set()),  # the last one has all that is left
    ],
)
def test_characters_are_not_split(tokens: list[bytes], broken_rules: set[str]) -> None:
    answer = b"ACCEPT 1 2\nPREFILL 1 0 2\n"
    answer += b"".join(b"DATA 1 %d\n%b\n" % (len(token), token) for token in tokens)
    answer += BLOCK + b"DONE 1 STAT %d 0.00 0.0 0.01 2 0\n" % len(tokens)
    assert broken(watch([GOOD[0], (b"SUBMIT 1 0 1 20 0 1\nx\n", answer)])) == broken_rules


def test_nothing_comes_after_the_end() -> None:
    monitor = watch(GOOD, exit_code=3)
    monitor.received(b"ERROR 0 BAD_REQUEST\n")
    assert "after-end" in broken(monitor)


def test_exit_codes() -> None:
    assert broken(watch(GOOD, exit_code=0)) == {"exit-code"}
    assert broken(watch(GOOD[:-1], exit_code=3)) == {"exit-code"}
    assert broken(watch(GOOD[:-1], exit_code=0)) == set()
    assert broken(watch([(b"", READY)], exit_code=1)) == {"handshake", "exit-code"}


DONE = BLOCK + b"DONE 1 STAT 0 0.00 0.0 0.01 1 0\n"
BEGIN = b"ACCEPT 1 1\nPREFILL 1 0 1\n"
ONE = b"SUBMIT 1 0 1 9 0 1\nx\n"


@pytest.mark.parametrize(
    ("sent", "received", "rules"),
    [
        # A STOP or CANCEL may cross the end of its turn.
        (ONE + b"STOP 1\n", BEGIN + DONE, set()),
        (ONE + b"STOP 1\n", BEGIN + DONE + b"ERROR 1 NOT_FOUND\n", set()),
        (ONE + b"CANCEL 1\n", BEGIN + DONE + b"ERROR 1 NOT_FOUND\n", set()),
        (ONE + b"CANCEL 1\n", BEGIN + DONE, {"cancel"}),
        (ONE + b"CANCEL 1\n", b"ERROR 1 CANCELLED\n", set()),
        (ONE + 2 * b"CANCEL 1\n", BEGIN + b"ERROR 1 CANCELLED\nERROR 1 NOT_FOUND\n", set()),
        (ONE + 2 * b"CANCEL 1\n", BEGIN + 2 * b"ERROR 1 CANCELLED\n", {"cancel"}),
        # So may a SUBMIT with the same id or slot.
        (2 * ONE, 2 * (BEGIN + DONE), set()),
        (2 * ONE, BEGIN + b"ERROR 1 SLOT_BUSY\n" + DONE, set()),
        (2 * ONE, b"ERROR 1 SLOT_BUSY\n" + BEGIN + DONE, set()),
        (2 * ONE, BEGIN + DONE, {"one-answer"}),
        # A cancelled id may be used at once.
        (ONE + b"CANCEL 1\n" + ONE, b"ERROR 1 CANCELLED\n" + BEGIN + DONE, set()),
        (ONE, BEGIN + b"ERROR 1 ENGINE broken\n", set()),
        # Payloads are no commands, and refused ones are consumed.
        (b"SUBMIT 1 9 9 9 0 1\nCANCEL 1\n\n", b"ERROR 1 BAD_REQUEST\n", set()),
        (b"SUBMIT 1 0 3 9 0 1\na\0b\n", b"ERROR 1 BAD_REQUEST\n", set()),
        (b"SUBMIT 1 0 1 9 0 1 min_p=0.5\nx\n", b"ERROR 1 BAD_REQUEST\n", set()),
        (ONE, b"", {"one-answer"}),
    ],
)
def test_what_may_cross_on_the_way(sent: bytes, received: bytes, rules: set[str]) -> None:
    assert broken(watch([GOOD[0], (sent, received)])) == rules


def test_a_lost_frame_may_name_a_request_in_flight() -> None:
    answer = BEGIN + b"DATA 1 1\nx\nERROR 1 BAD_FRAME\nDATA 1 1\ny\n"
    answer += BLOCK + b"DONE 1 STAT 2 1.00 0.0 0.01 1 0\n"
    lost = b"SUBMIT 1 1 x 1 0 1\n"
    assert broken(watch([GOOD[0], (ONE + lost, answer)], exit_code=3)) == set()


def test_signals_end_requests() -> None:
    monitor = Monitor("full", 2)
    monitor.received(GOOD[0][1])
    monitor.sent(ONE + b"SUBMIT 2 1 1 9 0 1\nx\n")
    monitor.signalled(2)
    monitor.received(BEGIN + b"ERROR 2 CANCELLED\n" + DONE)
    assert monitor.findings == []
    monitor.signalled(15)
    monitor.sent(ONE + b"SUBMIT 2 1 1 9 0 1\nx\n")
    monitor.received(b"ERROR 1 BAD_REQUEST the%20engine%20is%20shutting%20down\n")
    monitor.ended(0)
    assert monitor.findings == []


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_splits_do_not_matter(data: st.DataObject) -> None:
    """Neither those of what is sent, nor those of what comes, nor those of a broken stream."""
    fault = data.draw(st.sampled_from([None, *FAULTS]))
    conversation = list(GOOD)
    if fault is not None:
        _, step, old, new = fault
        sent, received = conversation[step]
        conversation[step] = (sent, received.replace(old, new, 1))
    whole = watch(conversation, exit_code=3)
    monitor = Monitor("full", 2)
    for sent, received in conversation:
        for take, of in ((monitor.sent, sent), (monitor.received, received)):
            cuts = data.draw(st.lists(st.integers(0, len(of)), max_size=8).map(sorted))
            for start, end in zip([0, *cuts], [*cuts, len(of)], strict=True):
                take(of[start:end])
    monitor.input_ended()
    monitor.ended(3)
    assert monitor.findings == whole.findings
    one_piece = {"after-end"}  # checked once a piece
    assert {k: n for k, n in monitor.exercised.items() if k not in one_piece} == {
        k: n for k, n in whole.exercised.items() if k not in one_piece
    }


def test_engines_without_devices_may_leave_out_gpus_in_the_seed() -> None:
    without = [(sent, received.replace(GPUS, b"")) for sent, received in SEED]
    assert watch(without, wire="seed").findings == []
    full = [(sent, received.replace(GPUS, b"")) for sent, received in GOOD]
    assert broken(watch(full, exit_code=3)) == {"handshake", "block"}


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_stream_is_too_broken_to_be_judged(data: st.DataObject) -> None:
    """Bytes are lost, doubled or changed anywhere; the monitor has an opinion, never an error."""
    wire, base = data.draw(
        st.sampled_from([("full", GOOD), ("seed", SEED), ("upstream", UPSTREAM)])
    )
    conversation = []
    for pair in base:
        broken_pair = []
        for of in pair:
            start = data.draw(st.integers(0, len(of)))
            end = data.draw(st.integers(start, min(len(of), start + 40)))
            piece = data.draw(
                st.one_of(
                    st.just(of[start:end]),
                    st.just(b""),
                    st.just(2 * of[start:end]),
                    st.sampled_from([b"0", b"9" * 30, b"-1", b" ", b"\n", b"\xff\0"]),
                    st.binary(max_size=8),
                )
            )
            broken_pair.append(of[:start] + piece + of[end:])
        conversation.append((broken_pair[0], broken_pair[1]))
    monitor = watch(conversation, wire=wire)
    assert {finding.rule for finding in monitor.findings} <= {rule.id for rule in RULES}


@pytest.mark.parametrize(
    ("rule", "turn", "old"),
    [
        (None, 0, b"ctx=64"),
        (None, 0, b"vocab=512"),
        ("caps", 0, b"slots=2"),
        ("context", 7, b"70"),
        ("syntax", 1, b"ACCEPT 1"),
    ],
)
def test_numbers_without_end_are_no_numbers(rule: str | None, turn: int, old: bytes) -> None:
    conversation = list(GOOD)
    sent, received = conversation[turn]
    assert old in received
    new = re.sub(rb"\d+", b"9" * 5000, old)
    conversation[turn] = (sent, received.replace(old, new, 1))
    monitor = watch(conversation, exit_code=3)
    assert broken(monitor) == set() if rule is None else rule in broken(monitor)


def test_a_rule_is_found_broken_once_until_findings_are_taken() -> None:
    monitor = Monitor("full", 2)
    monitor.received(HANDSHAKE + 1000 * b"XY\nZ\n")
    assert [finding.rule for finding in monitor.take_findings() if finding.rule == "kinds"] == [
        "kinds"
    ]
    assert monitor.findings == []
    monitor.received(b"XY\n")
    assert [finding.rule for finding in monitor.take_findings()] == ["kinds"]
