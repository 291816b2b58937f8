from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from stand_in import StandIn

FLAGS = [
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DIST = Path(__file__).resolve().parents[2] / "web" / "dist"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_chromium() -> str | None:
    named = os.environ.get("COLIBRI_TEST_BROWSER")
    return named or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


@pytest.fixture(scope="session")
def dist() -> Path:
    if not (DIST / "index.html").is_file():
        pytest.fail("the page is not built: run `npm ci && npm run build` in web/")
    return DIST


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.fail("no Chromium found: install it, or set COLIBRI_TEST_BROWSER to its path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def server(dist: Path) -> Iterator[StandIn]:
    with StandIn(dist) as stand_in:
        yield stand_in


@pytest.fixture
def origin(server: StandIn) -> str:
    """Where `open_page` finds the page; a module with another server overrides this."""
    return server.url


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, origin: str) -> Iterator[OpenPage]:
    """Opens pages in fresh profiles; at the end none may have failed or looked elsewhere."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_(path: str = "/", **options: object) -> Page:
        options = {
            "viewport": {"width": 1280, "height": 800},
            "reduced_motion": "no-preference",
        } | options
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(8000)
        page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((origin, "data:", "blob:"))
                else problems.append(f"request to {request.url}")
            ),
        )
        page.goto(origin + path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    return open_page()
