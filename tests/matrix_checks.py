"""What must hold for a model folder with a reference, whatever its family.

`tests/oracle/test_matrix.py` does this for every folder of `tests/data/oracle`,
`scripts/check_family.py` for any other folder that was made in the same way
(tests/data/README.md). Each check returns a figure for people.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import colibri
from colibri import _core

# Float32 arithmetic in another order.
LOGITS = 5e-4
WEIGHTS = 1e-4
# Random weights have no redundancy and choose experts by a hair, so what 4 bits an expert and 8
# bits an activation change is a large part of the logits: 0.12 to 0.68 of their deviation was seen.
# Two unrelated models differ by 1.4 of it.
INT4 = 0.8
CONVERSION = {"experts": "int4", "group": 64, "dense": "int8", "head": "int8", "mtp": "int8"}


class Reference:
    """The reference of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.json: dict[str, Any] = json.loads(
            (folder / "reference.json").read_text(encoding="utf-8")
        )
        self.arrays: Any = np.load(folder / "reference.npz")
        prompts = self.json["prompts"]
        self.prompts: list[list[int]] = [prompt["ids"] for prompt in prompts]
        self.greedy: list[list[int]] = [prompt["greedy"] for prompt in prompts]
        self.sequences = [ids + more for ids, more in zip(self.prompts, self.greedy, strict=True)]
        # Integer products round activations to 8 bits, which the reference does not.
        self.is_rounded = self.json["stored_dtype"] == "mxfp4"
        self.is_recurrent = '"linear_' in (folder / "config.json").read_text(encoding="utf-8")
        self.sparse_layers: list[int] = self.json["moe_layers"]


Answer = tuple[int, list[int], bytes]


def answers(
    folder: Path, *runs: list[tuple[int, list[int]]], tokens: int = 12, fewest: bool = False
) -> tuple[list[list[Answer]], list[list[int]]]:
    """What each run of requests gives on one model, and the bytes of experts its steps read."""
    slots = 1 + max(slot for run in runs for slot, _ in run)
    batch = _core.Batch(str(folder), slots=slots, fewest_experts=fewest)
    results = [batch.run(run, tokens) for run in runs]
    return [told for told, _ in results], [reads for _, reads in results]


def alone(folder: Path, prompts: list[list[int]], tokens: int = 12) -> list[Answer]:
    """Each prompt by itself, from an empty slot."""
    told, _ = answers(folder, *([(slot, ids)] for slot, ids in enumerate(prompts)), tokens=tokens)
    return [run[0] for run in told]


def check_cold(folder: Path, scratch: Path) -> str:
    """Logits, routing and greedy tokens are the reference's; incremental equals whole."""
    reference = Reference(folder)
    model = colibri.Model(folder)
    logits = [model.logits(ids) for ids in reference.sequences]
    incremental = alone(folder, reference.prompts, tokens=48)
    for ids, greedy, (_, tokens, bits) in zip(
        reference.prompts, reference.greedy, incremental, strict=True
    ):
        assert tokens == greedy or reference.is_rounded, "the greedy continuation"
        vocab = len(bits) // 4 // 48
        for n in (1, 24, 47):
            # Where rounding may choose other tokens, the reference's are taken.
            decoded = incremental_logprobs(folder, ids, greedy, n) if reference.is_rounded else bits
            ((_, _, whole),) = alone(folder, [ids + greedy[:n]], tokens=1)
            assert decoded[n * vocab * 4 :][: vocab * 4] == whole, f"incremental, token {n}"
    if reference.is_rounded:
        return check_medians(reference, logits)
    worst = 0.0
    for i, ours in enumerate(logits):
        if f"p{i}_logits" in reference.arrays:
            worst = max(worst, float(np.abs(ours - reference.arrays[f"p{i}_logits"]).max()))
        top = np.take_along_axis(ours, reference.arrays[f"p{i}_top_ids"].astype(np.int64), axis=1)
        worst = max(worst, float(np.abs(top - reference.arrays[f"p{i}_top_logits"]).max()))
    assert worst <= LOGITS, f"logits differ by {worst:.2e}"
    check_routing(reference, model)
    return f"logits differ by {worst:.1e}"


def incremental_logprobs(folder: Path, ids: list[int], greedy: list[int], n: int) -> bytes:
    """Log-probabilities of `n` + 1 tokens after `ids`, of which the last one is decoded alone."""
    told, _ = answers(folder, [(0, ids)], [(0, ids + greedy[:n])], tokens=1)
    ((reused, _, bits),) = told[1]
    assert reused == len(ids)
    return bytes(n * len(bits)) + bits


def check_routing(reference: Reference, model: colibri.Model) -> None:
    if not reference.sparse_layers:
        return
    for i, ids in enumerate(reference.sequences):
        experts, weights = model.routing(ids)
        order = np.argsort(experts, axis=2)
        experts = np.take_along_axis(experts, order, axis=2).transpose(1, 0, 2)
        weights = np.take_along_axis(weights, order, axis=2).transpose(1, 0, 2)
        assert (experts == reference.arrays[f"p{i}_experts"]).all(), "experts"
        difference = np.abs(weights - reference.arrays[f"p{i}_expert_weights"]).max()
        assert difference <= WEIGHTS, f"weights of experts differ by {difference:.2e}"


def check_medians(reference: Reference, logits: list[Any]) -> str:
    """Rounding can flip an expert, and one flip changes a position wholly: medians tell."""
    ours = np.concatenate(logits[:2]).astype(np.float64)
    theirs = np.concatenate([reference.arrays[f"p{i}_logits"] for i in range(2)])
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosine = float(np.median((ours * theirs).sum(axis=1) / norms))
    agreement = float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean())
    assert cosine >= 0.98, f"median cosine {cosine:.4f}"
    assert agreement >= 0.6, f"the likeliest token agrees at {agreement:.2f}"
    return f"median cosine {cosine:.4f}"


def check_warm(folder: Path, scratch: Path) -> str:
    """A prompt that shares its beginning with an earlier one: the bits of an empty slot."""
    reference = Reference(folder)
    sequence = max(reference.sequences, key=len)
    shared = len(sequence) // 2
    other = sequence[:shared] + reference.prompts[0]
    ((cold,), *_), _ = answers(folder, [(0, other)])
    (_, (warm,)), _ = answers(folder, [(0, sequence)], [(0, other)])
    common = shared + count_equal(sequence[shared:], other[shared:])
    # A recurrent state that grew past the common part goes back to where it was kept, if anywhere.
    is_reused = warm[0] <= common if reference.is_recurrent else warm[0] == common
    assert is_reused, f"{warm[0]} tokens reused, {common} are shared"
    assert warm[1:] == cold[1:], "bits"
    return f"{warm[0]} of {len(other)} tokens reused"


def count_equal(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def check_streaming(folder: Path, scratch: Path) -> str:
    """As few experts in memory as the engine accepts, so that steps read them anew."""
    reference = Reference(folder)
    prompt = reference.prompts[1]
    (whole, again), (_, repeated) = answers(folder, [(0, prompt)], [(0, prompt)])
    (tight,), (reads,) = answers(folder, [(0, prompt)], fewest=True)
    assert tight[0][1:] == whole[0][1:] == again[0][1:], "bits"
    if not reference.sparse_layers:
        assert sum(reads) == 0
        return "no experts"
    if len(reference.sparse_layers) > 1:
        assert min(reads) > 0, f"steps read {reads} bytes"
    # All resident, nearly everything was there the second time.
    assert sum(reads) > sum(repeated), f"{sum(reads)} bytes read, {sum(repeated)} with all resident"
    return f"{sum(reads) / len(reads) / 1e3:.0f} kB read a step"


def check_int4(folder: Path, scratch: Path) -> str:
    """Converted: near the original, and the same bits whatever is resident."""
    target = scratch / f"{folder.name}-int4"
    _core.Conversion(str(folder), **CONVERSION).run(str(target), 1, lambda *_: None)
    reference = Reference(folder)
    original, converted = colibri.Model(folder), colibri.Model(target)
    errors, sizes = [], []
    for ids in reference.sequences:
        expected = original.logits(ids)
        errors.append((converted.logits(ids) - expected).ravel())
        sizes.append(expected.ravel())
    share = float(np.concatenate(errors).std() / np.concatenate(sizes).std())
    assert share <= INT4, f"logits differ by {share:.2f} of their deviation"
    (whole,), _ = answers(target, [(0, reference.prompts[1])])
    (tight,), _ = answers(target, [(0, reference.prompts[1])], fewest=True)
    assert tight[0][1:] == whole[0][1:], "bits"
    return f"logits differ by {share:.2f} of their deviation"


def check_batch(folder: Path, scratch: Path) -> str:
    """Four sequences at once: each has the bits that it has alone."""
    reference = Reference(folder)
    prompts = [*reference.prompts, reference.sequences[0][: len(reference.prompts[0]) + 9]]
    apart = alone(folder, prompts)
    (together,), _ = answers(folder, list(enumerate(prompts)))
    for slot, (ours, expected) in enumerate(zip(together, apart, strict=True)):
        # What another slot has computed is taken over, so that less may be computed here.
        assert ours[1:] == expected[1:], f"sequence {slot}"
    return f"{len(prompts)} sequences"


CHECKS: dict[str, Callable[[Path, Path], str]] = {
    "cold": check_cold,
    "warm prefix": check_warm,
    "streaming budget": check_streaming,
    "int4": check_int4,
    "batch of 4": check_batch,
}
