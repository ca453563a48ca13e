"""static.py, static_axes.py: pictures hold the marks of the figure, text stays text, nothing collides."""

from __future__ import annotations

import html
import json
import re
import sys
from xml.etree import ElementTree

import pytest
from everything import everything

from profiles import profile, two_baselines
from questprof.report import render, static
from questprof.report.static_axes import COLOURS, WIDTH

MAP = {"type": "heatmap", "x": ["1024"], "y": ["8", "16"], "meta": {"role": "quest"}}
LINE = {
    "x": [1, 2, 4],
    "y": [1.0, 2.0, 4.0],
    "name": "one",
    "mode": "lines+markers",
    "meta": {"role": "quest"},
}


def picture(*traces, **layout) -> ElementTree.Element:
    """The picture of some traces, parsed as XML."""
    return ElementTree.fromstring(static.svg({"data": list(traces), "layout": layout}, "salt", "label"))


def marks(found: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(one.attrib["x"]), float(one.attrib["y"])) for one in found.iter("use")]


def texts(found: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in found.iter("text")]


def test_marks_lie_where_the_numbers_say():
    """On logarithmic axes 1, 2, 4 are as far apart as each other; the last mark is the legend's."""
    found = picture(LINE, xaxis={"type": "log"}, yaxis={"type": "log"})
    (x1, y1), (x2, y2), (x3, y3), _ = marks(found)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert 62 < x1 < x3 < WIDTH - 12
    assert texts(found)[-1] == "one"
    linear = marks(picture(LINE))
    assert linear[2][0] - linear[1][0] == pytest.approx(2 * (linear[1][0] - linear[0][0]), abs=0.3)


def test_a_spread_stays_inside_the_frame():
    """The first of 1, 2, 4 may lie from 0 to 10: where 10 and 0 would be is within the axes."""
    spread = {"arrayminus": [1.0, 0.0, 0.0], "array": [9.0, 0.0, 0.0]}
    (_, y1), _, (_, y4), _ = marks(picture(LINE | {"error_y": spread}))
    unit = (y1 - y4) / 3
    assert 8 < y4 - 6 * unit < y1 + unit < 8 + 270


def test_bars_stand_on_each_other():
    bars = [
        {"type": "bar", "x": ["8k"], "y": [y], "name": str(y), "meta": {"role": "score"}}
        for y in (3.0, 1.0, -2.0)
    ]
    paths = [one.attrib["d"] for one in picture(*bars).iter("path") if "z" not in one.attrib["d"]]
    boxes = [[float(n) for n in re.findall(r"[\d.]+", path)] for path in paths]
    boxes = [sorted(box[1::2]) for box in boxes if len(box) == 10][:3]
    first, second, third = ((box[0], box[-1]) for box in boxes)
    assert first[0] == pytest.approx(second[1], abs=0.1)  # y grows downwards
    assert third[0] == pytest.approx(first[1], abs=0.1)
    assert first[1] - first[0] == pytest.approx(3 * (second[1] - second[0]), abs=0.3)


def test_a_heat_map_writes_its_numbers_whole():
    """Digits of a text are no coordinates: 0.0938 stays 0.0938."""
    cells = MAP | {"z": [[0.0938], [None]], "text": [["0.0938"], [None]], "texttemplate": "%{text}"}
    assert texts(picture(cells)).count("0.0938") == 1


def test_a_heat_map_writes_its_values_in_its_format():
    cells = MAP | {"z": [[93.84], [7.06]], "texttemplate": "%{z:.0f}"}
    assert {"94", "7"} <= set(texts(picture(cells)))


def test_a_heat_map_is_as_pale_as_on_the_page():
    """From zmin to zmax, 0.06 to 0.5 of the colour: 75 of 50 to 100 lies half way; below zmin is palest."""
    cells = MAP | {"z": [[75.0], [10.0]], "zmin": 50, "zmax": 100, "texttemplate": "%{z:.0f}"}
    shown = static.svg({"data": [cells], "layout": {}}, "s", "l")
    assert re.findall(r"opacity:\s*([\d.]+)", shown) == ["0.28", "0.06"]


def test_a_gap_breaks_the_line_and_has_no_mark():
    gap = LINE | {"y": [1.0, None, float("inf")]}
    assert len(marks(picture(gap))) == 1 + 1
    assert static.svg({"data": [LINE | {"y": [None, None, None]}], "layout": {}}, "s", "l") == ""


@pytest.mark.parametrize(
    "text", ["$x^2$", "$\\frac{", "</svg><script>alert(1)</script>", "a\x00b\x1b[1m", "日本 😀", "_" * 9999]
)
def test_text_stays_text(text):
    found = picture(LINE | {"name": html.escape(text)})
    shown = "".join(c if c.isprintable() else " " for c in text)
    assert texts(found)[-1] == (shown if len(shown) <= 60 else shown[:59] + "…")
    assert {one.tag for one in found.iter()} <= {
        "svg",
        "g",
        "path",
        "use",
        "text",
        "defs",
        "style",
        "clipPath",
        "rect",
    }


def test_colours_become_those_of_the_page():
    text = static.svg({"data": [LINE], "layout": {}}, "salt", "label")
    assert "var(--quest)" in text
    assert "#0a51" not in text
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_ids_of_a_page_are_its_own_and_the_same_every_time():
    page = render(everything(), plotlyjs="cdn")
    ids = [
        name for one in re.findall(r"<svg.*?</svg>", page, re.S) for name in re.findall(r' id="([^"]*)"', one)
    ]
    assert len(ids) == len(set(ids)) > 20
    assert page.count('<svg class="picture"') == page.count('class="figure-data"')
    assert page == render(everything(), plotlyjs="cdn")
    for one in re.findall(r"<svg.*?</svg>", page, re.S):
        ElementTree.fromstring(one)
        wanted = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', one)
        assert {a or b for a, b in wanted} <= set(ids)


def test_of_too_many_figures_the_rest_is_said(monkeypatch, parse):
    monkeypatch.setattr(static, "MOST_PICTURES", 1)
    page = parse(render([profile(*two_baselines(), *two_baselines(batch_size=2))], plotlyjs="cdn"))
    assert "Drawn by script alone: 2 figures." in page.all("noscript")[-1][1]


def test_without_matplotlib_a_page_is_made_and_says_what_is_missing(monkeypatch, parse):
    static._has_matplotlib.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = parse(render([profile(*two_baselines())], plotlyjs="cdn"))
    static._has_matplotlib.cache_clear()
    assert "Drawn by script alone: 1 figure." in page.all("noscript")[0][1]
    assert len(page.figures) == 1


def test_every_figure_is_one_that_plotly_takes():
    """The page's JSON is not validated when it is made, which takes a third of the time: here it is."""
    import plotly.graph_objects as go

    page = render(everything(), plotlyjs="cdn")
    specs = [json.loads(text) for text in re.findall(r'class="figure-data">(.*?)</script>', page, re.S)]
    for spec in specs:
        figure = go.Figure(data=spec["data"], layout=spec["layout"])
        assert len(figure.data) == len(spec["data"])
    assert len(specs) > 20
