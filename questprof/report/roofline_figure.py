"""The roofline and the bandwidth curve as plotly's JSON, for page.js, with the numbers of the tables.

A trace carries `meta`: its role, which is its colour, and a text a point. Text of a profile is escaped here,
because plotly reads a little HTML in names and hover texts.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from questprof.roofline.finding import Roofline
from questprof.roofline.placing import Line, Placed
from questprof.units import format_bytes, six_digits

_SYMBOLS: Final = {"dense": "square", "score": "diamond", "attend": "triangle-up", "quest": "circle"}
"""Of the stages with a colour of their own; the others have a pentagon."""
_OPEN: Final = {("memory", "ledger"): "", ("cache", "ledger"): "-open", ("memory", "ncu"): "-open-dot"}
_DASHES: Final = ("solid", "dashdot", "dash", "dot")
_ROLES: Final = ("dense", "score", "attend", "quest")
"""Stages with a colour of their own."""
_BELOW, _BEYOND = 0.5, 4.0
"""How far the axis of intensity goes beyond the marks and beyond the last ridge."""


def roofline_figure(found: Roofline, names: Mapping[str, str]) -> dict[str, Any] | None:
    """Roofs and stages, GFLOP/s over operations a byte, both logarithmic; None without a roof or a stage."""
    marks = [(line, place) for line in found.lines for place in line.placed if place.intensity]
    if not marks or not found.memory_gb_s or not found.rates:
        return None
    bandwidths = {names["memory"]: found.memory_gb_s}
    if found.cache_gb_s:
        bandwidths[names["cache"]] = found.cache_gb_s
    rates = {f"{rate.dtype}, {rate.unit}: {rate.name}": 1e3 * rate.stat.median for rate in found.rates}
    left = _BELOW * min(place.intensity for _, place in marks)
    right = _BEYOND * max(rates.values()) / found.memory_gb_s
    data = [
        *_roofs(bandwidths, rates, left, right),
        *_marks(marks, names),
    ]
    axes = {
        "xaxis": {"type": "log", "title": {"text": "arithmetic intensity, FLOP/B"}},
        "yaxis": {"type": "log", "title": {"text": "GFLOP/s"}},
    }
    return _figure(data, axes)


def _roofs(
    bandwidths: Mapping[str, float], rates: Mapping[str, float], left: float, right: float
) -> Iterable[dict[str, Any]]:
    """Each bandwidth as a slope up to the highest rate, each rate as a level from its first ridge on."""
    top, fastest = max(rates.values()), max(bandwidths.values())
    for dash, (name, gb_s) in zip(_DASHES, bandwidths.items(), strict=False):
        x, text = [left, top / gb_s], f"{name}: {gb_s:.4g} GB/s"
        yield _trace(f"{name} roof", "ink", x, [gb_s * at for at in x], [text] * 2, dash=dash)
    for number, (name, gflop_s) in enumerate(rates.items()):
        x, text = [gflop_s / fastest, right], f"{name}: {gflop_s / 1e3:.4g} TFLOP/s"
        dash = _DASHES[number % len(_DASHES)]
        yield _trace(name, "muted", x, [gflop_s] * 2, [text] * 2, dash=dash)


def _marks(marks: Sequence[tuple[Line, Placed]], names: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    """One trace a stage, memory level and source of bytes."""
    groups: dict[tuple[str, str, str, str], list[tuple[Line, Placed]]] = {}
    for line, place in marks:
        groups.setdefault((line.stage, line.kernels, place.level, place.source), []).append((line, place))
    for (stage, kernels, level, source), group in groups.items():
        by = " by ncu" if source == "ncu" else ""
        other = f" ({kernels})" if stage == "dense" else ""
        yield _trace(
            f"{stage}{other}, {names[level]}{by}",
            stage if stage in _ROLES else "muted",
            [place.intensity for _, place in group],
            [place.gflop_s for _, place in group],
            [_hover(line, place, names) for line, place in group],
            symbol=_SYMBOLS.get(stage, "pentagon") + _OPEN[level, source],
        )


def _hover(line: Line, place: Placed, names: Mapping[str, str]) -> str:
    source = "measured: counter" if place.source == "ncu" else "modelled: formula"
    parts = [
        f"{line.stage} {line.where}, {line.kernels}",
        f"{place.intensity:.3g} FLOP/B ({source} bytes)",
        f"{place.gb_s:.4g} GB/s of {names[place.level]}, {place.gflop_s:.4g} GFLOP/s (time measured: clock)",
        *filter(None, [line.roof_text(names)]),
    ]
    return ", ".join(parts)


def curve_figure(found: Roofline, names: Mapping[str, str]) -> dict[str, Any] | None:
    """Bandwidth over working set; None without a curve."""
    if not found.sizes:
        return None
    data = []
    for operation, role, symbol in (("read", "quest", "circle"), ("copy", "attend", "square")):
        sizes = [one for one in found.sizes if one.operation == operation]
        x, y = [one.working_set_bytes for one in sizes], [one.stat.median for one in sizes]
        hover = [
            f"{operation}, {format_bytes(one.working_set_bytes)}: {one.stat.median:.4g} GB/s, {one.name}"
            for one in sizes
        ]
        data.append(_trace(operation, role, x, y, hover, symbol=symbol, joined=True))
    ends = [
        min(one.working_set_bytes for one in found.sizes),
        max(one.working_set_bytes for one in found.sizes),
    ]
    levels = {f"{names['memory']} roof": found.memory_gb_s}
    levels["vendor's bandwidth"] = found.vendor.gb_s if found.vendor else None
    for dash, (name, gb_s) in zip(("solid", "dash"), levels.items(), strict=True):
        if gb_s:
            text = f"{name}: {gb_s:.4g} GB/s"
            data.append(_trace(name, "muted", ends, [gb_s] * 2, [text] * 2, dash=dash))
    top = max(one.stat.median for one in found.sizes)
    places = {f"size of {names['cache']}": found.cache_bytes, "measured knee": found.knee_bytes}
    for dash, (name, size) in zip(("dot", "dashdot"), places.items(), strict=True):
        if size:
            text = f"{name}: {format_bytes(size)}"
            data.append(_trace(name, "ink", [size] * 2, [0, top], [text] * 2, dash=dash))
    ticks = sorted({one.working_set_bytes for one in found.sizes})[:: max(1, len(found.sizes) // 12)]
    axes = {
        "xaxis": {
            "type": "log",
            "title": {"text": "working set, read or copied again and again"},
            "tickvals": ticks,
            "ticktext": [format_bytes(tick) for tick in ticks],
        },
        "yaxis": {"type": "linear", "rangemode": "tozero", "title": {"text": "GB/s"}},
    }
    return _figure(data, axes)


def _trace(
    name: str,
    role: str,
    x: Sequence[float],
    y: Sequence[float],
    hover: Sequence[str],
    *,
    symbol: str = "",
    dash: str = "solid",
    joined: bool = False,
) -> dict[str, Any]:
    mode = ("lines+markers" if joined else "markers") if symbol else "lines"
    return {
        "name": html.escape(name),
        "x": [six_digits(value) for value in x],
        "y": [six_digits(value) for value in y],
        "mode": mode,
        "line": {"dash": dash},
        **({"marker": {"symbol": symbol}} if symbol else {}),
        "meta": {"role": role, "hover": [html.escape(text) for text in hover]},
    }


def _figure(data: Sequence[dict[str, Any]], axes: dict[str, Any]) -> dict[str, Any]:
    import plotly.graph_objects as go

    drawn = go.Figure(data=[go.Scatter(trace) for trace in data], layout=axes | {"template": "none"})
    found: dict[str, Any] = drawn.to_plotly_json()
    found["layout"].pop("template", None)
    return found
