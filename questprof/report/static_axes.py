"""Plotly's traces through matplotlib's SVG renderer: lines, marks, stacked bars and heat maps.

The renderer draws; where things lie is worked out here, in pixels from the lower left corner. The axes of
matplotlib take eight times as long, most of it for measuring text that the browser lays out again.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

ROLES: Final = (
    "ink", "muted", "grid", "raised", "rule", "link", "alarm",
    "dense", "quest", "score", "select", "attend", "append",
)  # fmt: skip
COLOURS: Final = {role: f"#0a51{number:02x}" for number, role in enumerate(ROLES, start=16)}
"""A colour of its own for each of the page's, to be found again in the SVG."""
_ROLES: Final = {
    "dense-floor": "dense", "quest-floor": "quest", "ceiling": "muted", "crossing": "ink", "predicted": "ink"
}  # fmt: skip
"""As in page.js: roles that have the colour of another."""
_DASHES: Final = {"dash": (8, 5), "dot": (2, 3.5), "dashdot": (8, 4, 2, 4)}
_SYMBOLS: Final = {
    "circle": "o", "square": "s", "diamond": "D", "pentagon": "p", "hexagon": "h", "star": "*",
    "triangle-up": "^", "triangle-down": "v", "hexagram": "8", "bowtie": "d", "x": "X", "cross": "P",
    "x-thin": "x",
}  # fmt: skip
_HATCHES: Final = {"/": "//", "x": "xx", "-": "--", "\\": "\\\\", "|": "||", "+": "++", ".": ".."}
WIDTH: Final = 700
_LEFT, _RIGHT, _TOP, _TICKS, _TITLE = 62, 12, 8, 26, 30
_PLOT_HEIGHT: Final = 270
_MOST_COLUMNS, _LEGEND_ROW, _MOST_LEGEND, _MOST_TEXT = 4, 13, 24, 60
_LETTER: Final = 4.7
"""Pixels of a letter in the mean."""
_MOST_TICKS: Final = 12
_MOST_CELL_TEXTS: Final = 400
_LARGEST: Final = 1e150
"""Beyond it nothing was measured, and a difference of two such numbers overflows."""
Trace = Mapping[str, Any]


class Axis(NamedTuple):
    """Values to pixels: `low` lies at `start`, `high` at `end`; of names their places count."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    names: Mapping[Any, int]
    ticks: Sequence[tuple[float, str]]

    def at(self, value: Any) -> float | None:
        """The pixel of a value; None where it has none."""
        number = self.names.get(value) if self.names else value
        if not drawable(number) or (self.log and number <= 1 / _LARGEST):
            return None
        if self.log:
            share = math.log(number / self.low) / math.log(self.high / self.low)
        else:
            share = (number - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def drawable(value: Any) -> TypeGuard[float]:
    """Whether a figure can have a mark there."""
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < _LARGEST


def shown(spec: Mapping[str, Any]) -> list[Trace]:
    """The traces that page.js shows at first and that have a mark: the stages of one budget, every total."""
    budgets = spec.get("budgets") or [None]
    focus = spec.get("focus", budgets[(len(budgets) - 1) // 2])
    return [
        trace
        for trace in spec["data"]
        if trace.get("meta", {}).get("budget") in (None, focus) or trace["meta"]["role"] == "quest"
        if any(map(drawable, heights(trace)))
    ]


def heights(trace: Trace) -> Sequence[Any]:
    """Its values: those in us where it has several units; of a heat map all cells."""
    if trace.get("type") == "heatmap":
        return [value for row in trace["z"] for value in row]
    units = trace.get("meta", {}).get("y")
    found: Sequence[Any] = units["us"] if isinstance(units, Mapping) else trace.get("y") or ()
    return found


def picture_height(traces: Sequence[Trace]) -> int:
    """Pixels that a picture needs: plot, titles and legend."""
    rows = 0 if _is_map(traces) else -(-len(_named_traces(traces)) // _legend_columns(traces))
    return _TOP + _PLOT_HEIGHT + _TICKS + _TITLE + rows * _LEGEND_ROW


def draw(renderer: Any, spec: Mapping[str, Any], traces: Sequence[Trace]) -> None:
    """Draw the `traces` of a figure of the page."""
    layout = spec.get("layout", {})
    pen = Pen(renderer)
    base = pen.height - _TOP - _PLOT_HEIGHT
    xaxis = _xaxis(layout.get("xaxis", {}), traces)
    yaxis = _yaxis(layout.get("yaxis", {}), spec.get("units", {}).get("us", {}), traces, base)
    _frame(pen, xaxis, yaxis, not _is_map(traces))
    _titles(pen, layout, spec, base)
    ends: dict[float, list[float]] = {}
    for trace in traces:
        kind = trace.get("type", "scatter")
        if kind == "heatmap":
            _heat_map(pen, trace, xaxis, yaxis)
        elif kind == "bar":
            _bars(pen, trace, xaxis, yaxis, ends)
        else:
            _curve(pen, trace, xaxis, yaxis)
    if not _is_map(traces):
        _legend(pen, traces)


class Pen:
    """Matplotlib's renderer with the few strokes that a figure needs."""

    def __init__(self, renderer: Any) -> None:
        from matplotlib.markers import MarkerStyle
        from matplotlib.path import Path
        from matplotlib.transforms import Affine2D, IdentityTransform

        self.renderer, self.height = renderer, renderer.height
        self._path, self._plain, self._affine, self._marker = Path, IdentityTransform(), Affine2D, MarkerStyle

    def text(self, x: float, y: float, text: str, kind: str = "", turned: bool = False) -> None:
        """One line of text; `kind` is its class in style.css."""
        place = {"x": f"{x:.1f}", "y": f"{self.height - y:.1f}"}
        if turned:
            place["transform"] = f"rotate(-90 {place['x']} {place['y']})"
        self.renderer.writer.element("text", _plain(text), attrib=place | ({"class": kind} if kind else {}))

    def lines(
        self, runs: Sequence[Sequence[tuple[float, float]]], colour: str, width: float, dash: str
    ) -> None:
        """Broken lines, one a run of points."""
        points = [point for run in runs for point in run]
        if not points:
            return
        codes = [self._path.MOVETO if i == 0 else self._path.LINETO for run in runs for i in range(len(run))]
        gc = self._context(colour, width)
        if dash in _DASHES:
            gc.set_dashes(0, list(_DASHES[dash]))
        self.renderer.draw_path(gc, self._path(points, codes), self._plain)

    def marks(self, points: Sequence[tuple[float, float]], colour: str, symbol: str) -> None:
        """A mark at each point; a symbol that ends in `-open` is hollow."""
        from matplotlib.colors import to_rgb

        style = self._marker(_SYMBOLS.get(symbol.removesuffix("-open"), "o"))
        shape = style.get_transform() + self._affine().scale(6.5)
        face = None if symbol.endswith("-open") else to_rgb(colour)
        gc = self._context(colour, 1.0)
        self.renderer.draw_markers(gc, style.get_path(), shape, self._path(points), self._plain, face)

    def box(
        self, ends: tuple[float, float, float, float], colour: str, hatch: str = "", alpha: float = 1
    ) -> None:
        """A filled rectangle, x and y of two corners; with a hatch it is drawn and not filled."""
        from matplotlib.colors import to_rgb, to_rgba

        left, bottom, right, top = ends
        corners = [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]
        gc = self._context(colour, 0.8 if hatch else 0.0)
        gc.set_alpha(alpha)
        if hatch:
            gc.set_hatch(hatch)
            gc.set_hatch_color(to_rgba(colour))  # matplotlib before 3.10 reads the alpha too
        self.renderer.draw_path(gc, self._path(corners), self._plain, None if hatch else to_rgb(colour))

    def _context(self, colour: str, width: float) -> Any:
        gc = self.renderer.new_gc()
        gc.set_foreground(colour)
        gc.set_linewidth(width)
        return gc


def _is_map(traces: Sequence[Trace]) -> bool:
    return traces[0].get("type") == "heatmap"


def _colour(trace: Trace) -> str:
    role = trace.get("meta", {}).get("role", "ink")
    return COLOURS.get(_ROLES.get(role, role), COLOURS["ink"])


def _xaxis(own: Trace, traces: Sequence[Trace]) -> Axis:
    values = [x for trace in traces for x in trace.get("x") or ()]
    ends = _LEFT, WIDTH - _RIGHT
    if any(isinstance(x, str) for x in values):
        texts = dict(zip(own.get("tickvals") or (), own.get("ticktext") or (), strict=False))
        return _named(values, ends, texts)
    return _numbered([x for x in values if drawable(x)], own, ends, own.get("type") == "log", 0.05)


def _yaxis(own: Trace, unit: Trace, traces: Sequence[Trace], base: float) -> Axis:
    ends = base, base + _PLOT_HEIGHT
    if _is_map(traces):
        return _named(traces[0]["y"], ends, {})
    values = [y for trace in traces for y in heights(trace) if drawable(y)]
    values += [y for trace in traces for both in _ends(trace) for y in both if drawable(y)]
    bars = [trace for trace in traces if trace.get("type") == "bar"]
    if bars:
        values += [0.0, *_stacked(bars)]
    return _numbered(values, own, ends, (unit.get("type") or own.get("type")) == "log", 0.04)


def _stacked(bars: Sequence[Trace]) -> list[float]:
    """How far each stack reaches up and down."""
    sums: dict[tuple[Any, bool], float] = {}
    for trace in bars:
        for x, y in zip(trace["x"], heights(trace), strict=False):
            if drawable(y):
                sums[x, y < 0] = sums.get((x, y < 0), 0.0) + y
    return list(sums.values())


def _named(values: Sequence[Any], ends: tuple[float, float], texts: Mapping[Any, Any]) -> Axis:
    """An axis of names; `texts` are those that say something else below the axis."""
    names = {x: place for place, x in enumerate(dict.fromkeys(values))}
    every = -(-len(names) // (2 * _MOST_TICKS))
    ticks = [
        (float(place), str(texts.get(name, name))) for name, place in names.items() if place % every == 0
    ]
    return Axis(-0.5, len(names) - 0.5, *ends, False, names, ticks)


def _numbered(
    values: Sequence[float], own: Trace, ends: tuple[float, float], log: bool, margin: float
) -> Axis:
    from matplotlib.ticker import LogLocator, MaxNLocator

    values = [value for value in values if value > 1 / _LARGEST] if log else values
    low, high = min(values, default=1.0), max(values, default=2.0)
    if log:
        low, high = (low / 1.5, high * 1.5) if low == high else (low, high)
        wider = (high / low) ** margin
        low, high = low / wider, high * wider
        places = LogLocator(10, (1, 2, 5), numticks=_MOST_TICKS).tick_values(low, high)
    else:
        wider = margin * (high - low) or abs(high) or 1.0
        low, high = low - wider, high + wider
        places = MaxNLocator(6).tick_values(low, high)
    ticks = [(float(place), f"{place:g}") for place in places]
    if own.get("tickvals"):
        every = -(-len(own["tickvals"]) // (2 * _MOST_TICKS))
        ticks = list(zip(own["tickvals"], map(str, own["ticktext"]), strict=True))[::every]
    return Axis(low, high, *ends, log, {}, [tick for tick in ticks if low <= tick[0] <= high])


def _frame(pen: Pen, xaxis: Axis, yaxis: Axis, grid: bool) -> None:
    """Grid, tick labels and the two axes."""
    left, right, bottom, top = xaxis.start, xaxis.end, yaxis.start, yaxis.end
    x_ticks = [(x, text) for value, text in xaxis.ticks if (x := _tick(xaxis, value)) is not None]
    y_ticks = [(y, text) for value, text in yaxis.ticks if (y := _tick(yaxis, value)) is not None]
    if grid:
        runs = [[(x, bottom), (x, top)] for x, _ in x_ticks] + [[(left, y), (right, y)] for y, _ in y_ticks]
        pen.lines(runs, COLOURS["rule"], 0.6, "solid")
    pen.lines([[(left, top), (left, bottom), (right, bottom)]], COLOURS["muted"], 1.0, "solid")
    for x, text, row in _in_rows(x_ticks):
        pen.text(x, bottom - 12 - 10 * row, text, "tick")
    for y, text in y_ticks:
        pen.text(left - 5, y - 3, text, "tick side")


def _in_rows(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str, int]]:
    """(x, text, row) of ticks from left to right: what would touch its neighbour goes to a second row."""
    ends = [0.0, 0.0]
    placed = []
    for x, text in sorted(ticks):
        half = _LETTER * len(text) / 2 + 2
        row = next((row for row, end in enumerate(ends) if x - half >= end), None)
        if row is not None:
            ends[row] = x + half
            placed.append((x, text, row))
    return placed


def _tick(axis: Axis, value: float) -> float | None:
    """Pixel of a tick: of names the place itself counts."""
    return axis._replace(names={}).at(value)


def _titles(pen: Pen, layout: Trace, spec: Mapping[str, Any], base: float) -> None:
    y_title = spec.get("units", {}).get("us", {}).get("title") or _title(layout.get("yaxis", {}))
    pen.text((_LEFT + WIDTH - _RIGHT) / 2, base - _TICKS - 12, _title(layout.get("xaxis", {})), "middle")
    pen.text(14, base + _PLOT_HEIGHT / 2, y_title, "middle", turned=True)


def _title(axis: Trace) -> str:
    title = axis.get("title", "")
    return str(title.get("text", "") if isinstance(title, Mapping) else title)


def _curve(pen: Pen, trace: Trace, xaxis: Axis, yaxis: Axis) -> None:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(trace["x"], heights(trace), strict=False):
        place = xaxis.at(x), yaxis.at(y)
        if place[0] is None or place[1] is None:
            runs.append([])
        else:
            runs[-1].append((place[0], place[1]))
    runs = [run for run in runs if run]
    pen.lines(_spreads(trace, xaxis, yaxis), _colour(trace), 1.0, "solid")
    mode = trace.get("mode", "lines+markers")
    if "lines" in mode:
        pen.lines(runs, _colour(trace), 1.6, trace.get("line", {}).get("dash", "solid"))
    if "markers" in mode and runs:
        symbol = trace.get("marker", {}).get("symbol", "circle")
        pen.marks([point for run in runs for point in run], _colour(trace), symbol)


def _spreads(trace: Trace, xaxis: Axis, yaxis: Axis) -> list[list[tuple[float, float]]]:
    """A vertical line a point between its ends, where the trace tells them."""
    places = [
        (xaxis.at(x), yaxis.at(low), yaxis.at(high))
        for x, (low, high) in zip(trace["x"], _ends(trace), strict=False)
    ]
    return [
        [(x, low), (x, high)]
        for x, low, high in places
        if x is not None and low is not None and high is not None
    ]


def _ends(trace: Trace) -> list[tuple[Any, Any]]:
    """Lower and upper end of each point: percentiles of `meta.spread`, or plotly's `error_y`."""
    if spreads := trace.get("meta", {}).get("spread"):
        return [(one[0], one[1]) if one else (None, None) for one in spreads]
    bars = trace.get("error_y", {})
    return [
        (y - below, y + above) if all(map(drawable, (y, below, above))) else (None, None)
        for y, below, above in zip(
            trace.get("y") or (), bars.get("arrayminus", ()), bars.get("array", ()), strict=False
        )
    ]


def _bars(pen: Pen, trace: Trace, xaxis: Axis, yaxis: Axis, ends: dict[float, list[float]]) -> None:
    """Stacked: positive ones upwards from 0, negative ones downwards."""
    half = 0.36 * (xaxis.end - xaxis.start) / max(len(xaxis.names), 1)
    for x, y in zip(trace["x"], heights(trace), strict=False):
        middle = xaxis.at(x)
        if middle is None or not drawable(y) or not y:
            continue
        reached = ends.setdefault(middle, [0.0, 0.0])
        bottom, reached[y < 0] = reached[y < 0], reached[y < 0] + y
        edges = yaxis.at(bottom), yaxis.at(bottom + y)
        if edges[0] is not None and edges[1] is not None:
            pen.box((middle - half, edges[0], middle + half, edges[1]), _colour(trace), _hatch(trace))


def _hatch(trace: Trace) -> str:
    pattern = trace.get("marker", {}).get("pattern", {}).get("shape", "")
    return _HATCHES.get(pattern, "") if isinstance(pattern, str) else ""


def _heat_map(pen: Pen, trace: Trace, xaxis: Axis, yaxis: Axis) -> None:
    """Cells with their texts; the larger the value the less paper shows through."""
    values = [value for value in heights(trace) if drawable(value)]
    low, high = trace.get("zmin", min(values)), trace.get("zmax", max(values))
    dx = 0.48 * (xaxis.end - xaxis.start) / len(xaxis.names)
    dy = 0.46 * (yaxis.end - yaxis.start) / len(yaxis.names)
    for row, (y_name, cells) in enumerate(zip(trace["y"], trace["z"], strict=False)):
        for column, (x_name, value) in enumerate(zip(trace["x"], cells, strict=False)):
            x, y = xaxis.at(x_name), yaxis.at(y_name)
            if x is None or y is None or not drawable(value):
                continue
            share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5
            pen.box((x - dx, y - dy, x + dx, y + dy), _colour(trace), alpha=round(0.06 + 0.44 * share, 2))
            if len(values) <= _MOST_CELL_TEXTS:
                pen.text(x, y - 3, _cell_text(trace, row, column), "middle")


def _cell_text(trace: Trace, row: int, column: int) -> str:
    """What the template of a heat map writes into a cell: its text, or its value in a format."""
    template = str(trace["texttemplate"])
    if template == "%{text}":
        return str(trace["text"][row][column])
    return format(trace["z"][row][column], template.removeprefix("%{z:").removesuffix("}"))


def _named_traces(traces: Sequence[Trace]) -> list[Trace]:
    return [trace for trace in traces if trace.get("showlegend", True)][:_MOST_LEGEND]


def _legend_columns(traces: Sequence[Trace]) -> int:
    """As many as the longest name leaves room for."""
    longest = max((len(_plain(trace.get("name", ""))) for trace in _named_traces(traces)), default=0)
    return max(1, min(_MOST_COLUMNS, int((WIDTH - _LEFT) / (28 + _LETTER * (longest + 1)))))


def _legend(pen: Pen, traces: Sequence[Trace]) -> None:
    """Below, row by row: a line, mark or patch and the name."""
    named, columns = _named_traces(traces), _legend_columns(traces)
    rows = -(-len(named) // columns)
    for i, trace in enumerate(named):
        x = _LEFT + (i % columns) * (WIDTH - _LEFT) / columns
        y = (rows - i // columns) * _LEGEND_ROW - 8
        if trace.get("type") == "bar":
            pen.box((x, y - 3, x + 16, y + 5), _colour(trace), _hatch(trace))
        else:
            mode = trace.get("mode", "lines+markers")
            if "lines" in mode:
                dash = trace.get("line", {}).get("dash", "solid")
                pen.lines([[(x, y + 1), (x + 22, y + 1)]], _colour(trace), 1.6, dash)
            if "markers" in mode:
                pen.marks([(x + 11, y + 1)], _colour(trace), trace.get("marker", {}).get("symbol", "circle"))
        pen.text(x + 28, y - 2, trace.get("name", ""))


def _plain(text: str) -> str:
    """Text of one line: names come escaped for plotly, and the renderer escapes them again."""
    said = "".join(c if c.isprintable() else " " for c in html.unescape(text).replace("<br>", " "))
    return said if len(said) <= _MOST_TEXT else said[: _MOST_TEXT - 1] + "…"
