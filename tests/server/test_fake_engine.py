"""The scripted engine as a command: what each kind of script makes it do."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import pytest

from colibri import _core
from colibri.conformance.monitor import Monitor
from colibri.errors import UsageError
from colibri.scenario import Scenario, load
from conftest import FAKE_ENGINE
from processes import assert_refused, colibri

SUBMIT = b"SUBMIT 1 0 5 99 0 1\na b c\n"
HELLO = b"Hello there, friend."


class Fake:
    """A fake engine process."""

    def __init__(self, folder: Path, script: str, name: str = "script.json") -> None:
        path = folder / name
        path.write_text(script, encoding="utf-8")
        self.process = subprocess.Popen(
            [*FAKE_ENGINE, str(path), "--mux", "--model", "x", "--slots", "2", "--progress"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def talk(self, data: bytes = b"") -> tuple[bytes, int]:
        """Sends everything, closes stdin; returns the output and the exit code."""
        out, _ = self.process.communicate(data, timeout=20)
        return out, self.process.returncode

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self) -> bytes:
        assert self.process.stdout is not None
        data: bytes = self.process.stdout.read1(65536)  # type: ignore[attr-defined]
        return data

    def read_until(self, wanted: bytes) -> bytes:
        out = b""
        while wanted not in out:
            data = self.read()
            assert data, f"ended before {wanted!r}: {out!r}"
            out += data
        return out


def scripted(folder: Path, **scenario: Any) -> Fake:
    return Fake(folder, json.dumps(scenario))


def records(output: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from _core.RecordReader().feed(output)


def text(output: bytes) -> bytes:
    return b"".join(fields["data"] for kind, fields in records(output) if kind == "DATA")


def test_a_plain_scenario_keeps_the_protocol(tmp_path: Path) -> None:
    monitor = Monitor("full", slots=2)
    monitor.sent(SUBMIT)
    with scripted(tmp_path, prefill=[[0, 3]]) as fake:
        out, code = fake.talk(SUBMIT)
    monitor.input_ended()
    monitor.received(out)
    monitor.ended(code)
    assert monitor.findings == []
    assert text(out) == HELLO


def test_a_slow_one_takes_its_time(tmp_path: Path) -> None:
    start = time.monotonic()
    with scripted(tmp_path, load_s=0.1, accept_s=0.1, prefill_s=0.1, token_s=0.1) as fake:
        out, _ = fake.talk(SUBMIT)
    assert text(out) == HELLO
    assert time.monotonic() - start > 0.8


def test_dying_ones_end_where_they_should(tmp_path: Path) -> None:
    with scripted(tmp_path, exit_after=2, exit_code=7) as fake:
        out, code = fake.talk(SUBMIT)
        assert (text(out), code) == (b"Hello there", 7)
    with scripted(tmp_path, kill_after=1) as fake:
        out, code = fake.talk(SUBMIT)
        assert (text(out), code) == (b"Hello", -9)
    with scripted(tmp_path, exit_before_ready=3) as fake:
        assert fake.talk() == (b"", 3)
    for size in (0, 1, 5, 40):
        with scripted(tmp_path, cut_at=size) as fake:
            out, code = fake.talk(SUBMIT)
            assert (len(out), code) == (size, 70)


def test_lying_ones_say_what_they_are_told(tmp_path: Path) -> None:
    lies = {"emitted": "99", "prompt_tokens": "0", "length_limited": "1", "tok_s": "-0.000"}
    with scripted(tmp_path, done=lies, raw_after=1, raw="TIERS 9 9\n") as fake:
        out, _ = fake.talk(SUBMIT)
    assert b"DONE 1 STAT 99 -0.000 75.0 0.01 0 1\n" in out
    assert [fields["line"] for kind, fields in records(out) if kind == "MALFORMED"] == [
        b"TIERS 9 9"
    ]


def test_a_silent_one_stays_and_says_nothing_more(tmp_path: Path) -> None:
    with scripted(tmp_path, silent_after=2) as fake:
        fake.send(SUBMIT)
        out = fake.read_until(b" there\n")
        fake.send(b"CANCEL 1\n" + SUBMIT)
        time.sleep(0.2)
        assert fake.process.poll() is None
        rest, code = fake.talk()
    assert (rest, code) == (b"", 0)
    assert text(out) == b"Hello there"


def test_a_stalled_one_stays_in_the_middle_of_a_record(tmp_path: Path) -> None:
    with scripted(tmp_path) as fake:
        whole, _ = fake.talk(SUBMIT)
    size = whole.index(b" there") + 3
    with scripted(tmp_path, stall_at=size) as fake:
        fake.send(SUBMIT)
        out = fake.read_until(b" th")
        time.sleep(0.2)
        assert fake.process.poll() is None
        rest, _ = fake.talk()
    assert out + rest == whole[:size]


def test_scenarios_differ_by_prompt_and_by_life(tmp_path: Path) -> None:
    scenario = {
        "tokens": ["x"],
        "lives": [{"tokens": ["y"]}],
        "prompts": {"two": {"repeat": 2}},
    }
    for expected in (b"y", b"xx"):
        with scripted(tmp_path, **scenario) as fake:
            prompt = b"one" if expected == b"y" else b"two"
            assert text(fake.talk(b"SUBMIT 1 0 3 9 0 1\n%b\n" % prompt)[0]) == expected


def test_what_it_does_not_understand_is_refused(tmp_path: Path) -> None:
    with scripted(tmp_path) as fake:
        frames = b"\nhello\nSTOP\nSUBMIT 1 0 x 1 0 1\nSTOP 4\nSUBMIT 1 0 -2 1 0 1\n"
        out, code = fake.talk(frames + b"SUBMIT 1 0 1 -1 0 1\nx\n")
    errors = [(fields["id"], fields["code"]) for kind, fields in records(out) if kind == "ERROR"]
    assert errors == [(0, "BAD_REQUEST")] * 4 + [(4, "NOT_FOUND")] + [(0, "BAD_REQUEST")] * 2
    assert code == 0


HEAD = "rule: a/b\ntag: ours\ntext: So it is.\nslots: 2\nctx: 64\n\n"


def test_a_transcript_is_played_in_reverse(tmp_path: Path) -> None:
    script = HEAD + (
        "> SUBMIT 7 0 5 9 0 1\\na b c\\n\n< ACCEPT 7 {n:tokens}\n? PREFILL 7 {n} {n}\n"
        "either\n< DATA 7 1\\na\nor\n< DATA 7 1\\nb\nend\n+ DATA 7 {data}\n> STOP 7\\n\n"
        "< HWINFO {s}\n< PERF 7 {f6...}\n< ENTROPY {f3} {f3}\n< GPUS 0\n"
        "< TIERS {n} {n} {n} {f2} {f2}\n"
        "< EMAP 2 8 {x}\n< HITS 2 8 {x}\n< DONE 7 STAT 2 {f2} {f1} {f2} {n:tokens} 0\n"
        "> SUBMIT 8 9 1 9 0 1\\nx\\n\n< ERROR 8 BAD_REQUEST {s}\n$ eof\n$ exit 5\n"
    )
    monitor = Monitor("full", slots=2)
    with Fake(tmp_path, script, "a.txt") as fake:
        head = fake.read_until(b"CAPS ")
        fake.send(b"SUBMIT 31 1 5 9 0 1\na b c\n")
        answer = fake.read_until(b"\nx\n")
        fake.send(b"STOP 31\nSUBMIT 32 1 1 9 0 1\nx\n")
        rest, code = fake.talk()
    assert (head + answer).endswith(b"\nACCEPT 31 3\nDATA 31 1\na\nDATA 31 1\nx\n")
    assert rest.endswith(b"DONE 31 STAT 2 12.50 75.0 0.01 3 0\nERROR 32 BAD_REQUEST x\n")
    assert code == 5
    monitor.sent(b"SUBMIT 31 1 5 9 0 1\na b c\nSTOP 31\nSUBMIT 32 7 1 9 0 1\nx\n")
    monitor.received(head + answer + rest)
    # The transcript has no PREFILL, and its exit code is its own.
    assert {finding.rule for finding in monitor.findings} == {"prefill"}


def test_a_transcript_may_lie(tmp_path: Path) -> None:
    lies = "< ACCEPT 1\n< DONE 1\n< EMAP x y {x}\n< ERROR 7\n"
    with Fake(tmp_path, HEAD + "> SUBMIT 1 0 1 9 0 1\\nx\\n\n" + lies, "a.txt") as fake:
        out, code = fake.talk(b"SUBMIT 31 1 1 9 0 1\nx\n")
    assert out.endswith(b"ACCEPT 31\nDONE 31\nEMAP x y " + b"40" * 16 + b"\nERROR 7\n")
    assert code == 0


def test_a_transcript_waits_for_what_it_needs(tmp_path: Path) -> None:
    script = HEAD + "> SUBMIT 7 0 1 9 0 1\\nx\\nCANCEL 7\\n\n< ERROR 7 CANCELLED\n"
    with Fake(tmp_path, script, "a.txt") as fake:
        fake.send(b"SUBMIT 31 1 1 9 0 1\nx\nSTOP 31\n")
        _, errors = fake.process.communicate(timeout=20)
        assert fake.process.returncode == 1
    assert errors.decode().splitlines() == ["a.txt:7: waits for CANCEL, got STOP"]


@pytest.mark.parametrize(
    ("name", "script", "words"),
    [
        ("a.json", "{", "not JSON"),
        ("a.json", "[]", "not a JSON object"),
        ("a.json", '{"token": []}', "unknown key 'token'"),
        ("a.json", "[" * 100_000 + "]" * 100_000, "a.json is nested too deeply"),
        ("a.json", '{"prompts": {"a":' * 90 + "{}" + "}}" * 90, "unknown key 'prompts'"),
        ("a.json", '{"lives": [{"lives": []}]}', "life 1 has the unknown key 'lives'"),
        ("a.json", '{"tokens": [1]}', "tokens must be a list of strings"),
        ("a.json", '{"tokens": ["hex:0"]}', "tokens must be a list of strings, each text or hex:"),
        ("a.json", '{"repeat": true}', "repeat must be an integer"),
        ("a.json", '{"token_s": "1"}', "token_s must be a number"),
        (
            "a.json",
            '{"done": {"id": "1"}}',
            "done must be an object of strings with keys of emitted, ",
        ),
        ("a.json", '{"lives": [{"x": 1}]}', "life 1 has the unknown key 'x'"),
        ("a.json", '{"prompts": {"a": {"topk": 1}}}', "prompts: 'a': topk must be true or false"),
        ("a.txt", "rule: x\n", "a.txt:1: the head lacks tag, text"),
        ("a.txt", HEAD + "> \\q\n", "a.txt:7: unknown escape"),
        ("a.txt", HEAD + "$ signal FOO\n", "a.txt:7: not an action"),
        ("a.txt", HEAD + "$ exit 256\n", "a.txt:7: not an action"),
        ("a.txt", HEAD + f"$ wait {'9' * 5000}\n", "a.txt:7: not an action"),
        ("a.txt", HEAD + "< DATA 1 3\\nabcdef\n", "a.txt:7: the payload has 6 bytes, not 3"),
        ("a.txt", HEAD + "< ACCEPT 1 {n:9..1}\n", "a.txt:7: no integer is within {n:9..1}"),
        ("a.txt", HEAD + f"< ACCEPT 1 {{n:0..{'9' * 5000}}}\n", "a.txt:7: unknown placeholder"),
        ("a.txt", HEAD + f"> {{fill:{'9' * 5000}:x}}\n", "a.txt:7: unknown escape"),
        ("a.txt", HEAD.replace("ctx: 64", "ctx: x"), "a.txt:5: ctx must be an integer"),
        ("a.txt", HEAD.replace("ctx: 64", f"ctx: {'9' * 5000}"), "ctx must be an integer"),
        ("a.txt", HEAD + "either\n" * 2000, "a.txt:23: choices are nested deeper than 16"),
        ("a.py", "", "is no script of a fake engine"),
    ],
)
def test_bad_scripts_are_refused_in_one_line(
    tmp_path: Path, name: str, script: str, words: str
) -> None:
    path = tmp_path / name
    path.write_text(script, encoding="utf-8")
    done = colibri("fake-engine", str(path))
    assert done.returncode == 1
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if not line.startswith("hint: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert words in errors[0]


SECONDS = ("load_s", "accept_s", "prefill_s", "token_s")
COUNTS = ("limit", "repeat", "repins", "error_after", "silent_after", "stall_at", "exit_after")
COUNTS += ("kill_after", "cut_at", "raw_after")
EXIT_CODES = ("exit_before_ready", "exit_code")
TEXTS = ("caps", "error", "last_words", "banner", "raw")
SURROGATE = '"\\ud800"'
OUT_OF_RANGE = [
    *itertools.product(SECONDS, ["-1", "NaN", "Infinity", "1e300", "9" * 400, "true", "null"]),
    *itertools.product(COUNTS, ["-1", "1e12", "1.0", "true", "9" * 400, "9" * 5000]),
    *itertools.product(EXIT_CODES, ["-1", "256", "9" * 20]),
    *itertools.product(TEXTS, [SURROGATE, "1"]),
    *itertools.product(["tokens", "stderr"], [f"[{SURROGATE}]", "[1]", '"a"']),
    *itertools.product(["prefill"], ["[[1]]", "[[1, 2, 3]]", "[[-1, 3]]", "[1]", "[[1, true]]"]),
    *itertools.product(["topk", "length_limited", "deaf"], ["0", '"true"']),
    *itertools.product(["done"], [f'{{"emitted": {SURROGATE}}}', '{"emitted": 1}', "[]"]),
    *itertools.product(["prompts"], [f"{{{SURROGATE}: {{}}}}", "[]"]),
    *itertools.product(["lives"], ["[1]", "{}"]),
]


@pytest.mark.parametrize("variant", ["", "life 1: "])
def test_each_key_has_a_range(tmp_path: Path, variant: str) -> None:
    path = tmp_path / "a.json"
    for key, value in OUT_OF_RANGE:
        if variant and key == "lives":
            continue
        script = f'{{"{key}": {value}}}'
        path.write_text(f'{{"lives": [{script}]}}' if variant else script, encoding="utf-8")
        words = f"{path}: {variant}{key} must be "
        with pytest.raises(UsageError) as caught:
            load(path)
        assert str(caught.value).startswith(words), script[:80]
        assert len(str(caught.value)) < len(words) + 120
    assert {key for key, _ in OUT_OF_RANGE} == {entry.name for entry in fields(Scenario)}
    assert not Path(f"{path}.lives").exists()


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    for name in ("a.json", "a.txt"):
        os.mkfifo(tmp_path / name)
        done = colibri("fake-engine", str(tmp_path / name))
        assert done.returncode == 1
        assert done.stderr == f"error: {tmp_path / name} is no regular file\n"


def test_an_answer_of_any_length_is_not_made_before_it_is_asked_for(tmp_path: Path) -> None:
    with scripted(tmp_path, tokens=["a", "b"], repeat=2**31 - 1) as fake:
        out, code = fake.talk(b"SUBMIT 1 0 1 3 0 1\nx\n")
    assert (text(out), code) == (b"aba", 0)
    assert out.endswith(b" 1 1\n")


def test_a_missing_script_is_refused() -> None:
    for name in ("absent.json", "absent.txt"):
        done = colibri("fake-engine", name)
        assert (done.returncode, done.stderr) == (1, f"error: {name}: No such file or directory\n")
    assert_refused(colibri("fake-engine"), 2, "SCRIPT")


def test_the_examples_of_the_documentation_work(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "fake-engine.md").read_text(encoding="utf-8")
    scenario = page.split("```json\n")[1].split("```")[0]
    transcript = page.split("```\nrule:")[1].split("```")[0]
    with Fake(tmp_path, scenario) as fake:
        assert fake.talk(SUBMIT)[1] == 70
    with Fake(tmp_path, scenario) as fake:
        assert text(fake.talk(SUBMIT)[0]) == HELLO
    with Fake(tmp_path, "rule:" + transcript, "a.txt") as fake:
        out, code = fake.talk(SUBMIT + b"STOP 1\n" + SUBMIT)
    assert text(out) == b" to"
    assert b"\nERROR 1 BAD_REQUEST temp" in out
    assert code == 0
