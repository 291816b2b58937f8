"""Which lines on an engine's stderr say why it ended.

Engines write for people: errors with hints, usage texts, panics with backtraces, notices. One line
of all that belongs into the message about a death, and rarely the last one.
"""

from __future__ import annotations

import re
from collections import deque

# How many errors are kept; an engine that goes on after an error may print many in its life.
ERRORS_KEPT = 3
# What went wrong with one request, not with the engine; legacy has no ids.
REQUEST_ERROR = re.compile(r"error: request(?: \d+)?: ")
_PANIC = re.compile(r"thread '.*' .*panicked at ")
# What the Rust runtime says when it gives up without a panic.
_FATAL = re.compile(r"memory allocation of \d+ bytes failed|fatal runtime error: |panicked at ")
_NOISE = re.compile(r"(notice|note|hint|progress|warning|info|debug)\b|stack backtrace:", re.I)
_BACKTRACE = re.compile(r"\s+\d+: |\s+at ")
# The rest of a usage error speaks of options that the user did not type.
_USAGE = re.compile(r"Usage: |For more information, try ")


class LastWords:
    """The lines of one life of an engine, as far as they explain its end."""

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=ERRORS_KEPT)
        self._hints: deque[str] = deque(maxlen=ERRORS_KEPT)
        self._fatal: str | None = None
        self._last: str | None = None
        self._after: str = ""

    def take(self, line: str) -> bool:
        """Takes a line; returns whether it is told with the death and need not be logged."""
        after, self._after = self._after, ""
        if line.startswith("error: ") and not REQUEST_ERROR.match(line):
            self._errors.append(line.removeprefix("error: "))
            self._after = "error"
            return True
        if after == "error":
            if self._belongs_to_error(line):
                self._after = "error"
                return True
        elif after == "panic":
            self._fatal = f"{self._fatal} {line}"
        elif _FATAL.search(line):
            self._fatal = line
            # The message of a panic stands on the next line.
            if _PANIC.match(line) and line.endswith(":"):
                self._after = "panic"
        if not _NOISE.match(line) and not _BACKTRACE.match(line):
            self._last = line
        return False

    def _belongs_to_error(self, line: str) -> bool:
        if line.startswith("hint: "):
            self._hints.append(line.removeprefix("hint: "))
        elif line.startswith("  "):
            # What was missing, or a tip.
            self._errors[-1] += f" {line.strip()}"
        elif not _USAGE.match(line):
            return False
        return True

    @property
    def error(self) -> str | None:
        """The errors the engine reported."""
        return "; ".join(self._errors) or None

    @property
    def hint(self) -> str | None:
        """The advice that went with them."""
        return "; ".join(self._hints) or None

    @property
    def best(self) -> str | None:
        """The line that tells most, if it reported no error."""
        return self._fatal or self._last
