"""Pure filters on streamed text: stop strings and thinking.

Both hold back what might be the beginning of a marker, so that no part of one is ever shown, and
give the same result for every way of cutting the same text into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import AnyStr, Literal, TypeAlias

Kind: TypeAlias = Literal["content", "reasoning"]

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"

# Markers that begin or end a turn in common templates. A model that writes one of those its own
# template uses has finished its turn and is inventing the next.
ROLE_MARKERS = (
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|endoftext|>",
)


def role_markers(template: str | None) -> tuple[str, ...]:
    """Returns the role markers that a chat template uses."""
    return tuple(marker for marker in ROLE_MARKERS if template and marker in template)


def held_back(text: AnyStr, markers: Sequence[AnyStr]) -> int:
    """Returns how many last characters, or bytes, of ``text`` may be the beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=0) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[-size:]
        if any(marker.startswith(tail) for marker in markers):
            return size
    return 0


class StopFilter:
    """Cuts a text before the first stop string.

    The match that ends first wins, the longer one of two that end together: it is what a reader
    sees who checks after every character, so it cannot depend on how the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        # What most texts hold none of; quicker than looking for all stop strings everywhere.
        first = re.escape("".join(stop[0] for stop in stops))
        self._starts = re.compile(f"[{first}]" if first else "(?!)")
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Takes more text; returns what is certain to belong to the answer."""
        if self.stopped or not text:
            return ""
        if not self._held and not self._starts.search(text):
            return text
        text = self._held + text
        matches = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if matches:
            self.stopped = True
            self._held = ""
            return text[: min(matches)[1]]
        keep = held_back(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Returns what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


class ThinkFilter:
    """Tells thinking from answer by the tags ``<think>`` and ``</think>``.

    Thinking is recognised at the beginning of the answer only, where templates put it; tags later
    on are text. White space around the tags belongs to neither part.

    Args:
        inside: whether the prompt already opened the tag.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._state: Literal["start", "inside", "after", "content"] = (
            "inside" if inside else "start"
        )
        self._held = ""
        self._trim = inside

    def push(self, text: str) -> list[tuple[Kind, str]]:
        """Takes more text; returns pieces with their kind, none of them empty."""
        out: list[tuple[Kind, str]] = []
        self._held += text
        if self._state == "start":
            stripped = self._held.lstrip()
            if stripped.startswith(THINK_OPEN):
                self._held = stripped[len(THINK_OPEN) :]
                self._state = "inside"
                self._trim = True
            elif not THINK_OPEN.startswith(stripped):
                self._state = "content"
        if self._state == "inside":
            self._trim_left()
            at = self._held.find(THINK_CLOSE)
            if at >= 0:
                _add(out, "reasoning", self._held[:at].rstrip())
                self._held = self._held[at + len(THINK_CLOSE) :]
                self._state = "after"
                self._trim = True
            else:
                keep = held_back(self._held, (THINK_CLOSE,))
                body = self._held[: len(self._held) - keep]
                # Trailing white space may turn out to stand before the closing tag.
                body = body.rstrip()
                _add(out, "reasoning", body)
                self._held = self._held[len(body) :]
        if self._state == "after":
            self._trim_left()
            if self._held:
                self._state = "content"
        if self._state == "content":
            _add(out, "content", self._held)
            self._held = ""
        return out

    def flush(self) -> list[tuple[Kind, str]]:
        """Returns what was held back, at the end of the text."""
        held, self._held = self._held, ""
        if not held or self._state == "after":
            return []
        return [("reasoning" if self._state == "inside" else "content", held)]

    def _trim_left(self) -> None:
        if self._trim:
            self._held = self._held.lstrip()
            self._trim = not self._held


def _add(out: list[tuple[Kind, str]], kind: Kind, text: str) -> None:
    if text:
        out.append((kind, text))
