"""Questions about the closed set of facts."""

from __future__ import annotations

from typing import NamedTuple

from .fact_tables import BABIES, CAPITALS, COLORS_OF, HOMES, LISTS, OPPOSITES, SOUNDS
from .grammar import Generator, capital, tidy, with_article
from .vocabulary import DAYS, MONTHS, NUMBERS, SEASONS, words

KINDS = words(
    """
    sound sound baby baby home color color opp opp cap cap next next month season
    plus plus plus plus minus minus minus count list before order
    """
)


class Fact(NamedTuple):
    """A question, its answer, and what has to be in any right answer."""

    question: str
    answer: str
    key: str


def fact(g: Generator, kind: str | None = None) -> Fact:
    """A question about a fact of a kind (any kind if None)."""
    kind = kind or g.pick(KINDS)
    if kind in ("next", "month", "season", "before"):
        return _neighbour(g, kind)
    if kind in ("plus", "minus"):
        return _sum(g, kind)
    return MAKERS[kind](g)


def _sound(g: Generator) -> Fact:
    animal = g.pick(list(SOUNDS))
    a = with_article(animal)
    question = g.fill(
        f"[What sound does {a} make|What does {a} say|How does {a} sound|What noise does {a} make]?"
    )
    return Fact(question, f"{capital(a)} says {SOUNDS[animal]}.", SOUNDS[animal])


def _baby(g: Generator) -> Fact:
    animal = g.pick(list(BABIES))
    question = g.fill(
        f"[What is a baby {animal} called|What is a baby {animal}"
        f"|What do you call a baby {animal}|What is the name for a baby {animal}]?"
    )
    answer = tidy(f"A baby {animal} is called a {BABIES[animal]}.")
    return Fact(question, answer, BABIES[animal])


def _home(g: Generator) -> Fact:
    animal = g.pick(list(HOMES))
    a = with_article(animal)
    question = g.fill(f"[Where does {a} live|Where do you find {a}|What is the home of {a}]?")
    return Fact(question, f"{capital(a)} lives {HOMES[animal]}.", HOMES[animal])


def _color(g: Generator) -> Fact:
    thing = g.pick(list(COLORS_OF))
    order = f"Tell me the color of {thing}"
    question = g.fill(
        f"[What color is {thing}|Which color is {thing}|{order}|What color does {thing} have]?"
    )
    question = question.replace(order + "?", order + ".")
    return Fact(question, f"{capital(thing)} is {COLORS_OF[thing]}.", COLORS_OF[thing])


def _opposite(g: Generator) -> Fact:
    word = g.pick(list(OPPOSITES))
    other = OPPOSITES[word]
    if g.chance(0.5):
        word, other = other, word
    question = g.fill(
        f"[What is the opposite of {word}|What is the opposite of {word}"
        f"|What word is the opposite of {word}|Do you know the opposite of {word}]?"
    )
    return Fact(question, f"The opposite of {word} is {other}.", other)


def _capital(g: Generator) -> Fact:
    country = g.pick(list(CAPITALS))
    city = CAPITALS[country]
    question = g.fill(
        f"[What is the capital of {country}|What is the capital of {country}"
        f"|What is the capital city of {country}|Which city is the capital of {country}"
        f"|Do you know the capital of {country}]?"
    )
    return Fact(question, f"The capital of {country} is {city}.", city)


def _neighbour(g: Generator, kind: str) -> Fact:
    """The day, month or season after (or before) another."""
    if kind == "next" or (kind == "before" and g.chance(0.5)):
        names, noun = DAYS, "day"
    elif kind == "season":
        names, noun = SEASONS, "season"
    else:
        names, noun = MONTHS, "month"
    index = g.random.randrange(len(names))
    step, side = (-1, "before") if kind == "before" else (1, "after")
    known, other = names[index], capital(names[(index + step) % len(names)])
    question = g.fill(
        f"[What {noun} comes {side} {known}|Which {noun} comes {side} {known}"
        f"|What {noun} is {side} {known}|What comes {side} {known}]?"
    )
    return Fact(question, f"{other} comes {side} {known}.", other)


def _sum(g: Generator, kind: str) -> Fact:
    """Plus and minus of 0 to 10, in figures or in words."""
    x, y = g.random.randrange(11), g.random.randrange(11)
    if kind == "minus":
        x, y = max(x, y), min(x, y)
    result = x + y if kind == "plus" else x - y
    form = g.random.randrange(5)
    if form < 2:
        sign = "+" if kind == "plus" else "-"
        question = g.fill(f"[What is|How much is|Can you tell me what is] {x} {sign} {y}?")
        return Fact(question, f"{x} {sign} {y} = {result}.", f"= {result}.")
    first, second = NUMBERS[x], NUMBERS[y]
    answer = f"{capital(first)} {kind} {second} is {NUMBERS[result]}."
    if form == 2 and kind == "plus":
        question = f"Add {first} and {second}."
    else:
        question = g.fill(f"[What is|How much is] {first} {kind} {second}?")
    return Fact(question, answer, f"is {NUMBERS[result]}.")


def _count(g: Generator) -> Fact:
    last = g.random.randrange(3, 21)
    answer = capital(", ".join(NUMBERS[1 : last + 1])) + "."
    word = NUMBERS[last]
    question = g.fill(
        f"[Count to {word}.|Can you count to {word}?|Please count to {word}."
        f"|Count from one to {word}.]"
    )
    return Fact(question, answer, answer)


def _order(g: Generator) -> Fact:
    names, what = g.pick(
        [
            (DAYS, "days of the week"),
            (MONTHS, "months of the year"),
            (SEASONS, "seasons of the year"),
        ]
    )
    listed = ", ".join(names[:-1]) + " and " + names[-1]
    question = g.fill(
        f"[Name the {what}.|What are the {what}?|Tell me the {what}.|Can you name the {what}?]"
    )
    return Fact(question, f"The {what} are {listed}.", listed)


def _list(g: Generator) -> Fact:
    what = g.pick(list(LISTS))
    count = g.random.randrange(2, 5)
    names = g.random.sample(LISTS[what], count)
    some = f"{NUMBERS[count]} {what}"
    question = g.fill(f"[Name {some}.|Tell me {some}.|Can you name {some}?]")
    answer = capital(", ".join(names[:-1]) + " and " + names[-1]) + "."
    return Fact(question, answer, names[0])


MAKERS = {
    "sound": _sound,
    "baby": _baby,
    "home": _home,
    "color": _color,
    "opp": _opposite,
    "cap": _capital,
    "count": _count,
    "order": _order,
    "list": _list,
}
