"""The page in a real browser: plotly draws, keys work, nothing is requested, both themes can be read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import FLAGS, Browser, chromium
from test_page import hostile_profile

from profiles import CPU, GQA_SHAPE, profile, quest, two_baselines
from questprof.report import write_report

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs the Debian package chromium (apt-get install chromium)"
)

DRAWN = "document.querySelectorAll('.panel:not([hidden]) .main-svg').length > 0"
SHOWN = "document.querySelector('.panel:not([hidden])')"
PLOT = f"{SHOWN}.querySelector('.plot')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Pages by what is in them."""
    where = tmp_path_factory.mktemp("pages")
    gqa = [r for r in two_baselines(GQA_SHAPE, data="shared") if r.point.policy != "dense"]
    refused = quest(65536, None, status="oom", reason="needs 3 GiB")
    write_report([profile(*two_baselines(), refused)], where / "one.html")
    write_report(
        [profile(*two_baselines(), *two_baselines(batch_size=8), *two_baselines(GQA_SHAPE), *gqa)],
        where / "many.html",
    )
    write_report([profile(*two_baselines(env=CPU), env=CPU)], where / "shared.html", plotlyjs="directory")
    return where


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def opened(browser, folder):
    """Opens a page of `folder` and waits for its figure; afterwards nothing may have gone wrong."""

    def opened(name: str, width: int = 1280, *, dark: bool = False, path: Path | None = None) -> Browser:
        browser.problems.clear()
        browser.requests.clear()
        browser.view(width, 900, dark=dark)
        browser.open(path or folder / name)
        browser.wait_for(DRAWN)
        return browser

    yield opened
    assert browser.problems == []


def drawn(browser: Browser, role: str, budget: int) -> dict:
    """The trace of that role and budget as plotly has it now."""
    found = f"{PLOT}.data.find((t) => t.meta.role === '{role}' && t.meta.budget === {budget})"
    return json.loads(browser.evaluate(f"JSON.stringify({found})"))


def headless(path: Path, tmp_path: Path) -> tuple[str, list[str], bytes]:
    """DOM after the scripts have run, console messages, and a screenshot, as the command line gives them."""
    command = [chromium(), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]
    command += ["--window-size=1280,900", f"--screenshot={tmp_path / 'page.png'}", "--enable-logging=stderr"]
    command += ["--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, said, (tmp_path / "page.png").read_bytes()


def test_plotly_draws_without_a_word_on_the_console(folder, tmp_path):
    dom, said, png = headless(folder / "one.html", tmp_path)
    assert said == []
    assert '<svg class="main-svg"' in dom
    assert png.startswith(b"\x89PNG")
    assert len(png) > 30_000  # an empty page of this size has a tenth


def test_a_fault_on_the_console_would_be_seen(tmp_path, browser):
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error('boom'); absent();</script><img src='https://127.0.0.1:9/x.png'>")
    _, said, _ = headless(bad, tmp_path)
    assert len([line for line in said if "boom" in line or "absent" in line]) == 2
    browser.open(bad)
    browser.wait_for("true")
    assert any("boom" in problem for problem in browser.problems)
    assert any("absent" in problem for problem in browser.problems)
    assert "https://127.0.0.1:9/x.png" in browser.requests
    browser.problems.clear()


@pytest.mark.parametrize("name", ["one.html", "many.html"])
def test_only_the_page_itself_is_requested(opened, folder, name):
    assert opened(name).requests == [(folder / name).as_uri()]


def test_the_shared_library_is_taken_from_beside_the_page(opened, folder):
    page = opened("shared.html")
    assert sorted(page.requests) == sorted((folder / n).as_uri() for n in ("shared.html", "plotly.min.js"))


def test_nothing_offers_to_send_the_figure_away(opened):
    page = opened("one.html")
    buttons = page.evaluate(f"[...{PLOT}.querySelectorAll('.modebar-btn')].map((b) => b.dataset.title || '')")
    assert any("Zoom" in title for title in buttons)
    assert not [title for title in buttons if "hare" in title or "loud" in title]
    assert page.evaluate(f"{PLOT}.querySelectorAll('a[href]').length") == 0


def test_the_unit_is_switched_from_the_keyboard(opened):
    page = opened("one.html")
    before = drawn(page, "quest", 1024)
    assert before["y"] == before["meta"]["y"]["us"]
    assert page.evaluate(f"{PLOT}.layout.yaxis.type") == "log"
    for _ in range(10):
        page.press("Tab")
        if page.evaluate("document.activeElement.name?.endsWith('-unit') === true"):
            break
    page.press("ArrowRight")
    after = drawn(page, "quest", 1024)
    assert after["y"] == after["meta"]["y"]["x"]
    assert page.evaluate(f"{PLOT}.layout.yaxis.title.text") == "time / fastest dense"
    page.press("ArrowRight")
    assert drawn(page, "quest", 1024)["y"] == after["meta"]["y"]["gb_s"]
    assert drawn(page, "select", 1024)["visible"] is False  # equation (12) counts no bytes for it
    assert page.evaluate(f"{PLOT}.layout.yaxis.type") == "linear"


def test_a_budget_shows_its_stages_and_its_crossover(opened):
    page = opened("one.html")
    label = f"{PLOT}.layout.annotations.map((a) => a.text).join()"
    assert (drawn(page, "score", 1024)["visible"], drawn(page, "score", 4096)["visible"]) == (True, False)
    assert page.evaluate(label) == "Quest is faster from 2.1k"
    at = page.evaluate(f"{PLOT}.layout.shapes[0].x0")
    assert 2048 < at < 4096
    page.evaluate(f"[...{SHOWN}.querySelectorAll('input')].find((i) => i.value === '4096').click()")
    assert (drawn(page, "score", 1024)["visible"], drawn(page, "score", 4096)["visible"]) == (False, True)
    assert (drawn(page, "quest", 1024)["visible"], drawn(page, "quest", 4096)["visible"]) == (True, True)
    assert page.evaluate(f"({PLOT}.layout.annotations || []).length") == 0


def test_the_crossover_line_stands_where_the_curves_meet(opened):
    """In pixels: the dotted line and the cross on the curve share their middle; the label starts there."""
    page = opened("one.html")
    middle = "((b) => b.left + b.width / 2)({}.getBoundingClientRect())"
    line = page.evaluate(middle.format(f"{PLOT}.querySelector('.shapelayer path')"))
    traces = f"[...{PLOT}.querySelectorAll('.scatterlayer .trace')]"
    alone = f"{traces}.find((t) => t.querySelectorAll('.point').length === 1)"
    cross = page.evaluate(middle.format(f"{alone}.querySelector('.point')"))
    assert line == pytest.approx(cross, abs=1.5)
    label = page.evaluate(f"{PLOT}.querySelector('.annotation-text').getBoundingClientRect().left")
    assert line <= label <= line + 12


def test_points_without_any_figure_leave_an_empty_frame_and_no_fault(opened, tmp_path):
    refused = [quest(length, None, status="oom", reason="too large") for length in (2048, 4096)]
    page = opened("", path=write_report([profile(*refused)], tmp_path / "refused.html"))
    roles = page.evaluate(f"{PLOT}.data.map((t) => t.meta.role)")
    assert sorted(roles) == ["ceiling", "quest-floor"]  # what is known before measuring
    one = opened("", path=write_report([profile(quest(2048, (1.0, 1.0, 1.0)))], tmp_path / "one-point.html"))
    assert drawn(one, "quest", 1024)["x"] == [2048]


def test_hovering_tells_spread_and_source(opened):
    page = opened("one.html")
    curve = page.evaluate(f"{PLOT}.data.findIndex((t) => t.meta.role === 'quest')")
    page.evaluate(f"Plotly.Fx.hover({PLOT}, [{{curveNumber: {curve}, pointNumber: 0}}])")
    text = page.evaluate(f"{PLOT}.querySelector('.hoverlayer').textContent")
    for said in ("2k tokens", "10.5 us", "measured: clock", "p10 to p90: 9.66 to 11.3 us, 3 samples"):
        assert said in text
    assert "1.05 x fastest dense" in text


def test_selectors_show_one_setting_at_a_time(opened):
    page = opened("many.html")
    state = "JSON.stringify([...document.querySelectorAll('#p1-length-scan select')].map((s) => s.value))"
    title = f"{SHOWN}.querySelector('h3').textContent"
    assert page.evaluate("document.querySelectorAll('#p1-length-scan .panel:not([hidden])').length") == 1
    options = "[...document.querySelectorAll('select')[{0}].options]"
    change = f"{options}.find((o) => o.text.startsWith('{{1}}')).selected = true;"
    change += "document.querySelectorAll('select')[{0}].dispatchEvent(new Event('change'))"
    page.evaluate(change.format(1, "8"))
    page.wait_for(DRAWN)
    assert "batch 8" in page.evaluate(title)
    page.evaluate(change.format(0, "toy-gqa"))
    page.wait_for(DRAWN)
    assert page.evaluate("document.querySelectorAll('#p1-length-scan .panel:not([hidden])').length") == 1
    assert page.evaluate(title).startswith("toy-gqa")
    shape, batch, picks = json.loads(page.evaluate(state))
    assert shape.startswith("toy-gqa")
    assert (batch, picks) == ("1", "independently")  # the setting that exists


@pytest.mark.parametrize("name", ["one.html", "many.html", "shared.html"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_no_wider_than_the_screen(opened, name, width):
    page = opened(name, width)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    box = f"{SHOWN}.querySelector('.table-box')"
    assert page.evaluate(f"{box}.scrollWidth > {box}.clientWidth")
    assert page.evaluate(f"{box}.clientWidth") <= width
    assert page.evaluate(f"{PLOT}.querySelector('.main-svg').clientWidth") <= width


def test_the_legend_does_not_cover_the_axis(opened):
    for width in (390, 700, 1280):
        page = opened("one.html", width)
        box = f"{PLOT}.querySelector('{{}}').getBoundingClientRect().{{}}"
        ticks, title, legend = ".xtick text", ".xtitle", ".legend"
        for above, below in ((ticks, title), (title, legend)):
            edge = page.evaluate(box.format(above, "bottom"))
            assert edge <= page.evaluate(box.format(below, "top")) + 1, (width, above)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_axis_title_does_not_cover_the_numbers(opened, width):
    page = opened("one.html", width)
    numbers = (
        f"Math.min(...[...{PLOT}.querySelectorAll('.ytick text')].map((t) => t.getBoundingClientRect().left))"
    )
    for unit in ("us", "x", "gb_s"):
        page.evaluate(f"[...{SHOWN}.querySelectorAll('input')].find((i) => i.value === '{unit}').click()")
        title = page.evaluate(f"{PLOT}.querySelector('.ytitle').getBoundingClientRect().right")
        assert title <= page.evaluate(numbers) + 1, unit


def test_both_themes_and_a_change_between_them(opened):
    page = opened("one.html", dark=False)
    ink = "getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()"
    font = f"{PLOT}.layout.font.color"
    light = page.evaluate(font)
    assert light == page.evaluate(ink)
    page.view(1280, 900, dark=True)
    page.wait_for(f"{font} === {ink} && {font} !== '{light}'")
    assert drawn(page, "quest", 1024)["line"]["color"] != drawn(page, "attend", 1024)["line"]["color"]


@pytest.mark.parametrize("dark", [False, True])
def test_lines_and_text_stand_out_from_the_paper(opened, dark):
    """WCAG contrast against the paper: 3 for every curve, 4.5 for text."""
    page = opened("one.html", dark=dark)
    names = ("paper", "dense", "quest", "score", "select", "attend", "ink", "muted", "link", "alarm")
    style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
    colours = {name: page.evaluate(style.format(name)) for name in names}
    for name in names[1:]:
        wanted = 4.5 if name in ("ink", "muted", "link", "alarm") else 3.0
        assert contrast(colours[name], colours["paper"]) >= wanted, name


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast of two #rrggbb colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_without_scripts_every_table_can_be_read(browser, folder):
    browser.view(1280, 900)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(folder / "many.html")
        tables = "[...document.querySelectorAll('.panel .points')]"
        assert browser.evaluate(f"{tables}.filter((t) => t.offsetHeight > 100).length") == 4
        assert browser.evaluate("document.querySelector('noscript p, noscript').offsetHeight") > 10
        assert browser.evaluate(
            "[...document.querySelectorAll('.plot, .controls')].every((e) => !e.offsetHeight)"
        )
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize(
    "text",
    [
        "</script><script>window.hit = 1</script>",
        "<img src=x onerror='window.hit=1'>",
        "<a href='https://example.org'>x</a>",
        "<b>bold</b>",
    ],
)
def test_hostile_text_is_drawn_as_text(opened, tmp_path, text):
    path = write_report([hostile_profile(text)], tmp_path / "hostile.html")
    page = opened("", path=path)
    assert page.evaluate("window.hit === undefined")
    assert page.evaluate(
        f"{PLOT}.querySelector('.legend').textContent.includes({json.dumps(f'dense, {text}')})"
    )
    assert page.evaluate("document.querySelectorAll('img, .plot a, .plot b').length") == 0
    assert page.requests == [path.as_uri()]


@pytest.mark.parametrize("width", [360, 500, 700, 1280])
def test_the_axis_title_lies_below_the_tick_labels(opened, width):
    page = opened("one.html", width)
    rect = f"{PLOT}.querySelector('.xtitle').getBoundingClientRect()"
    labels = f"[...{PLOT}.querySelectorAll('.xtick text')].map((t) => t.getBoundingClientRect().bottom)"
    assert page.evaluate(f"{rect}.top") >= page.evaluate(f"Math.max(...{labels})") - 1
    assert (
        page.evaluate(f"{rect}.bottom")
        <= page.evaluate(f"{PLOT}.querySelector('.legend').getBoundingClientRect().top") + 1
    )
