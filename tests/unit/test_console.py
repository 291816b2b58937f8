from __future__ import annotations

import io

import pytest

from colibri.command_line import report
from colibri.commands.console import ProgressLine, printable
from colibri.engine import EngineState


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_gets_one_updating_line_that_vanishes() -> None:
    stream, clock = Terminal(), Clock()
    line = ProgressLine(stream, clock)
    line.update("loading", 1, 4)
    line.update("loading", 2, 4)  # too soon to show
    line.update("loading", 4, 4)
    line.log("a message")
    assert stream.getvalue() == (
        "\r\x1b[Kloading 1/4 (25 %)\r\x1b[Kloading 4/4 (100 %)\r\x1b[Ka message\n"
    )


def test_elsewhere_only_long_work_is_reported() -> None:
    stream, clock = io.StringIO(), Clock()
    line = ProgressLine(stream, clock)
    for seconds in range(6):
        clock.now = 100.0 + seconds
        line.update("loading", seconds, 0)
    line.clear()
    assert stream.getvalue() == "loading 2\nloading 4\n"


def test_states_of_the_engine_are_shown() -> None:
    stream = Terminal()
    line = ProgressLine(stream, Clock())
    line.on_state(EngineState("loading", stage="experts", done=1, total=2))
    line.on_state(EngineState("loading", stage="load", done=4_068_640, total=8_500_000))
    line.on_state(EngineState("ready"))
    assert stream.getvalue() == (
        "\r\x1b[Kloading experts 1/2 (50 %)\r\x1b[Kloading 4.1 MB/8.5 MB (47 %)\r\x1b[K"
    )


def test_control_characters_do_not_reach_a_terminal() -> None:
    text = "a\x1b[2Jb\x9bc\n\td\x7fü"
    assert printable(text, Terminal()) == "a\ufffd[2Jb\ufffdc\n\td\ufffdü"
    assert printable(text, io.StringIO()) == text


def test_what_an_error_quotes_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    report("a\x1b[2J\nb\u2028c\u202ed\udc80ü", "e\rf")
    assert capsys.readouterr().err == "error: a [2J b c d ü\nhint: e f\n"
