"""Texts of every sort that tokenizers cut differently, the same ones for the same seed."""

# ruff: noqa: RUF001, SIM905 (characters that look like others are wanted, and words are words)

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

WORDS = (
    "the of model tokens expert router layer Weights isn't we'll THEY'RE I'D you've it's can't "
    "Straße naïve café größer Ελλάδα σίγμα Привет мир їжак Zürich İstanbul ﬁre ǅungla ʻokina "
    "don’t ſ 'ſ 'S 'Ll HTTPServer getElementById snake_case kebab-case CONST_2 x86_64 v1.2.3 "
    "e.g. U.S.A. 3rd 1e-9 0xFF"
).split()
CODE = [
    "def f(x: int) -> str:\n    return f'{x:>3}'\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * 0.5f;\n}\r\n",
    'let s = "a\\n\\u{1f426}";  // ends\n\n\n',
    "<div class='a'>&amp;</div>\n",
    "SELECT * FROM t WHERE id=42;--\n",
    "#!/bin/sh\nset -eu\n\techo $((1<<2))\n",
    '{"k": [1, 2.50, null], "e": {}}',
    "https://example.org/a?b=c&d=%20#e/f//g",
]
SCRIPTS = [
    "一二三四東京都人工知能模型的了是在",
    "ひらがなカタカナーっゝ々〆",
    "안녕하세요세계한국어",
    "مرحبا بالعالمﷺـ٠١٢٣",
    "שלוםעולם",
    "नमस्तेदुनिया०१२",
    "สวัสดีชาวโลก๑๒",
    "გამარჯობა",
    "བོད་སྐད་",
    "ខ្មែរ",
    "አማርኛ",
    "ᏣᎳᎩ",
    "𐐷𐑌𠀀𠜎𡃁",
    "ⅫⅳⒷ①²³½௧",
]
EMOJI = ["🐦", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇨🇭", "1️⃣", "☎️", "🧑🏿‍🚀", "❤", "\u200d", "\ufe0f"]
MARKS = "\u0301\u0308\u0327\u093f\u0e31\u20dd\u0345\u3099\u1ab0"
SPACES = [
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\u0085",
    "\v",
]
CONTROLS = "\0\x01\x07\b\x1b\x7f\x80\x9f\u200b\u200e\u2060\ufeff\ufffe\uffff\U000e0041\U0010ffff"
# What is left of half a surrogate pair: the character around the gap, the sign for what was lost,
# and the three bytes of a half read as Latin-1.
BROKEN = ["\ud7ff", "\ue000", "\ufffd", "í\xa0\x80", "\\ud83d", "\ufffd\ufffd"]
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»„“”‘’…—–、。「」！？¿§¶·€£¥©™±×÷≠∞▁│█"
NEAR_TOKENS = [
    "<unk>",
    "<s>",
    "<|im_start|",
    "<|endoftext|>>",
    "< think>",
    "<0x0A>",
    "▁",
    "▁▁",
    "Ġ",
    "<｜",
]


def _word(draw: random.Random) -> str:
    return draw.choice(WORDS)


def _digits(draw: random.Random) -> str:
    return "".join(draw.choices("0123456789", k=draw.choice([1, 2, 3, 4, 7, 20])))


def _script(draw: random.Random) -> str:
    return "".join(draw.choices(draw.choice(SCRIPTS), k=draw.randint(1, 8)))


def _marked(draw: random.Random) -> str:
    letters = (draw.choice("aeiouAOкクक한") for _ in range(draw.randint(1, 4)))
    return "".join(c + "".join(draw.choices(MARKS, k=draw.randint(0, 3))) for c in letters)


def _anything(draw: random.Random) -> str:
    # Any character but halves of surrogate pairs, which no string of text holds.
    points = (draw.randrange(0x110000 - 0x800) for _ in range(draw.randint(1, 4)))
    return "".join(chr(p if p < 0xD800 else p + 0x800) for p in points)


def _run(draw: random.Random) -> str:
    one = draw.choice([*SPACES, "a", "1", "=", "é", "漢", "🐦", "A", "'", "ab ", " \n"])
    return one * draw.choice([2, 3, 5, 8, 16, 17, 25, 40, 100])


def _one_of(choices: list[str] | str) -> Callable[[random.Random], str]:
    return lambda draw: draw.choice(choices)


PARTS: list[tuple[Callable[[random.Random], str], int]] = [
    (_word, 8),
    (_one_of(SPACES), 6),
    (_one_of(" "), 6),
    (_one_of(CODE), 2),
    (_digits, 2),
    (_script, 4),
    (_one_of(EMOJI), 2),
    (_marked, 2),
    (_one_of(PUNCTUATION), 4),
    (_one_of(CONTROLS), 1),
    (_one_of(BROKEN), 1),
    (_one_of(NEAR_TOKENS), 1),
    (_anything, 1),
    (_run, 2),
]


def strings(draw: random.Random, count: int, tokens: tuple[str, ...] = ()) -> Iterator[str]:
    """Gives ``count`` different texts; ``tokens`` are added tokens to strew in."""
    given: set[str] = set()
    parts = [part for part, _ in PARTS]
    weights = [weight for _, weight in PARTS]
    if tokens:
        parts.append(_one_of([*tokens]))
        weights.append(2)
    while len(given) < count:
        length = draw.choice([1, 2, 3, 5, 10, 30])
        text = "".join(part(draw) for part in draw.choices(parts, weights, k=length))
        if text not in given:
            given.add(text)
            yield text


def long_runs(length: int) -> Iterator[str]:
    """Gives texts of one thing over and over, each at least ``length`` bytes."""
    for one in [
        " ",
        "\n",
        "\t ",
        "a",
        "A",
        "1",
        "'",
        "é",
        "漢",
        "🐦",
        "a\u0301",
        "\u0301",
        "\r\n",
        "ab ",
        "=",
        "'s",
    ]:
        body = one * (length // len(one.encode()) + 1)
        yield body
        yield "x" + body + "y"
