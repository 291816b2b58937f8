"""Templates and the random source of the generator.

"[a|b|c]" picks one alternative (they may nest); "{slot}" takes a value of the document's context,
which keeps the hero, the friend, the object and its colour the same through a story and the
questions about it.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Slot(NamedTuple):
    """A place to fill from the context."""

    name: str


# A sequence of texts, slots and choices; a choice is a list of such sequences.
Nodes = list["str | Slot | list[Nodes]"]

PIECE = re.compile(r"[\[\]|]|\{\w+\}|[^\[\]|{}]+")
ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])(?!one |use|uni)")
SENTENCE_START = re.compile(r"(^|[.!?] |^\"|[.!?,:] \")([a-z])")


@cache
def parse(template: str) -> Nodes:
    """A template as nodes; each template is parsed once."""
    stack: list[list[Nodes]] = [[[]]]  # a list of alternatives for every open bracket
    for piece in PIECE.findall(template):
        if piece == "[":
            stack.append([[]])
        elif piece == "]":
            alternatives = stack.pop()
            stack[-1][-1].append(alternatives)
        elif piece == "|" and len(stack) > 1:
            stack[-1].append([])
        elif piece[0] == "{":
            stack[-1][-1].append(Slot(piece[1:-1]))
        else:
            stack[-1][-1].append(piece)
    if len(stack) != 1:
        raise ValueError(f"brackets do not match in {template!r}")
    return stack[0][0]


class Generator:
    """All choices of a document come from one of these; a seed fixes every byte."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices, each as likely."""
        return choices[int(self.random.random() * len(choices))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def expand(self, template: str, context: Mapping[str, str] | None = None) -> str:
        """Fill a template, nothing else."""
        out: list[str] = []
        self._expand(parse(template), context or {}, out)
        return "".join(out)

    def fill(self, template: str, context: Mapping[str, str] | None = None) -> str:
        """Fill a template, then set articles and capitals right."""
        return tidy(self.expand(template, context))

    def _expand(self, nodes: Nodes, context: Mapping[str, str], out: list[str]) -> None:
        for node in nodes:
            if isinstance(node, str):
                out.append(node)
            elif isinstance(node, Slot):
                out.append(context[node.name])
            else:
                self._expand(self.pick(node), context, out)


def right_articles(text: str) -> str:
    """Write "an" before vowels."""
    return ARTICLE.sub(r"\1n ", text)


def tidy(text: str) -> str:
    """Single spaces, right articles, sentences with capitals."""
    text = right_articles(" ".join(text.split()))
    return SENTENCE_START.sub(lambda match: match.group(1) + match.group(2).upper(), text)


def with_article(word: str) -> str:
    """The word with "a" or "an" before it."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[0].upper() + text[1:]


def held_out(name: str, thing: str | None) -> bool:
    """Whether a (name, animal or object) pair is kept for the gates: one in twelve.

    No request of the corpus ever joins such a pair."""
    return zlib.crc32(f"{name}/{thing}".encode()) % 12 == 0
