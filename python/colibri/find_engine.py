"""Which command line starts the engine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from colibri.errors import UsageError

ENGINE_NAME = "colibri-engine"


def find_engine() -> list[str]:
    """Returns the command that starts the engine, without its arguments.

    ``COLIBRI_ENGINE`` (split like a shell line) wins; then ``colibri-engine`` beside the
    interpreter, native or console script; then this package's own entry module.

    Raises:
        UsageError: ``COLIBRI_ENGINE`` is not a command line.
    """
    override = os.environ.get("COLIBRI_ENGINE")
    if override:
        try:
            command = shlex.split(override)
        except ValueError as error:
            raise UsageError(f"COLIBRI_ENGINE cannot be split into words: {error}") from error
        if command:
            return command
    beside = Path(sys.executable).parent / (ENGINE_NAME + (".exe" if os.name == "nt" else ""))
    if beside.is_file() and os.access(beside, os.X_OK):
        return [str(beside)]
    # -P: a folder named colibri in the current directory must not be taken for the package.
    return [sys.executable, "-P", "-m", "colibri._engine_entry"]
