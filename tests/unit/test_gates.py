"""The gates of the demo model where PyTorch is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent.parent.parent / "scripts" / "train_demo"


def test_asking_a_server_needs_neither_pytorch_nor_tokenizers() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['tokenizers'] = None\n"
        "sys.argv = ['gates.py', '--server', 'http://127.0.0.1:9/v1']\n"
        "import gates\n"
        "gates.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, encoding="utf-8"
    )
    # It gets as far as the connection, which nobody takes.
    assert "URLError" in done.stderr
    assert "ModuleNotFoundError" not in done.stderr
    assert "ImportError" not in done.stderr
