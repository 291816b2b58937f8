"""What one slot has computed another need not, and nobody's answer shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colibri.models import demo_folder
from wire import Answer, Request, Wire

MODEL = demo_folder()
ORACLE = Path(__file__).parent.parent / "data" / "oracle"
# Keys and values, with windows, latents, latents with index keys, states beside either.
FAMILIES = ["llama", "gpt_oss", "glm4_moe_lite", "glm_moe_dsa", "qwen3_next", "kimi_linear"]
RECURRENT = ["qwen3_next", "kimi_linear"]

# Longer than the distance between two checkpoints of a state.
BEGINNING = " ".join(f"The {word} was happy and went to the {word}." for word in "abcdefgh")
PROMPTS = [BEGINNING + end for end in (" Then a boy came", " Then it was sad", " But the sun")]


class Seen:
    """What a wire with several requests said, by request."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.answers: dict[int, Answer] = {}
        self.tokens: dict[int, int] = {}
        self.reused: dict[int, int] = {}
        self.ended: dict[int, str] = {}
        self._texts: dict[int, bytes] = {}

    def submit(self, number: int, slot: int, prompt: str, max_tokens: int = 8) -> None:
        self.wire.send(Request(prompt, max_tokens, 3).frame(number, slot))

    def read_until(self, *numbers: int, tokens: int | None = None) -> None:
        """Reads until these have ended, or said so many tokens."""
        while not all(
            number in self.ended or len(self.answers.get(number, [])) >= (tokens or 1 << 30)
            for number in numbers
        ):
            for kind, fields in self.wire.read():
                self._take(kind, fields)

    def _take(self, kind: str, fields: dict[str, Any]) -> None:
        number = fields.get("id", 0)
        if kind == "ACCEPT":
            self.tokens[number] = fields["prompt_tokens"]
        elif kind == "PREFILL":
            self.reused.setdefault(number, fields["done"])
        elif kind == "DATA":
            self._texts[number] = fields["data"]
        elif kind == "TOPK":
            token = (self._texts[number], fields["tokens"])
            self.answers.setdefault(number, []).append(token)
        elif kind in ("DONE", "ERROR"):
            self.ended[number] = fields.get("code", kind)


def cold(model: Path, prompt: str, max_tokens: int = 8) -> Answer:
    with Wire(model) as wire:
        seen = Seen(wire)
        seen.submit(1, 0, prompt, max_tokens)
        seen.read_until(1)
        assert seen.reused[1] == 0
        return seen.answers[1]


def least(family: str, tokens: int) -> int:
    """How many tokens of a beginning can be gone back to."""
    return tokens // 64 * 64 if family in RECURRENT else tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_beginning_is_taken_over_from_another_slot(family: str) -> None:
    model = ORACLE / family
    expected = [cold(model, prompt) for prompt in PROMPTS]
    with Wire(model, slots=3) as wire:
        seen = Seen(wire)
        for slot, prompt in enumerate(PROMPTS):
            seen.submit(slot + 1, slot, prompt)
            seen.read_until(slot + 1)
        # The first slot is as it was: its conversation goes on there.
        seen.submit(4, 0, PROMPTS[0])
        seen.read_until(4)
        beginning = Seen(wire)
        beginning.submit(5, 1, BEGINNING, 1)
        beginning.read_until(5)
    assert [seen.answers[slot + 1] for slot in range(3)] == expected
    assert seen.answers[4] == expected[0]
    common = beginning.tokens[5]
    assert common > 100
    assert seen.reused[1] == 0
    assert seen.reused[2] >= least(family, common - 2) > 0
    assert seen.reused[3] >= least(family, common - 2)
    assert seen.reused[4] >= least(family, seen.tokens[4] - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_slot_in_use_shares_what_it_has(family: str) -> None:
    model = ORACLE / family
    expected = cold(model, PROMPTS[0], 60)
    with Wire(model, slots=3) as wire:
        seen = Seen(wire)
        seen.submit(1, 0, PROMPTS[0], 60)
        seen.read_until(1, tokens=3)
        seen.submit(2, 1, PROMPTS[0], 60)
        # What a turn that is cancelled leaves behind changes no other.
        seen.submit(3, 2, PROMPTS[0], 60)
        seen.read_until(3, tokens=5)
        wire.send(b"CANCEL 3\n")
        seen.read_until(1, 2, 3)
        seen.submit(4, 2, PROMPTS[0], 60)
        seen.read_until(4)
    assert seen.ended[3] == "CANCELLED"
    assert seen.answers[1] == seen.answers[2] == seen.answers[4] == expected
    for number in (2, 3, 4):
        assert seen.reused[number] >= least(family, seen.tokens[number] - 1)


def test_prompts_that_come_at_once_compute_their_beginning_once() -> None:
    expected = cold(MODEL, PROMPTS[1])
    with Wire(MODEL, slots=4) as wire:
        seen = Seen(wire)
        for slot in range(4):
            seen.submit(slot + 1, slot, PROMPTS[1])
        seen.read_until(1, 2, 3, 4)
    assert all(seen.answers[number] == expected for number in range(1, 5))
    computed = sorted(seen.tokens[number] - seen.reused[number] for number in range(1, 5))
    assert computed == [1, 1, 1, seen.tokens[1]]


def test_a_refusal_leaves_all_slots_as_they_were() -> None:
    with Wire(MODEL, slots=2, ctx=256) as wire:
        seen = Seen(wire)
        seen.submit(1, 0, PROMPTS[0])
        seen.read_until(1)
        seen.submit(2, 1, PROMPTS[0] * 10)
        seen.read_until(2)
        assert seen.ended[2] == "CONTEXT_EXCEEDED"
        seen.submit(3, 1, PROMPTS[0])
        seen.submit(4, 0, PROMPTS[0])
        seen.read_until(3, 4)
    assert seen.answers[1] == seen.answers[3] == seen.answers[4]
    assert seen.reused[3] == seen.reused[4] == seen.tokens[3] - 1
