"""Every page in reports/ opens from its file with the network off: no error, no request, no empty figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import ALL_DRAWN, MARKS, PLOTS, Browser, chromium

PAGES = sorted((Path(__file__).parents[2] / "reports").glob("*.html"))

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs the Debian package chromium (apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_kept_page_opens_whole(browser: Browser, page: Path) -> None:
    browser.problems.clear()
    browser.requests.clear()
    browser.view(1280, 900)
    browser.open(page)
    browser.wait_for(ALL_DRAWN)
    counts = json.loads(
        browser.evaluate(f"JSON.stringify({PLOTS}.map((plot) => plot.querySelectorAll({MARKS}).length))")
    )
    assert counts
    assert min(counts) > 0
    assert [one for one in browser.requests if not one.startswith(("file:", "data:"))] == []
    browser.view(390, 844)
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    assert browser.problems == []
