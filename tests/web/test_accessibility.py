"""Axe over every view and state: nothing serious may be found."""

from __future__ import annotations

from pathlib import Path

import pytest
from patterns import lively_map
from playwright.sync_api import Page, expect

AXE = Path(__file__).resolve().parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """async () => {
  const { violations } = await axe.run(document);
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, nodes }) => [id, nodes.map(({ html, failureSummary }) => html + failureSummary)]);
}"""
RICH = "# Head\n\ntext [link](https://a.invalid) `code`\n\n```py\nx = 1\n```\n\n| a |\n|---|\n| 1 |"


def findings(page: Page) -> list[object]:
    assert AXE.is_file(), "axe-core is not installed: run `npm ci` in web/"
    # Evaluated, not injected as an element: the page's policy rightly refuses foreign scripts.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return page.evaluate(RUN)


@pytest.mark.parametrize("scheme", ["light", "dark"])
class TestAxe:
    def test_chat(self, open_page, server, scheme):
        server.cells = lively_map(server.rows, server.cols)
        page = open_page(color_scheme=scheme)
        expect(page.get_by_role("heading", name="colibri-demo")).to_be_visible()
        assert findings(page) == []
        server.script.text = RICH
        page.get_by_role("list", name="Examples").get_by_role("button").first.click()
        expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
        assert findings(page) == []

    def test_sheets(self, open_page, scheme):
        page = open_page(color_scheme=scheme)
        for name in ("Chats", "Parameters", "Keyboard shortcuts"):
            page.get_by_role("button", name=name).click()
            expect(page.get_by_role("dialog")).to_be_visible()
            assert findings(page) == []
            page.keyboard.press("Escape")

    def test_error(self, open_page, server, scheme):
        server.script.refuse = (500, {"message": "Broken."})
        page = open_page(color_scheme=scheme)
        page.get_by_role("list", name="Examples").get_by_role("button").first.click()
        expect(page.get_by_role("alert")).to_be_visible()
        assert findings(page) == []

    def test_brain(self, open_page, server, scheme):
        server.cells = lively_map(server.rows, server.cols)
        page = open_page("/brain", color_scheme=scheme)
        chart = page.get_by_role("img", name="Expert map")
        expect(chart).to_be_visible()
        chart.click()
        assert findings(page) == []
