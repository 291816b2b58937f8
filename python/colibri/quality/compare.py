"""A model in every format that ``colibri convert`` offers, compared with itself in f32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri import _core
from colibri.errors import ModelError
from colibri.model import Model
from colibri.models import model_dirs
from colibri.quality.figures import Comparison, Figures
from colibri.quality.plain import NotRepresentable, Weights

# Most tokens that are computed from one empty context.
WINDOW = 512
REFERENCE = "f32"
ROUNDED = ("bf16", "f16")
BITS = ("int8", "int4")
GROUPS = (32, 64, 128)
AS_STORED = "as stored"
# Weights of the reference, keys and values rounded.
KV_ROUNDED = "f32, kv bf16"
# Bytes that a weight takes on disk at most: the reference, or in its place a conversion to int8
# with an f32 scale for 32 inputs and the same in f32.
BYTES_PER_WEIGHT = 4 + 1 + 4 / 32

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """A format and its figures.

    Attributes:
        format: its name, or that of a folder.
        activations: whether they are ``int8`` in products with quantised matrices, or ``float``.
        bytes: of all weights as stored.
        figures: against the reference.
    """

    format: str
    activations: str
    bytes: int
    figures: Figures


class Bench:
    """Makes one folder after the other, asks it for its logits, and removes it.

    Args:
        folder: the model.
        ids: the text; each window of it begins from an empty context.
        context: most tokens that the model takes, if that is known.
        temporary: an empty folder.
        tell: called with stage, done and total.
    """

    def __init__(
        self, folder: Path, ids: list[int], context: int | None, temporary: Path, tell: Tell
    ) -> None:
        window = WINDOW if context is None else min(WINDOW, context)
        cuts = (ids[first : first + window] for first in range(0, len(ids), window))
        # A single token has none to predict.
        self._windows = [cut for cut in cuts if len(cut) > 1]
        self._folder = folder
        self._window = window
        self._temporary = temporary
        self._tell = tell
        self.left_out: list[str] = []

    def rows(self, others: Mapping[str, Path]) -> Iterator[Row]:
        """Measures everything, the reference first; ``left_out`` says which rows there are not.

        Args:
            others: further folders of the same model, by the name that their rows get.

        Raises:
            ModelError, EngineError: a folder cannot be read, converted or loaded.
        """
        # Only headers are read for them, so a model that cannot be converted is told at once.
        conversions = {
            f"{bits}-g{group}": self._conversion(bits, group) for bits in BITS for group in GROUPS
        }
        weights = Weights(self._folder, self._dirs(self._folder))
        self._check_space(weights.elements)
        with self._written(weights, REFERENCE) as reference:
            yield self._reference(reference)
            yield self._row(KV_ROUNDED, reference, rounds=False, kv="bf16")
        yield self._row(AS_STORED, self._folder, rounds=weights.rounds_activations)
        for name in ROUNDED:
            try:
                with self._written(weights, name) as rounded:
                    yield self._row(name, rounded, rounds=False)
            except NotRepresentable as error:
                self.left_out.append(f"{name}: {error}")
        for name, conversion in conversions.items():
            with self._converted(name, conversion) as converted:
                yield from self._pair(name, converted)
        for name, other in others.items():
            yield from self._pair(name, other)

    def _pair(self, name: str, folder: Path) -> Iterator[Row]:
        """The row of a folder and, where it quantises, that of its weights alone."""
        try:
            weights = Weights(folder, self._dirs(folder))
        except NotRepresentable as error:
            self.left_out.append(f"{name} with float activations: {error}")
            yield self._row(name, folder, rounds=True)
            return
        yield self._row(name, folder, rounds=weights.rounds_activations)
        if weights.rounds_activations:
            with self._written(weights, REFERENCE) as widened:
                row = self._row(name, widened, rounds=False)
                yield Row(name, row.activations, self._weight_bytes(folder), row.figures)

    # --- folders ---

    def _dirs(self, folder: Path) -> str:
        """Further folders with shards of ``folder``: none for one that was made here."""
        return "" if folder.is_relative_to(self._temporary) else model_dirs() or ""

    def _weight_bytes(self, folder: Path) -> int:
        try:
            told = json.loads(_core.describe(str(folder), self._dirs(folder)))
        except _core.ColibriCoreError as error:
            raise ModelError(str(error), hint=error.hint) from error
        return int(told["dense"]["bytes"] + told["routed_experts"]["bytes"])

    def _check_space(self, weights: int) -> None:
        """Says before the work that the disk is too small for it."""
        needed = int(weights * BYTES_PER_WEIGHT)
        free = shutil.disk_usage(self._temporary).free
        if needed > free:
            raise ModelError(
                f"{self._temporary}: {needed / 1e9:.1f} GB are needed at a time, "
                f"{free / 1e9:.1f} GB are free",
                hint="set TMPDIR to a folder on another disk",
            )

    @contextmanager
    def _place(self, name: str) -> Iterator[Path]:
        """A folder to be made, which is removed afterwards."""
        place = self._temporary / name
        try:
            yield place
        finally:
            if place.exists():
                shutil.rmtree(place)

    @contextmanager
    def _written(self, weights: Weights, dtype: str) -> Iterator[Path]:
        with self._place(dtype) as place:
            weights.write(place, dtype, lambda done, total: self._tell("writing", done, total))
            yield place

    def _conversion(self, bits: str, group: int) -> _core.Conversion:
        """What ``colibri convert --experts BITS --group GROUP`` makes of the model."""
        try:
            return _core.Conversion(
                str(self._folder),
                self._dirs(self._folder),
                experts=bits,
                group=group,
                dense="int8",
                head="int8",
                mtp="int8",
            )
        except _core.ColibriCoreError as error:
            raise ModelError(str(error), hint=error.hint) from error

    @contextmanager
    def _converted(self, name: str, conversion: _core.Conversion) -> Iterator[Path]:
        with self._place(name) as place:
            try:
                conversion.run(str(place), None, self._tell)
            except _core.ColibriCoreError as error:
                raise ModelError(str(error), hint=error.hint) from error
            yield place

    # --- logits ---

    def _logits(
        self, name: str, folder: Path, kv: str | None = None
    ) -> Iterator[NDArray[np.float32]]:
        dirs, ctx = self._dirs(folder), max(self._window, 2)
        model = Model(folder, ctx=ctx, progress=self._tell, model_dirs=dirs, kv=kv)
        total = sum(map(len, self._windows))
        done = 0
        for window in self._windows:
            yield model.logits(window)
            done += len(window)
            self._tell(f"{name}, tokens", done, total)

    def _saved(self, number: int) -> Path:
        return self._temporary / f"reference-{number}.npy"

    def _reference(self, folder: Path) -> Row:
        """Keeps the logits of the reference on the disk."""
        for number, logits in enumerate(self._logits(REFERENCE, folder)):
            np.save(self._saved(number), logits)
        return self._row(REFERENCE, folder, rounds=False)

    def _row(self, name: str, folder: Path, *, rounds: bool, kv: str | None = None) -> Row:
        comparison = Comparison()
        for number, logits in enumerate(self._logits(name, folder, kv)):
            reference = np.load(self._saved(number), mmap_mode="r")
            if logits.shape != reference.shape:
                raise ModelError(
                    f"{name}: a vocabulary of {logits.shape[1]:,}, where the model has "
                    f"{reference.shape[1]:,}"
                )
            targets = np.asarray(self._windows[number][1:])
            comparison.add(reference[:-1], logits[:-1], targets)
        activations = "int8" if rounds else "float"
        return Row(name, activations, self._weight_bytes(folder), comparison.figures())
