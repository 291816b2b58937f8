"""The network in PyTorch, as a way to ask the model."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import torch
from tokenizers import Tokenizer

from backends import Prompt, render
from export import load_checkpoint, load_folder, stop_ids
from markers import SPECIAL
from model import DemoModel, generate


class TorchBackend:
    """The network in PyTorch; prompts of one length run together."""

    def __init__(self, net: DemoModel, tokenizer: Tokenizer) -> None:
        self.net, self.tokenizer = net, tokenizer
        self.stop = stop_ids({token: tokenizer.token_to_id(token) for token in SPECIAL})

    @classmethod
    def from_folder(cls, folder: Path) -> TorchBackend:
        """An exported folder; its weights are dequantised."""
        return cls(*load_folder(folder))

    @classmethod
    def from_checkpoint(cls, checkpoint: Path) -> TorchBackend:
        """A training checkpoint with the tokenizer beside it."""
        tokenizer = Tokenizer.from_file(str(checkpoint.parent / "tokenizer.json"))
        return cls(load_checkpoint(checkpoint), tokenizer)

    def answer(
        self, prompts: list[Prompt], temperature: float, top_p: float, seed: int
    ) -> list[str]:
        """See `Backend`."""
        generator = torch.Generator().manual_seed(seed)
        encoded = [self.tokenizer.encode(render(prompt)).ids for prompt in prompts]
        alike: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, prompt in enumerate(prompts):
            alike[len(encoded[number]), prompt.max_tokens].append(number)
        answers = [""] * len(prompts)
        for (_, max_tokens), numbers in alike.items():
            told = generate(
                self.net,
                [encoded[number] for number in numbers],
                max_tokens,
                temperature,
                top_p,
                self.stop,
                generator,
            )
            for number, ids in zip(numbers, told, strict=True):
                answers[number] = self.tokenizer.decode(ids).strip()
        return answers
