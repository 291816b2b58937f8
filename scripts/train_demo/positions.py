#!/usr/bin/env python3
"""Loss of an exported folder by position: does it hold up to the last one it promises?

    python positions.py FOLDER [--rows 16] [--length 1536]

Rows are conversations of another seed than the training's.  Only the model's own words count.
Positions past `max_position_embeddings` are tried too, to see what the limit is worth.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F

from data import EARLY, Encoder
from export import load_folder
from model import rope_tables
from stories.grammar import Generator

BUCKET = 128


def main() -> None:
    """Print the mean loss of every 128 positions."""
    parser = argparse.ArgumentParser(description="Loss by position.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=1536)
    parser.add_argument("--seed", type=int, default=990002)
    options = parser.parse_args()
    torch.set_num_threads(1)
    net, tokenizer = load_folder(options.folder)
    config = net.config
    net.cos, net.sin = rope_tables(options.length, config.qk_rope_head_dim, config.rope_theta)
    encoder = Encoder(tokenizer)
    g = Generator(options.seed)
    buckets = options.length // BUCKET
    losses, counts = torch.zeros(buckets), torch.zeros(buckets)
    for _ in range(options.rows):
        row = encoder.conversation(g, options.length, EARLY)
        ids = torch.tensor([row.ids[: options.length + 1]])
        counted = torch.tensor(row.weights[1 : options.length + 1]) >= 1
        with torch.inference_mode():
            logits = net(ids[:, :-1])[0]
        loss = F.cross_entropy(logits, ids[0, 1:], reduction="none")
        losses += (loss * counted).reshape(buckets, -1).sum(1)
        counts += counted.reshape(buckets, -1).sum(1)
    for number in range(buckets):
        first = number * BUCKET
        mark = "" if first < config.max_position_embeddings else "  past the promised limit"
        mean = losses[number] / counts[number]
        print(f"{first:5} to {first + BUCKET - 1:5}: {mean:.3f}{mark}")


if __name__ == "__main__":
    main()
