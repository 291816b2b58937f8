#!/usr/bin/env python3
"""Unedited answers of an exported folder to fixed prompts, at its default settings.

python sample.py FOLDER [--seed 1] [--temperature 0.6] [--top-p 0.9]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from backends import Prompt
from torch_backend import TorchBackend

CHATS = [
    ["Hello!", "Who are you?"],
    ["Tell me a story about a rabbit named Sam.", "Who is the story about?", "How did it end?"],
    ["Write a short story about a girl named Rosa and a lantern.", "What color was the lantern?"],
    ["Once upon a time, there was a little fox named Ruby."],
    ["What sound does a cow make?", "What is the capital of Japan?", "What is 7 + 5?"],
    ["What is the opposite of wide?", "Name three fruits.", "Where does a bear live?"],
    ["Tell me a story about a lost key.", "Tell me a story about two friends.", "Thank you!"],
    ["Who wrote Hamlet?"],
]


def main() -> None:
    """Print the conversations."""
    parser = argparse.ArgumentParser(description="Print sample conversations.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    backend = TorchBackend.from_folder(options.folder)
    for questions in CHATS:
        history: list[tuple[str, str]] = []
        for question in questions:
            prompt = Prompt(history, question, 300)
            answer = backend.answer([prompt], options.temperature, options.top_p, options.seed)[0]
            history.append((question, answer))
            print(f"**{question}**\n{answer}\n")
        print("---\n")


if __name__ == "__main__":
    main()
