"""Points in the order in which few caches are filled, cut into batches of one profiler run each. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby

from questprof.model import Point


def cache_key(point: Point) -> Hashable:
    """What two points must share to be served by one filled cache."""
    return (
        point.shape,
        point.lengths,
        point.page_size,
        point.summary_layout,
        point.page_order,
        point.pool_bytes,
        point.data,
        point.seed,
    )


def by_cache(points: Sequence[Point]) -> list[list[Point]]:
    """The points of each cache together, caches in the order of their first points; repeats dropped."""
    first: dict[Hashable, int] = {}
    for point in points:
        first.setdefault(cache_key(point), len(first))
    unique = {point.point_id: point for point in points}.values()
    ordered = sorted(unique, key=lambda point: first[cache_key(point)])
    return [list(group) for _, group in groupby(ordered, key=cache_key)]


def batches(points: Sequence[Point], size: int) -> list[tuple[Point, ...]]:
    """Batches of at most `size` points; a cache's points part only where they alone exceed one batch."""
    found: list[tuple[Point, ...]] = []
    for group in by_cache(points):
        pieces = [tuple(group[start : start + size]) for start in range(0, len(group), size)]
        if found and len(found[-1]) + len(pieces[0]) <= size:
            found[-1] += pieces.pop(0)
        found += pieces
    return found


def halves(batch: tuple[Point, ...]) -> list[tuple[Point, ...]]:
    """The batch in two, between caches where that is near the middle; a batch of one as it is."""
    if len(batch) < 2:
        return [batch]
    middle = len(batch) / 2
    cuts = [i for i in range(1, len(batch)) if cache_key(batch[i]) != cache_key(batch[i - 1])]
    cut = min(cuts, key=lambda i: abs(i - middle), default=len(batch) // 2)
    return [batch[:cut], batch[cut:]]
