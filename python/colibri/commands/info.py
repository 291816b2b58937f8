"""``colibri info``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from colibri.commands.console import readable_bytes
from colibri.commands.serve import describe_or_raise
from colibri.models import ModelInfo, read_model, resolve_model
from colibri.streams import one_line


def run(args: argparse.Namespace) -> int:
    """Prints what a model folder holds."""
    folder = resolve_model(args.model)
    described: dict[str, Any] = describe_or_raise(str(folder))
    if args.json:
        print(json.dumps(described, indent=2, ensure_ascii=False))
        return 0
    model = read_model(folder)
    for line in (f"{model.id}  ({folder})", *lines(_told(described, model))):
        print(one_line(line))
    print(f"  chat template: {'yes' if model.template is not None else 'no'}")
    return 0


def _told(described: dict[str, Any], model: ModelInfo) -> dict[str, Any]:
    """Returns what is printed: without the path, with sums people look for."""
    told = {key: value for key, value in described.items() if key != "path"}
    layers, experts = told.get("layers"), told.get("experts")
    sparse = told.pop("sparse_layers", None)
    if sparse is None and isinstance(layers, int) and model.map_layers is not None:
        # Of a family that the engine does not know, the configuration may tell.
        sparse = sum(layer < layers for layer in model.map_layers)
    sizes = [told[part]["bytes"] for part in ("dense", "routed_experts")]
    if not experts and not told["routed_experts"]["bytes"]:
        told["experts"] = "none, every layer is dense"
        del told["experts_per_token"], told["routed_experts"]
    elif experts and sparse is not None:
        told["experts"] = f"{experts:,} in each of {sparse:,} sparse layers"
    told["total size"] = readable_bytes(sum(sizes))
    return told


def lines(value: dict[str, Any], indent: str = "  ") -> list[str]:
    """Returns a nested object as indented lines."""
    out = []
    for key, item in value.items():
        name = key.replace("_", " ")
        if key == "formats" and isinstance(item, dict):
            out.append(f"{indent}{name}:")
            out += [f"{indent}  {kind}: {_tensors(count)}" for kind, count in item.items()]
        elif isinstance(item, dict):
            out.append(f"{indent}{name}:")
            out += lines(item, indent + "  ")
        elif isinstance(item, list):
            shown = ", ".join(str(entry) for entry in item) or "none"
            out.append(f"{indent}{name}: {shown}")
        elif key == "bytes" and isinstance(item, int):
            out.append(f"{indent}size: {readable_bytes(item)}")
        elif isinstance(item, bool):
            out.append(f"{indent}{name}: {'yes' if item else 'no'}")
        elif isinstance(item, int):
            out.append(f"{indent}{name}: {item:,}")
        elif item is not None:
            out.append(f"{indent}{name}: {item}")
    return out


def _tensors(count: int) -> str:
    return f"{count:,} tensor" if count == 1 else f"{count:,} tensors"
