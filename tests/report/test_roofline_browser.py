"""The roofline's figures in a real browser: drawn, coloured by role, readable in both themes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium
from test_roofline_section import ROOFS, with_bytes

from profiles import dense, profile, quest
from questprof.report import write_report

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs the Debian package chromium (apt-get install chromium)"
)

PLAIN = "[...document.querySelectorAll('.plain-figure .plot')]"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [with_bytes(dense(8192, 8.4), 4194304), with_bytes(quest(8192, (2.0, 2.0, 4.0)), 1_000_000)]
    return write_report([profile(*records, roofs=ROOFS)], tmp_path_factory.mktemp("roofline") / "page.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1280])
def test_both_figures_are_drawn_in_the_colours_of_the_theme(
    browser: Browser, page: Path, dark: bool, width: int
) -> None:
    browser.problems.clear()
    browser.view(width, 900, dark=dark)
    browser.open(page)
    browser.wait_for(f"{PLAIN}.every((plot) => plot.querySelector('.main-svg'))")
    drawn = json.loads(browser.evaluate(f"JSON.stringify({PLAIN}.map((plot) => plot.data))"))
    assert len(drawn) == 2
    colours = {t["meta"]["role"]: t["line"]["color"] for data in drawn for t in data}
    assert {"dense", "attend", "quest", "ink", "muted"} <= set(colours)
    for role, colour in colours.items():
        wanted = browser.evaluate(
            f"getComputedStyle(document.documentElement).getPropertyValue('--{role}').trim()"
        )
        assert colour == wanted, role
    assert browser.evaluate(f"{PLAIN}[0].layout.xaxis.type") == "log"
    assert browser.evaluate(f"{PLAIN}[0]._fullLayout.yaxis.type") == "log"
    # What the mouse reads is what Python wrote.
    texts = json.loads(browser.evaluate(f"JSON.stringify({PLAIN}[0].data.map((t) => t.hovertext))"))
    assert any("DRAM (" in text for trace in texts for text in trace)
    assert browser.problems == []


def test_a_narrow_page_keeps_the_plot_inside(browser: Browser, page: Path) -> None:
    browser.view(400, 900)
    browser.open(page)
    browser.wait_for(f"{PLAIN}.every((plot) => plot.querySelector('.main-svg'))")
    assert browser.evaluate("document.documentElement.scrollWidth <= 400")
