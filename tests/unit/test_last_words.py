from __future__ import annotations

import pytest

from colibri.last_words import ERRORS_KEPT, LastWords

BACKTRACE = ["stack backtrace:", "   0: rust_begin_unwind", "             at /rustc/x/lib.rs:1:2"]
NOTE = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"


def heard(*lines: str) -> tuple[LastWords, list[str]]:
    words = LastWords()
    return words, [line for line in lines if not words.take(line)]


@pytest.mark.parametrize(
    ("lines", "best"),
    [
        ([], None),
        (["notice: 4 GB are free"], None),
        (["reading", "notice: 4 GB are free", "hint: close a browser"], "reading"),
        (["progress load many", "note: x", "warning: y"], None),
        (
            ["thread 'main' panicked at src/x.rs:1:2:", "index out of range", NOTE, *BACKTRACE],
            "thread 'main' panicked at src/x.rs:1:2: index out of range",
        ),
        (
            ["thread 'w' (12) panicked at src/x.rs:1:2:", "a", "thread caused abort"],
            "thread 'w' (12) panicked at src/x.rs:1:2: a",
        ),
        (
            ["memory allocation of 80 bytes failed", NOTE, "bye"],
            "memory allocation of 80 bytes failed",
        ),
        (["error: request 7: disk read failed"], "error: request 7: disk read failed"),
        (["error: request: disk read failed"], "error: request: disk read failed"),
    ],
)
def test_the_line_that_tells_most(lines: list[str], best: str | None) -> None:
    words, logged = heard(*lines)
    assert words.best == best
    assert words.error is None
    assert logged == lines


def test_a_usage_error_is_its_first_line() -> None:
    words, logged = heard(
        "error: the following required arguments were not provided:",
        "  --model <DIR>",
        "Usage: colibri-engine --model <DIR> --mux",
        "For more information, try '--help'.",
    )
    assert words.error == "the following required arguments were not provided: --model <DIR>"
    assert logged == []


def test_hints_go_with_errors_only() -> None:
    words, logged = heard("notice: slow disk", "hint: buy another", "error: no", "hint: try", "end")
    assert (words.error, words.hint) == ("no", "try")
    assert logged == ["notice: slow disk", "hint: buy another", "end"]


def test_errors_do_not_pile_up() -> None:
    words, _ = heard(*(f"error: {number}" for number in range(100)))
    assert words.error is not None
    assert len(words.error.split("; ")) == ERRORS_KEPT
