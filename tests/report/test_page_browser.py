"""The whole page in a real browser: every figure drawn, themes, CSV, print, scripts off, axe-core, 390 px."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import ALL_DRAWN, MARKS, PLOTS, Browser, chromium
from bytes_records import traced
from everything import SECTIONS, everything
from msgspec.structs import replace

from profiles import SHAPE, dense, profile, quest, two_baselines
from questprof.model import Point
from questprof.report import write_report

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs the Debian package chromium (apt-get install chromium)"
)


def axe() -> str:
    """The script of axe-core, as its package carries it."""
    spec = importlib.util.find_spec("axe_core_python")
    assert spec is not None
    return Path(str(spec.origin)).with_name("axe.min.js").read_text(encoding="utf-8") + ";true"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    return write_report(everything(), tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        found.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )
        yield found


@pytest.fixture
def opened(browser, page):
    """Opens the page, network off, and waits for its figures; afterwards nothing may have gone wrong."""

    def opened(width: int = 1280, *, dark: bool = False, path: Path = page) -> Browser:
        browser.problems.clear()
        browser.requests.clear()
        browser.view(width, 900, dark=dark)
        browser.open(path)
        browser.wait_for(ALL_DRAWN)
        return browser

    yield opened
    assert browser.problems == []


def test_every_section_is_there_and_its_figures_have_marks(opened, page):
    found = opened()
    assert [one for one in found.requests if not one.startswith("data:")] == [page.as_uri()]
    sections = json.loads(
        found.evaluate("JSON.stringify([...document.querySelectorAll('section')].map((s) => s.id))")
    )
    assert sections[0] == "comparison"
    assert {f"p1-{name}" for name in SECTIONS} <= set(sections)
    assert any(name.endswith("-recall") for name in sections)
    counts = f"{PLOTS}.map((plot) => [plot.closest('section').id, plot.querySelectorAll({MARKS}).length])"
    drawn = json.loads(found.evaluate(f"JSON.stringify({counts})"))
    assert {
        "comparison",
        *(f"p1-{name}" for name in SECTIONS if name not in ("baselines", "environment")),
    } <= {section for section, _ in drawn}
    assert [section for section, count in drawn if not count] == []


def test_a_legend_entry_hides_its_curve(opened):
    found = opened()
    plot = "document.querySelector('#p1-length-scan .panel:not([hidden]) .plot')"
    visible = f"{plot}.querySelectorAll('.scatterlayer .trace').length"
    before = found.evaluate(visible)
    entry = f"{plot}.querySelector('.legendtoggle')"
    box = json.loads(found.evaluate(
        f"JSON.stringify((() => {{ const t = {entry}; t.scrollIntoView({{block: 'center'}});"
        "const b = t.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })())"
    ))  # fmt: skip
    for kind in ("mousePressed", "mouseReleased"):
        found.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
    found.wait_for(f"{visible} < {before}")


def test_the_theme_button_overrules_the_system_and_gives_way_again(opened):
    found = opened(dark=False)
    paper = "getComputedStyle(document.body).backgroundColor"
    font = "document.querySelector('#p1-length-scan .plot').layout.font.color"
    system, ink = found.evaluate(paper), found.evaluate(font)
    said = [found.evaluate("document.querySelector('.theme').textContent")]
    for _ in range(3):
        found.evaluate("document.querySelector('.theme').click()")
        said.append(found.evaluate("document.querySelector('.theme').textContent"))
        if said[-1] == "Theme: dark":
            assert found.evaluate(paper) != system
            assert found.evaluate(font) != ink
    assert said == ["Theme: as the system", "Theme: light", "Theme: dark", "Theme: as the system"]
    assert (found.evaluate(paper), found.evaluate(font)) == (system, ink)


def test_a_table_is_saved_as_csv_with_its_raw_numbers(opened, tmp_path):
    """The file itself, from file:// with the network off."""
    found = opened()
    found.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    found.evaluate("document.querySelector('#p1-plane .csv').click()")
    end = time.monotonic() + 20
    while not (files := list(tmp_path.glob("*.csv"))) and time.monotonic() < end:
        time.sleep(0.05)
    rows = list(csv.reader(io.StringIO(files[0].read_text(encoding="utf-8-sig"))))
    assert rows[0][:3] == ["page size", "budget", "quest, us measured: clock"]
    # two_baselines at 8k, page 16, budget 1024: 8 / 4 + 10 us; dense 36
    shown = found.evaluate("document.querySelector('#p1-plane .panel:not([hidden]) h3').textContent")
    assert rows[1][:2] == ["16", "1024"]
    assert float(rows[1][2]) > 0, shown
    assert len({len(row) for row in rows}) == 1


def test_heads_that_span_columns_and_rows_keep_the_grid(opened):
    found = opened()
    saved = """(async () => {
      const real = URL.createObjectURL;
      const texts = [];
      URL.createObjectURL = (blob) => { texts.push(blob.text()); return real.call(URL, blob); };
      document.querySelectorAll('#p1-length-scan .csv, #p1-baselines .csv').forEach((one) => one.click());
      URL.createObjectURL = real;
      return JSON.stringify(await Promise.all(texts));
    })()"""
    found.call("Page.setDownloadBehavior", behavior="deny")
    tables = [
        list(csv.reader(io.StringIO(text.lstrip("\ufeff")))) for text in json.loads(found.evaluate(saved))
    ]
    assert len(tables) > 5
    for rows in tables:
        assert len({len(row) for row in rows}) == 1, rows[:3]
    assert tables[0][1][:3] == ["length", "budget", "dense"]
    assert tables[0][2][:3] == ["8192", "1024", "36"]


def test_text_that_a_spreadsheet_would_run_is_quoted(opened, tmp_path):
    shape = replace(SHAPE, name="=HYPERLINK(1)")
    records = [dense(8192, 10.0, shape=shape), quest(8192, (1.0, 1.0, 1.0), shape=shape, variant="@x")]
    path = write_report([profile(*records, ceilings=())], tmp_path / "formula.html")
    found = opened(path=path)
    saved = """(async () => {
      const texts = [];
      const real = URL.createObjectURL;
      URL.createObjectURL = (blob) => { texts.push(blob.text()); return real.call(URL, blob); };
      document.querySelectorAll('.csv').forEach((one) => one.click());
      return JSON.stringify(await Promise.all(texts));
    })()"""
    cells = [
        cell
        for text in json.loads(found.evaluate(saved))
        for row in csv.reader(io.StringIO(text.lstrip("\ufeff")))
        for cell in row
    ]
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_axe_finds_no_serious_violation(opened, dark, width):
    found = opened(width, dark=dark)
    # rows after the fourth are as the ones before, and axe looks at each cell's colours
    found.evaluate("document.querySelectorAll('tbody tr:nth-child(n+5)').forEach((row) => row.remove())")
    found.evaluate(axe())
    told = "[v.id, v.impact, v.nodes.map((n) => n.html.slice(0, 200)).slice(0, 3)]"
    run = "axe.run({ exclude: [['.svg-container']] }, { preload: false, resultTypes: ['violations'] })"
    found_by_axe = f"{run}.then((r) => JSON.stringify(r.violations.map((v) => {told})))"
    result = json.loads(found.evaluate(found_by_axe))
    assert [one for one in result if one[1] in ("serious", "critical")] == []


def test_axe_would_find_a_violation(opened):
    found = opened()
    found.evaluate(axe())
    found.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<button></button>'); true"
    )
    ids = "(r) => JSON.stringify(r.violations.map((v) => v.id))"
    run = f"axe.run(document, {{ runOnly: ['button-name'], preload: false }}).then({ids})"
    assert "button-name" in json.loads(found.evaluate(run))


def test_without_scripts_every_figure_is_a_picture(browser, page):
    browser.view(1280, 900)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        pictures = "[...document.querySelectorAll('svg.picture')]"
        specs = browser.evaluate("document.querySelectorAll('.figure-data').length")
        assert browser.evaluate(f"{pictures}.length") == min(specs, 40)
        assert browser.evaluate(f"{pictures}.every((one) => one.getBoundingClientRect().height > 100)")
        assert browser.evaluate(f"{pictures}.every((one) => one.querySelectorAll('use, path').length > 2)")
        ink = browser.evaluate(f"getComputedStyle({pictures}[0].querySelector('text')).fill")
        browser.view(1280, 900, dark=True)
        assert browser.evaluate(f"getComputedStyle({pictures}[0].querySelector('text')).fill") != ink
        assert browser.evaluate(
            "[...document.querySelectorAll('.js-only, .csv')].every((e) => !e.offsetHeight)"
        )
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_paper_is_light_has_no_buttons_and_opens_what_is_folded(opened):
    found = opened(dark=True)
    folded = "document.querySelectorAll('details:not([open]):not(.records)').length"
    assert found.evaluate(folded) > 0
    found.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert found.evaluate(folded) == 0
    found.view(1100, 900, dark=True, print_media=True)
    assert found.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for shown in (".csv", ".theme", "details.records", ".controls"):
        assert found.evaluate(f"[...document.querySelectorAll('{shown}')].every((e) => !e.offsetHeight)"), (
            shown
        )
    found.evaluate("dispatchEvent(new Event('afterprint'))")
    assert found.evaluate(folded) > 0
    assert len(found.call("Page.printToPDF", preferCSSPageSize=True)["data"]) > 100_000
    found.view(1280, 900)


def test_a_figure_drawn_for_paper_is_as_wide_as_the_paper(opened):
    """What is drawn while the browser lays the page out for paper has that width, not the screen's."""
    found = opened(900)
    found.evaluate(
        "window.drawn = []; const react = Plotly.react; Plotly.react = function (plot) {"
        "const said = react.apply(this, arguments);"
        "if (matchMedia('print').matches) drawn.push([plot.clientWidth, plot._fullLayout.width]);"
        "return said; }; true"
    )
    found.call("Page.printToPDF", preferCSSPageSize=True)
    drawn = json.loads(found.evaluate("JSON.stringify(drawn)"))
    assert drawn
    assert all(width == pytest.approx(paper, abs=1) for paper, width in drawn)
    found.wait_for(f"{PLOTS}.every((plot) => Math.abs(plot._fullLayout.width - plot.clientWidth) <= 1)")


def test_a_long_verdict_starts_below_the_question_on_paper(opened):
    """Where it must not break it goes to the next page, and the first one stays empty."""
    found = opened()
    found.view(1100, 900, print_media=True)
    assert found.evaluate("getComputedStyle(document.querySelector('.verdict')).breakInside") == "auto"
    found.view(1280, 900)


def test_a_long_table_scrolls_on_its_own_below_its_heads(opened, tmp_path):
    records = [r for seed in range(30) for r in two_baselines(seed=seed)]
    found = opened(path=write_report([profile(*records)], tmp_path / "long.html"))
    box = "[...document.querySelectorAll('.table-box')].find((b) => b.scrollHeight > b.clientHeight + 200)"
    top = f"(() => {{ const b = {box}; b.scrollTop = 150; const of = (e) => e.getBoundingClientRect().top;"
    assert abs(found.evaluate(f"{top} return of(b.querySelector('thead')) - of(b); }})()")) < 3
    found.view(1100, 900, print_media=True)
    assert found.evaluate(
        "[...document.querySelectorAll('.table-box')].every((b) => b.scrollHeight <= b.clientHeight + 1)"
    )
    found.view(1280, 900)


def test_a_long_setting_fits_on_a_phone(opened, tmp_path):
    shape = replace(SHAPE, name="a-model-whose-name-is-longer-than-a-phone-is-wide-7b-instruct-v0.3-128k")
    records = [*two_baselines(shape=shape), *two_baselines()]
    found = opened(390, path=write_report([profile(*records)], tmp_path / "phone.html"))
    assert found.evaluate("document.scrollingElement.scrollWidth") <= 390
    selects = "[...document.querySelectorAll('select')].filter((one) => one.clientWidth)"
    assert found.evaluate(f"{selects}.length") > 0
    assert found.evaluate(f"{selects}.every((one) => one.getBoundingClientRect().right <= 390)")


def test_nothing_is_wider_than_a_phone(opened):
    found = opened(390)
    assert found.evaluate("document.scrollingElement.scrollWidth") <= 390
    inside = "e.closest('.table-box, pre, .plot, svg')"
    blocks = "main > *, section > *, .panel > *, figure > *, .verdict *"
    wide = f"[...document.querySelectorAll('{blocks}')].filter((e) => "
    wide += f"!{inside} && e.getBoundingClientRect().right > 391)"
    assert found.evaluate(f"{wide}.map((e) => e.outerHTML.slice(0, 80)).join()") == ""
    sticky = "[...box.querySelectorAll('tbody tr:first-child > *')]"
    sticky += ".filter((c) => getComputedStyle(c).position === 'sticky')"
    taken = f"{sticky}.reduce((sum, c) => sum + c.offsetWidth, 0) / box.clientWidth"
    shares = f"[...document.querySelectorAll('.table-box')].map((box) => {taken})"
    found_shares = json.loads(found.evaluate(f"JSON.stringify({shares})"))
    assert max(share for share in found_shares if share is not None) < 0.6  # the rest scrolls beside them


def test_the_page_can_be_read_by_keyboard_alone(opened):
    """The first stop leads to the content, and every table that scrolls can be reached."""
    found = opened()
    found.press("Tab")
    assert found.evaluate("document.activeElement.className") == "skip"
    found.press("Tab")
    assert found.evaluate("document.activeElement.className") == "theme js-only"
    boxes = "[...document.querySelectorAll('.table-box')]"
    assert found.evaluate(f"{boxes}.every((box) => box.tabIndex === 0 && box.getAttribute('aria-label'))")
    assert found.evaluate(
        "[...document.querySelectorAll('summary, .csv, select')].every((e) => e.tabIndex >= 0)"
    )


def test_a_comparison_of_two_runs_is_drawn(opened):
    found = opened()
    names = "document.querySelector('#comparison .plot').data.map((t) => t.name).sort().join()"
    assert found.evaluate(names) == "append,append_kv,attend,dense,quest,score,select"
    assert "same" in found.evaluate("document.querySelector('#comparison').textContent")
    colours = "document.querySelector('#comparison .plot').data.map((t) => t.marker.color)"
    assert found.evaluate(f"new Set({colours}).size") == 7


def test_a_long_legend_has_no_scroll_bar_of_its_own(opened, tmp_path):
    """plotly gives it half of the figure at most."""
    many = [dense(r.point.seq_len, 90.0, backend=f"b{n}") for r in two_baselines()[::4] for n in range(12)]
    found = opened(390, path=write_report([profile(*two_baselines(), *many)], tmp_path / "legend.html"))
    assert found.evaluate("document.querySelectorAll('.legend .traces').length") > 15
    bars = "[...document.querySelectorAll('.legend .scrollbar')].filter((bar) => +bar.getAttribute('height'))"
    assert found.evaluate(f"{bars}.map((bar) => bar.closest('section').id).join()") == ""


def test_a_section_begins_with_what_the_verdict_is_about(opened, tmp_path):
    """Pages of 16 and a budget of 2048, whatever comes first."""
    cases = [(size, budget) for size in (8, 16, 32) for budget in (1024, 2048)]
    counted = [traced(Point(SHAPE, 8192, page_size=size, token_budget=budget)) for size, budget in cases]
    timed = [r for size in (8, 16, 32) for r in two_baselines(page_size=size)]
    found = opened(path=write_report([profile(*timed, *counted)], tmp_path / "first.html"))
    chosen = "(id) => [...document.querySelectorAll(`#p1-${id} select`)].map((one) => one.value).join()"
    assert found.evaluate(f"({chosen})('length-scan')") == "16"
    assert found.evaluate(f"({chosen})('bytes')") == "16,2048"


def test_a_page_of_many_settings_opens(opened, tmp_path):
    records = [r for n in range(1, 25) for r in two_baselines(batch_size=n)]
    found = opened(path=write_report([profile(*records)], tmp_path / "many.html"))
    assert found.evaluate("document.querySelectorAll('#p1-length-scan .panel:not([hidden])').length") == 1
