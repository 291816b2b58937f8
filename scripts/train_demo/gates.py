#!/usr/bin/env python3
"""Gates of the demo model: does it keep the hero, follow the request, know its facts, answer
about a story, and hold small talk?

    python gates.py --folder FOLDER           an exported folder, run in PyTorch
    python gates.py --checkpoint run/last.pt  a training checkpoint, not quantised
    python gates.py --engine FOLDER           colibri's engine in this process
    python gates.py --server http://127.0.0.1:8000/v1 --model NAME
    python gates.py --self                    the rules on the generator's own answers: about 1.0

Story prompts ask for (name, animal or object) pairs the corpus never asks for.  Follow-ups get
the generator's own story as context, so they measure reading, not storytelling.  Facts are not
held out: they test memory of a closed set.  The rules match words; they do not judge sense.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backends import Backend, EngineBackend, Prompt, ServerBackend
from stories.facts import fact
from stories.grammar import Generator
from stories.talk import TALK, small_talk
from stories.telling import request
from stories.vocabulary import ADULTS, NAMES

THRESHOLDS = {"hero": 0.95, "subject": 0.90, "fact": 0.90, "follow": 0.80, "talk": 0.90}
STORY_FORMS = (
    ["named"] * 11
    + ["girl"] * 7
    + ["namedobj"] * 5
    + ["kidobj"] * 6
    + ["animal"] * 4
    + ["animobj"] * 2
    + ["once"] * 5
)
FACT_KINDS = (
    ["sound"] * 5
    + ["baby"] * 4
    + ["home"] * 3
    + ["color"] * 5
    + ["opp"] * 5
    + ["cap"] * 5
    + ["next"] * 2
    + ["month"] * 2
    + ["season", "count", "order"]
    + ["plus"] * 4
    + ["minus"] * 2
)
FOLLOW_UPS = 20
FOLLOW_FORMS = ["named", "girl", "kidobj", "namedobj"]
MAX_TOKENS = {"story": 260, "fact": 80, "follow": 40, "talk": 60}


@dataclass
class Case:
    """A prompt and what its answer has to hold."""

    kind: str  # story, fact, follow or talk
    form: str
    question: str
    reference: str  # the generator's own answer
    history: list[tuple[str, str]] = field(default_factory=list)
    key: str = ""  # fact, follow: has to be in the answer
    any_of: list[str] = field(default_factory=list)  # talk: one of these has to be
    hero: str = ""  # story: the requested name or animal
    species: str = ""  # story: what the hero is
    words: list[str] = field(default_factory=list)  # story: requested words

    def check(self, answer: str) -> dict[str, bool]:
        """Gate -> whether the answer passes."""
        if self.kind == "story":
            return {
                "hero": keeps_hero(answer, self.hero, self.species),
                "subject": all(has_word(word, answer, plural=True) for word in self.words),
            }
        if self.kind == "talk":
            return {"talk": any(word in answer for word in self.any_of)}
        return {self.kind: self.key.lower() in answer.lower()}


def has_word(word: str, text: str, plural: bool = False) -> bool:
    """Whether a word is in the text; names by exact case, other words by any."""
    ending = "(s|es)?" if plural else ""
    flags = re.IGNORECASE if plural or word[0].islower() else 0
    return re.search(rf"\b{re.escape(word)}{ending}\b", text, flags) is not None


def keeps_hero(text: str, wanted: str, species: str) -> bool:
    """The hero is named in at least two sentences, and no other name is more often the subject.

    `wanted` is the requested name, or an animal whose name the story may give ("a rabbit named
    Pip")."""
    sentences = [s for s in re.split(r"(?<=[.!?])\"?\s+", text) if s]
    if wanted[0].isupper():
        hero, called = wanted, [wanted]
    else:
        if not any(has_word(wanted, sentence) for sentence in sentences):
            return False
        named = re.findall(r"\b[A-Z][a-z]+\b", text)
        hero = next((name for name in named if name in NAMES), None)
        called = [wanted, hero] if hero else [wanted]
    subjects = Counter(_subjects(sentences, {wanted, hero, species}))
    mentions = sum(any(has_word(word, s) for word in called) for s in sentences)
    others = [count for name, count in subjects.items() if name in NAMES or name in ADULTS]
    return mentions >= 2 and all(count <= subjects["hero"] for count in others)


def _subjects(sentences: list[str], hero: set[str | None]) -> list[str]:
    """First words of sentences that may be subjects; "hero" for any name of the hero."""
    found = []
    for sentence in sentences:
        match = re.match(r"\"?(The (?:little )?(\w+)|([A-Z][a-z]+))\b", sentence)
        word = match and (match.group(2) or match.group(3))
        if word:
            found.append("hero" if word in hero else word)
    return found


def make_cases(seed: int) -> list[Case]:
    """All prompts of a seed; no question comes twice (small talk aside)."""
    g = Generator(seed)
    asked: set[str] = set()

    def new(draw: Callable[[], Any]) -> Any:
        while True:
            drawn = draw()
            if drawn.question not in asked:
                asked.add(drawn.question)
                return drawn

    cases = [_story_case(g, form, new) for form in STORY_FORMS]
    for kind in FACT_KINDS:
        known = new(lambda kind=kind: fact(g, kind))
        cases.append(Case("fact", kind, known.question, known.answer, key=known.key))
    done = 0
    while done < FOLLOW_UPS:
        told = new(lambda: request(g, want_held=True, form=g.pick(FOLLOW_FORMS)))
        about, answer, key = g.pick(told.questions)
        if key:
            history = [(told.question, told.text)]
            cases.append(Case("follow", "follow", about, answer, history, key=key))
            done += 1
    for kind in TALK:
        if kind != "feel":
            chat = small_talk(g, kind)
            expected = chat.expected or []
            cases.append(Case("talk", kind, chat.question, chat.answer, any_of=expected))
    return cases


def _story_case(g: Generator, form: str, new: Callable[[Callable[[], Any]], Any]) -> Case:
    while True:
        wanted = new(lambda: request(g, want_held=True, form=form))
        if wanted.hero:
            break
    if form in ("girl", "kidobj"):
        species = re.search(r"\b(boy|girl)\b", wanted.question).group(1)
    else:
        species = wanted.words[-1]
    return Case(
        "story",
        form,
        wanted.question,
        wanted.text,
        hero=wanted.hero,
        species=species,
        words=wanted.words or [species],
    )


def answers_of(cases: list[Case], options: argparse.Namespace) -> list[str]:
    """Ask the chosen backend."""
    if options.self:
        return [case.reference for case in cases]
    backend: Backend
    if options.engine:
        backend = EngineBackend(options.engine)
    elif options.server:
        backend = ServerBackend(options.server, options.model, options.key)
    else:
        # PyTorch is needed by these alone.
        import torch

        from torch_backend import TorchBackend

        torch.set_num_threads(options.threads)
        if options.folder:
            backend = TorchBackend.from_folder(options.folder)
        else:
            backend = TorchBackend.from_checkpoint(options.checkpoint)
    prompts = [Prompt(case.history, case.question, MAX_TOKENS[case.kind]) for case in cases]
    return backend.answer(prompts, options.temperature, options.top_p, options.seed)


def evaluate(cases: list[Case], answers: list[str], show: bool) -> dict[str, Any]:
    """Shares passed by gate and by form, and all failures."""
    passed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    failures = []
    for case, answer in zip(cases, answers, strict=True):
        result = case.check(answer)
        failed = [gate for gate, good in result.items() if not good]
        for gate, good in result.items():
            total[gate] += 1
            passed[gate] += good
        form = f"{case.kind}/{case.form}"
        total[form] += 1
        passed[form] += not failed
        if failed:
            wanted = case.key or case.any_of or [case.hero, *case.words]
            failures.append(
                {
                    "kind": case.kind,
                    "question": case.question,
                    "answer": answer,
                    "wanted": wanted,
                    "failed": failed,
                }
            )
        if show:
            mark = f"FAIL {failed}" if failed else "ok"
            print(f"{mark}\n  USER: {case.question}\n  BOT : {answer}")
    gates = {gate: passed[gate] / total[gate] for gate in THRESHOLDS}
    forms = {form: f"{passed[form]}/{total[form]}" for form in total if "/" in form}
    return {"gates": gates, "forms": forms, "failures": failures}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Check the demo model's answers.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--folder", type=Path, help="exported folder, run in PyTorch")
    which.add_argument("--checkpoint", type=Path, help="training checkpoint")
    which.add_argument("--engine", type=Path, help="exported folder, run in colibri's engine")
    which.add_argument("--server", help="address of an OpenAI-compatible server, with /v1")
    which.add_argument("--self", action="store_true", help="the generator's own answers")
    parser.add_argument("--model", default="demo", help="model name to send to the server")
    parser.add_argument("--key", help="API key to send to the server")
    parser.add_argument("--seed", type=int, default=990001)
    parser.add_argument("--temperature", type=float, default=0.3)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1, help="for PyTorch")
    parser.add_argument("--show", action="store_true", help="print every answer")
    parser.add_argument("--json", type=Path, help="write the figures and failures here")
    return parser.parse_args()


def main() -> int:
    """Run the gates; 1 if one is missed."""
    options = arguments()
    began = time.monotonic()
    cases = make_cases(options.seed)
    report = evaluate(cases, answers_of(cases, options), options.show)
    report |= {
        "seed": options.seed,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seconds": round(time.monotonic() - began, 1),
    }
    missed = False
    for gate, share in report["gates"].items():
        good = share >= THRESHOLDS[gate]
        missed = missed or not good
        print(f"{gate:8} {share:.3f}  wanted {THRESHOLDS[gate]:.2f}  {'ok' if good else 'MISSED'}")
    print("  ".join(f"{form} {share}" for form, share in report["forms"].items()))
    print(f"{report['seconds']} s, seed {options.seed}, temperature {options.temperature}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
