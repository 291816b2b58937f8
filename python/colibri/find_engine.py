"""Which command line starts the engine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

ENGINE_NAME = "colibri-engine"


def find_engine() -> list[str]:
    """Returns the command that starts the engine, without its arguments.

    ``COLIBRI_ENGINE`` (split like a shell line) wins; then ``colibri-engine`` beside the
    interpreter, native or console script; then this package's own entry module.
    """
    override = os.environ.get("COLIBRI_ENGINE")
    if override:
        return shlex.split(override)
    beside = Path(sys.executable).parent / (ENGINE_NAME + (".exe" if os.name == "nt" else ""))
    if beside.is_file() and os.access(beside, os.X_OK):
        return [str(beside)]
    return [sys.executable, "-m", "colibri._engine_entry"]
