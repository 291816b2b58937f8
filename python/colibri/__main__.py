"""``python -m colibri``."""

from __future__ import annotations

import sys

from colibri.cli import main

if __name__ == "__main__":
    sys.exit(main())
