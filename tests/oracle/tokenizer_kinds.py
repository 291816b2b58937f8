"""A small ``tokenizer.json`` of the kind that each family's published one is.

Normaliser, pre-tokenizer, settings of the model part and of added tokens are those of the family;
the vocabulary is learned from a page of text, so that files take a second to make.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import texts

VOCABULARY = 1200
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def words(digits: str) -> str:
    """Returns the pattern of Qwen, Llama 3 and GLM-4, which differ in how they cut digits."""
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    signs = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return "|".join([CONTRACTIONS, letters, digits, signs, SPACES])


def cased_words(signs_end: str, without: str = "") -> str:
    """Returns the pattern of o200k, which cuts where capitals begin a word."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    signs = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n{signs_end}]*"
    return "|".join(
        [
            f"{before}{upper}*{lower}+{CONTRACTIONS}?",
            f"{before}{upper}+{lower}*{CONTRACTIONS}?",
            r"\p{N}{1,3}",
            signs,
            SPACES,
        ]
    )


DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",  # noqa: RUF001
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES,
)
# Latin, Greek and Cyrillic stand for the published list of two hundred ranges.
DEEPSEEK_V2 = (
    "[\r\n]",
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-ᏽḀ-ἕＡ-Ｚａ-ｚ𐐀-𐑏]+",  # noqa: RUF001
    "\\s?[!-/:-~！-／：-～‘-‟　-。]+",  # noqa: RUF001
    "\\s+$",
    "[一-龥ࠀ-一가-퟿]+",
)
KIMI = r"[\p{Han}]+|" + cased_words("", without=r"&&[^\p{Han}]")
# The expression of GPT-2, which byte-level pre-tokenizers have built in.
GPT_2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = {**GPT_2, "use_regex": False}
NFC = {"type": "NFC"}
SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
PIECE_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def split(*patterns: str, extra: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Returns a pre-tokenizer that cuts by each pattern in turn, then spells bytes."""
    stages = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*stages, *extra, BYTES]}


@dataclass(frozen=True)
class Kind:
    """What makes a family's tokenizer, apart from its vocabulary.

    Attributes:
        pre_tokenizer: as the file has it; none where words are not cut.
        normalizer: as the file has it.
        special: added tokens that mark turns.
        plain: added tokens that are text, as ``<think>``.
        normalized: further ones, matched in normalised text.
        ignore_merges: a word that is a token is not merged.
        pieces: spelled as sentencepiece has it, with a byte token for what has none.
    """

    pre_tokenizer: dict[str, Any] | None
    normalizer: dict[str, Any] | None = None
    special: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    plain: tuple[str, ...] = ("<think>", "</think>", "<tool_call>")
    normalized: tuple[str, ...] = ()
    ignore_merges: bool = False
    pieces: bool = False
    decoder: dict[str, Any] = field(default_factory=lambda: BYTE_DECODER)


QWEN = Kind(split(words(r"\p{N}")), NFC)
GLM = Kind(split(words(r"\p{N}{1,3}")), special=("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>"))
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")  # noqa: RUF001
GPT_OSS = Kind(
    split(cased_words("/")),
    special=("<|startoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>"),
    plain=(),
)
PIECES = Kind(
    None,
    {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACE]},
    special=("<unk>", "<s>", "</s>"),
    plain=(),
    pieces=True,
    decoder=PIECE_DECODER,
)
KINDS: dict[str, Kind] = {
    "deepseek_v2": Kind(
        split(*DEEPSEEK_V2, extra=({"type": "Digits", "individual_digits": True},)),
        special=DEEPSEEK,
        plain=(),
    ),
    "deepseek_v3": Kind(
        split(*DEEPSEEK_V3),
        special=DEEPSEEK,
        plain=("<｜User｜>", "<think>"),  # noqa: RUF001
    ),
    "glm4": GLM,
    "gpt_oss": GPT_OSS,
    "kimi_k2": Kind(split(KIMI), special=("[BOS]", "[EOS]", "<|im_user|>", "<|im_middle|>")),
    "llama2": PIECES,
    # As newer conversions of the same have it: the mark goes before the first piece only.
    "llama2_metaspace": replace(
        PIECES,
        normalizer=None,
        pre_tokenizer={
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "first",
            "split": False,
        },
    ),
    "llama3": Kind(
        split(words(r"\p{N}{1,3}")),
        special=("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>"),
        plain=(),
        ignore_merges=True,
    ),
    "minimax_m2": replace(GPT_OSS, special=("]~!b[", "]~b]", "[e~["), plain=("<think>",)),
    "mixtral": PIECES,
    # Runs of spaces are added tokens, as in GPT-NeoX.
    "olmoe": Kind(
        GPT_2,
        NFC,
        special=("<|endoftext|>", "<|padding|>"),
        plain=(),
        normalized=tuple(" " * n for n in range(24, 1, -1)),
    ),
    "qwen2_moe": QWEN,
    "qwen3": QWEN,
}
# The kinds by the families of docs/families.md.
FAMILIES = {
    "deepseek_v2": ["deepseek_v2"],
    "deepseek_v3": ["deepseek_v3"],
    "deepseek_v32": ["deepseek_v3"],
    "dots1": ["qwen2_moe"],
    "glm4": ["glm4"],
    "glm4_moe": ["glm4"],
    "glm4_moe_lite": ["glm4"],
    "glm_moe_dsa": ["glm4"],
    "gpt_oss": ["gpt_oss"],
    "kimi_k2": ["kimi_k2"],
    "kimi_linear": ["kimi_k2"],
    "llama": ["llama2", "llama2_metaspace", "llama3"],
    "minimax_m2": ["minimax_m2"],
    "mixtral": ["mixtral", "llama2_metaspace"],
    "olmoe": ["olmoe"],
    "qwen2_moe": ["qwen2_moe"],
    "qwen3": ["qwen3"],
    "qwen3_5_moe": ["qwen3"],
    "qwen3_5_moe_text": ["qwen3"],
    "qwen3_moe": ["qwen3"],
    "qwen3_next": ["qwen3"],
}


def make(kind: Kind) -> dict[str, Any]:
    """Returns a tokenizer of this kind as the file has it."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=kind.pieces, fuse_unk=kind.pieces))
    begin: list[str] = []
    if kind.pieces:
        begin = [*kind.special, *(f"<0x{byte:02X}>" for byte in range(256))]
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        alphabet = []
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=begin,
        initial_alphabet=alphabet,
        show_progress=False,
        limit_alphabet=256,
    )
    tokenizer.train_from_iterator(texts.strings(random.Random(1), 2000), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    file: dict[str, Any] = json.loads(tokenizer.to_str())
    file["normalizer"] = kind.normalizer
    file["pre_tokenizer"] = kind.pre_tokenizer
    file["decoder"] = kind.decoder
    file["model"]["ignore_merges"] = kind.ignore_merges
    file["model"]["unk_token"] = kind.special[0] if kind.pieces else None
    known = file["model"]["vocab"]
    file["added_tokens"] = []
    for tokens, special, normalized in [
        (kind.special, True, False),
        (kind.plain, False, False),
        (kind.normalized, False, True),
    ]:
        for content in tokens:
            token = {"id": known.get(content, len(known) + len(file["added_tokens"]))}
            token |= {"content": content, "special": special, "normalized": normalized}
            token |= {"single_word": False, "lstrip": False, "rstrip": False}
            file["added_tokens"].append(token)
    return file
