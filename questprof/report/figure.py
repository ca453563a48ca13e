"""The length-scan figure: every curve in three units, as plotly's JSON with the numbers of the table.

A trace carries `meta`: its role (which colour and when it shows), its budget, and its y values per unit;
page.js picks one unit and one budget and hands the result to plotly. Text of a profile is escaped here,
because plotly reads a little HTML in names and hover texts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from questprof.crossover.sentences import crossover, format_length
from questprof.crossover.tables import MEASURED, MODELLED
from questprof.rows import Row, Series, Stat
from questprof.units import format_count, six_digits

UNITS: Final = (
    ("us", "us", "time, us", "log"),
    ("x", "x dense", "time / fastest dense", "log"),
    ("gb_s", "GB/s", "eq. (12) bytes / time, GB/s", "linear"),
)
"""Key in `meta.y`, name of the button, title of the axis, type of the axis."""
_DENSE_MARKS: Final = (
    ("square", "solid"), ("diamond", "dot"), ("pentagon", "dashdot"), ("hexagon", "dot"),
    ("star", "dashdot"), ("triangle-down", "solid"), ("cross", "dot"), ("x", "dashdot"),
)  # fmt: skip
_QUEST_MARKS: Final = ("circle", "triangle-up", "triangle-down", "star", "hexagram", "bowtie")
_STAGE_MARKS: Final = {
    "score": "diamond-open",
    "select": "x-open",
    "attend": "square-open",
    "append": "cross-open",
}
_RANKS: Final = ("dense", "quest", "score", "select", "attend", "append", "crossing", "predicted", "ceiling")
MOST_BUDGETS: Final = 12
MOST_TICKS: Final = 12


class Cell(NamedTuple):
    """One point of a curve; `us` None draws a gap."""

    seq_len: float
    us: float | None
    dense_us: float | None
    num_bytes: float | None = None
    stat: Stat | None = None


def figure(series: Sequence[Series], predicted: Sequence[float | None] = ()) -> dict[str, Any]:
    """Figure of the series of one panel (they differ in budget alone), for page.js.

    `data` and `layout` are plotly's; `budgets`, `crossings` (x in tokens) and `units` feed the controls.
    `predicted`: the modelled crossover of each series, tokens.
    """
    modelled = dict(zip([one.token_budget for one in series], predicted, strict=False))
    shown = _spread_out(series)
    rows = [row for one in shown for row in one.rows]
    traces = [
        *_dense(rows),
        *(trace for i, one in enumerate(shown) for trace in _quest(one, i, len(shown))),
        *filter(None, (_predicted(one, modelled.get(one.token_budget)) for one in shown)),
    ]
    lengths = sorted({row.seq_len for row in rows})
    ticks = [length for length in lengths if length & (length - 1) == 0]
    ticks = ticks if len(ticks) >= 2 else lengths[:: -(-len(lengths) // MOST_TICKS)]
    axis = {"type": "log", "tickvals": ticks, "ticktext": [format_count(tick) for tick in ticks]}
    return {
        "data": traces,
        "layout": {"xaxis": axis | {"title": {"text": "context length, tokens", "standoff": 6}}},
        "units": {key: {"title": title, "type": kind} for key, _, title, kind in UNITS},
        "budgets": [one.token_budget for one in shown],
        "crossings": [mark for one in shown if (mark := _crossing_mark(one))],
    }


def _spread_out(series: Sequence[Series]) -> Sequence[Series]:
    """At most MOST_BUDGETS of them, first and last included: more curves tell nothing."""
    if len(series) <= MOST_BUDGETS:
        return series
    places = {round(i * (len(series) - 1) / (MOST_BUDGETS - 1)) for i in range(MOST_BUDGETS)}
    return [series[place] for place in sorted(places)]


def _dense(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One curve per dense baseline, their floor, and the read ceiling (GB/s only)."""
    names = dict.fromkeys(baseline.name for row in rows for baseline in row.baselines if baseline.stat)
    traces = []
    for i, name in enumerate(names):
        symbol, dash = _DENSE_MARKS[i % len(_DENSE_MARKS)]
        cells = [
            Cell(row.seq_len, b.stat.median, row.dense_us, row.floor_bytes.get("dense"), b.stat)
            for row in rows
            for b in row.baselines
            if b.name == name and b.stat and not b.alarm
        ]
        traces.append(_trace(f"dense, {name}", "dense", None, cells, symbol=symbol, dash=dash))
    return [trace for trace in (*traces, _floor("dense", None, rows), _ceiling(rows)) if trace["x"]]


def _ceiling(rows: Sequence[Row]) -> dict[str, Any]:
    read = {row.seq_len: row.ceiling_gb_s for row in rows if row.ceiling_gb_s}
    trace = _trace("read ceiling", "ceiling", None, [Cell(n, None, None) for n in read], dash="dash")
    trace["meta"]["y"]["gb_s"] = [read[length] for length in trace["x"]]
    return trace


def _quest(one: Series, index: int, num_budgets: int) -> list[dict[str, Any]]:
    """Stages, total, floor and crossing of one budget."""
    budget = one.token_budget
    stages = [_stage(one, stage, symbol) for stage, symbol in _STAGE_MARKS.items()]
    total = _stage(one, "quest", _QUEST_MARKS[index % len(_QUEST_MARKS)])
    total["name"] = f"Quest, budget {one.budget_text}"
    if num_budgets > 1 and total["x"]:
        total["text"] = [*[""] * (len(total["x"]) - 1), one.budget_text]
        side = "bottom" if index == 0 else "top" if index == num_budgets - 1 else "middle"
        total |= {"mode": "lines+markers+text", "textposition": f"{side} right", "cliponaxis": False}
    traces = [*stages, total, _floor("quest", budget, one.rows), _crossing(one)]
    return [trace for trace in traces if trace and trace["x"]]


def _stage(one: Series, stage: str, symbol: str) -> dict[str, Any]:
    cells = [
        Cell(row.seq_len, stat.median, row.dense_us, row.floor_bytes.get(stage), stat)
        for row in one.rows
        if (stat := row.stats.get(stage)) and stage not in row.impossible
    ]
    return _trace(stage, stage, one.token_budget, cells, symbol=symbol, dash="solid")


def _floor(stage: str, budget: int | None, rows: Iterable[Row]) -> dict[str, Any]:
    cells = [Cell(row.seq_len, row.floor_us[stage], row.dense_us) for row in rows if stage in row.floor_us]
    name = f"{stage} floor".replace("quest", "Quest")
    return _trace(name, f"{stage}-floor", budget, cells, dash="dash", source=MODELLED)


def _trace(
    name: str,
    role: str,
    budget: int | None,
    cells: Sequence[Cell],
    *,
    dash: str,
    symbol: str = "",
    source: str = MEASURED,
) -> dict[str, Any]:
    """Cells in order of length, one per length (rows of several budgets repeat the dense ones)."""
    by_length = {cell.seq_len: cell for cell in cells}
    ordered = [by_length[length] for length in sorted(by_length)]
    values = {
        "us": [cell.us for cell in ordered],
        "x": [six_digits(cell.us / cell.dense_us) if cell.us and cell.dense_us else None for cell in ordered],
        "gb_s": [
            six_digits(cell.num_bytes / cell.us / 1e3) if cell.us and cell.num_bytes else None
            for cell in ordered
        ],
    }
    stats = [cell.stat for cell in ordered]
    spread = [
        [six_digits(stat.p10), six_digits(stat.p90), stat.num_samples] if stat else None for stat in stats
    ]
    meta = {"role": role, "budget": budget, "source": source, "y": values, "spread": spread}
    return {
        "name": html.escape(name),
        "x": [cell.seq_len for cell in ordered],
        **({} if symbol else {"mode": "lines"}),
        "line": {"dash": dash},
        **({"marker": {"symbol": symbol}} if symbol else {}),
        "legendrank": _RANKS.index(role.split("-")[0]),
        "meta": meta,
    }


def _crossing(one: Series) -> dict[str, Any] | None:
    """A marker where Quest's curve meets the fastest dense one, on the same straight lines as the curves."""
    found = crossover(one)
    if found.seq_len is None or found.bracket is None:
        return None
    low, high = ({row.seq_len: row for row in one.rows}[length] for length in found.bracket)
    if not low.dense_us or not high.dense_us:
        return None
    share = math.log(found.seq_len / low.seq_len) / math.log(high.seq_len / low.seq_len)
    us = low.dense_us * (high.dense_us / low.dense_us) ** share
    name = f"crossover, budget {one.budget_text}"
    source = f"{MEASURED}, interpolated from {format_count(low.seq_len)} to {format_count(high.seq_len)}"
    cells = [Cell(found.seq_len, us, us)]
    trace = _trace(name, "crossing", one.token_budget, cells, dash="solid", symbol="x", source=source)
    return trace | {"mode": "markers", "showlegend": False}


def _predicted(one: Series, seq_len: float | None) -> dict[str, Any] | None:
    """A mark at the modelled crossover, on the measured dense curve; None where that does not reach it."""
    timed = [(row.seq_len, row.dense_us) for row in one.rows if row.dense_us]
    for (low, low_us), (high, high_us) in pairwise(timed):
        if seq_len and low <= seq_len <= high:
            us = low_us * (high_us / low_us) ** (math.log(seq_len / low) / math.log(high / low))
            name, cells = f"crossover, budget {one.budget_text}, modelled", [Cell(seq_len, us, us)]
            mark = {"dash": "solid", "symbol": "x-thin-open", "source": MODELLED}
            trace = _trace(name, "predicted", one.token_budget, cells, **mark)
            return trace | {"mode": "markers", "showlegend": False}
    return None


def _crossing_mark(one: Series) -> dict[str, Any] | None:
    """Where and how page.js labels the crossover of one budget."""
    found = crossover(one)
    at = found.seq_len or found.until
    if at is None:
        return None
    label = f"Quest is {'faster' if found.seq_len else 'slower'} from {format_length(at)}"
    if found.seq_len and found.until:
        label += f" to {format_length(found.until)}"
    return {"budget": one.token_budget, "x": at, "label": label}
