"""``colibri fake-engine``."""

from __future__ import annotations

import argparse
import stat
from pathlib import Path

from colibri.errors import UsageError


def run(args: argparse.Namespace) -> int:
    """Plays a script on stdin and stdout; returns the exit code of the engine played."""
    path = Path(args.script)
    if path.suffix in (".json", ".txt") and not stat.S_ISREG(path.stat().st_mode):
        # Reading a pipe would wait for somebody to write, for ever and without a word.
        raise UsageError(f"{path} is no regular file")
    if path.suffix == ".json":
        from colibri.fake_engine import FakeEngine

        FakeEngine(path).run()
        return 0
    if path.suffix == ".txt":
        from colibri.conformance.reverse import play

        return play(path)
    raise UsageError(
        f"{path} is no script of a fake engine",
        hint="scripts are scenarios that end in .json and transcripts that end in .txt",
    )
