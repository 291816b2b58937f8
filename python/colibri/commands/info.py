"""``colibri info``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from colibri.commands.serve import describe_or_raise
from colibri.models import read_model, resolve_model


def run(args: argparse.Namespace) -> int:
    """Prints what a model folder holds."""
    folder = resolve_model(args.model)
    described = describe_or_raise(str(folder))
    if args.json:
        print(json.dumps(described, indent=2, ensure_ascii=False))
        return 0
    model = read_model(folder)
    print(f"{model.id}  ({folder})")
    for line in lines({key: value for key, value in described.items() if key != "path"}):
        print(line)
    print(f"  chat template: {'yes' if model.template is not None else 'no'}")
    return 0


def lines(value: dict[str, Any], indent: str = "  ") -> list[str]:
    """Returns a nested object as indented lines."""
    out = []
    for key, item in value.items():
        name = key.replace("_", " ")
        if isinstance(item, dict):
            out.append(f"{indent}{name}:")
            out += lines(item, indent + "  ")
        elif isinstance(item, list):
            shown = ", ".join(str(entry) for entry in item) or "none"
            out.append(f"{indent}{name}: {shown}")
        elif key == "bytes" and isinstance(item, int):
            out.append(f"{indent}size: {readable_bytes(item)}")
        elif isinstance(item, bool):
            out.append(f"{indent}{name}: {'yes' if item else 'no'}")
        elif item is not None:
            out.append(f"{indent}{name}: {item}")
    return out


def readable_bytes(count: int) -> str:
    """Returns a size in the decimal unit that suits it."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
