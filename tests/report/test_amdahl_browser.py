"""The stacked steps in a real browser: in the page's colours, a panel at a time, inside a narrow page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from amdahl_steps import dense, pair_profile, quest
from browser import Browser, chromium

from questprof.report import write_report

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs the Debian package chromium (apt-get install chromium)"
)

PANELS = "[...document.querySelectorAll('#p1-amdahl .panel')]"
SHOWN = f"{PANELS}.find((panel) => !panel.hidden)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    int4 = {"setup": {"weight_format": "int4"}}
    records = (dense(), quest(), dense(us=900.0, **int4), quest(us=500.0, **int4))
    return write_report([pair_profile(*records)], tmp_path_factory.mktemp("amdahl") / "page.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_bars_are_drawn_in_the_colours_of_the_theme(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.problems.clear()
    browser.view(width, 900, dark=dark)
    browser.open(page)
    browser.wait_for(f"{SHOWN}.querySelector('.main-svg') !== null")
    drawn = json.loads(browser.evaluate(f"JSON.stringify({SHOWN}.querySelector('.plot').data)"))
    bars = {trace["name"]: trace for trace in drawn if trace["type"] == "bar"}
    assert [sum(us) for us in zip(*(bar["y"] for bar in bars.values()), strict=True)] == [1000, 625]
    for role in ("dense", "score", "select", "attend", "append", "muted"):
        wanted = browser.evaluate(
            f"getComputedStyle(document.documentElement).getPropertyValue('--{role}').trim()"
        )
        found = {bar["marker"]["color"] for bar in bars.values() if bar["meta"]["role"] == role}
        assert found == {wanted}, role
    assert browser.evaluate(f"document.documentElement.scrollWidth <= {width}")
    assert browser.problems == []


def test_a_selector_shows_the_other_weights(browser: Browser, page: Path) -> None:
    browser.view(1280, 900)
    browser.open(page)
    browser.wait_for(f"{SHOWN}.querySelector('.main-svg') !== null")
    assert "fp16" in browser.evaluate(f"{SHOWN}.querySelector('h3').textContent")
    browser.evaluate(
        "(() => { const select = document.querySelector('#p1-amdahl select[data-setting=Weights]');"
        "select.value = 'int4'; select.dispatchEvent(new Event('change', { bubbles: true })); })()"
    )
    assert "int4" in browser.evaluate(f"{SHOWN}.querySelector('h3').textContent")
    marks = json.loads(browser.evaluate(f"JSON.stringify({SHOWN}.querySelector('.plot').data.at(-1).y)"))
    assert marks == [900, 500]
