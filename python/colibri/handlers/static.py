"""The built web page.

The files are listed once at start; a request names an entry of that list or nothing, so there is
no path to escape from.
"""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import tornado.web
from blake3 import blake3

from colibri.handlers.base import Auth, BaseHandler

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
INDEX = "index.html"

# Types the pages use; the system's own table may lack or override them.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".wasm": "application/wasm",
}

NOT_BUILT = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>colibri</title>
<h1>colibri is running</h1>
<p>The web page was not built into this installation, since Node.js was missing then. Install
<a href="https://nodejs.org">Node.js</a> 20.19 or newer; then, in the checkout, run
<code>pip install .</code> again, or <code>make web</code> and <code>make demo</code>.</p>
<p>The HTTP interface works without it: <a href="/health">/health</a>,
<a href="/v1/models">/v1/models</a>, <code>POST /v1/chat/completions</code>.</p>
</html>
"""


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    path: Path
    media: str
    etag: str
    immutable: bool


def static_folder() -> Path:
    """Returns where the built page is installed."""
    return Path(__file__).parent.parent / "static"


def list_assets(folder: Path) -> dict[str, Asset]:
    """Returns the files below ``folder`` by their path in URLs; links that lead out are skipped."""
    assets: dict[str, Asset] = {}
    if not folder.is_dir():
        return assets
    root = folder.resolve()
    for path in sorted(root.rglob("*")):
        real = path.resolve()
        if not real.is_file() or not real.is_relative_to(root):
            continue
        name = path.relative_to(root).as_posix()
        guessed = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        assets[name] = Asset(
            path=real,
            media=TYPES.get(path.suffix, guessed),
            etag=f'"{blake3(real.read_bytes()).hexdigest(16)}"',
            # The build puts a hash into every name below assets/.
            immutable=name.startswith("assets/"),
        )
    return assets


class StaticHandler(BaseHandler):
    """``GET /*``: files of the page, and its index for every path without a dot."""

    auth: ClassVar[dict[str, Auth]] = {"get": "open", "head": "open"}

    def get(self, name: str) -> None:
        """Sends a file."""
        self.set_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-cache")
        assets: dict[str, Asset] = self.settings["assets"]
        asset = assets.get(name)
        is_route = "." not in name.rpartition("/")[2]
        if asset is None and is_route:
            asset = assets.get(INDEX)
            if asset is None and name == "":
                self.set_header("Content-Type", TYPES[".html"])
                self.finish(NOT_BUILT)
                return
        if asset is None:
            raise tornado.web.HTTPError(404)
        if asset.immutable:
            self.set_header("Cache-Control", "public, max-age=31536000, immutable")
        self.set_header("Content-Type", asset.media)
        self.set_header("Etag", asset.etag)
        if self.check_etag_header():
            self.set_status(304)
            self.finish()
            return
        self.finish(asset.path.read_bytes())

    def head(self, name: str) -> None:
        """Answers like GET, without the body."""
        self.get(name)


# Put last: it takes every path but those of the interface, where an unknown one must not get HTML.
ROUTES: list[tuple[str, Any]] = [(r"/((?!(?:v1|api)(?:/|$)).*)", StaticHandler)]
