"""Which experts a request takes, and where their weights are in the file."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path

from wire import Request, Wire


def experts_of(model: Path, request: Request, max_tokens: int) -> set[tuple[int, int]]:
    """Row and column in the map of each expert that a request takes."""
    with tempfile.TemporaryDirectory() as state, Wire(model, COLIBRI_STATE_DIR=state) as wire:
        wire.send(Request(request.prompt, max_tokens, request.seed).frame(1, 0))
        found: set[tuple[int, int]] = set()
        while True:
            for kind, fields in wire.read():
                if kind == "EMAP":
                    places = enumerate(fields["map"])
                    found = {divmod(i, fields["cols"]) for i, byte in places if byte >> 6}
                elif kind == "DONE":
                    return found


def bytes_of(path: Path, layer: int, expert: int, matrix: str) -> tuple[int, int]:
    """Where the weights of one matrix begin and end in the file."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    name = f"model.layers.{layer}.mlp.experts.{expert}.{matrix}_proj.weight_packed"
    begin, end = header[name]["data_offsets"]
    return 8 + length + begin, 8 + length + end
