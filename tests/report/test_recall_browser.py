"""The recall section in a real browser: the map is drawn with its numbers, selectors change it, nothing
overflows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser, chromium
from planted_recall import calm_mass
from test_recall_section import SMALL

from questprof.report import write_report

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs the Debian package chromium (apt-get install chromium)"
)

MAP = "[...document.querySelectorAll('#p1-recall .panel:not([hidden])')].at(-1)"
PLOT = f"{MAP}.querySelector('.plot')"


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    planted = replace(SMALL, mass=lambda a, b, *rest: 0.25 if (a, b) == (3, 1) else calm_mass(a, b, *rest))
    return write_report([planted.profile()], tmp_path_factory.mktemp("recall") / "page.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def opened(browser: Browser, page_path: Path):
    """Opens the page at a width and waits for the map; afterwards nothing may have gone wrong."""

    def opened(width: int = 1280, *, dark: bool = False) -> Browser:
        browser.problems.clear()
        browser.view(width, 900, dark=dark)
        browser.open(page_path)
        browser.wait_for(f"{PLOT} !== null && {PLOT}.querySelectorAll('.heatmaplayer text').length === 6")
        return browser

    yield opened
    assert browser.problems == []


def test_no_line_of_the_grid_runs_through_a_number(opened) -> None:
    """And a row is higher than its number, however many layers there are."""
    page = opened()
    assert page.evaluate(f"{PLOT}.querySelectorAll('.gridlayer path').length") == 0
    assert (
        page.evaluate(f"[{PLOT}._fullLayout.xaxis, {PLOT}._fullLayout.yaxis].some((a) => a.showgrid)")
        is False
    )
    tall = f"""(() => {{
        const figure = {PLOT}.closest('.plain-figure'), map = figure.spec.data[0];
        map.y = Array.from({{ length: 60 }}, (_, i) => `${{i}}`);
        map.z = map.y.map(() => [0.5, 1]);
        dispatchEvent(new Event('resize'));
        }})()"""
    page.evaluate(tall)
    page.wait_for(f"{PLOT}._fullLayout.yaxis._length > 60 * 14")


def test_cells_carry_their_numbers_with_layer_0_on_top(opened) -> None:
    """Rows from above: layer 0, then layer 3, whose head 1 keeps a quarter."""
    page = opened()
    texts = f"""JSON.stringify([...{PLOT}.querySelectorAll('.heatmaplayer text')].map((text) => {{
        const box = text.getBoundingClientRect(); return [Math.round(box.top), box.left, text.textContent];
        }}))"""
    cells = sorted(json.loads(page.evaluate(texts)))
    assert cells[0][0] < cells[-1][0]
    assert [text for _, _, text in cells[3:]][1] == "25"
    assert {text for _, _, text in cells} in ({"90", "25"}, {"95", "25"})


def test_hovering_names_layer_and_head_and_the_source(opened) -> None:
    page = opened()
    page.evaluate(f"Plotly.Fx.hover({PLOT}, {{xval: 1, yval: 1}}, 'xy')")
    page.wait_for(f"{PLOT}.querySelector('.hoverlayer').textContent !== ''")
    text = page.evaluate(f"{PLOT}.querySelector('.hoverlayer').textContent")
    assert text == "layer 3, head 1: 25.0% of the mass, counted"


def test_hovering_over_curves_and_bars_fills_their_template(opened) -> None:
    """Layer 0 needs 3 pages of 16; at a budget of 128 its heads keep 0.95."""
    page = opened()
    plot = "[...document.querySelectorAll('#p1-recall .panel:not([hidden]) .plot')]"
    said = [
        page.evaluate(
            f"(Plotly.Fx.hover({plot}[{number}], [{{curveNumber: 0, pointNumber: {point}}}]), "
            f"{plot}[{number}].querySelector('.hoverlayer').textContent)"
        )
        for number, point in ((0, 0), (1, 1))
    ]
    assert said == ["layer 0: 48 tokens, counted", "layer 0, budget 128: 95.0% of the mass, counted"]


def test_the_first_map_is_the_one_that_sentences_are_about_and_selectors_change_it(opened) -> None:
    page = opened()
    title = f"{MAP}.querySelector('h3').textContent"
    assert page.evaluate(title) == "Mass recall by layer and head: page 16, budget 128, quest"
    for name, value in (("Page size", "8"), ("Budget", "64"), ("Policy", "quest-open")):
        page.evaluate(
            f"""(() => {{ const select =
            {MAP}.closest('.scan').querySelector('select[data-setting="{name}"]');
            select.value = '{value}'; select.dispatchEvent(new Event('change')); }})()"""
        )
    assert page.evaluate(title) == "Mass recall by layer and head: page 8, budget 64, quest-open"
    page.wait_for(f"{PLOT}.querySelectorAll('.heatmaplayer text').length === 6")


def test_every_shown_figure_is_drawn_in_both_themes(opened) -> None:
    for dark in (False, True):
        page = opened(dark=dark)
        empty = """[...document.querySelectorAll('#p1-recall .panel:not([hidden]) .plot')]
            .filter((plot) => !plot.querySelector('.main-svg')).length"""
        page.wait_for(f"{empty} === 0")


def test_the_legend_of_curves_names_each_kind_once(opened) -> None:
    page = opened()
    curves = """[...document.querySelectorAll('#p1-recall .panel:not([hidden]) .plot')].find((plot) =>
        [...plot.querySelectorAll('.legendtext')].some((text) => text.textContent === 'mean over layers'))"""
    names = f"JSON.stringify([...({curves}).querySelectorAll('.legendtext')].map((text) => text.textContent))"
    assert json.loads(page.evaluate(names)) == [
        "other layers",
        "layers better left dense",
        "mean over layers",
    ]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_no_wider_than_the_screen(opened, width: int) -> None:
    page = opened(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
