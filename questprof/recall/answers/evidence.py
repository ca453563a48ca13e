"""Where the pages of the evidence are picked, and how alike neighbouring layers pick.

A head hits a span of evidence when it picks every page of it, a layer when one of its heads does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median_low

from questprof.recall.answers.evaluation import Evaluation
from questprof.recall.answers.words import one_line


@dataclass(frozen=True)
class Hits:
    """One span at one page size, budget and policy, over the queries that see all of it."""

    name: str
    page_size: int
    token_budget: int
    policy: str
    num_queries: int
    num_missed: int
    """Queries at which no layer hits."""
    first_layer: int | None
    """Median of the first layer that hits, over the other queries; None without any."""
    layers: float
    """Layers that hit, mean over the queries; `heads` the same of (layer, head)."""
    heads: float


@dataclass(frozen=True)
class Neighbours:
    """One page size, budget and policy, means over layers and queries."""

    page_size: int
    token_budget: int
    policy: str
    candidates: float
    """Pages that any head of a layer picks, over all pages."""
    jaccard: float | None
    """Of those pages of a layer and of the layer before; None where no layer has one before it."""


def hits(evaluation: Evaluation) -> tuple[Hits, ...]:
    """Every span that a query sees, case by case; empty for a trace without evidence."""
    return tuple(_hits(evaluation))


def _hits(evaluation: Evaluation) -> Iterator[Hits]:
    for (page_size, token_budget, policy), rows in evaluation.cases.items():
        for name in dict.fromkeys(row.name for row in rows.evidence):
            own = [row for row in rows.evidence if row.name == name]
            firsts = [row.first_layer for row in own if row.first_layer >= 0]
            yield Hits(
                name=one_line(name),
                page_size=page_size,
                token_budget=token_budget,
                policy=policy,
                num_queries=len(own),
                num_missed=len(own) - len(firsts),
                first_layer=median_low(firsts) if firsts else None,
                layers=fmean(row.hit_layers for row in own),
                heads=fmean(row.hit_heads for row in own),
            )


def neighbours(evaluation: Evaluation) -> tuple[Neighbours, ...]:
    """Case by case."""
    found = []
    for (page_size, token_budget, policy), rows in evaluation.cases.items():
        if rows.layers:
            alike = [row.jaccard for row in rows.layers if row.jaccard is not None]
            candidates = fmean(row.candidates for row in rows.layers)
            jaccard = fmean(alike) if alike else None
            found.append(Neighbours(page_size, token_budget, policy, candidates, jaccard))
    return tuple(found)
