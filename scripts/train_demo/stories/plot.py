"""What a plot is."""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    """Templates of a question about the story and its answer.

    `key` is the slot whose value has to be in the answer, or None if there is no such slot."""

    question: str
    answer: str
    key: str | None


class Plot(NamedTuple):
    """Templates of a story.

    Flags: "o", the story is about an object; "k", the friend is known from the start.
    Slots: H hero, F friend, A grown-up, o object, obj object with its colour, he/him/his and
    fhe/fhim/fhis their pronouns, hk/fk "a brown fox", hs/fs "fox", and the names used in
    `telling.context`."""

    flags: str
    topics: list[str]
    text: str
    ending: str
    questions: list[Question]
