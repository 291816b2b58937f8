#!/usr/bin/env python3
"""Logits and greedy tokens of an exported folder, to check other engines against.

    python reference.py FOLDER OUT

OUT gets reference.npz (`idsN` [T], `logitsN` [T, vocabulary] float32, `greedyN` [48]) and
reference.json (the same prompts as text).  Weights are dequantised to float32, activations are
not quantised.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from export import load_folder
from markers import START
from model import generate
from stories.grammar import Generator
from stories.telling import request

CHAT = START + "<|user|>\nTell me a story about a fox named Ben.<|assistant|>\n"
PLAIN = START + "Once upon a time, there was a little girl named Lily."
GREEDY = 48


def long_text() -> str:
    """A conversation of more than 300 tokens from the generator."""
    g = Generator("reference")
    first, second = (request(g)[:2] for _ in range(2))
    turns = "".join(f"<|user|>\n{q}<|assistant|>\n{a}" for q, a in (first, second))
    return START + turns


def main() -> None:
    parser = argparse.ArgumentParser(description="Write reference logits of a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    net, tokenizer = load_folder(options.folder)
    arrays: dict[str, np.ndarray] = {}
    prompts = []
    for number, (name, text) in enumerate(
        [("chat", CHAT), ("story", PLAIN), ("long", long_text())]
    ):
        ids = tokenizer.encode(text).ids[:300]
        with torch.inference_mode():
            logits = net(torch.tensor([ids]))[0].float().numpy()
        greedy = generate(net, [ids], GREEDY, temperature=0.0)[0]
        arrays[f"ids{number}"] = np.array(ids, dtype=np.int64)
        arrays[f"logits{number}"] = logits.astype(np.float32)
        arrays[f"greedy{number}"] = np.array(greedy, dtype=np.int64)
        prompts.append(
            {
                "name": name,
                "text": tokenizer.decode(ids, skip_special_tokens=False),
                "ids": ids,
                "greedy": greedy,
                "greedy_text": tokenizer.decode(greedy, skip_special_tokens=False),
                "last_top5": logits[-1].argsort()[::-1][:5].tolist(),
            }
        )
        print(f"{name}: {len(ids)} tokens, then {prompts[-1]['greedy_text']!r}")
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(options.out / "reference.npz", **arrays)
    note = "float32 run of the dequantised weights; no stop tokens applied to the greedy tokens"
    text = json.dumps({"note": note, "prompts": prompts}, indent=1)
    (options.out / "reference.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
