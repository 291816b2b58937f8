"""The page as `colibri serve` delivers it: the real engine, and the model that comes with it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from colibri import _core

START_S = 60


def installed_package() -> Path:
    package = Path(_core.__file__).parent
    for needed in ("static/index.html", "demo_model/config.json"):
        assert (package / needed).is_file(), f"this installation has no {needed}"
    return package


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    installed_package()
    command = [sys.executable, "-m", "colibri", "serve", "--port", "0", "--threads", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stderr is not None
        lines: list[str] = []
        try:
            # The pipe ends with the process, so a server that cannot start ends the loop too.
            for line in process.stderr:
                lines.append(line)
                if found := re.search(r"serving .* at (http://\S+?)/?\s*$", line):
                    break
            else:
                pytest.fail("the server did not start: " + "".join(lines))
            yield found.group(1)
        finally:
            process.terminate()
            process.stderr.read()
            process.wait(START_S)


@pytest.mark.timeout(180)
def test_a_question_is_answered_and_its_experts_light_up(open_page) -> None:
    page = open_page()
    expect(page.get_by_role("banner")).to_contain_text("ready", timeout=START_S * 1000)
    page.get_by_role("list", name="Examples").get_by_role("button").first.click()
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible(timeout=90_000)
    answer = page.get_by_role("article", name="Answer")
    assert len(answer.locator(".md").inner_text()) > 20
    facts = answer.locator(".answer-facts").inner_text()
    assert re.search(r"[\d.]+ tok/s", facts)
    assert re.search(r"\d+ → \d+ tokens", facts)

    page.get_by_role("link", name="Brain", exact=True).click()
    chart = page.get_by_role("img", name="Expert map")
    expect(chart).to_be_visible()
    label = chart.get_attribute("aria-label") or ""
    total, *tiers = (int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", label)[:4])
    assert total == sum(tiers) > 0
    # Every layer routed something for every token of that answer.
    expect(page.get_by_role("table").get_by_text(re.compile("ago$")).first).to_be_visible()
