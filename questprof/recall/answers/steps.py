"""How the budget that 0.95 of the mass needs moves from query to query, and from one trace to another.

The need of a query is over all (layer, head) pairs: the median, and what PAIRS of them can do with. Tokens
are whole pages, in Quest's order unless it says oracle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pvariance

from questprof.recall.answers.evaluation import Evaluation
from questprof.recall.answers.needs import PAIRS, reaching
from questprof.recall.answers.segments import query_types
from questprof.recall.rows import SHARES
from questprof.samples import quantile

SHARE = 0.95


@dataclass(frozen=True)
class Step:
    """One query."""

    position: int
    type: str
    median_tokens: float
    most_tokens: int
    oracle_tokens: int
    """`most_tokens` in the oracle's order."""


@dataclass(frozen=True)
class TypeNeed:
    """The steps of one type: what PAIRS of the heads need, over its queries."""

    name: str
    num_queries: int
    first: int
    last: int
    """Positions."""
    low_tokens: float
    middle_tokens: float
    high_tokens: float
    """p10, median and p90 of `most_tokens`."""


@dataclass(frozen=True)
class Steps:
    """All queries of a trace at one page size."""

    page_size: int
    steps: tuple[Step, ...]
    types: tuple[TypeNeed, ...]
    change: float | None
    """Median change of a head's need from one query to the next, over its mean need; None for one query."""
    between_heads: float | None
    """Share of the variance of log need that lies between (layer, head), the rest being between queries.

    None where nothing varies."""

    @property
    def spread(self) -> tuple[float, float]:
        """p10 and p90 over the queries of what PAIRS of the heads need, tokens."""
        tokens = [step.most_tokens for step in self.steps]
        return quantile(tokens, 0.1), quantile(tokens, 0.9)


@dataclass(frozen=True)
class TraceNeed:
    """One trace among several, at the same page size."""

    source: str
    text: str
    generation: str
    num_queries: int
    longest_context: int
    median_tokens: float
    most_tokens: float
    """Medians over queries."""


def steps(evaluation: Evaluation, page_size: int) -> Steps:
    """The needs of every query at one page size."""
    at, positions = SHARES.index(SHARE), evaluation.trace.query_positions
    rows = evaluation.pages[page_size].pages
    quest = [row.needed_quest[at] for row in rows]
    oracle = [row.needed_oracle[at] for row in rows]
    types = query_types(evaluation.trace)
    name_of = {index: name for name, queries in types.items() for index in queries}
    found = tuple(
        Step(
            position=position,
            type=name_of[i],
            median_tokens=median(pages[i] for pages in quest) * page_size,
            most_tokens=reaching((pages[i] for pages in quest), PAIRS) * page_size,
            oracle_tokens=reaching((pages[i] for pages in oracle), PAIRS) * page_size,
        )
        for i, position in enumerate(positions)
    )
    by_type = tuple(_type(name, [found[i] for i in queries]) for name, queries in types.items())
    return Steps(page_size, found, by_type, _change(quest), _between(quest))


def _type(name: str, found: Sequence[Step]) -> TypeNeed:
    tokens = [step.most_tokens for step in found]
    return TypeNeed(
        name,
        len(found),
        found[0].position,
        found[-1].position,
        quantile(tokens, 0.1),
        median(tokens),
        quantile(tokens, 0.9),
    )


def _change(by_head: Sequence[Sequence[int]]) -> float | None:
    """Median over heads and neighbouring queries of |change| / the head's mean need."""
    changes = [abs(after - before) / fmean(pages) for pages in by_head for before, after in pairwise(pages)]
    return median(changes) if changes else None


def _between(by_head: Sequence[Sequence[int]]) -> float | None:
    """Between-group share of the variance of log2 need, groups being heads of equally many queries."""
    logs = [[math.log2(count) for count in pages] for pages in by_head]
    total = pvariance([value for own in logs for value in own])
    return pvariance([fmean(own) for own in logs]) / total if total > 0 else None


def trace_need(evaluation: Evaluation, page_size: int) -> TraceNeed:
    """One trace in brief."""
    found, trace = steps(evaluation, page_size).steps, evaluation.trace
    return TraceNeed(
        trace.source,
        trace.text,
        trace.generation,
        len(found),
        max(trace.query_positions) + 1,
        median(step.median_tokens for step in found),
        median(step.most_tokens for step in found),
    )
