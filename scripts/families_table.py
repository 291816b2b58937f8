"""Writes the table of docs/families.md: every oracle model, run and compared with its reference.

    python scripts/families_table.py          # needs the installed package

`tests/oracle` asserts what the table shows; this shows by how much.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import colibri
from colibri import _core

ROOT = Path(__file__).parents[1]
ORACLE = ROOT / "tests" / "data" / "oracle"
PAGE = ROOT / "docs" / "families.md"
MARK = "<!-- made by scripts/families_table.py -->\n"
HEAD = (
    "| `model_type` | model | stored as | layers, sparse | logits differ by | same experts |"
    " same greedy tokens |\n|---|---|---|---|---|---|---|\n"
)


def main() -> None:
    folders = sorted(ORACLE.iterdir(), key=lambda folder: (family(folder), folder.name))
    table = HEAD + "".join(row(folder) for folder in folders)
    before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
    PAGE.write_text(f"{before}{MARK}{table}{MARK}{after}", encoding="utf-8")


def family(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name: str = config["model_type"]
    return name


def row(folder: Path) -> str:
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    arrays = np.load(folder / "reference.npz")
    info = json.loads(_core.describe(str(folder)))
    model = colibri.Model(folder)
    sequences = [prompt["ids"] + prompt["greedy"] for prompt in reference["prompts"]]
    logits = [model.logits(ids) for ids in sequences]
    difference = max(
        float(np.abs(ours - arrays[f"p{i}_logits"]).max())
        for i, ours in enumerate(logits)
        if f"p{i}_logits" in arrays
    )
    greedy = [
        ours[len(prompt["ids"]) - 1 : -1].argmax(axis=1) == prompt["greedy"]
        for ours, prompt in zip(logits, reference["prompts"], strict=True)
    ]
    cells = [
        f"`{family(folder)}`",
        folder.name,
        ", ".join(stored(info)),
        f"{info['layers']}, {len(reference['moe_layers'])}",
        f"{difference:.1e}",
        same_experts(model, reference, arrays, sequences),
        percent(np.concatenate(greedy)),
    ]
    return f"| {' | '.join(cells)} |\n"


def stored(info: dict[str, Any]) -> list[str]:
    """The formats of matrices, the experts' first."""
    formats = [*info["routed_experts"]["formats"], *info["dense"]["formats"]]
    return list(dict.fromkeys(re.sub("-g32$", "", name) for name in formats))


def same_experts(
    model: colibri.Model, reference: dict[str, Any], arrays: Any, sequences: list[list[int]]
) -> str:
    if not reference["moe_layers"]:
        return "no experts"
    same = [
        np.sort(model.routing(ids)[0], axis=2).transpose(1, 0, 2) == arrays[f"p{i}_experts"]
        for i, ids in enumerate(sequences)
    ]
    return percent(np.concatenate([one.ravel() for one in same]))


def percent(equal: np.ndarray) -> str:
    return "all" if equal.all() else f"{100 * equal.mean():.1f} %"


if __name__ == "__main__":
    main()
