"""Equation (13) from an attention speed-up that was measured alone, by `questprof sweep`. Pure.

Within a step, attention meets caches that the projections left and launches beside other kernels; alone it
does not. The prediction from the figure alone is what a sweep promises, so that both stand side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from questprof.amdahl.pairs import Pair
from questprof.equations import eq13_time_ratio
from questprof.model import Point, Profile
from questprof.rows import Row
from questprof.scan import scan_rows


@dataclass(frozen=True)
class Isolated:
    """An attention speed-up of a sweep, and the step's speed-up that equation (13) makes of it."""

    attention_speedup: float
    predicted_speedup: float


def isolated(profile: Profile, pairs: tuple[Pair, ...]) -> dict[str, Isolated]:
    """By point id of the Quest step, what the sweep rows of the same profile promise; others are left out.

    Rows count that are usable and of the same heads, dtype, layout, requests, pages and budgets.
    """
    rows: dict[tuple[object, ...], Row] = {}
    for row in scan_rows(profile):
        if row.usable:
            kept = rows.setdefault(_key(row.point), row)
            if row.data == "independent" != kept.data:
                rows[_key(row.point)] = row
    found = {}
    for pair in pairs:
        same = rows.get(_key(pair.point))
        if pair.check and same and same.speed_up:
            ratio = eq13_time_ratio(pair.check.served_share, same.speed_up)
            found[pair.point.point_id] = Isolated(same.speed_up, 1 / ratio)
    return found


def _key(point: Point) -> tuple[object, ...]:
    """What attention of one layer depends on."""
    shape = point.shape
    heads = (shape.num_qo_heads, shape.num_kv_heads, shape.head_dim)
    dtypes = (shape.kv_dtype, shape.effective_summary_dtype)
    asked = (point.lengths, point.budgets, point.page_size, point.policy)
    return (*heads, *dtypes, *asked, point.summary_layout, point.device)
