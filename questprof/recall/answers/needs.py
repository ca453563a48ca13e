"""Budgets that a share of the mass needs, layer by layer, counted from the pages that each query needed.

A budget *keeps* a share of the mass for a (head, query) pair when the pages that reach it, in the policy's
own order, are no more than floor(B / S). Nothing is interpolated: the pages are stored for every query.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from questprof.recall.answers.evaluation import Evaluation
from questprof.recall.rows import SHARES

PAIRS = 0.9
"""Share of the (head, query) pairs that a needed budget has to serve: a mean or a median would hide a
tenth."""
LONG = 0.5
"""Queries whose context is at least this share of the trace's longest count: short ones need less."""


@dataclass(frozen=True)
class Need:
    """What one layer needs at one page size for one share of the mass; tokens, whole pages."""

    layer: int
    page_size: int
    share: float
    median_tokens: int
    """Of half of the (head, query) pairs."""
    most_tokens: int
    """Of PAIRS of them."""
    oracle_tokens: int
    """Of PAIRS of them in the order of the true page maxima."""
    worst_head: int
    """The head whose own pairs need most."""
    worst_tokens: int
    """Of PAIRS of that head's queries."""


def long_queries(positions: Sequence[int]) -> tuple[int, ...]:
    """Indices of the queries that see at least LONG of the longest context."""
    longest = max(positions) + 1
    return tuple(i for i, position in enumerate(positions) if position + 1 >= LONG * longest)


def reaching(values: Iterable[int], share: float) -> int:
    """The least of `values` that at least `share` of them do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked) - 1e-9) - 1)]


def needed(
    evaluation: Evaluation, page_size: int, share: float, order: str
) -> dict[int, dict[int, list[int]]]:
    """Pages that the long queries need, by layer and head; `order` is `quest` or `oracle`."""
    at, queries = SHARES.index(share), long_queries(evaluation.trace.query_positions)
    found: dict[int, dict[int, list[int]]] = {}
    for row in evaluation.pages[page_size].pages:
        pages = (row.needed_quest if order == "quest" else row.needed_oracle)[at]
        found.setdefault(row.layer, {})[row.head] = [pages[i] for i in queries]
    return found


def needs(evaluation: Evaluation, page_size: int, share: float, pairs: float = PAIRS) -> tuple[Need, ...]:
    """A Need a layer, in the order of the layers."""
    quest = needed(evaluation, page_size, share, "quest")
    oracle = needed(evaluation, page_size, share, "oracle")
    return tuple(
        _need(layer, (page_size, share, pairs), quest[layer], oracle[layer]) for layer in sorted(quest)
    )


def _need(
    layer: int,
    of: tuple[int, float, float],
    quest: dict[int, list[int]],
    oracle: dict[int, list[int]],
) -> Need:
    page_size, share, pairs = of
    by_head = {head: reaching(pages, pairs) for head, pages in quest.items()}
    worst = max(by_head, key=lambda head: (by_head[head], -head))
    return Need(
        layer=layer,
        page_size=page_size,
        share=share,
        median_tokens=math.ceil(median(_flat(quest))) * page_size,
        most_tokens=reaching(_flat(quest), pairs) * page_size,
        oracle_tokens=reaching(_flat(oracle), pairs) * page_size,
        worst_head=worst,
        worst_tokens=by_head[worst] * page_size,
    )


def _flat(by_head: dict[int, list[int]]) -> list[int]:
    return [pages for queries in by_head.values() for pages in queries]
