"""What storing a model in fewer bits costs: figures, and folders to compare."""

from __future__ import annotations

from pathlib import Path

# Stories that the demo model was never asked for, made by scripts/train_demo/heldout.py.
HELD_OUT = Path(__file__).with_name("heldout.txt")
