"""Stories, requests for them and questions about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from .grammar import Generator, capital, held_out, right_articles, with_article
from .plot import Question
from .plots_days import DAY_PLOTS
from .plots_friends import FRIEND_PLOTS
from .plots_objects import OBJECT_PLOTS
from .vocabulary import (
    ADULTS,
    ANIMALS,
    BOYS,
    BUILDINGS,
    CHILD_ADJECTIVES,
    CHILD_HOMES,
    COLORS,
    COMMON_OBJECTS,
    DAYS,
    FEARS,
    FEMALE_NAMES,
    FOODS,
    FRUITS,
    GAMES,
    GIFTS,
    GIRLS,
    HELPERS,
    HIDING,
    HIDING_OUTSIDE,
    HOBBIES,
    MONTHS,
    NAMES,
    NUMBERS,
    PLACES,
    SEASONS,
    SEEDS,
    TRAITS,
    TREES,
    WALKED_IN,
    WEATHER,
    is_male,
    words,
)

PLOTS = {**OBJECT_PLOTS, **FRIEND_PLOTS, **DAY_PLOTS}
ABOUT_OBJECT = [name for name, plot in PLOTS.items() if "o" in plot.flags]
WITH_FRIEND = [name for name, plot in PLOTS.items() if "k" in plot.flags]

# Plots that go with these objects only.
OBJECTS_OF_PLOT = {
    "broken": words(
        """
        cup plate jar bottle lamp clock watch mug teapot doll flute mirror comb candle lantern
        necklace bracelet umbrella drum crown mask puppet vase bowl whistle
        """
    ),
    "wind": words(
        """
        kite balloon hat scarf umbrella ribbon feather flag card cap mask fan glove mitten sock
        bow veil map
        """
    ),
    "river": words(
        """
        boat ball balloon hat boot box bucket cup basket bottle feather brush pencil umbrella
        bag flute cap mug
        """
    ),
    "tree": words(
        """
        ball kite hat cap boot balloon mitten glove sock ribbon scarf flag rope feather
        """
    ),
    "make": words(
        """
        kite boat doll drum puppet mask crown hat flag box basket bag necklace bracelet car
        train card bow lantern flute puzzle scarf cart sail
        """
    ),
    "share": words(
        """
        ball kite car doll drum boat puzzle top train balloon book wagon puppet flute whistle
        horn marble shovel bucket crayon trumpet mask crown rope sled swing
        """
    ),
    "trade": words(
        """
        ball car doll drum boat puzzle top train book puppet flute whistle horn marble trumpet
        mask crown coin shell watch
        """
    ),
}
BIG_OBJECTS = words(
    """
    wagon umbrella pillow blanket drum bucket shovel sled swing cart sail box bag basket
    """
)
NOT_WITH_BIG = ("bag", "gift", "treasure", "found")
SWIMMERS = words(
    """
    duck frog otter penguin swan beaver goose crab turtle bee butterfly bird hummingbird ant snail
    """
)
NEVER_LITTLE = ("elephant", "giraffe", "bear", "dragon")
CHARACTERS = [*TRAITS, "playful", "noisy", "stubborn", "busy", "proud", "wise"]


def _all_objects() -> list[str]:
    fitting = {thing for things in OBJECTS_OF_PLOT.values() for thing in things}
    return COMMON_OBJECTS + sorted(fitting - set(COMMON_OBJECTS))


def _held_for(names: list[str], thing: str) -> bool:
    return any(held_out(name, thing) for name in names)


OBJECTS = _all_objects()
HELD_OBJECTS = [o for o in OBJECTS if _held_for(BOYS, o) and _held_for(GIRLS, o)]

INTRODUCTIONS = [
    "[Once upon a time,|Long ago,|Once,|One day,|A long time ago,] there was {hk} named {H}.",
    "{H} was {hk}.",
    "There once was {hk} called {H}.",
    "This is a story about {H}, {hk}.",
    "{Home} there lived {hk} named {H}.",
    "Once there lived {hk}. {His} name was {H}.",
]
DETAILS = [
    "{H} lived {home}.",
    "{H} lived {home} and was always {trait}.",
    "{H} was very {trait}.",
    "Everyone liked {H}[, because {he} was so {trait}|].",
    "{Hthe} liked {hobby}.",
    "{H} lived {home} and liked {hobby}.",
    "{His} favorite food was {gift}.",
    "{His} favorite season was {season}.",
]
FRIENDSHIPS = [
    "{H} had a [good|dear|best] friend named {F}. {F} was {fk}.",
    "{His} best friend was {F}, {fk}.",
    "{H} often played {game} with {F}, {fk}.",
]
MORALS = [
    "The end.",
    "The end.",
    "It is good to have a friend.",
    "Being kind makes everyone happy.",
    "Nobody ever forgot that day.",
    "Little steps can lead far.",
    "Good things take time.",
    "And that is the end.",
    "It was a good day.",
    "What a day it was!",
]
ASKING = [
    "Tell me a story",
    "Tell me a story",
    "Tell me a short story",
    "Write a story",
    "Write a short story",
    "Can you tell me a story",
    "Please tell me a story",
    "I want to hear a story",
    "Give me a story",
    "Tell me a little story",
    "Write me a story",
    "Tell a story",
    "I would like a story",
    "Make up a story",
    "Read me a story",
    "Could you write a story",
]
FORMS = words(
    """
    animal animal named named named girl girl girl obj animobj namedobj kidobj kidobj once once
    once two animals topic any name colored
    """
)

Context = dict[str, Any]


class Being(NamedTuple):
    """A hero or a friend."""

    name: str
    species: str  # an animal, "boy" or "girl"
    adjective: str
    home: str  # with its preposition: "in a warm barn"

    @property
    def is_animal(self) -> bool:
        return self.species in ANIMALS

    @property
    def kind(self) -> str:
        """As in "a brown fox"."""
        return with_article(f"{self.adjective} {self.species}")

    @property
    def pronouns(self) -> tuple[str, str, str]:
        """As in he, him, his."""
        return ("he", "him", "his") if is_male(self.name) else ("she", "her", "her")

    @property
    def taken(self) -> tuple[str, ...]:
        """What the friend may not be: the same name, the same kind of animal."""
        return (self.name, self.species) if self.is_animal else (self.name,)


class Answerable(NamedTuple):
    """A question about a story; `key` has to be in the answer."""

    question: str
    answer: str
    key: str | None


class Story(NamedTuple):
    """A told story, the questions it answers, and what it is about."""

    text: str
    questions: list[Answerable]
    topic: str


class Request(NamedTuple):
    """A request, the story that follows, and what the request fixes.

    `hero` is the requested name or animal (None if the request leaves it open), `words` are the
    requested objects and animals."""

    question: str
    text: str
    questions: list[Answerable]
    hero: str | None
    words: list[str]


def being(
    g: Generator,
    taken: Sequence[str] = (),
    thing: str | None = None,
    want_held: bool = False,
    child: bool | None = None,
) -> Being:
    """Draw a being that is not `taken`; its (name, animal or thing) pair is one the corpus may
    use, or with `want_held` one kept for the gates."""
    if child is None:
        child = g.chance(0.45)
    fixed = None
    if child:
        fixed = "boy" if g.chance(0.5) else "girl"
    while True:
        species = fixed or g.pick(list(ANIMALS))
        name = g.pick(_names_for(species))
        if name in taken or species in taken:
            continue
        is_child = species in ("boy", "girl")
        pair_is_held = held_out(name, thing if is_child else species)
        if pair_is_held == want_held or (is_child and not thing and not want_held):
            break
    if is_child:
        adjective = g.pick(CHILD_ADJECTIVES)
        home = g.pick(CHILD_HOMES)
    else:
        adjective = g.pick([*ANIMALS[species].adjectives, "little"])
        home = ANIMALS[species].home
    if home.split()[0] not in ("on", "at", "by", "in"):
        home = "in " + home
    return Being(name, species, adjective, home)


def _names_for(species: str) -> list[str]:
    if species == "boy":
        return BOYS
    if species == "girl":
        return GIRLS
    return FEMALE_NAMES if species in ("hen", "cow") else NAMES


def context(
    g: Generator, hero: Being, friend: Being, thing: str | None = None, color: str | None = None
) -> Context:
    """Values of all slots of a story.  The order of the draws fixes the bytes of a corpus."""
    adult = g.pick(ADULTS)
    thing = thing or g.pick(OBJECTS)
    color = color or g.pick(COLORS)
    hidden_outside, not_outside = g.random.sample(HIDING_OUTSIDE, 2)
    hidden, not_hidden = g.random.sample(HIDING, 2)
    place, other_place = g.random.sample(PLACES, 2)
    number, other_number = g.random.sample(NUMBERS[2:10], 2)
    other_color = g.pick([x for x in COLORS if x != color])
    adult_he, adult_him = ("he", "him") if adult in ("Dad", "Grandpa") else ("she", "her")
    he, him, his = hero.pronouns
    friend_he, friend_him, friend_his = friend.pronouns
    return {
        "H": hero.name,
        "hk": hero.kind,
        "hs": hero.species,
        "he": he,
        "him": him,
        "his": his,
        "He": capital(he),
        "His": capital(his),
        "home": hero.home,
        "Home": capital(hero.home),
        "Hthe": f"{hero.name} the {hero.species}" if hero.is_animal else hero.name,
        "F": friend.name,
        "fk": friend.kind,
        "fs": friend.species,
        "fhe": friend_he,
        "fhim": friend_him,
        "fhis": friend_his,
        "Fhe": capital(friend_he),
        "A": adult,
        "ahe": adult_he,
        "ahim": adult_him,
        "Ahe": capital(adult_he),
        "o": thing,
        "col": color,
        "col2": other_color,
        "obj": f"{color} {thing}",
        "inplace": "the " + g.pick(WALKED_IN),
        "place": "the " + place,
        "place2": "the " + other_place,
        "hide": hidden,
        "wrong": not_hidden,
        "hideo": hidden_outside,
        "wrongo": not_outside,
        "weather": g.pick(WEATHER),
        "day": g.pick(DAYS),
        "month": g.pick(MONTHS),
        "season": g.pick(SEASONS),
        "food": g.pick(FOODS),
        "fruit": g.pick(FRUITS),
        "seed": g.pick(SEEDS),
        "trait": hero.adjective if hero.adjective in CHARACTERS else g.pick(TRAITS),
        "fear": g.pick(FEARS),
        "build": g.pick(BUILDINGS),
        "game": g.pick(GAMES),
        "helper": g.pick(HELPERS),
        "num": number,
        "num2": other_number,
        "animal": hero.is_animal,
        "hobby": g.pick(HOBBIES),
        "gift": g.pick(GIFTS),
        "tree": g.pick(TREES),
    }


def fits(plot: str, thing: str) -> bool:
    """Whether a plot makes sense with an object."""
    if plot in OBJECTS_OF_PLOT:
        return thing in OBJECTS_OF_PLOT[plot]
    return not (plot in NOT_WITH_BIG and thing in BIG_OBJECTS)


def choose(
    g: Generator, plots: Sequence[str], hero: Being, thing: str | None = None
) -> tuple[str, str]:
    """A plot that suits hero and object, and an object that suits the plot."""
    while True:
        plot = g.pick(plots)
        candidate = thing or g.pick(OBJECTS)
        suits = plot not in ABOUT_OBJECT or fits(plot, candidate)
        if suits and not (plot == "learn" and hero.species in SWIMMERS):
            return plot, candidate


def tell(g: Generator, plot_name: str, values: Context, plain: bool = False) -> Story:
    """Tell a story; `plain` begins it with "Once upon a time" or the like."""
    plot = PLOTS[plot_name]
    rooms = ["the kitchen", "the attic", "the cellar", "the hall", "the roof"]
    values = dict(values, hide2=g.pick(rooms))
    opening = INTRODUCTIONS[0] if plain else g.pick(INTRODUCTIONS)
    detail = ""
    if g.chance(0.6):
        elsewhere = [x for x in DETAILS if "{home}" not in x]
        detail = g.pick(elsewhere if "{Home}" in opening else DETAILS)
    friendship = g.pick(FRIENDSHIPS) if "k" in plot.flags else ""
    parts = [g.fill(x, values) for x in (opening, detail, friendship, plot.text) if x]
    if values["animal"]:
        parts[-1] = _name_by_kind(g, parts[-1], values)
    ending = g.fill(plot.ending, values)
    parts.append(ending)
    if g.chance(0.3):
        parts.append(g.pick(MORALS))

    questions = [
        Answerable(
            g.fill(x.question, values),
            g.fill(x.answer, values),
            values[x.key] if x.key else None,
        )
        for x in _questions(plot_name, opening + detail, detail, ending, values)
    ]
    return Story(" ".join(parts), questions, g.fill(g.pick(plot.topics), values))


def _name_by_kind(g: Generator, text: str, values: Context) -> str:
    """Call the hero by its kind now and then, as in "The rabbit ran home."."""
    name, species = values["H"], values["hs"]
    starts = [m.start() for m in re.finditer(rf"(?<=[.!?] ){name} (?=[a-z])", text)]
    count = min(len(starts), g.pick((1, 1, 2)))
    articles = ("The",) if species in NEVER_LITTLE else ("The", "The", "The little")
    for at in sorted(g.random.sample(starts, count), reverse=True):
        text = f"{text[:at]}{g.pick(articles)} {species}{text[at + len(name) :]}"
    said = [m.start() for m in re.finditer(rf"(?<=said ){name}(?=[.])", text)]
    if said and g.chance(0.4):
        at = g.pick(said)
        text = f"{text[:at]}the {species}{text[at + len(name) :]}"
    return text


def _questions(
    plot_name: str, beginning: str, detail: str, ending: str, values: Context
) -> list[Question]:
    """The plot's questions and those any story answers."""
    plot = PLOTS[plot_name]
    result = list(plot.questions)
    if "ome}" in beginning:  # {home} or {Home}
        result.append(Question("Where did {H} live?", "{H} lived {home}.", "home"))
    if "{hobby}" in detail:
        result.append(Question("What did {H} like?", "{H} liked {hobby}.", "hobby"))
    if "{gift}" in detail:
        about = "What was {H}'s favorite food?"
        result.append(Question(about, "{H}'s favorite food was {gift}.", "gift"))
    about = "[Who is the story about|Who was the story about]?"
    result.append(Question(about, "The story is about {H}, {hk}.", "H"))
    result.append(Question("How did [the story|it] end?", ending, None))
    if values["hs"] != values["fs"]:
        about = "[What was the name of the {hs}|What was the {hs} called]?"
        result.append(Question(about, "The {hs} was called {H}.", "H"))
    else:
        result.append(Question("Who was {F}?", "{F} was {fk}.", "fs"))
    if values["animal"] and values["hs"] != "robot":
        result.append(Question("What kind of animal was {H}?", "{H} was a {hs}.", "hs"))
    else:
        result.append(Question("Who is {H}?", "{H} is {hk}.", "hs"))
    if "o" in plot.flags:
        result += [Question("What color was the {o}?", "The {o} was {col}.", "col")] * 2
    return result


def request(g: Generator, want_held: bool = False, form: str | None = None) -> Request:
    """A request for a story and the story.  `want_held` asks for a pair kept for the gates."""
    form = form or g.pick(FORMS)
    thing = g.pick(HELD_OBJECTS if want_held else OBJECTS)
    color = g.pick(COLORS)
    with_thing = form in ("obj", "animobj", "namedobj", "kidobj")
    child = None
    if form in ("animal", "named", "animobj", "namedobj", "animals", "colored"):
        child = False
    if form in ("girl", "kidobj", "two"):
        child = True
    fixes_pair = form in ("named", "girl", "namedobj", "kidobj", "once")
    hero = being(g, thing=thing, want_held=want_held and fixes_pair, child=child)
    friend_child = {"animals": False, "two": True}.get(form)
    friend = being(g, hero.taken, child=friend_child)
    pool = list(PLOTS)
    if with_thing:
        pool = ABOUT_OBJECT
    elif form in ("animals", "two"):
        pool = WITH_FRIEND
    plot, thing = choose(g, pool, hero, thing if with_thing else None)
    values = context(g, hero, friend, thing, color)
    story = tell(g, plot, values, plain=form == "once")

    short_kind = g.chance(0.75) or form not in ("named", "girl")
    kind = with_article(hero.species) if short_kind else hero.kind
    wanted = with_article(f"{color} {thing}") if g.chance(0.5) else with_article(thing)
    if form == "once":
        question = _beginning(g, story.text, hero)
        named = hero.name if hero.name in question else hero.species
        return Request(question, story.text, story.questions, named, [hero.species])

    species = with_article(hero.species)
    about = {
        "animal": species,
        "named": f"{kind} [named|called] {hero.name}",
        "girl": f"{kind} [named|called] {hero.name}",
        "obj": wanted,
        "animobj": f"{species} and {wanted}",
        "namedobj": f"{species} named {hero.name} and {wanted}",
        "kidobj": f"{species} named {hero.name} and {wanted}",
        "two": f"{hero.name} and {friend.name}",
        "animals": f"{species} and {with_article(friend.species)}",
        "topic": story.topic,
        "any": "",
        "name": hero.name,
        "colored": hero.kind,
    }[form]
    question = g.fill(g.pick(ASKING))
    if about:
        question += " about " + right_articles(g.expand(about))
    if question.startswith(("Can", "Could")):
        question += "?"
    else:
        question += g.pick([".", ".", "!", ""])
    fixed_hero = None
    if form in ("named", "girl", "namedobj", "kidobj", "two", "name"):
        fixed_hero = hero.name
    elif form in ("animal", "animobj", "animals", "colored"):
        fixed_hero = hero.species
    required = [thing] if with_thing else []
    if hero.is_animal:
        required.append(hero.species)
    return Request(question, story.text, story.questions, fixed_hero, required)


def _beginning(g: Generator, text: str, hero: Being) -> str:
    """A request that is the beginning of the story itself."""
    first = f"{text.split(',')[0]}, there was {hero.kind}"
    if g.chance(0.75):
        return f"{first} named {hero.name}" + g.pick([".", ".", "", " ..."])
    return first + g.pick(["", ".", " ..."])
