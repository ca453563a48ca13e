"""What a crossover is worth on real traffic: which share of decode steps gains, and how much time they save.

Pure: measured rows and lengths in, shares and gains out.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from questprof.crossover.predict import Model
from questprof.crossover.traffic import Traffic
from questprof.rows import Row


@dataclass(frozen=True)
class Coverage:
    """What one series says of one traffic. Shares are of 1; measured shares are of the lengths inside."""

    traffic: str
    num_lengths: int
    inside: float | None
    """Share of the decode steps at lengths between the shortest and the longest measured; None, as `below`
    and `above`, where no length has a valid pair of figures."""
    below: float | None
    above: float | None
    faster_requests: float | None
    """Share of the lengths inside (a request each) at which Quest is faster; None when none is inside."""
    faster_steps: float | None
    """The same, of the decode steps."""
    faster_time: float | None
    """The same, of the time that dense takes for them."""
    gain_always: float | None
    """Dense time over Quest time, summed over the steps inside: Quest at every length."""
    gain_chosen: float | None
    """Dense time over the smaller of the two: Quest where it is faster."""
    modelled_always: float | None
    """gain_always over all steps, with modelled times outside the lengths measured; None without a model."""
    modelled_chosen: float | None


def cover(
    rows: Iterable[Row], traffic: Traffic, model: Model | None = None, token_budget: int = 0
) -> Coverage:
    """What the rows of one series (one a length) say of `traffic`, each length as a batch of equal ones.

    Between measured lengths both times are straight in the logarithms; lengths within the budget count as
    they were measured. Outside them nothing is measured: only a `model` times those steps, apart.
    """
    found = [(r.seq_len, r.dense_us, r.quest_us) for r in rows if r.usable and r.dense_us and r.quest_us]
    curve = sorted(found)
    first, last = (curve[0][0], curve[-1][0]) if curve else (1, 0)
    weighed = list(zip(traffic.lengths, traffic.steps, strict=True))
    inside = [_Cell(steps, *_interpolated(curve, at)) for at, steps in weighed if first <= at <= last]
    outside = [(at, steps) for at, steps in weighed if not first <= at <= last]
    cells = inside
    if model:
        cells = inside + [
            _Cell(steps, model.dense_us(at), model.quest_us(at, token_budget)) for at, steps in outside
        ]
    at_all, below, above = _places(weighed, first, last) if curve else (None, None, None)
    return Coverage(
        traffic.name,
        len(weighed),
        at_all,
        below,
        above,
        _share([(1.0, cell.faster) for cell in inside]),
        _share([(cell.steps, cell.faster) for cell in inside]),
        _share([(cell.steps * cell.dense_us, cell.faster) for cell in inside]),
        *_gains(inside),
        *(_gains(cells) if model else (None, None)),
    )


def _places(weighed: Sequence[tuple[float, float]], first: int, last: int) -> tuple[float, float, float]:
    """Shares of the steps from `first` to `last`, below and above."""
    total = sum(steps for _, steps in weighed)
    below = sum(steps for at, steps in weighed if at < first) / total
    above = sum(steps for at, steps in weighed if at > last) / total
    return sum(steps for at, steps in weighed if first <= at <= last) / total, below, above


class _Cell(NamedTuple):
    """Decode steps at one length, and the time of one by either side."""

    steps: float
    dense_us: float
    quest_us: float

    @property
    def faster(self) -> bool:
        return self.quest_us < self.dense_us


def _interpolated(curve: Sequence[tuple[int, float, float]], at: float) -> tuple[float, float]:
    """Dense and Quest time at a length within the curve."""
    right = min(max(1, bisect_right([length for length, _, _ in curve], at)), len(curve) - 1)
    low, high = curve[right - 1], curve[right]
    if low[0] == high[0]:
        return low[1], low[2]
    share = math.log(at / low[0]) / math.log(high[0] / low[0])
    dense, quest = (low[i] * (high[i] / low[i]) ** share for i in (1, 2))
    return dense, quest


def _share(weighed: Sequence[tuple[float, bool]]) -> float | None:
    total = sum(weight for weight, _ in weighed)
    return sum(weight for weight, holds in weighed if holds) / total if total else None


def _gains(cells: Sequence[_Cell]) -> tuple[float | None, float | None]:
    """Dense time over that of Quest always, and over that of the faster at each length."""
    dense = sum(cell.steps * cell.dense_us for cell in cells)
    if not dense:
        return None, None
    quest = sum(cell.steps * cell.quest_us for cell in cells)
    return dense / quest, dense / sum(cell.steps * min(cell.dense_us, cell.quest_us) for cell in cells)
