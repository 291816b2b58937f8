"""What the map shows is what the server said, to the pixel."""

from __future__ import annotations

import re

import pytest
from patterns import lively_map
from playwright.sync_api import Page, expect

MAP = "Expert map"
# One picture element in the middle of every cell.
READ_CELLS = """([rows, cols]) => {
  const canvas = document.querySelector('.map-canvas');
  const context = canvas.getContext('2d');
  const { data, width, height } = context.getImageData(0, 0, canvas.width, canvas.height);
  const cells = [];
  for (let row = 0; row < rows; row++) for (let col = 0; col < cols; col++) {
    const x = Math.floor((col + 0.45) / cols * width), y = Math.floor((row + 0.45) / rows * height);
    cells.push([...data.slice((y * width + x) * 4, (y * width + x) * 4 + 3)]);
  }
  return cells;
}"""
# The browser's own reading of the style sheet's colours: independent of the page's arithmetic.
READ_COLOURS = """names => names.map(name => {
  const probe = document.createElement('canvas').getContext('2d');
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
})"""
TIERS = ("--tier-disk", "--tier-ram", "--tier-vram")


def cells(page: Page, server) -> list[list[int]]:
    return page.evaluate(READ_CELLS, [server.rows, server.cols])


def close(a: list[int], b: list[int], tolerance: int = 2) -> bool:
    return all(abs(x - y) <= tolerance for x, y in zip(a, b, strict=True))


def checker(rows: int, cols: int) -> bytes:
    """Every tier beside every other, with heats that tier mode must ignore."""
    return bytes(
        ((row + col) % 3) << 6 | (row * 7 + col) % 12 for row in range(rows) for col in range(cols)
    )


@pytest.fixture(params=[(5, 32), (76, 256), (1, 8)], ids=lambda shape: f"{shape[0]}x{shape[1]}")
def shaped(request, server):
    server.rows, server.cols = request.param
    server.cells = checker(*request.param)
    return server


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tier_mode_paints_the_legends_colours(open_page, shaped, scheme):
    page = open_page("/brain", color_scheme=scheme)
    expect(page.get_by_role("img", name=MAP)).to_be_visible()
    page.keyboard.press("1")
    expect(page.get_by_role("radio", name="Tier")).to_be_checked()
    page.wait_for_timeout(100)
    colours = page.evaluate(READ_COLOURS, list(TIERS))
    expected = [colours[cell >> 6] for cell in shaped.cells]
    shown = cells(page, shaped)
    wrong = [i for i, (a, b) in enumerate(zip(shown, expected, strict=True)) if not close(a, b)]
    assert wrong == []


def test_colours_follow_the_system_at_once(open_page, server):
    server.cells = checker(server.rows, server.cols)
    page = open_page("/brain", color_scheme="light")
    expect(page.get_by_role("img", name=MAP)).to_be_visible()
    page.keyboard.press("1")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(150)
    dark = page.evaluate(READ_COLOURS, list(TIERS))
    assert close(cells(page, server)[0], dark[server.cells[0] >> 6])


def test_routed_experts_light_up_and_fade_by_the_clock(open_page, server):
    server.cells = checker(server.rows, server.cols)
    page = open_page("/brain", color_scheme="dark")
    expect(page.get_by_role("img", name=MAP)).to_be_visible()
    page.keyboard.press("4")
    server.wait_for_stream()
    page.wait_for_timeout(100)
    idle, pulse = page.evaluate(READ_COLOURS, ["--cell-idle", "--heat-hot"])
    assert all(close(cell, idle) for cell in cells(page, server))

    lit = {0, 31, 32, 77, 159}
    server.light(lit)
    page.wait_for_function(
        "() => { const c = document.querySelector('.map-canvas').getContext('2d');"
        " return c.getImageData(4, 4, 1, 1).data[1] > 150; }"
    )
    shown = cells(page, server)
    assert {i for i, cell in enumerate(shown) if not close(cell, idle)} == lit

    page.wait_for_timeout(900)
    half = cells(page, server)[0]
    assert idle[1] + 20 < half[1] < pulse[1] - 20
    page.wait_for_timeout(1300)
    assert all(close(cell, idle) for cell in cells(page, server))


def test_routing_of_nearly_all_does_not_light_the_map(open_page, server):
    server.cells = checker(server.rows, server.cols)
    page = open_page("/brain", color_scheme="dark")
    expect(page.get_by_role("img", name=MAP)).to_be_visible()
    page.keyboard.press("4")
    server.wait_for_stream()
    page.wait_for_timeout(100)
    idle, pulse = page.evaluate(READ_COLOURS, ["--cell-idle", "--heat-hot"])
    # Four of five layers nearly full, and one token's choice in the last.
    server.light({i for i in range(128) if i % 16} | {130, 150})
    page.wait_for_function(
        "at => { const c = document.querySelector('.map-canvas'); const y = c.height * 0.9;"
        " return c.getContext('2d').getImageData(c.width * at, y, 1, 1).data[1] > 150; }",
        arg=2.4 / 32,
    )
    shown = cells(page, server)
    middle = (idle[1] + pulse[1]) / 2
    assert all(cell[1] < middle for cell in shown[:128])
    assert all(shown[i][1] > middle for i in (130, 150))
    # Faint, but told apart from what was not routed at all.
    assert not close(shown[1], idle)
    assert close(shown[0], idle)


def test_new_map_replaces_the_old(open_page, server):
    page = open_page("/brain")
    expect(page.get_by_role("img", name="160 experts: 0 VRAM, 0 RAM, 160 disk")).to_be_visible()
    server.wait_for_stream()
    server.set_map(bytes([0x81] * 60 + [0x41] * 100))
    expect(page.get_by_role("img", name="60 VRAM, 100 RAM, 0 disk")).to_be_visible()


def test_numbers_of_the_last_turn_are_there_after_a_reload(open_page, server):
    server.turns = [
        {"seq": 1, "tokens_per_second": 11.0, "cache_hit_percent": 20.0},
        {"seq": 2, "tokens_per_second": 52.5, "cache_hit_percent": 88.0},
    ]
    page = open_page("/brain")
    tiles = page.locator(".tiles")
    for figures in ("52.5", "88.0 %"):
        expect(tiles).to_contain_text(figures)
    expect(page.get_by_role("banner")).to_contain_text("52.5 tok/s")
    server.wait_for_stream()
    server.push("turn", {"tokens_per_second": 61.0, "cache_hit_percent": 90.0})
    expect(tiles).to_contain_text("61.0")
    page.reload()
    expect(tiles).to_contain_text("52.5")


def test_every_hit_of_a_burst_is_seen(open_page, server):
    page = open_page("/brain")
    expect(page.get_by_role("img", name=MAP)).to_be_visible()
    server.wait_for_stream()
    for index in range(160):
        server.light({index})
    table = page.get_by_role("table")
    for layer in ("1", "5"):
        page.get_by_role("combobox", name="Layer").select_option(label=layer)
        expect(table.get_by_text(re.compile("ago"))).to_have_count(32)


def test_reduced_motion_outlines_instead_of_glowing(open_page, server):
    page = open_page("/brain", reduced_motion="reduce", color_scheme="dark")
    expect(page.get_by_role("img", name=MAP)).to_be_visible()
    page.keyboard.press("4")
    server.wait_for_stream()
    page.wait_for_timeout(100)
    before = cells(page, server)
    server.light({0})
    edge = (
        "() => document.querySelector('.map-canvas')"
        ".getContext('2d').getImageData(1, 20, 1, 1).data[0]"
    )
    page.wait_for_function(f"() => ({edge})() > 200")
    assert cells(page, server) == before
    page.wait_for_timeout(1300)
    assert page.evaluate(edge) < 100


def test_keyboard_walk(open_page, server):
    server.cells = lively_map(server.rows, server.cols)
    page = open_page("/brain")
    chart = page.get_by_role("img", name=MAP)
    expect(chart).to_be_visible()
    for _ in range(30):
        page.keyboard.press("Tab")
        if chart.evaluate("canvas => canvas === document.activeElement"):
            break
    else:
        pytest.fail("the map cannot be reached with Tab")
    inspector = page.get_by_role("region", name="Inspector")
    page.keyboard.press("ArrowRight")
    expect(inspector).to_contain_text("Layer 1 / expert 0")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(inspector).to_contain_text("Layer 2 / expert 2")
    page.keyboard.press("End")
    expect(inspector).to_contain_text("Layer 2 / expert 31")
    expect(page.locator("#map-spoken")).to_contain_text("Layer 2, expert 31")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Release selection")).to_be_visible()
    expect(page.get_by_role("combobox", name="Layer")).to_have_value("1")
    page.keyboard.press("g")
    page.keyboard.press("c")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_pointer_reads_the_cell_under_it(open_page, server):
    cell = bytearray(160)
    cell[2 * 32 + 20] = 0x80 | 7
    server.cells = bytes(cell)
    page = open_page("/brain")
    box = page.get_by_role("img", name=MAP).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 20.5 / 32, box["y"] + box["height"] * 2.5 / 5)
    inspector = page.get_by_role("region", name="Inspector")
    for fact in (
        "Layer 3 / expert 20",
        "VRAM",
        "64\u2013127 times",
        "1 of 32",
        "not since this page opened",
    ):
        expect(inspector).to_contain_text(fact)
    server.wait_for_stream()
    server.light({2 * 32 + 20})
    expect(inspector).to_contain_text("s ago")


def test_touch_is_told_to_tap(open_page, server):
    page = open_page("/brain", viewport={"width": 390, "height": 740}, has_touch=True)
    inspector = page.get_by_role("region", name="Inspector")
    expect(inspector).to_contain_text("Tap a cell")
    expect(inspector).not_to_contain_text("Click")
    page.get_by_role("img", name=MAP).tap()
    expect(inspector).to_contain_text("Layer")


def test_layer_table_sorts(open_page, server):
    server.cells = lively_map(server.rows, server.cols)
    page = open_page("/brain")
    table = page.get_by_role("table")
    heats = "rows => rows.map(row => Number(row.children[2].textContent))"
    body = table.locator("tbody tr")
    expect(body).to_have_count(32)
    assert (down := body.evaluate_all(heats)) == sorted(down, reverse=True)
    table.get_by_role("button", name="Heat").click()
    assert (up := body.evaluate_all(heats)) == sorted(up)


def test_mini_map_lives_beside_the_composer_on_wide_screens_only(open_page, server):
    server.cells = lively_map(server.rows, server.cols)
    page = open_page()
    page.get_by_role("link", name="Live expert map").click()
    expect(page).to_have_url(re.compile("/brain$"))
    narrow = open_page(viewport={"width": 360, "height": 740})
    expect(narrow.get_by_role("textbox", name="Message")).to_be_visible()
    expect(narrow.get_by_role("link", name="Live expert map")).to_have_count(0)
