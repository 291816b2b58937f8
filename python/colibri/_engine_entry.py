"""The ``colibri-engine`` console script.

Arguments are passed explicitly and ``sys.stdin``/``sys.stdout`` stay untouched: descriptors 0 and
1 carry the wire and belong to the engine.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the engine in this process and returns its exit code."""
    from colibri import _core

    return _core.engine_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
