"""Every kind of tokenizer that a family has, against the package ``tokenizers``."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import colibri
import texts
from colibri import _core
from colibri.errors import EngineError
from tokenizer_kinds import FAMILIES, KINDS, Kind, make

COUNT = 5000
# The longest run that is taken (docs/families.md).
LONGEST_BLANK = 400_000
DATA = Path(__file__).parents[1] / "data"
DOCUMENT = Path(__file__).parents[2] / "docs" / "families.md"


class Pair:
    """Our tokenizer and the reference of the same file."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        file = make(kind)
        self.tokens = kind.special + kind.plain + kind.normalized
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(file), encoding="utf-8")
        self.ours = _core.Tokenizer(str(path))
        self.reference = Tokenizer.from_str(json.dumps(file))
        self.blind = Tokenizer.from_str(json.dumps(all_special(file)))
        self.blind.encode_special_tokens = True


def all_special(file: dict[str, Any]) -> dict[str, Any]:
    """The switch of the reference that hides tokens in text hides those that are special."""
    tokens = [token | {"special": True} for token in file["added_tokens"]]
    return file | {"added_tokens": tokens}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(KINDS[request.param], tmp_path_factory.mktemp(request.param))


def compare(pair: Pair, many: list[str]) -> None:
    for reference, special in [(pair.reference, True), (pair.blind, False)]:
        expected = reference.encode_batch_fast(many, add_special_tokens=False)
        for text, encoding in zip(many, expected, strict=True):
            ids = pair.ours.encode(text, special=special)
            assert ids == encoding.ids, (text, encoding.tokens)
            assert pair.ours.decode(ids) == reference.decode(ids, skip_special_tokens=False)


def test_every_family_has_a_kind() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \w+ \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows[1:]) == set(FAMILIES)
    assert {kind for kinds in FAMILIES.values() for kind in kinds} == set(KINDS)


def test_ids_and_texts_are_those_of_the_reference(pair: Pair) -> None:
    compare(pair, list(texts.strings(random.Random(7), COUNT, pair.tokens)))


def test_long_runs_too(pair: Pair) -> None:
    compare(pair, list(texts.long_runs(10_000)))
    blank = " " * LONGEST_BLANK + "x"
    expected = pair.reference.encode(blank, add_special_tokens=False).ids
    assert pair.ours.encode(blank) == expected
    with pytest.raises(_core.ColibriCoreError, match="blank characters"):
        pair.ours.encode(" " + blank)


def test_a_folder_without_tokenizer_json_is_refused_by_name(tmp_path: Path) -> None:
    shutil.copy(DATA / "oracle" / "kimi_k2" / "config.json", tmp_path)
    (tmp_path / "tiktoken.model").write_bytes(b"IQ== 0\n")
    with pytest.raises(EngineError, match=r"tiktoken\.model") as raised:
        colibri.Model(tmp_path)
    assert raised.value.hint is not None
    assert "tokenizer.json" in raised.value.hint
