"""Plain figures of curves as plotly's JSON for page.js; names and texts are escaped for plotly's markup."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from questprof.units import format_count, six_digits

SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star", "pentagon", "bowtie")
DASHES: Final = ("solid", "dash", "dot", "dashdot")
ROLES: Final = ("quest", "attend", "score", "select", "dense", "link", "muted")
MOST_CURVES: Final = 14
"""Curves of one figure: more cannot be told apart, and the table has them all."""


class Curve(NamedTuple):
    """One curve: `hover` a text a point, `spread` the lower and upper end of each point's bar."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    hover: Sequence[str]
    spread: Sequence[tuple[float, float]] = ()
    joined: bool = True
    role: str = ""
    dash: str = ""


def curves(found: Sequence[Curve], x_title: str, y_title: str, *, log_y: bool = True) -> dict[str, Any]:
    """A figure of `found`; x is logarithmic, with ticks at its values where these are few."""
    drawn = found[:MOST_CURVES]
    values = sorted({x for curve in drawn for x in curve.x})
    xaxis: dict[str, Any] = {"type": "log", "title": {"text": x_title}}
    if len(values) <= 16 and all(float(x).is_integer() for x in values):
        xaxis |= {"tickvals": values, "ticktext": [format_count(int(x)) for x in values]}
    yaxis = {"type": "log" if log_y else "linear", "title": {"text": y_title}}
    return {
        "data": [_trace(curve, number) for number, curve in enumerate(drawn)],
        "layout": {"xaxis": xaxis, "yaxis": yaxis},
    }


def _trace(curve: Curve, number: int) -> dict[str, Any]:
    bars: dict[str, Any] = {}
    if curve.spread:
        ends = list(zip(curve.y, curve.spread, strict=True))
        bars = {
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [six_digits(max(0.0, high - (y or 0.0))) for y, (_, high) in ends],
                "arrayminus": [six_digits(max(0.0, (y or 0.0) - low)) for y, (low, _) in ends],
            }
        }
    return {
        "type": "scatter",
        "name": html.escape(curve.name),
        "x": [six_digits(x) for x in curve.x],
        "y": [None if y is None else six_digits(y) for y in curve.y],
        "mode": "lines+markers" if curve.joined else "markers",
        "line": {"dash": curve.dash or DASHES[number // len(SYMBOLS) % len(DASHES)]},
        "marker": {"symbol": SYMBOLS[number % len(SYMBOLS)]},
        **bars,
        "meta": {
            "role": curve.role or ROLES[number % len(ROLES)],
            "hover": [html.escape(text) for text in curve.hover],
        },
    }
