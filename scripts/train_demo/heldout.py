"""The text that `colibri bench quality` measures on: what the training never asked for.

    python heldout.py > ../../python/colibri/quality/heldout.txt

Every story is told on request of a (name, animal) or (name, object) pair for which `held_out` is
true, so no training batch of any seed holds the request; the seed is nobody else's either.  The
documents are rendered as the training renders them, one after the other.
"""

from __future__ import annotations

import sys

from markers import START
from stories.grammar import Generator
from stories.telling import request

SEED = 990100
SIZE = 12_000  # characters
# The forms whose subject is such a pair.
FORMS = ("named", "girl", "namedobj", "kidobj")
END = "<|endoftext|>"


def main() -> None:
    g = Generator(SEED)
    size = 0
    while size < SIZE:
        asked = request(g, want_held=True, form=g.pick(FORMS))
        text = f"{START}<|user|>\n{asked.question}<|assistant|>\n{asked.text}{END}"
        sys.stdout.write(text)
        size += len(text)


if __name__ == "__main__":
    main()
