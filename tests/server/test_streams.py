"""Commands with streams and texts as shells can hand them over."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import TEMPLATE, FakeEngineFiles
from processes import environment

Fake = Callable[..., FakeEngineFiles]
COLIBRI = shlex.join([sys.executable, "-bb", "-W", "error", "-m", "colibri"])


@pytest.fixture
def shell(fake: Fake, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    env = {**environment(fake()), "COLI_MODEL": str(tmp_path), "PYTHONUTF8": "0"}

    def run(command: bytes, **more: str) -> subprocess.CompletedProcess[bytes]:
        script = command.replace(b"colibri", COLIBRI.encode(), 1)
        return subprocess.run(
            ["/bin/sh", "-c", script], capture_output=True, timeout=60, env={**env, **more}
        )

    return run


Shell = Callable[..., subprocess.CompletedProcess[bytes]]


def assert_one_error(done: subprocess.CompletedProcess[bytes], words: str) -> None:
    lines = done.stderr.decode().splitlines()
    assert done.returncode > 0
    assert [line for line in lines if line.startswith("error: ")] == lines[:1]
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: ")), lines
    assert words in lines[0]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (b"printf 'caf\\351' | colibri run -", "the prompt is not valid UTF-8"),
        (b"printf 'a\\000b' | colibri run -", "the prompt holds a NUL"),
        (b"printf '' | colibri run -", "the prompt is empty"),
        (b"colibri run 'caf\xe9'", "prompt is not valid UTF-8"),
        (b"colibri info '\xff'", "model is not valid UTF-8"),
        (b"printf hi | colibri chat --system '\xff'", "system is not valid UTF-8"),
        (b"colibri serve --port 0 --api-key '\xff'", "api-key is not valid UTF-8"),
        (b"colibri serve --port 0 --api-key x --host ..", "not a host name"),
        (b"colibri info '~nobody-of-this-name/x'", "no such home folder"),
        (b"colibri info " + b"a" * 300, "File name too long"),
        (b"colibri run hi >/dev/full", "No space left"),
        (b"printf hi | colibri chat >/dev/full", "No space left"),
        (b"colibri --version >/dev/full", "No space left"),
        (b"colibri --help >/dev/full", "No space left"),
        (b"colibri run --help >/dev/full", "No space left"),
        (b"colibri run hi >&-", "stdout is closed"),
        (b"colibri --version >&-", "stdout is closed"),
        (b"colibri run - <&-", "stdin is closed"),
        (b"colibri chat <&-", "stdin is closed"),
        (b"ulimit -n 8; colibri run hi", "open files"),
        (b"ulimit -n 8; colibri serve --port 0", "open files"),
        (b"COLIBRI_ENGINE='\"x' colibri run hi", "COLIBRI_ENGINE cannot be split"),
        (b"COLI_MODEL=/no/such colibri run hi", "COLI_MODEL=/no/such: no such model folder"),
    ],
)
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_what_cannot_work_is_one_error(
    shell: Shell, command: bytes, words: str, locale: str
) -> None:
    assert_one_error(shell(command, LC_ALL=locale), words)


def test_a_command_needs_only_the_streams_it_uses(shell: Shell) -> None:
    for command in (b"colibri run hi <&-", b"colibri run hi 2>&-", b"colibri run hi 2>/dev/full"):
        done = shell(command)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"Hello there, friend.\n", b"")


def test_a_line_that_is_no_text_does_not_end_the_chat(shell: Shell) -> None:
    done = shell(b"printf 'caf\\351\\na\\000b\\nhi\\n' | colibri chat")
    # What follows a line that failed answers another conversation; a script learns of it.
    assert done.returncode == 1
    assert done.stdout.split(b"\n") == [b"", b"", b"Hello there, friend.", b""]
    assert done.stderr.count(b"error: ") == 2
    assert b"Traceback" not in done.stderr


def test_output_that_lacks_characters_is_not_a_fault(fake: Fake, shell: Shell) -> None:
    fake(tokens=["f\u00fcr \u5c71"])
    done = shell(b"colibri run hi", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, b"f?r ?\n")
