"""Dialogues whose answers are copied from the context: echo, names, who has what, spelling."""

from __future__ import annotations

from .fact_tables import LISTS
from .facts import fact
from .grammar import Generator, capital
from .telling import OBJECTS
from .vocabulary import ANIMALS, COLORS, FRUITS, NAMES, PLACES, SEEDS, TRAITS
from .wordlist import EXTRA_WORDS, SILLY

Turns = list[tuple[str, str]]


def _all_words() -> list[str]:
    listed = {word for names in LISTS.values() for word in names}
    single = [place for place in PLACES if " " not in place]
    return sorted(listed.union(ANIMALS, OBJECTS, TRAITS, SEEDS, FRUITS, single, EXTRA_WORDS))


WORDS = _all_words()


def copy_turns(g: Generator) -> Turns:
    """One such dialogue."""
    name = g.pick(NAMES)
    color, thing = g.pick(COLORS), g.pick(OBJECTS)
    kind = g.random.randrange(7)
    if kind < 2:
        return _echo(g)
    if kind == 2:
        return _own_name(g, name)
    if kind == 3:
        return _own_thing(g, color, thing)
    if kind == 4:
        return _who_has(g, name, thing)
    if kind == 5:
        return _several_times(g)
    word = g.pick(WORDS)
    question = g.fill(
        f"[Spell {word}.|Spell {word}|How do you spell {word}?|Can you spell {word}?"
        f"|Please spell {word}.]"
    )
    return [(question, "-".join(word.upper()) + ".")]


def _echo(g: Generator) -> Turns:
    count = g.random.randrange(2, 6)
    said = " ".join(g.random.sample(WORDS, count))
    order = g.fill("[Say|Repeat|Please say|Say this:|Copy this:|Please repeat] ")
    return [(f"{order} {said}.", capital(said) + ".")]


def _own_name(g: Generator, name: str) -> Turns:
    told = g.fill(f"[My name is {name}|I am {name}|Hello, I am {name}|Please call me {name}].")
    greeting = g.fill(
        f"[Hello|Hi|Nice to meet you], {name}! [How are you today?|What would you like to hear?"
        "|Do you want to hear a story?]"
    )
    turns = [(told, greeting)]
    if g.chance(0.4):
        turns.append(fact(g)[:2])
    question = g.fill("[What is my name|Do you know my name|Who am I]?")
    return [*turns, (question, f"Your name is {name}.")]


def _own_thing(g: Generator, color: str, thing: str) -> Turns:
    told = g.fill(f"I have a {color} {thing}.")
    reply = g.fill(f"A {color} {thing}! [That sounds nice.|How nice!|I like {color}.]")
    if g.chance(0.5):
        question = g.fill("[What do I have|What did I tell you about]?")
        return [(told, reply), (question, g.fill(f"You have a {color} {thing}."))]
    return [(told, reply), (f"What color is my {thing}?", f"Your {thing} is {color}.")]


def _who_has(g: Generator, name: str, thing: str) -> Turns:
    other = g.pick([x for x in NAMES if x != name])
    other_thing = g.pick([x for x in OBJECTS if x != thing])
    asked, answer = (thing, name)
    if g.chance(0.5):
        asked, answer = (other_thing, other)
    told = g.fill(f"{name} has a {thing}. {other} has a {other_thing}. ")
    return [(f"{told} Who has the {asked}?", f"{answer} has the {asked}.")]


def _several_times(g: Generator) -> Turns:
    said = f"{g.pick(SILLY)} {g.pick(WORDS)}"
    question = g.fill(f'[Say|Repeat] "the {said}" [two|three] times.')
    quoted = question.split('"')[1]
    count = 2 if question.endswith("two times.") else 3
    return [(question, ", ".join([quoted] * count).capitalize() + ".")]
