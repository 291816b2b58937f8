"""Checks model folders with a reference as `tests/oracle/test_matrix.py` does those of the project.

    python scripts/check_family.py FOLDER...          # needs the installed package

A folder is made by a generator as tests/data/README.md tells: the files of a model,
`reference.json` and `reference.npz`. Prints a line for each folder and condition.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from matrix_checks import CHECKS


def main(folders: list[str]) -> int:
    if not folders:
        print(__doc__, file=sys.stderr)
        return 2
    failed = 0
    for folder in map(Path, folders):
        for condition, check in CHECKS.items():
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    told = check(folder, Path(scratch))
                except Exception as error:  # one folder's fault must not hide the others'
                    failed += 1
                    told = f"FAILED: {type(error).__name__}: {error}".splitlines()[0]
            print(f"{folder.name:24} {condition:18} {told}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
