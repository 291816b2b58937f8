"""What the documents show and the examples do is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from colibri.models import demo_folder

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
# Figures of the machine and of the moment; the text of the answer, its alternatives (four decimals)
# and counts are the same everywhere.
HARDWARE = re.compile(r"(?<=^HWINFO ).*", re.MULTILINE)
TIMES = re.compile(r"(?<=^PERF 1 ).*", re.MULTILINE)
# Tokens a second and resident memory, around the share of hits.
RATES = re.compile(r"(STAT \d+) \S+ (\S+) \S+", re.MULTILINE)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, encoding="utf-8", timeout=60, check=False
    )


def steady(text: str) -> str:
    for figures in (HARDWARE, TIMES):
        text = figures.sub("*", text)
    return RATES.sub(r"\1 * \2 *", text)


def test_the_sessions_of_the_protocol_page_are_what_one_gets() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    sessions = re.findall(r"```sh\n(.*?)```.*?```text\n(.*?)```", page, re.DOTALL)
    assert len(sessions) == 2
    for script, shown in sessions:
        result = run(["sh", "-c", script])
        assert result.returncode == 0, result.stderr
        assert steady(result.stdout.replace("\x01", "^A")) == steady(shown)


def test_the_example_host_answers_every_prompt() -> None:
    script = ROOT / "examples" / "host.py"
    prompts = ["Once upon a time", "The little bird", "Why is"]
    result = run([sys.executable, str(script), str(demo_folder()), *prompts])
    assert result.returncode == 0, result.stderr
    assert sum(line.startswith("  [") for line in result.stdout.splitlines()) == len(prompts)
    assert all(prompt in result.stdout for prompt in prompts)


def test_the_example_host_says_when_there_is_no_engine(tmp_path: Path) -> None:
    script = ROOT / "examples" / "host.py"
    result = run([sys.executable, str(script), str(tmp_path), "Hello"])
    assert result.returncode == 1
    assert "the engine ended before it was ready" in result.stderr
