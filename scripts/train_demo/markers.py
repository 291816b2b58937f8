"""The texts that mark turns and the beginning."""

from __future__ import annotations

SPECIAL = [
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
]
START = "[gMASK]<sop>"
