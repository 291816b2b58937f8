#!/usr/bin/env python3
"""Generator of simple-English stories and small dialogues (own work, no input data).

    python storygen.py --mb 40 --seed 5 --out corpus.jsonl
    python storygen.py --show 20 --seed 5

One JSON document a line: {"kind": "story", "text": ..} or {"kind": "chat", "turns":
[[question, answer], ..]}.  A seed gives the same bytes everywhere: only random.Random and string
operations are used.  Requests never join a pair for which `held_out` is true; gates.py does.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from stories.copying import Turns, copy_turns
from stories.facts import fact
from stories.grammar import Generator
from stories.talk import small_talk
from stories.telling import PLOTS, being, choose, context, request, tell
from stories.vocabulary import NAMES

Document = dict[str, str | Turns]
STORY_WORDS = 55  # an answer of more words is a story


def plain_story(g: Generator) -> str:
    """A story nobody asked for."""
    hero = being(g)
    friend = being(g, hero.taken)
    plot, thing = choose(g, list(PLOTS), hero)
    return tell(g, plot, context(g, hero, friend, thing)).text


def story_dialogue(g: Generator) -> Turns:
    """A requested story, mostly with questions about it, sometimes with small talk around."""
    asked = request(g)
    turns = [(asked.question, asked.text)]
    if g.chance(0.62):
        g.random.shuffle(asked.questions)
        distinct: dict[str, str] = {}
        for question, answer, _ in asked.questions:
            if question not in distinct and len(distinct) < 3:
                distinct[question] = answer
        turns += list(distinct.items())[: g.pick((1, 2, 2, 3))]
    if g.chance(0.08):
        turns.insert(0, small_talk(g, g.pick(["hello", "how", "who"]))[:2])
    if g.chance(0.08):
        turns.append(small_talk(g, g.pick(["thanks", "bye"]))[:2])
    return turns


def careless(g: Generator, question: str) -> str:
    """A question typed without care for capitals or its last mark."""
    if g.chance(0.5):
        question = question[0].lower() + question[1:] if g.chance(0.5) else question.lower()
    return question.rstrip("?.!") if g.chance(0.6) else question


def document(g: Generator) -> Document:
    """One document of the corpus."""
    draw = g.random.random()
    if 0.53 <= draw < 0.58:
        return {"kind": "story", "text": plain_story(g)}
    if draw < 0.53:
        turns = story_dialogue(g)
    elif draw < 0.82:
        count = g.pick((1, 2, 3, 3, 4))
        turns = [fact(g)[:2] if g.chance(0.9) else small_talk(g)[:2] for _ in range(count)]
    elif draw < 0.90:
        turns = [small_talk(g)[:2] for _ in range(g.pick((1, 1, 2, 3)))]
    else:
        turns = copy_turns(g)
    if g.chance(0.08):
        turns = [(careless(g, question), answer) for question, answer in turns]
    return {"kind": "chat", "turns": turns}


def documents(seed: int, size: int) -> Iterator[Document]:
    """Documents of about `size` characters in all."""
    g = Generator(seed)
    done = 0
    while done < size:
        made = document(g)
        done += sum(len(text) for text in texts(made))
        yield made


def texts(made: Document) -> list[str]:
    """All texts of a document."""
    if made["kind"] == "story":
        return [made["text"]]
    return [text for turn in made["turns"] for text in turn]


def show(made: Document) -> None:
    """Print a document for reading."""
    if made["kind"] == "story":
        print("STORY:", made["text"], "\n")
    else:
        print("\n".join(f"  USER: {q}\n  BOT : {a}" for q, a in made["turns"]), "\n")


class Statistics:
    """Counts of words and of kinds of documents."""

    def __init__(self) -> None:
        self.words: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.lengths: list[int] = []

    def add(self, made: Document) -> None:
        """Count a document."""
        self.kinds["documents"] += 1
        self.kinds["plain stories"] += made["kind"] == "story"
        self.words.update(re.findall(r"[a-z]+", " ".join(texts(made)).lower()))
        turns = made.get("turns", [])
        told = [i for i, (_, answer) in enumerate(turns) if len(answer.split()) > STORY_WORDS]
        self.kinds["requested stories"] += bool(told)
        self.kinds["with questions"] += bool(told) and told[0] < len(turns) - 1
        self.lengths += [len(turns[i][1].split()) for i in told]

    def report(self) -> None:
        """Print the counts."""
        often = sum(count >= 5 for count in self.words.values())
        print(f"plots {len(PLOTS)}  names {len(NAMES)}  words {len(self.words)} ({often} 5 times)")
        print("  ".join(f"{kind} {count}" for kind, count in self.kinds.items()))
        if self.lengths:
            mean = sum(self.lengths) / len(self.lengths)
            print(f"words a story: {min(self.lengths)} to {max(self.lengths)}, mean {mean:.1f}")


def main() -> None:
    """Write a corpus, print samples, or count."""
    parser = argparse.ArgumentParser(description="Generate stories and dialogues.")
    parser.add_argument("--mb", type=float, default=1, help="million characters of text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    parser.add_argument("--show", type=int, default=0, help="print that many documents")
    parser.add_argument("--stats", action="store_true", help="print counts")
    options = parser.parse_args()
    statistics = Statistics()
    lines: list[str] = []
    for number, made in enumerate(documents(options.seed, int(options.mb * 1e6))):
        if number < options.show:
            show(made)
        elif not options.out and not options.stats:
            break
        if options.out:
            lines.append(json.dumps(made) + "\n")
        if options.stats:
            statistics.add(made)
    if options.out:
        options.out.write_text("".join(lines), encoding="utf-8")
    if options.stats:
        statistics.report()


if __name__ == "__main__":
    main()
