"""The rules as files: they cover docs/protocol.md, our engine keeps them, broken ones do not."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import colibri
from breaker import FAULTS
from colibri import _core
from colibri.conformance.matcher import Matcher, Mismatch
from colibri.conformance.monitor import RULES as MONITORED
from colibri.conformance.player import Outcome, Suite, read_rules
from colibri.conformance.session import Session, Settings, is_final
from colibri.conformance.transcript import TAGS, Start, Transcript, parse
from colibri.find_engine import find_engine
from processes import colibri as command_line

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "protocol.md"
ORACLE = HERE.parent / "data" / "oracle"
MODELS = {
    "glm4_moe": ORACLE / "glm4_moe",
    "glm4_moe_lite": ORACLE / "glm4_moe_lite",
    "demo": Path(colibri.__file__).parent / "demo_model",
}
RULES = read_rules()
# Nobody outside can make an engine fail a request.
NOT_PROVOKED = {"error:ENGINE"}
# Invariants that not every engine shows: swaps.
SELDOM = {"always/repin"}


def engine(model: str) -> list[str]:
    return [*find_engine(), "--model", str(MODELS[model])]


def judge(
    command: list[str],
    *,
    wire: str | None = None,
    tags: tuple[str, ...] = TAGS,
    rules: Sequence[Transcript] = RULES,
    patience: float = 20,
) -> Outcome:
    return Suite(Settings(command, wire, patience), lambda _: None).run(rules, tags)


def failed(outcome: Outcome) -> dict[str, str]:
    return {r.rule: r.detail for r in outcome.results if r.outcome == "fail"}


# --- the rules ---


def section(number: int) -> str:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(rf"^## {number}\. .*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


def rows(number: int) -> Iterator[str]:
    """The first cell of each row of a section's tables, without the heads."""
    for table in re.findall(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", section(number), re.MULTILINE):
        for line in table.splitlines():
            yield line.split("|")[1]


def words(number: int) -> set[str]:
    """The first word of each line in a section's blocks of code."""
    blocks = re.findall(r"^```\n(.*?)^```", section(number), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return {found[0] for line in lines if (found := re.findall(r"[A-Z]{4,}", line))}


def documented() -> set[str]:
    names = {f"line:{word}" for number in (1, 3) for word in words(number)}
    names |= {f"request:{word}" for word in words(2)}
    names |= {f"error:{code}" for cell in rows(2) for code in re.findall(r"[A-Z_]{6,}", cell)}
    names |= {f"line:{kind}" for cell in rows(4) for kind in re.findall(r"[A-Z]{4,}", cell)}
    options = re.search(r"^- Options .*?:(.*?)^###", section(2), re.MULTILINE | re.DOTALL)
    assert options is not None
    found = re.findall(r"\b([a-z_]{4,})=[<1]", options[1])
    names |= {f"option:{name}" for name in found}
    wires = re.search(r"^`COLIBRI_WIRE`(.*?)\n\n", section(4), re.MULTILINE | re.DOTALL)
    assert wires is not None
    names |= {f"wire:{name}" for name in re.findall(r"`([a-z]+)`(?= \(default\)| =)", wires[1])}
    return names


def test_the_document_is_read_as_it_is_meant() -> None:
    names = documented()
    assert {"error:BAD_FRAME", "error:CONTEXT_EXCEEDED", "error:ENGINE"} <= names
    assert {"line:READY", "line:CAPS", "line:TOPK", "line:DONE", "line:GPUDETAIL"} <= names
    assert {"request:SUBMIT", "request:STOP", "request:CANCEL"} <= names
    assert {"option:seed", "option:ignore_eos", "option:bias", "option:repetition"} <= names
    assert {name for name in names if name.startswith("wire:")} == {
        "wire:full",
        "wire:seed",
        "wire:upstream",
    }


def test_every_row_of_the_document_has_a_rule() -> None:
    covered = {name for rule in RULES for name in rule.covers}
    assert documented() - covered == NOT_PROVOKED


def test_rules_claim_to_cover_what_is_documented() -> None:
    covered = {name for rule in RULES for name in rule.covers}
    further = {"env:KV_SLOTS", "env:SERVE_TOPK", "option:bare", "select:mux"}
    assert covered - documented() == further


def test_the_page_has_their_true_numbers() -> None:
    page = (DOCUMENT.parent / "conformance.md").read_text(encoding="utf-8")
    assert f"There are {len(RULES)} rules as files and {len(MONITORED)} about" in page
    seed = [rule for rule in [*RULES, *MONITORED] if rule.tag == "seed"]
    assert f"these are the {len(seed)} that" in page


def test_rules_are_told_apart() -> None:
    assert len({rule.rule for rule in RULES}) == len(RULES) > 100
    assert len({rule.text for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert re.fullmatch(r"[a-z-]+/[a-z0-9-]+", rule.rule)
        assert re.fullmatch(r"[1-5]", rule.section), rule.rule
        assert rule.text.endswith("."), rule.rule
        assert all(rule.steps(wire) for wire in rule.wires), rule.rule


# --- our engine ---


@pytest.mark.parametrize("wire", ["full", "seed", "upstream"])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_our_engine_keeps_the_rules(model: str, wire: str) -> None:
    outcome = judge(engine(model), wire=wire)
    assert failed(outcome) == {}
    assert outcome.wire == wire
    # What is skipped is not offered, or not sent in this wire mode.
    skipped = {r.rule for r in outcome.results if r.outcome == "skip"}
    if wire == "full":
        assert {rule for rule in skipped if rule.startswith("always/")} <= SELDOM
    assert {rule for rule in skipped if not rule.startswith(("always/", "option/"))} == set()


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_our_engine_answers_as_written(path: Path, tmp_path: Path) -> None:
    transcript = parse(path.read_text(encoding="utf-8"), path.name)
    log = tmp_path / "log"
    command = [sys.executable, str(HERE / "breaker.py"), "none", str(log)]
    session = Session(
        Settings([*command, *engine("glm4_moe_lite")], "full"), transcript.start, str(tmp_path)
    )
    try:
        session.play(transcript)
        assert session.monitor.findings == []
    finally:
        session.process.close()
    [output] = tmp_path.glob("log.*.out")
    kinds = {kind for kind, _ in _core.RecordReader().feed(output.read_bytes())}
    assert not kinds & {"UNKNOWN", "MALFORMED"}


def test_the_codec_reads_all_rules_byte_by_byte_as_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, str(HERE / "breaker.py"), "none", str(log)]
    assert failed(judge([*command, *engine("glm4_moe_lite")])) == {}
    outputs = [path.read_bytes() for path in tmp_path.glob("log.*.out")]
    assert len(outputs) > 10
    for output in outputs:
        whole = _core.RecordReader().feed(output)
        reader = _core.RecordReader()
        assert [r for i in range(len(output)) for r in reader.feed(output[i : i + 1])] == whole
        assert reader.buffered == 0
        assert not {kind for kind, _ in whole} & {"UNKNOWN", "MALFORMED"}
    for path in tmp_path.glob("log.*.in"):
        sent = path.read_bytes()
        at_once = _core.RequestReader(None, 2)
        requests = at_once.feed(sent) + at_once.finish()
        split = _core.RequestReader(None, 2)
        # Large payloads go in pieces, which are cut everywhere else.
        sizes = [1] * 4000 + [997] * (len(sent) // 997 + 1)
        pieces = []
        start = 0
        for size in sizes:
            pieces += split.feed(sent[start : start + size])
            start += size
        assert pieces + split.finish() == requests


# --- broken engines ---

# Each fault, and the rules that it breaks: those and no others.
BROKEN = {
    # The last is where STOP meets a SUBMIT that seems to be unanswered.
    "drop-accept": {"submit/accepted", "prefill/progress", "always/one-answer", "always/stop"},
    "miscount": {"submit/answered", "turn/length-limited", "always/data-count"},
    "miscount-twice": {"option/ignore-eos", "always/prompt-tokens"},
    "drop-caps": {"refused/options-without-caps"},
    "swap-block": {"block/order", "always/block"},
    "lose-a-byte": {"submit/largest-id", "always/syntax"},
    "shorten-hits": {"hits/in-the-block", "always/syntax"},
    # It makes the two tokens differ that a bias makes the same.
    "halve-characters": {"option/bias", "always/utf8"},
    "fall-silent": {
        "cancel/acknowledged",
        "cancel/during-prefill",
        "cancel/frees-slot-and-id",
        "cancel/in-mid-prefill",
        "cancel/others-go-on",
        "cancel/without-block",
        "payload/commands",
        "payload/refused-commands",
    },
    "answer-nothing": {"error/empty-prompt", "submit/refused-without-accept"},
    "die": {"submit/largest-id", "always/one-end"},
    "banner": {"always/quiet-start"},
    "further": {"always/kinds"},
    "execute-payload": {"payload/commands", "always/cancel"},
    "ignore-stop": {"stop/ends-a-turn", "stop/not-found", "submit/together"},
    "exit-with-0": {
        "bad-frame/bytes-negative",
        "bad-frame/bytes-unreadable",
        "bad-frame/exit-code",
        "bad-frame/header-too-long",
        "bad-frame/payload-cut",
        "always/exit-code",
    },
}


def test_every_fault_is_expected() -> None:
    assert set(BROKEN) == set(FAULTS)


def faulty(fault: str, log: Path, **options: Any) -> set[str]:
    """The rules that an engine with a fault breaks."""
    command = [sys.executable, str(HERE / "breaker.py"), fault, str(log)]
    # Starting engines takes the time here: only what is about the end needs one a rule.
    ending = fault == "exit-with-0"
    rules = [rule for rule in RULES if is_final(rule, "full") == ending and rule.start == Start()]
    # Where records do not come, each is waited for.
    patience = 1 if fault in ("answer-nothing", "fall-silent", "ignore-stop") else 4
    outcome = judge([*command, *engine("glm4_moe_lite")], rules=rules, patience=patience, **options)
    return set(failed(outcome))


@pytest.mark.parametrize("fault", sorted(BROKEN))
def test_a_fault_breaks_its_rules(fault: str, tmp_path: Path) -> None:
    assert faulty(fault, tmp_path / "log") == BROKEN[fault]


@pytest.mark.parametrize("fault", ["banner", "further", "drop-caps"])
def test_engines_of_others_may_say_more(fault: str, tmp_path: Path) -> None:
    assert faulty(fault, tmp_path / "log", tags=("seed", "compat")) == set()


def test_a_fault_does_not_hide_behind_one_that_nobody_asked_for(tmp_path: Path) -> None:
    assert "always/data-count" in faulty("miscount-twice", tmp_path / "log", tags=("seed",))


def test_what_may_be_a_consequence_is_not_judged(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "breaker.py"), "miscount-twice", str(tmp_path / "log")]
    rules = [rule for rule in RULES if rule.rule == "cancel/others-go-on"]
    outcome = judge([*command, *engine("glm4_moe_lite")], rules=rules)
    found = {result.rule: result for result in outcome.results}
    assert found["always/prompt-tokens"].outcome == "fail"
    result = found["always/data-count"]
    assert result.outcome == "unjudged"
    assert result.detail.startswith("not judged: ")
    assert "but always/prompt-tokens had been broken before" in result.detail
    unjudged = {name for name, result in found.items() if result.outcome == "unjudged"}
    assert unjudged == {"always/data-count", "always/length-limited"}


def test_extra_kinds_hide_nothing_where_no_wire_mode_was_set(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "breaker.py"), "drop-caps", str(tmp_path / "log")]
    twice = [sys.executable, str(HERE / "breaker.py"), "miscount", str(tmp_path / "log")]
    rules = [rule for rule in RULES if rule.rule in ("turn/length-limited", "wire/seed")]
    outcome = judge([*command, *twice, *engine("glm4_moe_lite")], rules=rules)
    assert outcome.wire == "seed"
    found = {result.rule: (result.outcome, result.detail) for result in outcome.results}
    assert found["always/data-count"][0] == "fail"
    assert found["always/kinds"] == ("skip", "no wire mode was set")
    assert found["wire/seed"] == ("skip", "no wire mode was set")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [([], "nothing came in 1 s"), (["strict"], "it ended with exit code 1")],
)
def test_the_least_engine_is_judged(arguments: list[str], problem: str) -> None:
    names = ("submit/answered", "cancel/not-found", "block/order", "turn/greedy", "turn/batched")
    rules = [rule for rule in RULES if rule.rule in names]
    command = [sys.executable, str(HERE / "least_engine.py"), *arguments]
    outcome = judge(command, rules=rules, tags=("seed",), patience=1)
    found = {result.rule: result.outcome for result in outcome.results}
    assert {name: found[name] for name in names} == {
        "submit/answered": "pass",
        "cancel/not-found": "fail",
        "block/order": "fail",
        "turn/greedy": "pass",
        "turn/batched": "skip",
    }
    details = failed(outcome)
    assert details["always/not-found"] == (
        "CANCEL of an id that is not in flight must be answered by ERROR id NOT_FOUND (section 2);"
        f" {problem} (at the start)"
    )
    assert details["always/handshake"].startswith("DATA instead of HWINFO")
    assert found["always/data-count"] == "pass"
    assert found["always/one-end"] == "pass"
    # The map is missing from the handshake.
    results = {result.rule: result for result in outcome.results}
    assert results["always/tier-sum"].outcome == "unjudged"
    assert results["always/tier-sum"].detail == "not judged: the handshake was broken"


def follow(rule: str, *records: str) -> Matcher:
    """A rule with one thing sent, which is answered by records."""
    matcher = Matcher(next(found for found in RULES if found.rule == rule), "seed")
    while matcher.due is not None:
        matcher.done()
    for record in records:
        matcher.take(record.encode() + b"\n")
    return matcher


def test_turns_one_by_one_are_not_batched() -> None:
    one, two = 20 * ["DATA 1 1\nx"], 20 * ["DATA 2 1\nx"]
    done = "DONE {} STAT {} 1.00 0.0 0.01 4 {}"
    long = [done.format(number, 20, 0) for number in (1, 2)]
    for records in (
        [*one, two[0], one[0], long[0], two[0], long[1]],
        [two[0], *one, long[0], *two, long[1]],
    ):
        matcher = follow("turn/batched", *records)
        assert matcher.is_complete
        assert matcher.not_shown == b""
    with pytest.raises(Mismatch, match="DONE 1 STAT 20"):
        follow("turn/batched", *one, long[0], *two, long[1])
    limited = done.format(1, 3, 1)
    with pytest.raises(Mismatch, match="DONE 1 STAT 3"):
        follow("turn/batched", *one[:3], limited)
    short = done.format(1, 3, 0)
    matcher = follow("turn/batched", *one[:3], short, *two, long[1])
    assert matcher.is_complete
    assert matcher.not_shown == short.encode()


def test_short_answers_too_must_have_alternatives() -> None:
    data, topk = "DATA 1 1\nx", "TOPK 1 5" + 5 * " -1.0000 41"
    for count in (1, 2, 3):
        done = f"DONE 1 STAT {count} 0.00 0.0 0.01 4 0"
        assert follow("topk/served", *(count * [data, topk]), done).is_complete
        with pytest.raises(Mismatch):
            follow("topk/served", *(count * [data]), done)


def test_a_suite_reports_what_was_not_exercised() -> None:
    outcome = judge(engine("glm4_moe_lite"), rules=[], tags=("seed",))
    found = {result.rule: result.outcome for result in outcome.results}
    assert found["always/handshake"] == "pass"
    assert found["always/slot-busy"] == "skip"
    assert "always/caps" not in found


# --- the command ---


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "breaker.py"), "swap-block", str(tmp_path / "log")]
    done = command_line(
        "conformance", "--wire", "seed", "--tags", "seed", "--", *command, *engine("glm4_moe_lite")
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert "pass submit/answered                      seed" in lines
    at = lines.index(next(line for line in lines if line.startswith("FAIL block/order")))
    assert lines[at].endswith("in this order.")
    assert lines[at + 1].startswith("     wanted ")
    assert lines[at + 2] == "     file: block-order.txt"
    assert lines[at + 3].startswith("     sent: SUBMIT 1 0 ")
    assert [line for line in lines[at + 4 : at + 7] if line.startswith("     seen: ")]
    end = r"\d+ passed, 2 failed, 0 not judged, \d+ not applicable \(judged as seed\)"
    assert re.fullmatch(end, lines[-1])
    assert not [line for line in lines if line.split()[-1] in ("ours", "compat")]


def test_the_command_prints_json_and_finds_out_the_wire_mode() -> None:
    done = command_line("conformance", "--json", "--tags", "compat", "--", *engine("glm4_moe_lite"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wire"] == "full"
    assert report["command"] == engine("glm4_moe_lite")
    assert report["failed"] == 0
    assert report["unjudged"] == 0
    assert report["passed"] + report["skipped"] == len(report["rules"])
    [rule] = [rule for rule in report["rules"] if rule["rule"] == "stop/not-found"]
    assert rule == {
        "rule": "stop/not-found",
        "tag": "compat",
        "section": "2",
        "text": "STOP of an id that is not in flight is NOT_FOUND.",
        "outcome": "pass",
        "file": "stop-not-found.txt",
        "detail": "",
        "sent": "",
        "seen": "",
    }


RULE = """rule: mine/answer
tag: ours
section: 3
text: A prompt is answered.

> SUBMIT 1 0 3 2 0 1\\nabc\\n
< {} 1 STAT {{s}}
"""


def test_the_command_plays_rules_of_others_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(RULE.format("DONE"), encoding="utf-8")
    (tmp_path / "notes.md").write_text("no rule", encoding="utf-8")
    options = ["--tags", "ours", "--rules", str(tmp_path)]
    listed = command_line("conformance", "--list", *options).stdout.splitlines()
    assert "mine/answer                          ours   3  A prompt is answered." in listed
    assert [line for line in listed if line.startswith("always/kinds  ")]
    assert not [line for line in listed if line.split()[1] != "ours"]
    done = command_line("conformance", *options, "--", *engine("glm4_moe_lite"))
    assert done.returncode == 0, done.stdout
    assert "pass mine/answer                          ours" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", RULE.format("DONE") + "! DONE\n", "a.txt:8: not a step: '! DONE'"),
        ("a.txt", RULE.replace("ours", "mine"), "a.txt:2: the tag is one of seed, compat, ours"),
        (
            "a.txt",
            RULE.replace("mine/answer", "stop/not-found").format("DONE"),
            "a.txt: there is a rule stop/not-found already",
        ),
        ("a.txt", RULE.split(">")[0], "a.txt: a wire mode has no steps"),
        ("a.md", "", "no file there ends in .txt"),
    ],
)
def test_a_faulty_rule_is_told_in_a_line(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = command_line("conformance", "--rules", str(tmp_path), "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2


READY = "import time; print('\\1\\1READY\\1\\1', flush=True); "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--timeout", "0.3", "--", sys.executable, "-c", READY + "time.sleep(60)"],
            "the engine said READY, but then: neither CANCEL nor SUBMIT is answered: no record"
            " came for 0.3 s",
        ),
        (
            [
                "--timeout",
                "0.1",
                "--",
                sys.executable,
                "-c",
                READY + "[print('X') for _ in iter(int, 1)]",
            ],
            "the engine said READY, but then: it goes on and on",
        ),
        (
            ["--timeout", "1", "--", sys.executable, "-c", READY],
            "it ended with exit code 0",
        ),
        (
            [
                "--",
                sys.executable,
                "-c",
                "import sys; sys.exit('error: no model\\nhint: give one')",
            ],
            "the engine ended with exit code 1: no model",
        ),
        (["--", ""], "colibri conformance needs a COMMAND"),
        (["--", "no-such-engine"], "no-such-engine cannot be started: No such file or directory"),
        (["--", *find_engine(), "--model", "nowhere"], "the engine ended with exit code 1: "),
        (["--start-timeout", "0.3", "--", "sleep", "60"], "the engine was not ready after 0.3 s"),
        (["--", "true"], "the engine ended with exit code 0: it said nothing"),
        (["--tags", "mine", "--", "true"], "must be a comma list of seed, compat, ours"),
        (["--timeout", "0", "--", "true"], "must be above 0"),
        (["--rules", "nowhere", "--", "true"], "nowhere: No such file or directory"),
        ([], "COMMAND"),
    ],
)
def test_what_cannot_be_judged_is_told_in_a_line(arguments: list[str], message: str) -> None:
    done = command_line("conformance", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2
