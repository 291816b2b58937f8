"""Model files read and written without the engine, as docs/formats.md says."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ALIGN = 4096
TILE = 16
LINE = 64
# Inputs of a group are padded to a multiple of this.
PADDED = 8
SCALES = {"f16": ("<f2", 2), "f32": ("<f4", 4)}

Tensors = dict[str, tuple[str, list[int], bytes]]


def read_safetensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Returns (type, shape, bytes) by name, and the metadata."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors, metadata


def write_safetensors(
    path: Path, tensors: Tensors, metadata: dict[str, str] | None = None, align: int = ALIGN
) -> None:
    """Writes tensors in the order given; the first begins at a multiple of ``align``."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        offsets = [offset, offset + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % align)
    parts = [struct.pack("<Q", len(text)), text, *(data for _, _, data in tensors.values())]
    path.write_bytes(b"".join(parts))


def floats(dtype: str, shape: list[int], data: bytes) -> np.ndarray:
    """Returns a tensor of floats as float32."""
    if dtype == "BF16":
        halves = np.frombuffer(data, "<u2").astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(shape)
    kind = {"F32": "<f4", "F16": "<f2"}[dtype]
    return np.frombuffer(data, kind).astype(np.float32).reshape(shape)


def to_bf16(values: np.ndarray) -> bytes:
    """Returns the bytes of values in bf16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return bits.astype("<u2").tobytes()


@dataclass(frozen=True)
class Integers:
    """A matrix of integers ``[rows, inputs]`` with scales ``[rows, groups]``."""

    bits: int
    q: np.ndarray
    scales: np.ndarray

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.scales.shape[1]

    @property
    def values(self) -> np.ndarray:
        return self.q.astype(np.float32) * np.repeat(self.scales, self.group, axis=1)

    def packed(self, name: str) -> Tensors:
        """Returns it as compressed-tensors has it, with f32 scales."""
        rows, inputs = self.q.shape
        q = (self.q.astype(int) + (1 << (self.bits - 1))).astype(np.uint8)
        if self.bits == 4:
            q = q[:, ::2] | (q[:, 1::2] << 4)
        words = [rows, q.shape[1] // 4]
        scales = self.scales.astype("<f4")
        return {
            f"{name}.weight_packed": ("I32", words, q.tobytes()),
            f"{name}.weight_scale": ("F32", list(scales.shape), scales.tobytes()),
            f"{name}.weight_shape": ("I64", [2], struct.pack("<2q", rows, inputs)),
        }

    def flat(self, name: str) -> Tensors:
        """Returns it as the C engine has it."""
        if self.bits == 8:
            data = self.q.astype(np.int8).tobytes()
        else:
            q = (self.q.astype(int) + 8).astype(np.uint8)
            data = (q[:, ::2] | (q[:, 1::2] << 4)).tobytes()
        scales = self.scales.astype("<f4")
        return {
            f"{name}.weight": ("U8", [len(data)], data),
            f"{name}.weight.qs": ("F32", [scales.size], scales.tobytes()),
        }


def decode_record(parts: list[dict[str, Any]], data: bytes) -> dict[str, Integers]:
    """Returns the matrices of a record."""
    found = {}
    at = 0
    for part in parts:
        rows, inputs = part["shape"]
        kind, group = part["format"].split("-g")
        bits, group = int(kind.removeprefix("int")), int(group)
        tiles, groups, padded = -(-rows // TILE), inputs // group, -(-group // PADDED) * PADDED
        n_bytes = tiles * TILE * groups * padded * bits // 8
        lines = np.frombuffer(data[at : at + n_bytes], np.uint8)
        lines = lines.reshape(tiles, groups, -1, TILE, 1, 4)
        if bits == 4:
            q = np.concatenate([lines & 15, lines >> 4], axis=4).astype(np.int8) - 8
        else:
            q = lines.view(np.int8)
        # [tile, row of the tile, group, line, half, input]
        q = q.transpose(0, 3, 1, 2, 4, 5).reshape(tiles * TILE, groups, padded)
        assert not q[rows:].any()
        assert not q[:, :, group:].any()
        at += n_bytes
        scale_kind, width = SCALES[part["scales"]]
        n_scales = tiles * groups * TILE
        scales = np.frombuffer(data[at : at + n_scales * width], scale_kind)
        scales = scales.reshape(tiles, groups, TILE).transpose(0, 2, 1).reshape(-1, groups)
        at = -(-(at + n_scales * width) // LINE) * LINE
        found[part["name"]] = Integers(
            bits,
            q[:rows, :, :group].reshape(rows, inputs),
            scales[:rows].astype(np.float32),
        )
    assert len(data) == -(-at // ALIGN) * ALIGN
    assert not any(data[at:])
    return found


def read_folder(folder: Path) -> tuple[Tensors, dict[str, Integers]]:
    """Returns the plain tensors of a converted model and the matrices of its records."""
    plain: Tensors = {}
    matrices: dict[str, Integers] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors, metadata = read_safetensors(path)
        records = json.loads(metadata.get("colibri.records", "{}"))
        for name, (dtype, shape, data) in tensors.items():
            if name in records:
                assert (dtype, shape) == ("U8", [len(data)])
                matrices |= decode_record(records[name], data)
            else:
                plain[name] = (dtype, shape, data)
    return plain, matrices
