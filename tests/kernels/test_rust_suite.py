"""The crate's own suite: each kernel alone against ``kernels/scalar.rs``, on every level."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A build from nothing takes minutes.
TIMEOUT_S = 1200


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_every_kernel_equals_scalar() -> None:
    assert shutil.which("cargo") is not None, "there is no Rust toolchain"
    source = (ROOT / "rust" / "src" / "kernels" / "tests.rs").read_text(encoding="utf-8")
    expected = set(re.findall(r"#\[test\]\s+fn (\w+)", source))
    assert len(expected) > 4
    done = subprocess.run(
        ["cargo", "test", "--lib", "kernels::tests::"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    passed = re.findall(r"^test kernels::tests::(\w+) \.\.\. ok$", done.stdout, re.MULTILINE)
    assert set(passed) == expected
