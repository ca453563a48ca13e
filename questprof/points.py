"""Points in words: what a setting is called, and what tells one point of several from the others.

Pure. One home for the words, so that a table, a sentence and a heading call a point the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from questprof.grid import NORMAL_DATA
from questprof.model import Point
from questprof.units import count, format_count

Title = Callable[[Point], str]


def kernels(point: Point) -> str:
    """The backend, with the variant that was asked for: `questprof (cuda)`."""
    return f"{point.backend} ({point.variant})" if point.variant else point.backend


def _layers(point: Point) -> str:
    """Which layers of a Quest step stay dense; '' for other points."""
    if point.decode is None or point.policy == "dense":
        return ""
    if point.decode.layer_budgets:
        return "budgets by layer"
    first = point.decode.dense_layers
    return f"first {count(first, 'layer')} dense" if first else "no layer dense"


TITLES: Final[tuple[Title, ...]] = (
    lambda point: point.shape.name,
    lambda point: point.shape.kv_dtype,
    lambda point: f"batch {point.batch_size}",
    lambda point: f"page {point.page_size}",
    lambda point: point.policy,
    kernels,
    lambda point: point.summary_layout,
    lambda point: f"{point.page_order} pages",
    lambda point: f"{point.data} data",
    lambda point: f"seed {point.seed}",
    lambda point: f"{point.decode.weight_format} weights" if point.decode else "",
    lambda point: f"dense layers by {point.decode.dense_backend}" if point.decode else "",
    _layers,
)
"""What a point is called by, where it differs between points; '' what a point has none of."""


def setting(point: Point, *, queries: bool = True) -> str:
    """What points share that differ in length and budget alone, in words; the usual is left out.

    `queries` False: without what the query heads of a group ask, where points of both share the setting.
    """
    said = f"{point.shape.name} ({point.shape.kv_dtype}), batch {point.batch_size}, page {point.page_size}"
    said += f", {point.policy}" * (point.policy != "quest")
    said += f", {kernels(point)}" * (kernels(point) != "questprof")
    said += f", {point.summary_layout} summary" * (point.summary_layout != "paired")
    said += f", {point.page_order} pages" * (point.page_order != "shuffled")
    if point.data not in NORMAL_DATA:
        return f"{said}, {point.data} keys"
    return said + f", {point.data} queries" * (queries and point.shape.group_size > 1)


def settings(points: Sequence[Point]) -> list[str]:
    """`setting` of each of `points`, unique: where several read the same, with what else tells them apart."""
    return told_apart([setting(point) for point in points], points)


def told_apart(names: Sequence[str], points: Sequence[Point]) -> list[str]:
    """`names` of `points`, unique: where several read the same, with what else tells them apart."""
    found = list(names)
    for text, times in Counter(found).items():
        if times > 1:
            places = [i for i, other in enumerate(found) if other == text]
            alike = [points[i] for i in places]
            for i, said in zip(
                places, _unique([", ".join(row) for row in varying(alike)], alike), strict=True
            ):
                found[i] = f"{text}, {said}" if said else text
    return found


def varying(points: Sequence[Point], titles: Sequence[Title] = TITLES) -> list[list[str]]:
    """For each of `points` its titles, those alone that are not the same for all that have them."""
    said = [[title(point) for title in titles] for point in points]
    differ = [len({*column} - {""}) > 1 for column in zip(*said, strict=True)]
    return [[text for text, differs in zip(row, differ, strict=True) if differs and text] for row in said]


def labels(points: Sequence[Point]) -> list[str]:
    """A short name for each of `points`, unique: length, budget and what varies, `32k/2048 quest sdpa`."""
    found = [" ".join([_size(point), *said]) for point, said in zip(points, varying(points), strict=True)]
    return _unique(found, points)


def _unique(names: Sequence[str], points: Sequence[Point]) -> list[str]:
    """`names`, with the start of its id behind a name that several points share."""
    ids: dict[str, set[str]] = {}
    for name, point in zip(names, points, strict=True):
        ids.setdefault(name, set()).add(point.point_id)
    return [
        f"{name} {point.point_id[:6]}".strip() if len(ids[name]) > 1 else name
        for name, point in zip(names, points, strict=True)
    ]


def _size(point: Point) -> str:
    budget = f"/{format_count(point.token_budget)}" if point.token_budget else ""
    return format_count(point.seq_len) + budget
