"""The bytes section in a real browser: bars stand on each other under their marks, selectors work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from browser import Browser, chromium
from bytes_records import BIG, chain_reads, measured, traced
from msgspec.structs import replace

from profiles import profile, two_baselines
from questprof.report import write_report

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs the Debian package chromium (apt-get install chromium)"
)

SECTION = "document.querySelector('#p1-bytes')"
SHOWN = f"{SECTION}.querySelector('.panel:not([hidden])')"
PLOT = f"{SHOWN}.querySelector('.plot')"


@pytest.fixture(scope="module")
def page_path(tmp_path_factory) -> Path:
    points = [replace(BIG, seq_len=n << 10, page_size=s) for n in (8, 32) for s in (8, 16)]
    counted = [measured(p, reads={"score": 1 << 16}, pipelined=chain_reads(p) - 65536) for p in points]
    refused = {"dense": {"gpu__time_duration.sum": 1.0}}
    records = (*two_baselines(), *counted, traced(), measured(replace(BIG, seed=1), metrics=refused))
    return write_report([profile(*records)], tmp_path_factory.mktemp("bytes") / "page.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def opened(browser, page_path):
    """Opens the page at a width and waits for its bars; afterwards nothing may have gone wrong."""

    def opened(width: int = 1280, *, dark: bool = False) -> Browser:
        browser.problems.clear()
        browser.view(width, 900, dark=dark)
        browser.open(page_path)
        browser.wait_for(f"{PLOT} !== null && {PLOT}.querySelectorAll('.bars .point path').length > 0")
        return browser

    yield opened
    assert browser.problems == []


def test_bars_stand_on_each_other_and_the_mark_on_top(opened):
    """In pixels: each bar begins where the one below ends, and the mark's middle is the top of the stack."""
    page = opened()
    boxes = f"""JSON.stringify([...{PLOT}.querySelectorAll('.bars')].map((bars) => {{
        const box = bars.querySelector('.point path').getBoundingClientRect();
        return [box.top, box.bottom]; }}))"""
    bars = sorted(json.loads(page.evaluate(boxes)), key=lambda box: -box[1])
    assert len(bars) == 4
    for below, above in pairwise(bars):
        assert above[1] == pytest.approx(below[0], abs=1)
    middle = (
        f"((b) => b.top + b.height / 2)({PLOT}.querySelector('.scatterlayer .point').getBoundingClientRect())"
    )
    assert page.evaluate(middle) == pytest.approx(bars[-1][0], abs=3)


def test_terms_have_colours_of_their_own_in_both_themes(opened):
    first = f"[...{PLOT}.querySelectorAll('.bars .point:first-child path')]"
    fills = f"JSON.stringify({first}.map((bar) => bar.style.fill))"
    light, dark = (json.loads(opened(dark=dark).evaluate(fills)) for dark in (False, True))
    assert len(set(light)) == len(set(dark)) == 4
    assert not set(light) & set(dark)


def test_hovering_tells_a_term_and_its_source(opened):
    """8k in pages of 16: 512 pages x 2 x 32 heads x 128 x 2 B = 8 MiB."""
    page = opened()
    page.evaluate(f"Plotly.Fx.hover({PLOT}, [{{curveNumber: 0, pointNumber: 0}}])")
    text = page.evaluate(f"{PLOT}.querySelector('.hoverlayer').textContent")
    assert "8k tokens, summary, eq. (10): 8 MiB" in text
    assert "modelled: formula" in text


def test_a_selector_shows_another_panel(opened):
    page = opened()
    title = f"{SHOWN}.querySelector('h3').textContent"
    assert "page size 16" in page.evaluate(title)
    page.evaluate(
        f"""(() => {{ const select = {SECTION}.querySelector('select[data-setting="Page size"]');
        select.value = '8'; select.dispatchEvent(new Event('change')); }})()"""
    )
    assert "page size 8" in page.evaluate(title)
    assert page.evaluate(f"{SECTION}.querySelectorAll('.panel:not([hidden])').length") == 1


def test_a_panel_without_a_figure_draws_nothing_and_says_nothing(opened):
    page = opened()
    page.evaluate(
        f"""(() => {{ const select = {SECTION}.querySelector('select[data-setting="Seed"]');
        select.value = '1'; select.dispatchEvent(new Event('change')); }})()"""
    )
    assert page.evaluate(f"{PLOT}") is None
    assert "refused" in page.evaluate(f"{SHOWN}.querySelector('tbody').textContent")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_no_wider_than_the_screen(opened, width):
    page = opened(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_verdict_stays_in_view_when_a_table_scrolls(opened):
    page = opened(700)
    box = f"{SHOWN}.querySelector('.table-box.points')"
    page.evaluate(f"{box}.scrollLeft = 600")
    left = (
        f"{box}.querySelector('tbody td').getBoundingClientRect().left - {box}.getBoundingClientRect().left"
    )
    assert 0 <= page.evaluate(left) < 80
    assert page.evaluate(f"{box}.querySelector('tbody td').textContent") == "ok"
