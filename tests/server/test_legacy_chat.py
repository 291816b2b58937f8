"""``colibri chat --legacy`` over an old engine that is scripted, and over ours."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import TEMPLATE
from processes import assert_refused, colibri, environment

OLD_ENGINE = Path(__file__).parent.parent / "old_engine.py"


class OldEngine:
    """The scenario of an old engine, the environment that makes it ours, and what it noted."""

    def __init__(self, folder: Path, **scenario: Any) -> None:
        self.path = folder / "scenario.json"
        values = {"words": ["Hello", " there", ", frie", "nd."], **scenario}
        self.path.write_text(json.dumps(values), encoding="utf-8")
        command = [sys.executable, "-S", str(OLD_ENGINE), str(self.path)]
        self.env = environment(None) | {"COLIBRI_ENGINE": shlex.join(command)}
        self.model = folder / "tiny"
        self.model.mkdir()
        (self.model / "config.json").write_text('{"model_type": "fake"}', encoding="utf-8")
        (self.model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")

    def chat(self, stdin: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.argv(), *args],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            env=self.env,
        )

    def argv(self) -> list[str]:
        command = [sys.executable, "-bb", "-W", "error", "-m", "colibri", "chat", "--legacy"]
        return [*command, str(self.model)]

    @property
    def received(self) -> list[str]:
        return Path(f"{self.path}.log").read_text(encoding="utf-8").splitlines()


def test_a_conversation_with_an_old_engine(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path, news="GPUS 0\n")
    done = engine.chat("hi ünlike\n/more\n\n/nonsense\n/reset\n/quit\nnot read\n", "--ctx", "64")
    assert done.returncode == 1  # for the unknown command
    assert done.stdout == "Hello there, friend.\n" * 2
    cut, unknown, *_ = done.stderr.splitlines()
    assert cut == "notice: the answer was cut; /more continues it"
    assert unknown == "error: unknown command /nonsense"
    start = f"--legacy --model {engine.model} --ctx 64 --slots 1 --progress"
    asked = ["''", "'hi ünlike'", repr("\x02MORE"), repr("\x02RESET")]
    assert engine.received == [start, *asked, "EOF"]


def test_what_is_asked_for_reaches_the_engine(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path)
    options = ["--max-tokens", "9", "--temperature", "0.5", "--top-p", "0.8", "--seed", "3"]
    assert engine.chat("", *options).returncode == 0
    told = engine.received[0]
    assert told.startswith("--legacy --ngen 9 --temperature 0.5 --top-p 0.8 --seed 3 --model ")


def test_a_character_may_come_in_pieces_and_be_cut(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path, words=["\xbc a", "\xc3"])
    done = engine.chat("hi\n/more\nhi\n")
    # What the first answer begins with is no character, what MORE begins with ends one.
    assert done.stdout == "\ufffd a\nü a\n\ufffd a\n"


def test_ctrl_c_ends_the_answer_and_not_the_chat(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path, words=["Hello"] + [" and"] * 1000, token_s=0.02)
    with subprocess.Popen(
        engine.argv(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=engine.env,
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("hi\n")
        chat.stdin.flush()
        assert chat.stdout.read(5) == "Hello"
        chat.send_signal(signal.SIGINT)
        out, err = chat.communicate("/quit\n", timeout=15)
    assert (chat.returncode, err) == (0, "notice: the answer was cut; /more continues it\n")
    assert out.endswith("\n")
    assert engine.received[1:] == ["''", "'hi'", "SIGINT", "EOF"]


def test_a_second_ctrl_c_ends_an_engine_that_ignores_the_first(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path, hang_after=2)
    with subprocess.Popen(
        engine.argv(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=engine.env,
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("hi\nnot asked\n")
        chat.stdin.flush()
        assert chat.stdout.read(11) == "Hello there"
        deadline = time.monotonic() + 10
        pid = Path(f"{engine.path}.pid")
        while not pid.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        chat.send_signal(signal.SIGINT)
        while "SIGINT" not in engine.received:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert chat.poll() is None
        chat.send_signal(signal.SIGINT)
        out, err = chat.communicate(timeout=10)
    assert (chat.returncode, out) == (130, "\n")
    assert err == "notice: the engine does not stop, so it is ended\n"
    assert engine.received[1:] == ["''", "'hi'", "SIGINT", "SIGTERM"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text(encoding="utf-8")), 0)


def test_an_engine_that_closes_its_output_is_ended(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path, hang_after=1, close_output=True)
    done = engine.chat("hi\nnot asked\n")
    assert (done.returncode, done.stdout) == (1, "Hello\n")
    assert done.stderr.splitlines() == [
        "error: the engine ended during this answer: the engine closed its output and had to be "
        "ended"
    ]


def test_ctrl_c_while_loading_ends_at_once(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path, load_s=30)
    with subprocess.Popen(
        engine.argv(), stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=engine.env
    ) as chat:
        deadline = time.monotonic() + 20
        while not Path(f"{engine.path}.log").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        chat.send_signal(signal.SIGINT)
        _, err = chat.communicate(timeout=5)
    assert (chat.returncode, err) == (130, b"")


def test_a_refusal_is_an_error_with_its_reason(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path, refuse="the prompt has 99 tokens, the context takes at most 63")
    done = engine.chat("hi\n")
    assert (done.returncode, done.stdout) == (1, "\n")
    assert done.stderr.splitlines() == [
        "error: the prompt has 99 tokens, the context takes at most 63",
        "hint: /reset forgets the conversation",
    ]


def test_a_death_in_mid_answer_is_one_error(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path, exit_after=2, exit_code=7)
    done = engine.chat("hi\nnot asked\n")
    assert (done.returncode, done.stdout) == (1, "Hello there\n")
    assert done.stderr.splitlines() == [
        "error: the engine ended during this answer: no such expert (exited with code 7)"
    ]


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [("/nonexistent/engine", 1, "cannot start"), ("sh -c 'exit 9'", 9, "exited with code 9")],
)
def test_an_engine_that_does_not_start(tmp_path: Path, command: str, code: int, words: str) -> None:
    engine = OldEngine(tmp_path)
    engine.env["COLIBRI_ENGINE"] = command
    done = engine.chat("hi\n")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: the engine did not start: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_that_says_something_else_is_told(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path, words=["Hello\n\x01\x01END\x01\x01\nnonsense\n"])
    done = engine.chat("hi\n")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "where STAT belongs" in line
    # What it said before is shown all the same.
    assert done.stdout == "Hello\n"


def test_a_message_is_no_command(tmp_path: Path) -> None:
    engine = OldEngine(tmp_path)
    done = engine.chat("\x02RESET\n")
    assert done.returncode == 1
    assert "control character" in done.stderr
    assert engine.received[1:] == ["''", "EOF"]


def test_system_messages_are_not_of_this_protocol() -> None:
    assert_refused(colibri("chat", "--legacy", "--system", "be brief"), 1, "--system")


def test_with_our_engine_and_the_demo_model() -> None:
    # An engine's variables are for the engine alone here.
    env = {name: value for name, value in os.environ.items() if name not in ("NGEN", "COLI_TEMP")}
    command = [sys.executable, "-m", "colibri", "chat", "demo"]
    done = subprocess.run(
        [*command, "--legacy", "--max-tokens", "8", "--temperature", "0"],
        input="Tell me a story\n/more\n/reset\nTell me a story\n" + "/more\n" * 40,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    first, second, again, then, *_ = done.stdout.splitlines()
    assert (first, second) == (again, then)
    assert first
    assert "\x01" not in done.stdout
    assert done.stderr.splitlines()[:1] == ["notice: the answer was cut; /more continues it"]
