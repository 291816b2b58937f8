"""The ``colibri-engine`` console script.

Arguments are passed explicitly and ``sys.stdin``/``sys.stdout`` stay untouched: descriptors 0 and
1 carry the wire and belong to the engine.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Runs the engine in this process and returns its exit code."""
    # The engine has handlers of its own; until they are there, Ctrl-C ends a process in silence.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Else the first file that is opened would become the wire.
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
    from colibri import _core

    return _core.engine_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
