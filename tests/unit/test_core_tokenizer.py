"""The compiled tokenizer as Python sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colibri import _core

FOLDER = Path(__file__).parents[1] / "data" / "oracle" / "mixtral"


@pytest.fixture(scope="module")
def tokenizer():
    return _core.Tokenizer(str(FOLDER / "tokenizer.json"))


def test_encodes_and_decodes_as_the_reference_does(tokenizer):
    reference = json.loads((FOLDER / "reference.json").read_text(encoding="utf-8"))
    for case in reference["tokenizer_cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]
    assert tokenizer.vocab_size > 256


def test_plain_encoding_knows_no_added_token(tokenizer):
    assert tokenizer.encode("<s>") == [1]
    plain = tokenizer.encode("<s>", special=False)
    assert 1 not in plain
    assert tokenizer.decode(plain) == "<s>"


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(_core.ColibriCoreError) as raised:
        _core.Tokenizer(str(path))
    assert raised.value.code == "ENGINE"
    assert "\n" not in str(raised.value)
    with pytest.raises(_core.ColibriCoreError) as raised:
        _core.Tokenizer(str(tmp_path / "none.json"))
    assert raised.value.hint
