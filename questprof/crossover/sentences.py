"""The measured crossover in words: from which length Quest is faster than the fastest dense baseline.

Pure. `crossing.py` finds it, `predict.py` has the modelled one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from questprof.crossover.crossing import Crossover, Resampled, crossover, resampled
from questprof.grid import NORMAL_DATA
from questprof.points import Title, kernels, varying
from questprof.rows import Row, Series
from questprof.samples import LEVEL
from questprof.scan import point_key
from questprof.units import format_count, format_us

__all__ = [
    "Crossover",
    "between_text",
    "crossover",
    "format_length",
    "format_speed_up",
    "left_out_text",
    "overhead_text",
    "resampled_text",
    "sentence",
    "throughout_text",
    "verdicts",
    "warm_text",
]

_SETTINGS: Final[tuple[Title, ...]] = (
    lambda point: point.shape.name,
    lambda point: f"batch {point.batch_size}",
    lambda point: f"page {point.page_size}",
    lambda point: f"policy {point.policy}",
    lambda point: f"kernels {kernels(point)}",
    lambda point: f"{point.page_order} pages",
    lambda point: f"{point.data} keys" if point.data not in NORMAL_DATA else "normal keys",
)
"""What a sentence starts with where it differs between series, for a point of the series."""


def sentence(series: Series, shared: Series | None = None) -> str:
    """The crossover in plain words, e.g. `Budget 1024: Quest is faster from 11k tokens; 5.2x at 32k.`

    With GQA give the series of data `independent` and of data `shared`: the answer is then a range.
    """
    found = crossover(series)
    if shared is None or found.kind == "trivial":
        return _alone(series)
    best, same = crossover(shared), "the query heads of a group pick the same pages"
    if not (found.lengths and best.lengths):
        notes = ", group picking the same pages", ", group picking independently"
        return f"{_alone(shared, notes[0])} {_alone(series, notes[1])}"
    if _reach(found) == _reach(best):
        said = f"{_reach(best)}, whether {same} ({_at(best)}) or pick independently ({_at(found)}); "
        said += "real models lie between"
    else:
        said = f"{_reach(best, _doubt(best, shared))} if {same}, and "
        said += f"{_reach(found, _doubt(found, series))} if they pick independently; "
        both = [_at(best), _at(found)]
        if best.lengths[-1] == found.lengths[-1]:
            both[0] = format_speed_up(best.longest_speed_up or math.nan)
        said += f"real models lie between ({' and '.join(both)})"
    return f"{_budget(series)}: Quest is {said}.{_warm(best, found)}{_left_out(best, found)}"


def _budget(series: Series) -> str:
    """`Budget 1024`, with the summary layout where it is not equation (12)'s own."""
    layout = series.summary_layout
    return f"Budget {series.budget_text}{f', {layout} summary' if layout != 'paired' else ''}"


def _alone(series: Series, note: str = "") -> str:
    found = crossover(series)
    if not found.lengths:
        return f"{_budget(series)}{note}: {_no_curve(series, found)}."
    said = f"Quest is {_reach(found, _doubt(found, series))}; {_at(found)}"
    return f"{_budget(series)}{note}: {said}.{_warm(found)}{_left_out(found)}"


def verdicts(series: Iterable[Series]) -> tuple[str, ...]:
    """One sentence per series, in order; two that differ in data alone (GQA) make one sentence.

    Where the series differ in one of _SETTINGS, each sentence starts with those that do.
    """
    pairs: dict[bytes, dict[str, Series]] = {}
    for one in series:
        point = one.rows[0].point
        keys = "independent" if point.data in NORMAL_DATA else point.data
        pairs.setdefault(point_key(point, seq_len=0, data=keys), {})[one.data] = one
    settings = varying([next(iter(pair.values())).rows[0].point for pair in pairs.values()], _SETTINGS)
    said = []
    for pair, setting in zip(pairs.values(), settings, strict=True):
        where = ", ".join(setting)
        both = len(pair) == 2
        text = sentence(pair["independent"], pair["shared"]) if both else sentence(*pair.values())
        said.append(f"{where}: {text}" if where else text)
    return tuple(said)


def format_length(length: float, digits: int = 1) -> str:
    """An interpolated length in two or three digits: 11264.0 -> `11k`, 5200.0 -> `5.1k`, 700.4 -> `700`.

    `digits` after the point below 9.95k, one less below 99.5k and two less above.
    """
    if length < 1024:
        return f"{length:.0f}"
    value, suffix = (length / 1024, "k") if length < 1048576 else (length / 1048576, "m")
    fewer = 0 if value < 9.95 else 1 if value < 99.5 else 2
    text = f"{value:.{max(0, digits - fewer)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + suffix


def format_speed_up(speed_up: float) -> str:
    """`0.71x`, `1.04x`, `5.2x`, `12x`: as many digits as tell it from 1."""
    digits = 2 if speed_up < 2 else 1 if speed_up < 9.95 else 0
    return f"{speed_up:.{digits}f}x"


def _at(found: Crossover) -> str:
    return f"{format_speed_up(found.longest_speed_up or math.nan)} at {format_count(found.lengths[-1])}"


def resampled_text(found: Crossover, interval: Resampled | None, digits: int = 2) -> str:
    """`3.21k to 3.22k`, where the crossovers of LEVEL of the resamples lie; one length where both ends are.

    Empty without a crossover; `digits` as for `format_length`.
    """
    if interval is None or found.kind != "length":
        return ""
    first, last = (format_count(found.lengths[i]) for i in (0, -1))
    low = format_length(interval.low, digits) if interval.low else f"below {first}"
    high = format_length(interval.high, digits) if interval.high else f"beyond {last}"
    return f"{low} to {high}" if low != high else low


def _doubt(found: Crossover, series: Series) -> str:
    """The interval in brackets, for a sentence: where resampling moves the length as it is written there."""
    text = resampled_text(found, resampled(series, found), 1) if found.kind == "length" else ""
    return f" ({text} in {LEVEL:.0%} of resamples)" if " to " in text else ""


def overhead_text(rows: Iterable[Row]) -> str:
    """`6.16 us (1.45x dense) at 2k, 7.17 us (1.34x dense) at 4k`: what Quest costs where it saves nothing.

    The shortest and the longest such length; '' without one.
    """
    costs = [(row, row.overhead_us) for row in rows if row.overhead_us is not None and row.speed_up]
    ends = costs if len(costs) < 2 else [costs[0], costs[-1]]
    return ", ".join(
        f"{'-' * (cost < 0)}{format_us(abs(cost))} us ({format_speed_up(1 / (row.speed_up or math.nan))} "
        f"dense) at {format_count(row.seq_len)}"
        for row, cost in ends
    )


def _reach(found: Crossover, doubt: str = "") -> str:
    """`faster ...` or `not faster ...`, to follow "Quest is"; `doubt` as `_doubt` says it."""
    if found.kind in ("always", "never in range"):
        return throughout_text(found)
    turns = "" if found.steady else " (the last crossing of several: below it the two take turns)"
    if found.kind == "only between":
        return f"faster {between_text(found, 1)} tokens{turns}"
    return f"faster from {format_length(found.seq_len or math.nan)} tokens{doubt}{turns}"


def throughout_text(found: Crossover) -> str:
    """`faster at every length measured above the budget (8k to 128k)`, of the kinds with one answer.

    Of a single length it says that it is the only one.
    """
    said, every = ("faster", "every") if found.kind == "always" else ("not faster", "any")
    every = "the only" if len(found.lengths) == 1 else every
    return f"{said} at {every} length measured above the budget ({_span(found.lengths)})"


def between_text(found: Crossover, digits: int) -> str:
    """`only between 2k and 8k` or `only up to 8k`, of the kind `only between`, in `digits` of a length."""
    until = format_length(found.until or math.nan, digits)
    if found.seq_len is None:
        return f"only up to {until}"
    return f"only between {format_length(found.seq_len, digits)} and {until}"


def _span(lengths: Sequence[int]) -> str:
    first, last = format_count(lengths[0]), format_count(lengths[-1])
    return first if first == last else f"{first} to {last}"


def _no_curve(series: Series, found: Crossover) -> str:
    if found.kind == "trivial":
        cost = overhead_text(series.rows)
        warm = "; times of a cache, not of memory" if cost and any(row.warm for row in series.rows) else ""
        return (
            "it covers every length measured, so Quest reads every page and the summary too: "
            f"nothing to gain, and its cost on top{f', {cost}' if cost else ''}{warm}"
        )
    reasons = left_out_text(found.left_out)
    return f"no verdict, no length above the budget has a valid pair of figures ({reasons})"


def warm_text(*found: Crossover) -> str:
    """`warm at 2k, 4k`, or `warm at every length`: where the times are of a cache; '' where none is."""
    lengths = dict.fromkeys(length for one in found for length in one.lengths)
    warm = {length for one in found for length in one.warm}
    if not warm:
        return ""
    where = ", ".join(format_count(length) for length in sorted(warm))
    return f"warm at {where if warm < set(lengths) else 'every length'}"


def _warm(*found: Crossover) -> str:
    text = warm_text(*found)
    return f" Its times are {text}: of a cache, not of memory." if text else ""


def _left_out(*found: Crossover) -> str:
    rows = [row for one in found if one.lengths for row in one.left_out]
    return f" Left out: {left_out_text(rows)}." if rows else ""


def left_out_text(rows: Sequence[Row]) -> str:
    """Which rows are no evidence and why, `64k, 128k oom; 8k dense unstable`; '' without any."""
    by_reason: dict[str, dict[str, None]] = {}
    for row in rows:
        by_reason.setdefault(_why_left_out(row), {})[format_count(row.seq_len)] = None
    return "; ".join(f"{', '.join(lengths)} {why}" for why, lengths in by_reason.items())


def _why_left_out(row: Row) -> str:
    if row.status != "ok":
        return row.status
    if row.fastest is None:
        return "without a valid dense baseline"
    if row.speed_up is None:
        return "not timed" if row.quest_us is None else "faster than memory can be"
    if row.unsteady:
        return row.unsteady
    return f"dense {row.fastest.status}"
