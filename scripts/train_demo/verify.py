#!/usr/bin/env python3
"""Load an exported folder with transformers and compare its logits with reference.npz.

    pip install transformers compressed-tensors accelerate
    python verify.py FOLDER REFERENCE_FOLDER

transformers runs the routed experts in float16 after decompressing them, so small differences
remain.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from export import load_folder
from reference import CHAT


def main() -> None:
    """Print the largest differences."""
    parser = argparse.ArgumentParser(description="Compare with transformers.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("reference", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reference = np.load(options.reference / "reference.npz")
    theirs = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    ours, tokenizer = load_folder(options.folder)
    print(type(theirs).__name__)
    for number in range(3):
        ids = torch.from_numpy(reference[f"ids{number}"])[None]
        with torch.inference_mode():
            found = theirs(ids).logits[0].float()
            again = ours(ids)[0]
        exact = torch.from_numpy(reference[f"logits{number}"])
        assert torch.allclose(again, exact, atol=1e-3), "the reference is of other weights"
        agree = (found.argmax(-1) == exact.argmax(-1)).float().mean()
        print(
            f"prompt {number}: {ids.shape[1]} tokens, largest logit {exact.abs().max():.2f}, "
            f"difference {(found - exact).abs().max():.1e}, "
            f"same best token at {agree:.1%}"
        )
    chat = [{"role": "user", "content": "Tell me a story about a fox named Ben."}]
    template = AutoTokenizer.from_pretrained(options.folder)
    text = template.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = template(text)["input_ids"]
    print("chat template as expected:", text == CHAT, ids == tokenizer.encode(CHAT).ids)


if __name__ == "__main__":
    main()
