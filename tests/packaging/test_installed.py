"""What the installed package consists of."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
import zlib
from pathlib import Path

import pytest

import colibri

ROOT = Path(__file__).parents[2]
WHEEL_LIMIT_BYTES = 12_000_000


@pytest.fixture(scope="module")
def files() -> list[importlib.metadata.PackagePath]:
    found = importlib.metadata.files("colibri")
    assert found
    return [path for path in found if "__pycache__" not in path.parts]


def test_the_package_holds_page_model_and_extension(
    files: list[importlib.metadata.PackagePath],
) -> None:
    names = {path.as_posix() for path in files}
    for wanted in [
        "colibri/static/index.html",
        "colibri/demo_model/config.json",
        "colibri/demo_model/tokenizer.json",
        "colibri/demo_model/model.safetensors",
        "colibri/_core.abi3.so",
        "colibri/_core.pyi",
        "colibri/py.typed",
        "colibri/conformance/rules/stop-not-found.txt",
    ]:
        assert wanted in names


def test_nothing_strays_into_the_package(files: list[importlib.metadata.PackagePath]) -> None:
    tops = {path.parts[0] for path in files if ".." not in path.parts}
    assert tops <= {"colibri", f"colibri-{colibri.__version__}.dist-info"}
    kinds = {path.suffix for path in files if path.parts[:2] == ("colibri", "static")}
    assert kinds <= {".html", ".js", ".css", ".svg", ".sha256", ".woff2", ".png"}


def test_the_package_holds_every_rule_of_the_checkout(
    files: list[importlib.metadata.PackagePath],
) -> None:
    folder = Path("python", "colibri", "conformance", "rules")
    wanted = {path.name for path in (ROOT / folder).iterdir()}
    assert len(wanted) > 100
    assert {path.name for path in files if path.parent.as_posix().endswith("/rules")} == wanted


def test_the_wheel_stays_small(files: list[importlib.metadata.PackagePath]) -> None:
    compressed = sum(
        len(zlib.compress(Path(path.locate()).read_bytes(), 6))
        for path in files
        if path.parts[0] == "colibri"
    )
    assert compressed < WHEEL_LIMIT_BYTES


def test_the_version_has_one_source() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    version = cargo["package"]["version"]
    assert importlib.metadata.version("colibri") == version
    assert colibri.__version__ == version


def test_both_commands_are_installed() -> None:
    scripts = {
        entry.name: entry.value
        for entry in importlib.metadata.distribution("colibri").entry_points
        if entry.group == "console_scripts"
    }
    assert scripts == {
        "colibri": "colibri.cli:main",
        "colibri-engine": "colibri._engine_entry:main",
    }
    for command in scripts:
        done = subprocess.run(
            [Path(sys.executable).with_name(command), "--version"],
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stderr
        assert colibri.__version__ in done.stdout


def test_the_demo_model_is_described_from_its_headers() -> None:
    folder = Path(colibri.__file__).parent / "demo_model"
    described = json.loads(colibri._core.describe(str(folder)))
    assert described["supported"] is True
    assert described["family"] == "glm4_moe_lite"
    assert (described["experts"], described["experts_per_token"]) == (32, 4)
