"""From which length Quest is faster than the fastest dense baseline: the measured crossover of one series.

Pure. Between neighbouring lengths the logarithm of the speed-up is taken as linear in the logarithm of the
length, which is exact where both times are powers of the length. Only usable rows count (checked, stable,
possible), and only lengths above the budget: at or below it Quest reads every page and the summary too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from questprof.grid import NORMAL_DATA
from questprof.model import Point
from questprof.rows import Row, Series
from questprof.scan import point_key
from questprof.units import format_count

Kind = Literal["length", "only between", "always", "never in range", "trivial", "no valid point"]


_SETTINGS: Final[tuple[Callable[[Point], str], ...]] = (
    lambda point: point.shape.name,
    lambda point: f"batch {point.batch_size}",
    lambda point: f"page {point.page_size}",
    lambda point: f"policy {point.policy}",
    lambda point: f"kernels {point.backend}",
    lambda point: f"{point.page_order} pages",
    lambda point: f"{point.data} keys" if point.data not in NORMAL_DATA else "normal keys",
)
"""What a sentence starts with where it differs between series, for a point of the series."""


@dataclass(frozen=True)
class Crossover:
    """The answer for one series; lengths in tokens."""

    kind: Kind
    seq_len: float | None = None
    """Interpolated length of the last upward crossing."""
    bracket: tuple[int, int] | None = None
    """The neighbouring measured lengths around it."""
    until: float | None = None
    """Kind `only between`: the length from which Quest is slower again."""
    steady: bool = True
    """Whether the answer changes once at most; otherwise seq_len is the last of several crossings."""
    lengths: tuple[int, ...] = ()
    """Lengths that count: usable and above the budget."""
    longest_speed_up: float | None = None
    """Speed-up at the last of them."""
    left_out: tuple[Row, ...] = ()
    """Rows above the budget without a valid pair of figures."""


def crossover(series: Series) -> Crossover:
    """Where Quest becomes faster than the fastest dense baseline at each length of `series`."""
    above = [row for row in series.rows if not row.trivial]
    if not above:
        return Crossover("trivial")
    left_out = tuple(row for row in above if not row.usable)
    curve = [(row.seq_len, row.speed_up) for row in above if row.usable and row.speed_up]
    if not curve:
        return Crossover("no valid point", left_out=left_out)
    ups = [pair for pair in pairwise(curve) if pair[0][1] <= 1 < pair[1][1]]
    downs = [pair for pair in pairwise(curve) if pair[1][1] <= 1 < pair[0][1]]
    up, down = (pairs[-1] if pairs else None for pairs in (ups, downs))
    ends_faster = curve[-1][1] > 1
    kind: Kind = (
        ("length" if up else "always") if ends_faster else "only between" if down else "never in range"
    )
    return Crossover(
        kind,
        seq_len=_interpolate(*up) if up else None,
        bracket=(up[0][0], up[1][0]) if up else None,
        until=_interpolate(*down) if down and not ends_faster else None,
        steady=len(ups) + len(downs) <= 1,
        lengths=tuple(length for length, _ in curve),
        longest_speed_up=curve[-1][1],
        left_out=left_out,
    )


def _interpolate(one: tuple[int, float], other: tuple[int, float]) -> float:
    """Length at which the speed-up is 1, with log(speed-up) linear in log(length)."""
    (length, speed_up), (next_length, next_speed_up) = one, other
    share = math.log(speed_up) / (math.log(speed_up) - math.log(next_speed_up))
    return float(min(max(length * (next_length / length) ** share, length), next_length))


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
        said = f"{_reach(best)} if {same}, and {_reach(found)} if they pick independently; "
        both = [_at(best), _at(found)]
        if best.lengths[-1] == found.lengths[-1]:
            both[0] = format_speed_up(best.longest_speed_up or math.nan)
        said += f"real models lie between ({' and '.join(both)})"
    return f"{_budget(series)}: Quest is {said}.{_left_out(best, found)}"


def _budget(series: Series) -> str:
    """`Budget 1024`, with the summary layout where it is not equation (12)'s own."""
    layout = series.summary_layout
    return f"Budget {series.token_budget}{f', {layout} summary' if layout != 'paired' else ''}"


def _alone(series: Series, note: str = "") -> str:
    found = crossover(series)
    said = f"Quest is {_reach(found)}; {_at(found)}" if found.lengths else _no_curve(found)
    return f"{_budget(series)}{note}: {said}.{_left_out(found)}"


def verdicts(series: Iterable[Series]) -> tuple[str, ...]:
    """One sentence per series, in order; two that differ in data alone (GQA) make one sentence.

    Where the series differ in one of _SETTINGS, each sentence starts with those that do.
    """
    pairs: dict[bytes, dict[str, Series]] = {}
    for one in series:
        point = one.rows[0].point
        keys = "independent" if point.data in NORMAL_DATA else point.data
        pairs.setdefault(point_key(point, seq_len=0, data=keys), {})[one.data] = one
    settings = [_setting(next(iter(pair.values()))) for pair in pairs.values()]
    differ = [i for i in range(len(_SETTINGS)) if len({setting[i] for setting in settings}) > 1]
    said = []
    for pair, setting in zip(pairs.values(), settings, strict=True):
        where = ", ".join(setting[i] for i in differ)
        both = len(pair) == 2
        text = sentence(pair["independent"], pair["shared"]) if both else sentence(*pair.values())
        said.append(f"{where}: {text}" if where else text)
    return tuple(said)


def _setting(one: Series) -> tuple[str, ...]:
    return tuple(text(one.rows[0].point) for text in _SETTINGS)


def format_length(length: float) -> str:
    """An interpolated length in two or three digits: 11264.0 -> `11k`, 5200.0 -> `5.1k`, 700.4 -> `700`."""
    if length < 1024:
        return f"{length:.0f}"
    value, suffix = (length / 1024, "k") if length < 1048576 else (length / 1048576, "m")
    text = f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
    return text.removesuffix(".0") + suffix


def format_speed_up(speed_up: float) -> str:
    """`0.71x`, `1.04x`, `5.2x`, `12x`: as many digits as tell it from 1."""
    digits = 2 if speed_up < 2 else 1 if speed_up < 9.95 else 0
    return f"{speed_up:.{digits}f}x"


def _at(found: Crossover) -> str:
    return f"{format_speed_up(found.longest_speed_up or math.nan)} at {format_count(found.lengths[-1])}"


def _reach(found: Crossover) -> str:
    """`faster ...` or `not faster ...`, to follow "Quest is"."""
    measured = _span(found.lengths)
    if found.kind == "always":
        return f"faster at every length measured above the budget ({measured})"
    if found.kind == "never in range":
        return f"not faster at any length measured above the budget ({measured})"
    turns = "" if found.steady else " (the last crossing of several: below it the two take turns)"
    start = f"from {format_length(found.seq_len)} " if found.seq_len else ""
    if found.until is not None:
        return f"faster only {start}{'to' if start else 'up to'} {format_length(found.until)} tokens{turns}"
    return f"faster {start}tokens{turns}"


def _span(lengths: Sequence[int]) -> str:
    first, last = format_count(lengths[0]), format_count(lengths[-1])
    return first if first == last else f"{first} to {last}"


def _no_curve(found: Crossover) -> str:
    if found.kind == "trivial":
        return (
            "it covers every length measured, so Quest reads every page and the summary too: "
            "nothing to gain, and its cost on top"
        )
    return f"no verdict, no length above the budget has a valid pair of figures ({_reasons(found.left_out)})"


def _left_out(*found: Crossover) -> str:
    rows = [row for one in found if one.lengths for row in one.left_out]
    return f" Left out: {_reasons(rows)}." if rows else ""


def _reasons(rows: Sequence[Row]) -> str:
    """`64k, 128k oom; 8k dense unstable`."""
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
        return f"{row.unsteady} samples too far apart"
    return f"dense {row.fastest.status}"
