"""``colibri bench``: measurements of models, one module each."""

from __future__ import annotations

import argparse
from importlib import import_module


def run(args: argparse.Namespace) -> int:
    """Runs a measurement."""
    module = import_module(f"colibri.commands.bench.{args.measurement}")
    code: int = module.run(args)
    return code
