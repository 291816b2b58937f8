"""Rules about the shape of the code that no compiler checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "python" / "colibri"
MAX_LINES = 600
SOURCES = ("rust", "python", "web/src", "tests", "scripts", "benchmarks")
SUFFIXES = {".rs", ".py", ".pyi", ".ts", ".tsx", ".css", ".cu"}
GENERATED = {"node_modules", "dist", "__pycache__", "static", "target"}


def sources() -> Iterator[Path]:
    for top in SOURCES:
        for path in sorted((ROOT / top).rglob("*")):
            inside = path.relative_to(ROOT).parts
            if path.suffix in SUFFIXES and path.is_file() and not GENERATED & set(inside):
                yield path


def test_no_file_is_too_long_to_review() -> None:
    found = list(sources())
    assert len(found) > 30
    long = {
        str(path.relative_to(ROOT)): lines
        for path in found
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    # The pattern is put together so that this file does not match itself.
    places = ["/ho" + r"me/\w", "/ro" + "ot/", "/wo" + "rk/", "/Use" + r"rs/\w"]
    pattern = re.compile("|".join(places))
    hits = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert hits == []


LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def test_links_in_documents_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md")]
    for top in ("docs", "scripts", "tests", "web"):
        found = (ROOT / top).rglob("*.md")
        documents += [path for path in found if not GENERATED & set(path.relative_to(ROOT).parts)]
    links = [
        (path, link)
        for path in sorted(documents)
        for link in LINK.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(links) > 5
    assert [
        f"{path.relative_to(ROOT)}: {link}"
        for path, link in links
        if not (path.parent / link).exists()
    ] == []


# --- Python ---

# A module may import modules of its own and of lower levels.
PYTHON_LEVELS = [
    {"decimals", "errors", "quality", "quality.figures"},
    {"costs", "forecast", "conformance", "conformance.transcript", "conformance.verdict"},
    {
        "arguments",
        "find_engine",
        "last_words",
        "openai.json",
        "scenario",
        "streams",
        "text_filters",
    },
    {
        "conformance.figures",
        "conformance.matcher",
        "conformance.reverse",
        "conformance.tracks",
        "fake_engine",
    },
    {
        "frames",
        "models",
        "openai",
        "openai.schema",
        "openai.stream",
        "quality.plain",
        "template_process",
    },
    {"admission", "engine_process", "prompt", "telemetry", "model", "conformance.turns"},
    {"engine", "conformance.monitor", "quality.compare", "traces"},
    {"generation", "legacy_process", "conformance.process"},
    {"handlers", "handlers.base", "handlers.event_stream", "conformance.session"},
    {"conformance.player"},
    {"conformance.report"},
    {"handlers.chat", "handlers.models", "handlers.telemetry", "handlers.static"},
    {"handlers.completions"},
    {"tornado_app"},
    {"commands", "commands.console", "commands.fake_engine"},
    {
        "commands.run",
        "commands.serve",
        "commands.conformance",
        "commands.convert",
        "commands.legacy_chat",
    },
    {
        "commands.bench",
        "commands.bench.disk",
        "commands.bench.quality",
        "commands.chat",
        "commands.doctor",
        "commands.info",
        "commands.trace",
    },
    {"commands.bench.stream", "commands.plan"},
    {"command_line"},
    {"cli"},
    {"__init__", "__main__", "_engine_entry", "_template_worker"},
]
LEVEL = {name: level for level, names in enumerate(PYTHON_LEVELS) for name in names}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, also within functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full.removeprefix("colibri.") in LEVEL else node.module


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_every_module_has_a_level() -> None:
    assert set(MODULES) == set(LEVEL)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_python_imports_point_downwards(name: str) -> None:
    for imported in imports(MODULES[name]):
        if imported == "colibri" or not imported.startswith("colibri."):
            continue
        target = imported.removeprefix("colibri.")
        if target == "_core":
            continue
        assert LEVEL[target] < LEVEL[name], f"{name} imports {target}"


def importers(of: str) -> set[str]:
    return {
        name
        for name, path in MODULES.items()
        if any(found == of or found.startswith(of + ".") for found in imports(path))
    }


def test_who_may_import_what() -> None:
    assert importers("ujson") == {"openai.json"}
    quality = {"quality.compare", "quality.figures", "quality.plain"}
    assert importers("numpy") == {"model", "traces"} | quality
    tornado = importers("tornado")
    assert tornado
    assert all(name == "tornado_app" or name.startswith("handlers.") for name in tornado)
    handlers = importers("colibri.handlers")
    assert all(name == "tornado_app" or name.startswith("handlers.") for name in handlers)
    # One waits for its process in a thread of its own, the other with nothing else to do.
    assert importers("subprocess") == {"conformance.process", "template_process"}
    core = {"__init__", "_engine_entry", "commands.serve", "engine", "engine_process", "model"}
    core |= {
        "commands.bench.quality",
        "commands.bench.stream",
        "commands.convert",
        "commands.doctor",
        "commands.plan",
        "prompt",
        "_template_worker",
    }
    core |= {"quality.compare", "quality.plain", "traces"}
    assert importers("colibri._core") <= core


def test_nothing_runs_code_out_of_data() -> None:
    names = {"pickle", "marshal", "shelve", "yaml", "torch", "jinja2"}
    assert {name for name in names if importers(name)} == set()
    calls = re.compile(r"(?<![.\w])(eval|exec|compile|__import__)\(")
    assert [
        name for name, path in MODULES.items() if calls.search(path.read_text(encoding="utf-8"))
    ] == []


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from colibri.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'tornado', 'numpy', 'ujson', 'blake3', 'asyncio', 'colibri._core'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True
    )
    assert done.stderr.strip() == "[]"
    assert "serve" in done.stdout


# --- Rust ---

RUST_LEVELS = [
    {"error", "cpu", "log", "memory"},
    {"dtype", "stdio", "tensor", "matrix", "quant"},
    {"kernels", "threads", "store", "expert", "gpu"},
    {"config", "tokenizer", "template", "kv", "sample", "grammar", "telemetry"},
    {"experts"},
    {"model"},
    {"runner", "convert"},
    {"scheduler", "engine"},
    {"mux", "legacy", "doctor"},
    {"settings", "cli", "python"},
]
RUST_LEVEL = {name: level for level, names in enumerate(RUST_LEVELS) for name in names}
USE = re.compile(r"\bcrate::(?:\{([^}]*)\}|(\w+)(?:::(\w+))?)")


def rust_uses(text: str) -> Iterator[tuple[str, str]]:
    """(module, item) for each path into the crate, comments left out."""
    code = re.sub(r"//[^\n]*", "", text)
    for group, module, item in USE.findall(code):
        if module:
            yield module, item
        for entry in re.split(r",(?![^{]*\})", group):
            words = re.findall(r"\w+", entry)
            if words:
                yield words[0], words[1] if len(words) > 1 else ""


def rust_files() -> list[Path]:
    return sorted(p for p in (ROOT / "rust" / "src").rglob("*.rs") if "bin" not in p.parts)


def test_rust_modules_have_a_level() -> None:
    declared = re.findall(
        r"\bmod (\w+);", (ROOT / "rust" / "src" / "lib.rs").read_text(encoding="utf-8")
    )
    assert declared
    assert set(declared) <= set(RUST_LEVEL)


@pytest.mark.parametrize("path", rust_files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_rust_uses_point_downwards(path: Path) -> None:
    parts = path.relative_to(ROOT / "rust" / "src").with_suffix("").parts
    if parts[0] == "lib":
        return
    # mux::frame knows bytes and nothing else, so everybody may use it.
    level = 0 if parts[:2] == ("mux", "frame") else RUST_LEVEL[parts[0]]
    for module, item in rust_uses(path.read_text(encoding="utf-8")):
        if module not in RUST_LEVEL or module == parts[0]:
            continue
        target = 0 if (module, item) == ("mux", "frame") else RUST_LEVEL[module]
        assert target <= level, f"{path.name} uses {module}"
        assert module != "python", f"{path.name} uses the bindings"
    if parts[0] == "experts":
        used = {module for module, _ in rust_uses(path.read_text(encoding="utf-8"))}
        assert not used & {"model", "kv", "mux", "python"}


def test_the_rust_rule_sees_what_it_should() -> None:
    text = "use crate::{error::Error, model};\nlet x = crate::mux::frame::f(); // crate::cli"
    assert list(rust_uses(text)) == [("error", "Error"), ("model", ""), ("mux", "frame")]
