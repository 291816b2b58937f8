"""Builds the web page into the package, where its sources changed and Node is there.

``make web`` runs it; so does every build of the package (``build_backend.py``).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WEB = ROOT / "web"
STATIC = ROOT / "python" / "colibri" / "static"
STAMP = STATIC / "source.sha256"
MIN_NODE = (20, 19)
BUILT = {"node_modules", "dist"}


def build_page() -> None:
    """Brings the built page in the package up to date with its sources, where there are any."""
    if not (WEB / "package-lock.json").is_file():
        return
    digest = source_digest()
    if STAMP.is_file() and STAMP.read_text(encoding="utf-8") == digest:
        return
    if (reason := node_problem()) is not None:
        say(f"the web page is left out: {reason}")
        return
    npm = shutil.which("npm") or "npm"
    for command in ([npm, "ci", "--no-audit", "--no-fund"], [npm, "run", "build"]):
        say(" ".join(["npm", *command[1:]]))
        subprocess.run(command, cwd=WEB, check=True, stdout=sys.stderr)
    fresh = STATIC.with_name("static.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(WEB / "dist", fresh)
    (fresh / STAMP.name).write_text(digest, encoding="utf-8")
    shutil.rmtree(STATIC, ignore_errors=True)
    fresh.rename(STATIC)


def source_digest() -> str:
    """SHA-256 over names and contents of the page's sources."""
    digest = hashlib.sha256()
    for path in sorted(WEB.rglob("*")):
        inside = path.relative_to(WEB)
        if path.is_file() and inside.parts[0] not in BUILT:
            digest.update(f"{inside.as_posix()}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def node_problem() -> str | None:
    """Why Node cannot build the page, or None if it can."""
    wanted = ".".join(map(str, MIN_NODE))
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return f"Node {wanted} or newer with npm is needed (https://nodejs.org)"
    version = subprocess.run(
        [node, "--version"], capture_output=True, encoding="utf-8", check=False
    ).stdout
    found = re.match(r"v(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < MIN_NODE:
        return f"Node {wanted} or newer is needed, this is {version.strip() or 'no Node'}"
    return None


def say(message: str) -> None:
    """One line for whoever watches the build."""
    print(f"colibri: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    build_page()
    sys.exit(0 if STAMP.is_file() else 1)
