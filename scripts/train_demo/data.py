"""Training rows from the story generator: tokenizer, rendering, loss weights, packing.

Nothing is stored: a batch is a pure function of (seed, batch number), so a training can stop and
go on anywhere without keeping any data position but that number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from markers import SPECIAL, START
from stories.copying import Turns, copy_turns
from stories.facts import fact
from stories.grammar import Generator
from stories.talk import small_talk
from stories.telling import request
from storygen import careless, documents, plain_story

END = "<|endoftext|>"

USER_WEIGHT = 0.1  # loss weight of a user's words
SHORT_WEIGHT = 3.0  # loss weight of an answer that is not a story
STORY_CHARS = 250  # an answer longer than this is a story
LONG_EVERY = 8  # one batch of this many holds long conversations
CHUNK = 64  # batches packed together


@dataclass(frozen=True)
class Mix:
    """What the corpus is made of."""

    kinds: dict[str, float]  # how often a document of a kind is drawn; stories are the longest
    asked: float  # share of the requested stories that are asked about
    questions: tuple[int, ...]  # numbers of questions about such a story
    story_weight: float  # loss weight of a story's words
    facts: tuple[str | None, ...]  # kinds of facts to draw from; None: as `fact` does
    forms: tuple[str | None, ...] = (None,)  # forms of requests to draw from, likewise


EARLY = Mix(
    kinds={"request": 0.30, "fact": 0.40, "talk": 0.08, "copy": 0.19, "story": 0.03},
    asked=0.85,
    questions=(1, 2, 2, 3, 3),
    story_weight=1.0,
    facts=(None,),
)
# Stories are learned first; this mix dwells on reading them and on the facts that come slowly.
LATE = Mix(
    kinds={"request": 0.36, "fact": 0.36, "talk": 0.10, "copy": 0.15, "story": 0.03},
    asked=0.95,
    questions=(2, 3, 4, 5, 6),
    story_weight=0.6,
    facts=(None, None, "plus", "plus", "minus", "cap", "month", "next", "count"),
)
# Requests with an object, and the facts still missed.
FINAL = Mix(
    kinds={"request": 0.37, "fact": 0.42, "talk": 0.09, "copy": 0.10, "story": 0.02},
    asked=0.95,
    questions=(2, 3, 4, 5, 6),
    story_weight=1.0,
    facts=(None, None, "opp", "opp", "count", "plus", "plus", "plus", "minus", "minus"),
    forms=(None, None, None, "namedobj", "kidobj", "animobj"),
)
# A push for questions about details of a story.
READING = Mix(
    kinds={"request": 0.56, "fact": 0.22, "talk": 0.06, "copy": 0.14, "story": 0.02},
    asked=1.0,
    questions=(4, 5, 6),
    story_weight=0.3,
    facts=FINAL.facts,
    forms=FINAL.forms,
)
MIXES = {"early": EARLY, "late": LATE, "final": FINAL, "reading": READING}


@dataclass
class Row:
    """Token ids and the loss weight of each."""

    ids: list[int]
    weights: list[float]


def render(document: dict) -> str:
    """A generator document as the text the model sees."""
    if document["kind"] == "story":
        return START + document["text"] + END
    turns = "".join(f"<|user|>\n{q}<|assistant|>\n{a}" for q, a in document["turns"])
    return START + turns + END


def make_tokenizer(path: Path, vocabulary: int = 2048, seed: int = 5) -> Tokenizer:
    """Load the tokenizer, or train a byte-level BPE on the generator's first 20,000 documents."""
    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    stream = documents(seed, 40_000_000)
    texts = [render(document) for document, _ in zip(stream, range(20_000), strict=False)]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return tokenizer


# ------------------------------------------------------------------ documents


def story_dialogue(g: Generator, mix: Mix) -> Turns:
    """A requested story with more questions about it than the corpus of `storygen.py` has."""
    asked = request(g, form=_one_of(g, mix.forms))
    turns = [(asked.question, asked.text)]
    if g.chance(mix.asked):
        g.random.shuffle(asked.questions)
        wanted = g.pick(mix.questions)
        distinct: dict[str, str] = {}
        for question, answer, _ in asked.questions:
            if question not in distinct and len(distinct) < wanted:
                distinct[question] = answer
        turns += list(distinct.items())
    if g.chance(0.06):
        turns.insert(0, small_talk(g, g.pick(["hello", "how", "who"]))[:2])
    if g.chance(0.06):
        turns.append(small_talk(g, g.pick(["thanks", "bye"]))[:2])
    return turns


def dialogue(g: Generator, kind: str, mix: Mix) -> Turns:
    """Turns of one document of a kind (any but "story")."""
    if kind == "request":
        turns = story_dialogue(g, mix)
    elif kind == "fact":
        count = g.pick((1, 2, 3, 3, 4))
        turns = [fact(g, _one_of(g, mix.facts))[:2] for _ in range(count)]
    elif kind == "talk":
        turns = [small_talk(g)[:2] for _ in range(g.pick((1, 1, 2, 3)))]
    else:
        turns = copy_turns(g)
    if g.chance(0.08):
        turns = [(careless(g, question), answer) for question, answer in turns]
    return turns


def _one_of(g: Generator, kinds: tuple[str | None, ...]) -> str | None:
    return g.pick(kinds) if len(kinds) > 1 else kinds[0]


def draw_kind(g: Generator, mix: Mix) -> str:
    return g.random.choices(list(mix.kinds), list(mix.kinds.values()))[0]


# ------------------------------------------------------------------ encoding


class Encoder:
    """Turns documents into rows; remembers the ids of short texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.encode = lru_cache(maxsize=50_000)(self._encode)
        self.start = self.encode(START)
        self.end = self.encode(END)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text).ids)

    def turns(self, turns: Turns, user_weight: float, story_weight: float = 1.0) -> Row:
        """Turns without start and end.  A user token that ends an answer counts in full."""
        row = Row([], [])
        for number, (question, answer) in enumerate(turns):
            asked = self.encode(f"<|user|>\n{question}<|assistant|>\n")
            told = self.encode(answer)
            row.ids += asked + told
            row.weights += [1.0 if number else user_weight]
            row.weights += [user_weight] * (len(asked) - 1)
            row.weights += [story_weight if len(answer) > STORY_CHARS else SHORT_WEIGHT] * len(told)
        return row

    def chat(
        self, turns: Turns, user_weight: float = USER_WEIGHT, story_weight: float = 1.0
    ) -> Row:
        row = self.turns(turns, user_weight, story_weight)
        ids = [*self.start, *row.ids, *self.end]
        return Row(ids, [0.0] * len(self.start) + row.weights + [1.0] * len(self.end))

    def story(self, text: str, weight: float = 1.0) -> Row:
        told = self.encode(text)
        weights = [0.0] * len(self.start) + [weight] * len(told) + [weight] * len(self.end)
        return Row([*self.start, *told, *self.end], weights)

    def document(self, g: Generator, mix: Mix) -> Row:
        kind = draw_kind(g, mix)
        if kind == "story":
            return self.story(plain_story(g), mix.story_weight)
        return self.chat(dialogue(g, kind, mix), story_weight=mix.story_weight)

    def conversation(self, g: Generator, length: int, mix: Mix) -> Row:
        """One long chat of at least `length` tokens: several dialogues without an end between."""
        turns: Turns = []
        size = 0
        while size < length:
            kind = draw_kind(g, mix)
            more = dialogue(g, "request" if kind == "story" else kind, mix)
            turns += more
            size += len(self.turns(more, USER_WEIGHT).ids)
        return self.chat(turns, story_weight=mix.story_weight)


def pack(rows: list[Row], length: int) -> list[Row]:
    """Join documents into rows of at most `length` tokens: largest first, each into the fullest
    row that still has room.  Every row begins with a document's start."""
    packed: list[Row] = []
    by_room: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda r: -len(r.ids)):
        ids, weights = row.ids[:length], row.weights[:length]
        need = len(ids)
        room = next((r for r in range(need, length + 1) if by_room.get(r)), None)
        if room is None:
            target = Row([], [])
            packed.append(target)
            room = length
        else:
            target = by_room[room].pop()
        target.ids = target.ids + ids
        target.weights = target.weights + weights
        by_room.setdefault(room - need, []).append(target)
    return packed


def to_tensors(rows: list[Row]) -> tuple[Tensor, Tensor]:
    """Rows -> ids [B, T + 1] and loss weights [B, T + 1], padded with token 0 and weight 0."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    weights = torch.zeros(len(rows), longest)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = torch.tensor(row.ids)
        weights[number, : len(row.ids)] = torch.tensor(row.weights)
    return ids, weights


# ------------------------------------------------------------------ batches


class Batches:
    """Batches by number.

    `short` and `long` are row lengths in predicted tokens.  `mixes` are names of mixes
    and the corpus batches that begin them, in order; a change comes with the next chunk."""

    def __init__(
        self,
        encoder: Encoder,
        seed: int,
        tokens: int,
        short: int,
        long: int,
        mixes: list[tuple[str, int]],
    ) -> None:
        self.mixes = mixes
        self.encoder, self.seed = encoder, seed
        self.tokens, self.short, self.long = tokens, short, long
        self._curriculum: tuple[int, list[list[Row]]] = (-1, [])
        self._corpus: tuple[int, list[list[Row]]] = (-1, [])

    def generator(self, phase: str, chunk: int) -> Generator:
        """Its own generator for a chunk: seeded by a text, which is the same everywhere."""
        return Generator(f"{self.seed}/{phase}/{chunk}")

    def curriculum(self, number: int) -> tuple[Tensor, Tensor]:
        chunk, index = divmod(number, CHUNK)
        if self._curriculum[0] != chunk:
            self._curriculum = (chunk, self._curriculum_chunk(chunk))
        return to_tensors(self._curriculum[1][index])

    def _curriculum_chunk(self, chunk: int) -> list[list[Row]]:
        """Copying dialogues, one a row; rows of like length share a batch."""
        g = self.generator("curriculum", chunk)
        rows = [self.encoder.chat(copy_turns(g), 0.02) for _ in range(CHUNK * 40)]
        rows.sort(key=lambda row: len(row.ids))
        batches = [rows[i : i + 40] for i in range(0, len(rows), 40)]
        g.random.shuffle(batches)
        return batches

    def corpus(self, number: int) -> tuple[Tensor, Tensor]:
        chunk, index = divmod(number, CHUNK)
        if self._corpus[0] != chunk:
            self._corpus = (chunk, self._corpus_chunk(chunk))
        return to_tensors(self._corpus[1][index])

    def _corpus_chunk(self, chunk: int) -> list[list[Row]]:
        g = self.generator("corpus", chunk)
        mix = MIXES[[name for name, first in self.mixes if chunk * CHUNK >= first][-1]]
        per_batch = self.tokens // self.short
        n_long = CHUNK // LONG_EVERY
        wanted = (CHUNK - n_long) * per_batch
        documents: list[Row] = []
        size = 0
        while size < wanted * (self.short + 1) * 1.02:  # a little over: the last rows stay short
            documents.append(self.encoder.document(g, mix))
            size += len(documents[-1].ids)
        rows = pack(documents, self.short + 1)[:wanted]
        g.random.shuffle(rows)
        batches = [rows[i : i + per_batch] for i in range(0, wanted, per_batch)]
        for _ in range(n_long):
            few = [
                self.encoder.conversation(g, self.long, mix)
                for _ in range(self.tokens // self.long)
            ]
            cut = [Row(r.ids[: self.long + 1], r.weights[: self.long + 1]) for r in few]
            batches.insert(g.random.randrange(len(batches) + 1), cut)
        return batches

    def validation(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """A few fixed batches: (what, ids, weights)."""
        g = Generator(f"{self.seed}/validation")
        for kind in ("request", "fact", "copy"):
            rows = [self.encoder.chat(dialogue(g, kind, EARLY)) for _ in range(24)]
            for i in range(0, len(rows), 8):
                yield kind, *to_tensors(rows[i : i + 8])
        chats = [self.encoder.conversation(g, self.long, EARLY) for _ in range(2)]
        cut = [Row(r.ids[: self.long + 1], r.weights[: self.long + 1]) for r in chats]
        yield "long", *to_tensors(cut)
