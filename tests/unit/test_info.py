from __future__ import annotations

import pytest

from colibri.commands.console import readable_bytes
from colibri.commands.info import lines


def test_a_description_is_readable() -> None:
    described = {
        "family": "x",
        "supported": True,
        "reason": None,
        "gaps": [],
        "parameters": 10_843_040,
        "dense": {"bytes": 4_068_640, "formats": {"int8": 4200, "f32": 1}},
    }
    assert lines(described) == [
        "  family: x",
        "  supported: yes",
        "  gaps: none",
        "  parameters: 10,843,040",
        "  dense:",
        "    size: 4.1 MB",
        "    formats:",
        "      int8: 4,200 tensors",
        "      f32: 1 tensor",
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (21_400_000_000, "21.4 GB"), (2e12, "2.00 TB")],
)
def test_sizes_are_decimal(count: int, text: str) -> None:
    assert readable_bytes(int(count)) == text
