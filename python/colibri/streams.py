"""Standard streams and text of a command, whatever the shell made of them.

Owns: closed descriptors, encodings, what is said when reading or writing fails.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from pathlib import Path

from colibri.errors import UsageError

# Python, the event loop, the engine's pipes and a few connections need about this many.
LEAST_OPEN_FILES = 32
OPEN_FILES_HINT = "raise the limit of open files with 'ulimit -n 1024'"


def prepare() -> None:
    """Makes the standard streams safe to use; called once, before anything is opened."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Else the next pipe or socket would become a standard stream of the engine.
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - kept open
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Bytes that are no text are reported with what they stand in, see ``check_text``.
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a character is no reason to lose the answer.
        sys.stdout.reconfigure(errors="replace")


def check_open(*, stdin: bool) -> None:
    """Refuses to work without the streams a command needs.

    Raises:
        UsageError: one of them is closed.
    """
    if sys.stdout is None:
        raise UsageError("stdout is closed")
    if stdin and sys.stdin is None:
        raise UsageError("stdin is closed")


def check_open_files() -> None:
    """Refuses a limit of open files that would fail anywhere later.

    Raises:
        UsageError: it is too low.
    """
    import resource  # not everywhere, and not needed for --help

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < LEAST_OPEN_FILES:
        raise UsageError(
            f"only {limit} open files are allowed, at least {LEAST_OPEN_FILES} are needed",
            hint=OPEN_FILES_HINT,
        )


def check_text(text: str, what: str) -> None:
    """Refuses text that no prompt, path or header can carry.

    Raises:
        UsageError: it holds bytes that are not UTF-8, or a NUL character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not valid UTF-8") from error
    if "\0" in text:
        raise UsageError(f"{what} holds a NUL character")


def one_line(text: str) -> str:
    """Returns text that may hold parts of a file or a name as a line that changes no other."""
    return "".join(c if c.isprintable() else " " for c in text)


def explain(error: OSError | UnicodeError) -> tuple[str, str | None]:
    """Returns message and hint for a failure of reading or writing."""
    if isinstance(error, UnicodeError):
        return f"text that cannot be read or written: {error}", None
    hint = OPEN_FILES_HINT if error.errno in (errno.EMFILE, errno.ENFILE) else None
    reason = error.strerror or str(error)
    where = "input or output failed" if error.filename is None else error.filename
    return f"{where}: {reason}", hint


def give_up_output() -> None:
    """Drops what stdout still holds, which would fail once more at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
