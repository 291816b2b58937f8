"""What the documents show and the examples do is what happens."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, fields
from pathlib import Path

from colibri.models import demo_folder
from colibri.scenario import Scenario, check

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


# What the page calls the types of a scenario's keys.
TYPES = {
    "str": "string",
    "str | None": "string or null",
    "int": "integer",
    "int | None": "integer?",
    "float": "number",
    "bool": "boolean",
    "list[str]": "strings",
    "list[list[int]]": "pairs",
    "list[dict[str, Any]]": "objects",
    "dict[str, str]": "object of strings",
    "dict[str, dict[str, Any]]": "object of objects",
}


def run(command: list[str], folder: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    # Each engine is one that has run for the first time.
    with tempfile.TemporaryDirectory() as state:
        return subprocess.run(
            command,
            cwd=folder,
            env=ENVIRONMENT | {"COLIBRI_STATE_DIR": state} | env,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
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


def test_the_example_host_is_started_as_it_and_the_readme_say() -> None:
    script = ROOT / "examples" / "host.py"
    usage = run([sys.executable, str(script)])
    assert usage.returncode == 1
    [command] = re.findall(r"^  (MODEL=.*\n)  (python3 .*\n)", usage.stderr, re.MULTILINE)
    shown = "".join(command)
    assert f"```sh\n{shown}```" in (ROOT / "README.md").read_text(encoding="utf-8")
    result = run(["sh", "-ec", shown])
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(" a second]\n") == 2
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60


def test_the_example_host_says_when_there_is_no_engine(tmp_path: Path) -> None:
    script = ROOT / "examples" / "host.py"
    result = run([sys.executable, str(script), str(tmp_path), "Hello"])
    assert result.returncode == 1
    assert "the engine ended before it was ready" in result.stderr
    result = run([sys.executable, str(script), str(tmp_path), "Hello"], PATH=str(tmp_path))
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("error: cannot start colibri-engine")


def test_the_example_host_tells_failures_by_its_exit_code() -> None:
    script = ROOT / "examples" / "host.py"
    command = [sys.executable, str(script), str(demo_folder())]
    result = run([*command, "Why is", "too long " * 5000])
    assert result.returncode == 1
    assert result.stdout.startswith("Why is")
    [line] = result.stderr.splitlines()
    assert line.startswith("request 2 failed: CONTEXT_EXCEEDED ")
    result = run([*command, "Why is", os.fsdecode(b"\xff")])
    assert (result.returncode, result.stderr) == (1, "error: a prompt is not UTF-8\n")


def test_the_page_of_the_fake_engine_lists_every_key() -> None:
    page = (ROOT / "docs" / "fake-engine.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| `(.+?)` \| ", page, re.MULTILINE)
    defaults = asdict(Scenario())
    assert {name: (of, json.loads(default)) for name, of, default in rows} == {
        entry.name: (TYPES[str(entry.type)], defaults[entry.name]) for entry in fields(Scenario)
    }
    scripts = re.findall(r'^(\{".*?\})$|`(\{".*?\})`', page, re.MULTILINE)
    assert len(scripts) >= 5
    for script in map("".join, scripts):
        check(json.loads(script), script)


def test_the_example_of_the_fake_engine_gives_that_reply(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "fake-engine.md").read_text(encoding="utf-8")
    [script] = [block for block in re.findall(r"```sh\n(.*?)```", page, re.S) if "curl" in block]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # What hangs is ended with the server.
    command = ["timeout", "40", "sh", "-ec", f"{script.replace('8123', port)}wait $!\n"]
    result = run(command, tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["choices"][0]["message"]["content"] == "It rains."
    log = (tmp_path / "rain.json.log").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch("SUBMIT 1 0 [0-9. ]+", log[0])
    assert log[1:] == ["EOF"]
