"""Model folders in plain floats, made from folders in any form that the engine reads."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri import _core
from colibri.errors import ModelError

WIDTHS = {"f32": 4, "f16": 2, "bf16": 2}
NAMES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
# What the engine reads beside weights and configuration.
SMALL_FILES = ("tokenizer.json", "generation_config.json")


class NotRepresentable(ModelError):
    """A model that cannot be written in this form."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to write.

    Attributes:
        name: its name in the file.
        shape: its dimensions, outermost first.
        dtype: one of ``WIDTHS``.
        values: makes its elements, row-major.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: Callable[[], NDArray[np.float32]]

    @property
    def n_bytes(self) -> int:
        """Bytes in the file."""
        return int(np.prod(self.shape, dtype=np.int64)) * WIDTHS[self.dtype]


class Weights:
    """The tensors of a model folder, whatever form they are stored in.

    Args:
        folder: the folder.
        dirs: further folders with shards of it, as in ``COLI_MODEL_DIRS``.

    Raises:
        NotRepresentable: the form does not tell what the values are.
    """

    def __init__(self, folder: Path, dirs: str | None = None) -> None:
        self._folder = folder
        try:
            self._weights = _core.Weights(str(folder), dirs)
        except _core.ColibriCoreError as error:
            raise NotRepresentable(str(error), hint=error.hint) from error
        self._tensors = self._weights.tensors()

    @property
    def elements(self) -> int:
        """Number of weights."""
        return sum(int(np.prod(shape, dtype=np.int64)) for _, shape, _, _ in self._tensors)

    @property
    def rounds_activations(self) -> bool:
        """Whether there are matrices for which the kernels quantise activations."""
        return any(rounds for _, _, _, rounds in self._tensors)

    def write(self, target: Path, dtype: str, progress: Callable[[int, int], None]) -> None:
        """Writes a folder with the same values as far as ``dtype`` holds them.

        Matrices are of this type; norms, biases and other vectors stay f32, as they are few.

        Args:
            target: the folder, which must not exist.
            dtype: one of ``WIDTHS``.
            progress: called with bytes done and in all.

        Raises:
            NotRepresentable: a value is beyond the range of ``dtype``.
            ModelError: the source cannot be read.
        """
        target.mkdir()
        config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        for owner in (config, config.get("text_config")):
            if isinstance(owner, dict):
                owner.pop("quantization_config", None)
        (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for name in SMALL_FILES:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, target / name)
        entries = [
            Entry(name, tuple(shape), dtype if len(shape) > 1 else "f32", self._reader(name))
            for name, shape, _, _ in self._tensors
        ]
        write_safetensors(target / "model.safetensors", entries, progress)

    def _reader(self, name: str) -> Callable[[], NDArray[np.float32]]:
        def read() -> NDArray[np.float32]:
            try:
                return np.frombuffer(self._weights.read(name), np.float32)
            except _core.ColibriCoreError as error:
                raise ModelError(str(error), hint=error.hint) from error

        return read


def write_safetensors(
    path: Path, entries: Iterable[Entry], progress: Callable[[int, int], None]
) -> None:
    """Writes tensors one after the other; no more than one is in memory.

    Raises:
        NotRepresentable: a value is beyond the range of its type.
    """
    # Types of four bytes first, so that each tensor is aligned.
    ordered = sorted(entries, key=lambda entry: -WIDTHS[entry.dtype])
    header, total = {}, 0
    for entry in ordered:
        offsets = [total, total + entry.n_bytes]
        header[entry.name] = {
            "dtype": NAMES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": offsets,
        }
        total = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        done = 0
        for entry in ordered:
            file.write(_encode(entry))
            done += entry.n_bytes
            progress(done, total)


def _encode(entry: Entry) -> bytes:
    values = entry.values()
    if entry.dtype == "f32":
        return values.astype("<f4").tobytes()
    if entry.dtype == "f16":
        with np.errstate(over="ignore"):
            narrow = values.astype("<f2")
        fits = np.isfinite(narrow) | ~np.isfinite(values)
    else:
        # Ties to even: the upper half, and one more where the lower half says so.
        bits = values.view(np.uint32)
        narrow = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        fits = ((narrow & 0x7F80) != 0x7F80) | ~np.isfinite(values)
    if not fits.all():
        raise NotRepresentable(f"{entry.name} holds values beyond the range of {entry.dtype}")
    return narrow.tobytes()
