"""Engines that hang, flood or fork cost the conformance kit bounded time and space."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colibri.conformance.player import DEAF, RULES_UNANSWERED, Outcome, Suite
from colibri.conformance.process import ERROR_BYTES, Process, TooMuch
from colibri.conformance.session import PATIENCE, Settings
from colibri.conformance.transcript import TAGS, Transcript, parse
from colibri.errors import EngineStartError

LEAST = Path(__file__).with_name("least_engine.py")
# Answers the first CANCEL, as if it were good.
GREETING = """
import os, signal, sys, time
def say(text):
    os.write(1, text.encode())
say('\\1\\1READY\\1\\1\\nSTAT 0 0.00 0.0 0.01\\n')
say(f'ERROR {sys.stdin.readline().split()[1]} NOT_FOUND\\n')
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def rules(count: int) -> list[Transcript]:
    """Rules that only an engine which answers STOP keeps."""
    head = "rule: mine/{0}\ntag: seed\ntext: So it is.\n\n"
    steps = "> STOP 7{0}\\n\n< ERROR 7{0} NOT_FOUND\n"
    return [parse((head + steps).format(number), "t") for number in range(count)]


def judge(command: list[str], count: int = 9) -> Outcome:
    return Suite(Settings(command, None, 0.3), lambda _: None).run(rules(count), TAGS)


def outcomes(outcome: Outcome) -> list[str]:
    return [result.outcome for result in outcome.results if result.rule.startswith("mine/")]


@pytest.mark.parametrize(
    ("then", "detail"),
    [
        ("time.sleep(60)", "no record came for 0.3 s"),
        ("while True: say('x'); time.sleep(0.02)", "no record came for 0.3 s"),
        ("while True: say('HITS 1 8 00\\n')", "it goes on and on"),
    ],
)
def test_after_some_rules_without_an_answer_the_rest_is_not_judged(then: str, detail: str) -> None:
    started = time.monotonic()
    outcome = judge(python(GREETING + then))
    left = 9 - RULES_UNANSWERED
    assert outcomes(outcome) == ["fail"] * RULES_UNANSWERED + ["unjudged"] * left
    details = {result.rule: result.detail for result in outcome.results}
    assert detail in details["mine/0"]
    assert details["mine/8"] == DEAF
    assert details["always/one-end"] == DEAF
    # Each rule, and being asked, has its time, and as much again to start and to end.
    assert time.monotonic() - started < (RULES_UNANSWERED + 2) * 2 * PATIENCE * 0.3 + 5


def test_an_engine_that_answers_other_things_is_judged_to_the_end() -> None:
    outcome = judge([sys.executable, str(LEAST)])
    assert outcomes(outcome) == ["fail"] * 9


@pytest.mark.parametrize("text", ["x" * 65536, "HITS 1 8 00\n" * 5000])
def test_output_has_a_bound(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri.conformance.process.OUTPUT_BYTES", 1 << 20)
    greeting = "import os; os.write(1, b'\\1\\1READY\\1\\1\\n')\n"
    code = f"{greeting}while True: os.write(1, {text.encode()!r})"
    process = Process(python(code), os.environ, 60)

    def read_all() -> None:
        while process.record() is not None:
            pass

    try:
        with pytest.raises(TooMuch, match="too much output: more than 1 MiB"):
            read_all()
    finally:
        process.close()


def test_a_banner_without_end_is_told() -> None:
    with pytest.raises(EngineStartError, match="was not ready: too much output"):
        judge(python("import os\nwhile True: os.write(1, b'x' * 65536)"))


def test_of_stderr_the_end_is_kept() -> None:
    flood = f"import os\nfor _ in range(200): os.write(2, b'e' * {ERROR_BYTES})\n"
    process = Process(python(flood + "os.write(2, b'\\nerror: the disk is full\\n')"), {}, 20)
    try:
        # It ends, so writing never made it wait.
        assert process.record() is None
        assert process.exit_code() == 0
        assert process.last_words() == "error: the disk is full"
        assert len(process._errors.text()) == ERROR_BYTES
    finally:
        process.close()


def is_running(pid: int) -> bool:
    """Whether it is there, and no zombie that nobody has waited for."""
    done = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, encoding="utf-8", check=False
    )
    return done.stdout.strip()[:1] not in ("", "Z")


def until(condition: object) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + 20
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = os.fork()
if child:
    with open(sys.argv[1] + '.new', 'w', encoding='ascii') as file:
        file.write(f'{os.getpid()} {child}')
    os.rename(sys.argv[1] + '.new', sys.argv[1])
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, 143, "error: ended by SIGTERM\n"),
        (signal.SIGHUP, 129, "error: ended by SIGHUP\n"),
        (signal.SIGINT, 130, ""),
    ],
)
def test_a_signal_leaves_nothing_behind(number: int, code: int, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    pids = tmp_path / "pids"
    command = [sys.executable, "-m", "colibri", "conformance", "--", *python(STUBBORN), str(pids)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        until(pids.exists)
        assert len(list(folder.iterdir())) == 1
        process.send_signal(number)
        assert process.communicate(timeout=20) == ("", said)
    assert process.returncode == code
    assert list(folder.iterdir()) == []
    for pid in pids.read_text(encoding="ascii").split():
        until(lambda pid=int(pid): not is_running(pid))


def test_what_an_engine_forked_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = STUBBORN.replace("time.sleep(60)", "if not child: time.sleep(60)")
    process = Process([*python(code), str(pids)], os.environ, 5)
    try:
        # The child holds the output open.
        assert process.record() is None
        assert process.exit_code() == 0
        child = int(pids.read_text(encoding="ascii").split()[1])
        assert is_running(child)
    finally:
        process.close()
    until(lambda: not is_running(child))
